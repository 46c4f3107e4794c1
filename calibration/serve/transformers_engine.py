"""Hugging Face transformers' continuous batching in this process, as engine and load client in one.

It runs where only torch and transformers are installed (5.17 and later; `ContinuousBatchingManager` of
generation/continuous_batching/continuous_api.py). Weights are loaded once. Every replay starts a manager, which
generates in a thread, and stops it again. Attention is sdpa, without CUDA graphs and asynchronous batching, like the
simulated engine "transformers". Prompts are random token ids without shared prefixes; outputs are greedy and of exact
length. Token times are those of the engine (`record_timestamps`); an arrival is the time of submission to the engine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from calibration.accuracy.measured_run import MeasuredRun
from calibration.serve.clients import Endpoint, complete, timeout_s
from calibration.serve.engine_steps_log import StepsLog
from calibration.serve.engines import ServedLimits
from catalogs.errors import InputError
from catalogs.io.output_files import make_folder, write_json
from catalogs.workloads.request_set import RequestSet

if TYPE_CHECKING:
    import pandas as pd


STOP_S: Final = 60.0  # time to wait for the engine step in progress

#: Longest wait before the requests are looked at again, seconds.
TICK_S: Final = 0.5

#: The request that warms up the engine.
WARM_UP: Final = RequestSet(np.zeros(1), np.array([8]), np.array([2]))


@dataclass(slots=True)
class TransformersEngine:
    """A model on its device that serves requests within `limits`, one replay at a time."""

    model: Any  # transformers.PreTrainedModel
    limits: ServedLimits
    name: str = "transformers in process"
    log: StepsLog = field(default_factory=StepsLog)
    _busy: threading.Lock = field(default_factory=threading.Lock)
    _replays: int = 0

    @classmethod
    def load(cls, folder: Path, limits: ServedLimits) -> TransformersEngine:
        """Load the weights in `folder`, on the GPU where there is one.

        Raises:
            InputError: If a package is missing or the weights cannot be loaded.
        """
        torch, transformers = _packages()
        options = _options(torch, limits)
        try:
            model = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, **options)
            return cls(model.to(_device(torch, limits)).eval(), limits)
        except (OSError, ValueError, RuntimeError) as error:
            raise InputError(f"transformers cannot load this model: {_first_line(error)}", str(folder)) from None

    @classmethod
    def random(cls, config: dict[str, Any], limits: ServedLimits) -> TransformersEngine:
        """Make a model with random weights on the device.

        Args:
            config: The keys of a config.json.
            limits: Limits of the engine.

        Raises:
            InputError: If a package is missing or the model does not fit in memory.
        """
        torch, transformers = _packages()
        device, options = _device(torch, limits), _options(torch, limits)
        settings = transformers.AutoConfig.for_model(**config)
        try:
            with torch.device(device):
                model = transformers.AutoModelForCausalLM.from_config(settings, **options)
            return cls(model.to(device).eval(), limits)
        except RuntimeError as error:
            what = f"the model cannot be built on this machine: {_first_line(error)}"
            raise InputError(what, config.get("model_type")) from None

    @property
    def engine_version(self) -> str:
        """Return the version of transformers, or an empty text where it is not known."""
        with suppress(PackageNotFoundError):
            return version("transformers")
        return ""

    def steps(self) -> pd.DataFrame | None:
        """Return every engine step so far in the columns of an iteration log, or None where none are logged."""
        return self.log.frame()

    def replay(self, requests: RequestSet, target: Endpoint, out: Path) -> MeasuredRun:  # noqa: ARG002 (nothing is sent)
        """Serve `requests` and return the measured run; see `Client.replay`."""
        longest = int((requests.input_tokens + requests.output_tokens).max())
        if longest > self.limits.max_model_len:
            raise InputError("a request is longer than the engine's limit", longest, str(self.limits.max_model_len))
        if not self._busy.acquire(blocking=False):
            raise InputError("this engine is serving another replay", self.name)
        try:
            self._replays += 1
            prompts = _prompts(requests, int(self.model.config.vocab_size), self._replays)
            with self._manager() as manager:
                sent, done = _Replay(manager, requests, prompts).run()
        finally:
            self._busy.release()
        run = complete(_measured(requests, sent, done, self.name, str(out)), requests, out)
        columns = ("arrival_s", "input_tokens", "output_tokens", "ttft_s", "e2e_s", "itl_s")
        result = {name: getattr(run, name).tolist() for name in columns} | {"n_gaps": list(run.n_gaps)}
        result |= {"duration_s": run.duration_s, "client": run.client}
        write_json(result, str(make_folder(out) / "result.json"))
        return run

    @contextmanager
    def _manager(self) -> Iterator[Any]:
        """Run a manager that has served one warm-up request, and end its thread on exit."""
        from transformers import GenerationConfig

        greedy, batching = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0), _batching(self.limits)
        manager = self.model.init_continuous_batching(generation_config=greedy, continuous_batching_config=batching)
        try:
            manager.warmup()  # this makes the cache, which otherwise happens only in the thread
            self.log.attach(manager.batch_processor)
            manager.start()
            _Replay(manager, WARM_UP, _prompts(WARM_UP, int(self.model.config.vocab_size), 0)).run()
            self.log.on = True
            yield manager
        finally:
            self.log.on = False
            if manager.is_running():
                manager.stop(block=True, timeout=STOP_S, hard_stop=True)
            manager.destroy()


@dataclass(slots=True)
class _Replay:
    """The replay of a request set: it submits requests when they are due and collects the results."""

    manager: Any
    requests: RequestSet
    prompts: list[list[int]]
    sent: dict[str, float] = field(default_factory=dict)  # time of submission of each request, by perf_counter
    done: dict[str, Any] = field(default_factory=dict)

    def run(self) -> tuple[list[float], list[Any]]:
        """Serve all requests.

        Returns:
            The time of submission and the GenerationOutput of each request.

        Raises:
            InputError: If a request fails or the engine does not finish in time.
        """
        started = time.perf_counter()
        ends = started + timeout_s(self.requests)
        while len(self.done) < self.requests.n:
            result = self.manager.get_result(timeout=self._send_due(started))
            if result is None and not self.manager.is_running():
                raise InputError("the engine's thread ended", _stop_reason(self.manager))
            if result is None and time.perf_counter() > ends:
                finished = f"{len(self.done)} of {self.requests.n} requests finished"
                raise InputError("the engine did not finish the replay in time", finished)
            if result is not None and result.is_finished():
                if result.error:
                    raise InputError("a request failed in the engine", _first_line(result.error))
                self.done[result.request_id] = result
        return list(self.sent.values()), [self.done[name] for name in self.sent]

    def _send_due(self, started: float) -> float:
        """Submit every request that is due, and return the seconds until the next one is due, at most TICK_S."""
        while (i := len(self.sent)) < self.requests.n:
            now = time.perf_counter()
            if self.requests.concurrency is None:
                wait = float(self.requests.arrival_s[i]) - (now - started)
            else:  # the next request is due when a client has its response
                wait = TICK_S if i - len(self.done) >= self.requests.concurrency else 0.0
            if wait > 0:
                return min(wait, TICK_S)
            n_out = int(self.requests.output_tokens[i])
            name = self.manager.add_request(self.prompts[i], max_new_tokens=n_out, record_timestamps=True)
            if name is None:
                raise InputError("the engine accepts no more requests", _stop_reason(self.manager))
            self.sent[name] = now
        return TICK_S


def _measured(requests: RequestSet, sent: list[float], done: list[Any], client: str, source: str) -> MeasuredRun:
    times = [np.array(x.timestamps or (), dtype=float) for x in done]
    n_out = np.array([len(x.generated_tokens) for x in done])
    lost = sum(len(at) != n for at, n in zip(times, n_out, strict=True))
    if lost:
        raise InputError("requests lost their KV blocks and with them their token times; increase the KV blocks", lost)
    at, first, last = np.array(sent), np.array([x[0] for x in times]), np.array([x[-1] for x in times])
    with np.errstate(invalid="ignore", divide="ignore"):
        tpot = np.where(n_out > 1, (last - first) / (n_out - 1), np.nan)
    return MeasuredRun(
        client=client,
        source=source,
        arrival_s=at - at.min(),
        input_tokens=requests.input_tokens.astype(float),
        output_tokens=n_out.astype(float),
        ttft_s=first - at,
        tpot_s=tpot,
        e2e_s=last - at,
        itl_s=np.concatenate([np.diff(x) for x in times]),
        duration_s=float(last.max() - at.min()),
        n_failed=0,
        n_gaps=tuple(len(x) - 1 for x in times),
    )


def _prompts(requests: RequestSet, vocab_size: int, seed: int) -> list[list[int]]:
    rng = np.random.default_rng([requests.seed, seed])
    return [rng.integers(0, vocab_size, size=n).tolist() for n in requests.input_tokens.tolist()]


def _batching(limits: ServedLimits) -> Any:
    """Return the continuous-batching configuration for these limits, by the field names of the installed release."""
    from transformers import ContinuousBatchingConfig

    known = _batching_fields()
    wanted: dict[str, Any] = {
        "page_size" if "page_size" in known else "block_size": limits.block_size,
        "num_blocks": limits.kv_blocks or None,
        "max_batch_tokens": limits.max_num_batched_tokens,
        "max_requests_per_batch": limits.max_num_seqs,
        "allow_block_sharing": False,
        "use_async_batching": False,
        "use_cuda_graph": False,
        "auto_switch_to_flash": False,
    }
    return ContinuousBatchingConfig(**{name: value for name, value in wanted.items() if name in known})


def _batching_fields() -> set[str]:
    from transformers import ContinuousBatchingConfig

    return {f.name for f in fields(ContinuousBatchingConfig)}


def _options(torch: Any, limits: ServedLimits) -> dict[str, Any]:
    """Return the dtype and the name of sdpa attention.

    Releases that always switch to flash attention do not change a paged name; later ones accept only the plain name.
    """
    attention = "sdpa" if "auto_switch_to_flash" in _batching_fields() else "paged|sdpa"
    return {"dtype": getattr(torch, limits.torch_dtype), "attn_implementation": attention}


def _packages() -> tuple[Any, Any]:
    try:
        import torch
        import transformers
        from transformers import ContinuousBatchingConfig  # noqa: F401 (tests that the release has it)
    except ImportError as error:
        rule = "this engine requires torch and transformers 5.17 or later"
        raise InputError(rule, str(error), hint="pip install 'transformers>=5.17'") from None
    noise: Any = transformers.utils.logging
    noise.set_verbosity_error()
    noise.disable_progress_bar()
    return torch, transformers


def _device(torch: Any, limits: ServedLimits) -> str:
    if torch.cuda.is_available():
        return "cuda"
    torch.set_num_threads(limits.threads)
    return "cpu"


def _stop_reason(manager: Any) -> str:
    return _first_line(manager.background_thread_status.fatal_error or "it was stopped")


def _first_line(error: object) -> str:
    return str(error).strip().split("\n", 1)[0][:300]
