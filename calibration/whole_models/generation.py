"""One greedy generation by Hugging Face's own `generate`, with the time of every token."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from calibration.profile.machine.device import ProfiledDevice
from calibration.whole_models.workloads import Point

FIRST_WORD: Final = 5  # below lie the special tokens

COUNTED_STEPS: Final = 2  # decode steps in which operations are counted: their count is linear in the context


@dataclass(slots=True)
class Stamps:
    """The start and the moment every token was there: wall clock, and events on a GPU."""

    device: ProfiledDevice
    wall_s: list[float] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)
    counts: list[float] = field(default_factory=list)
    counter: Any = None

    def mark(self) -> None:
        self.wall_s.append(time.perf_counter())
        if self.device.is_cuda:
            event = self.device.torch.cuda.Event(enable_timing=True)
            event.record()
            self.events.append(event)
        if self.counter is not None:
            self.counts.append(float(self.counter.get_total_flops()))

    def seconds(self) -> list[float]:
        """Since the start, one per token: by events on a GPU, else by the wall clock."""
        if not self.events:
            return [t - self.wall_s[0] for t in self.wall_s[1:]]
        self.events[-1].synchronize()
        return [float(self.events[0].elapsed_time(e)) * 1e-3 for e in self.events[1:]]


@dataclass(frozen=True, slots=True)
class Generation:
    """Seconds of one run. device_s and wall_s are the whole of it by events and by the clock, cpu_s the processor time
    of all threads in it."""

    prefill_s: float
    decode_s_per_token: float
    device_s: float
    wall_s: float
    cpu_s: float


@dataclass(slots=True)
class Generator:
    """A built model made ready: no token ends a generation early, none is forced."""

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
        """Random words, the same for the same lengths."""
        torch = self.device.torch
        drawn = torch.Generator().manual_seed(batch * 100003 + tokens)
        words = torch.randint(FIRST_WORD, int(self.model.config.vocab_size), (batch, tokens), generator=drawn)
        return words.to(self.device.kind)

    def run(self, prompt: Any, output_tokens: int, stamps: Stamps) -> None:
        """Generate. RuntimeError where the model did not give as many tokens as asked for."""
        torch = self.device.torch
        stop = self.transformers.StoppingCriteriaList([_marker(stamps, torch)])
        options = {"max_new_tokens": output_tokens, "do_sample": False, "num_beams": 1, "use_cache": True}
        if self.device.is_cuda:
            torch.cuda.synchronize()
        with torch.inference_mode():
            stamps.mark()
            self.model.generate(prompt, attention_mask=torch.ones_like(prompt), stopping_criteria=stop, **options)
        if len(stamps.wall_s) != output_tokens + 1:
            raise RuntimeError(f"the model gave {len(stamps.wall_s) - 1} tokens, {output_tokens} were asked for")

    def timed(self, prompt: Any, output_tokens: int) -> Generation:
        """One generation, timed."""
        stamps, cpu = Stamps(self.device), time.process_time()
        self.run(prompt, output_tokens, stamps)
        seconds = stamps.seconds()
        wall, used = time.perf_counter() - stamps.wall_s[0], time.process_time() - cpu
        decode = (seconds[-1] - seconds[0]) / (output_tokens - 1)
        return Generation(seconds[0], decode, seconds[-1], wall, used)

    def counted_flops(self, point: Point) -> float:
        """Operations of a point as torch.utils.flop_counter sees them, from a short run of one sequence: the count is
        linear in the batch, and that of a decode step linear in its context."""
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.utils.flop_counter import FlopCounterMode

        steps = min(COUNTED_STEPS, point.decode_steps)
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            stamps = Stamps(self.device, counter=counter)
            self.run(self.prompt(1, point.input_tokens), 1 + steps, stamps)
        each = np.diff(np.array(stamps.counts))
        return point.batch * extended(each.tolist(), point.decode_steps)


def extended(counts: list[float], decode_steps: int) -> float:
    """Sum of the prefill's count and `decode_steps` steps that go on as the first two do, by equal differences."""
    prefill, first = counts[0], counts[1]
    growth = counts[2] - first if len(counts) > 2 else 0.0
    return prefill + decode_steps * first + growth * decode_steps * (decode_steps - 1) / 2.0


def _marker(stamps: Stamps, torch: Any) -> Any:
    """A stopping criterion that never stops: `generate` asks it after every token."""

    def after_token(ids: Any, _scores: Any, **_rest: Any) -> Any:
        stamps.mark()
        return torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)

    return after_token
