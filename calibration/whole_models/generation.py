"""One greedy generation by Hugging Face's `generate`, with the time of every token."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from calibration.profile.machine.device import ProfiledDevice
from calibration.whole_models.workloads import Point

FIRST_WORD: Final = 5  # smaller ids are special tokens

COUNTED_STEPS: Final = 2  # decode steps in which operations are counted; the count is linear in the context


@dataclass(slots=True)
class Stamps:
    """Time stamps of the start and of every token, by the wall clock and on a GPU by events."""

    device: ProfiledDevice
    wall_s: list[float] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)
    counts: list[float] = field(default_factory=list)
    counter: Any = None

    def mark(self) -> None:
        """Record the present time, and the operations counted so far where a counter is set."""
        self.wall_s.append(time.perf_counter())
        if self.device.is_cuda:
            event = self.device.torch.cuda.Event(enable_timing=True)
            event.record()
            self.events.append(event)
        if self.counter is not None:
            self.counts.append(float(self.counter.get_total_flops()))

    def seconds(self) -> list[float]:
        """Return the seconds from the start to each token, by events on a GPU and else by the wall clock."""
        if not self.events:
            return [t - self.wall_s[0] for t in self.wall_s[1:]]
        self.events[-1].synchronize()
        return [float(self.events[0].elapsed_time(e)) * 1e-3 for e in self.events[1:]]


@dataclass(frozen=True, slots=True)
class Generation:
    """Seconds of one generation.

    `device_s` and `wall_s` are the total by events and by the wall clock; `cpu_s` is the processor time of all threads.
    """

    prefill_s: float
    decode_s_per_token: float
    device_s: float
    wall_s: float
    cpu_s: float


@dataclass(slots=True)
class Generator:
    """A model that generates a given number of tokens: no token ends a generation early, and none is forced."""

    model: Any
    device: ProfiledDevice
    transformers: Any
    encoder_decoder: bool

    def __post_init__(self) -> None:
        settings = self.model.generation_config
        for name in ("eos_token_id", "forced_eos_token_id", "forced_bos_token_id"):
            setattr(settings, name, None)
        settings.pad_token_id = 0
        settings.bos_token_id = settings.bos_token_id or 0
        if self.encoder_decoder and settings.decoder_start_token_id is None:
            settings.decoder_start_token_id = 0

    def prompt(self, batch: int, tokens: int) -> Any:
        """Return random token ids, Shape (batch, tokens), which are equal for equal arguments."""
        torch = self.device.torch
        drawn = torch.Generator().manual_seed(batch * 100003 + tokens)
        words = torch.randint(FIRST_WORD, int(self.model.config.vocab_size), (batch, tokens), generator=drawn)
        return words.to(self.device.kind)

    def run(self, prompt: Any, output_tokens: int, stamps: Stamps) -> None:
        """Generate `output_tokens` tokens and record their times in `stamps`.

        Raises:
            RuntimeError: If the model generated another number of tokens.
        """
        torch = self.device.torch

        def after_token(ids: Any, _scores: Any, **_rest: Any) -> Any:
            """Record a time stamp; a stopping criterion is called for every token, and this one never stops."""
            stamps.mark()
            return torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)

        stop = self.transformers.StoppingCriteriaList([after_token])
        options = {"max_new_tokens": output_tokens, "do_sample": False, "num_beams": 1, "use_cache": True}
        if self.device.is_cuda:
            torch.cuda.synchronize()
        with torch.inference_mode():
            stamps.mark()
            self.model.generate(prompt, attention_mask=torch.ones_like(prompt), stopping_criteria=stop, **options)
        if len(stamps.wall_s) != output_tokens + 1:
            raise RuntimeError(f"the model generated {len(stamps.wall_s) - 1} tokens instead of {output_tokens}")

    def timed(self, prompt: Any, output_tokens: int) -> Generation:
        """Run one generation and return its times."""
        stamps, cpu = Stamps(self.device), time.process_time()
        self.run(prompt, output_tokens, stamps)
        seconds = stamps.seconds()
        wall, used = time.perf_counter() - stamps.wall_s[0], time.process_time() - cpu
        decode = (seconds[-1] - seconds[0]) / (output_tokens - 1)
        return Generation(seconds[0], decode, seconds[-1], wall, used)

    def counted_flops(self, point: Point) -> float:
        """Return the floating-point operations of a point as counted by torch.utils.flop_counter.

        They are extrapolated from a short run of one sequence, because the count is linear in the batch and the count
        of a decode step is linear in its context.
        """
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.utils.flop_counter import FlopCounterMode

        steps = min(COUNTED_STEPS, point.decode_steps)
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            stamps = Stamps(self.device, counter=counter)
            self.run(self.prompt(1, point.input_tokens), 1 + steps, stamps)
        each = np.diff(np.array(stamps.counts))
        return point.batch * extended(each.tolist(), point.decode_steps)


def extended(counts: list[float], decode_steps: int) -> float:
    """Return the operations of the prefill and of `decode_steps` decode steps, extrapolated linearly.

    Args:
        counts: Operations of the prefill and of the first one or two decode steps.
        decode_steps: Number of decode steps.
    """
    prefill, first = counts[0], counts[1]
    growth = counts[2] - first if len(counts) > 2 else 0.0
    return prefill + decode_steps * first + growth * decode_steps * (decode_steps - 1) / 2.0
