"""Hugging Face transformers' continuous batching in this process: engine and load client in one.

The engine that runs where only torch and transformers are installed (5.17 and later; `ContinuousBatchingManager` of
generation/continuous_batching/continuous_api.py). Weights are loaded once; every replay starts a manager, whose thread
generates, and stops it again. Attention is sdpa, without CUDA graphs and asynchronous batching, which is what the
simulated engine "transformers" is. Prompts are random token ids that nobody shares, outputs greedy and of exact length.
Token times are the engine's own (`record_timestamps`), arrivals are when the request was handed over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from calibration.accuracy.measured_run import MeasuredRun
from calibration.serve.clients import Endpoint, complete, patience_s
from calibration.serve.engine_steps_log import StepsLog
from calibration.serve.engines import ServedLimits
from catalogs.errors import InputError
from catalogs.io.output_files import make_folder, write_json
from catalogs.workloads.request_set import RequestSet

if TYPE_CHECKING:
    import pandas as pd


DTYPES: Final = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}

STOP_S: Final = 60.0  # one engine step, however long, is waited for

TICK_S: Final = 0.5

#: The request before the first.
WARM_UP: Final = RequestSet(np.zeros(1), np.array([8]), np.array([2]))


@dataclass(slots=True)
class TransformersEngine:
    """A model on its device, held to `limits`, loaded by the requests of `replay`. One replay at a time."""

    model: Any  # transformers.PreTrainedModel
    limits: ServedLimits
    name: str = "transformers in process"
    log: StepsLog = field(default_factory=StepsLog)
    _busy: threading.Lock = field(default_factory=threading.Lock)
    _replays: int = 0

    @classmethod
    def load(cls, folder: Path, limits: ServedLimits) -> TransformersEngine:
        """The weights in `folder`, on the GPU where there is one. InputError where they cannot be loaded."""
        torch, transformers = _packages()
        device = _device(torch, limits)
        try:
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=_dtype(torch, limits), attn_implementation=_attention(), local_files_only=True
            )
            return cls(model.to(device).eval(), limits)
        except (OSError, ValueError, RuntimeError) as error:
            raise InputError(f"transformers cannot load this model: {_first_line(error)}", str(folder)) from None

    @classmethod
    def random(cls, config: dict[str, Any], limits: ServedLimits) -> TransformersEngine:
        """A model of this config.json with random weights made on the device. InputError where it does not fit."""
        torch, transformers = _packages()
        device = _device(torch, limits)
        settings = transformers.AutoConfig.for_model(**config)
        try:
            with torch.device(device):
                model = transformers.AutoModelForCausalLM.from_config(
                    settings, dtype=_dtype(torch, limits), attn_implementation=_attention()
                )
            return cls(model.to(device).eval(), limits)
        except RuntimeError as error:
            raise InputError(
                f"this model cannot be made here: {_first_line(error)}", config.get("model_type")
            ) from None

    @property
    def engine_version(self) -> str:
        return _version()

    def steps(self) -> pd.DataFrame | None:
        """Every engine step so far, as the columns of an iteration log; None where this release tells none."""
        return self.log.frame()

    def replay(self, requests: RequestSet, target: Endpoint, out: Path) -> MeasuredRun:  # noqa: ARG002 (nothing is sent)
        longest = int((requests.input_tokens + requests.output_tokens).max())
        if longest > self.limits.max_model_len:
            raise InputError("a request is longer than the engine's limit", longest, str(self.limits.max_model_len))
        if not self._busy.acquire(blocking=False):
            raise InputError("this engine is in the middle of another replay", self.name)
        try:
            self._replays += 1
            prompts = _prompts(requests, int(self.model.config.vocab_size), self._replays)
            with self._manager() as manager:
                sent, done = _Drive(manager, requests, prompts).run()
        finally:
            self._busy.release()
        run = complete(_measured(requests, sent, done, self.name, str(out)), requests, out)
        make_folder(out)
        write_json(_document(run), str(out / "result.json"))
        return run

    @contextmanager
    def _manager(self) -> Iterator[Any]:
        """A running manager that has served one request; whatever happens inside, its thread is gone afterwards."""
        from transformers import GenerationConfig

        settings: Any = GenerationConfig
        greedy = settings(do_sample=False, eos_token_id=-1, pad_token_id=0)
        manager = self.model.init_continuous_batching(
            generation_config=greedy, continuous_batching_config=_batching(self.limits)
        )
        try:
            manager.warmup()  # makes the cache, which nothing else does before the thread runs
            self.log.watch(manager.batch_processor)
            manager.start()
            _Drive(manager, WARM_UP, _prompts(WARM_UP, int(self.model.config.vocab_size), 0)).run()
            self.log.on = True
            yield manager
        finally:
            self.log.on = False
            if manager.is_running():
                manager.stop(block=True, timeout=STOP_S, hard_stop=True)
            manager.destroy()


@dataclass(slots=True)
class _Drive:
    """Hands requests over when they are due, or when a client is free, and collects what comes back."""

    manager: Any
    requests: RequestSet
    prompts: list[list[int]]
    sent: list[float] = field(default_factory=list)  # perf_counter, by request
    done: dict[str, Any] = field(default_factory=dict)

    def run(self) -> tuple[list[float], list[Any]]:
        """(when each was sent, each one's GenerationOutput). InputError where one fails or nothing comes back."""
        started = time.perf_counter()
        ends = started + patience_s(self.requests)
        names: list[str] = []
        while len(self.done) < self.requests.n:
            wait = self._send_due(started, names)
            result = self.manager.get_result(timeout=wait)
            if result is not None and result.is_finished():
                self._take(result)
            elif result is None:
                self._check(ends)
        return self.sent, [self.done[name] for name in names]

    def _send_due(self, started: float, names: list[str]) -> float:
        """Send everything due now; seconds until the next is, at most TICK_S."""
        while len(names) < self.requests.n:
            i = len(names)
            wait = self._wait_s(i, time.perf_counter() - started)
            if wait > 0:
                return min(wait, TICK_S)
            self.sent.append(time.perf_counter())
            n_out = int(self.requests.output_tokens[i])
            name = self.manager.add_request(self.prompts[i], max_new_tokens=n_out, record_timestamps=True)
            if name is None:
                raise InputError("the engine takes no more requests", _why(self.manager))
            names.append(name)
        return TICK_S

    def _wait_s(self, i: int, now_s: float) -> float:
        """Until request i is due: its arrival, or TICK_S while every client waits for an answer."""
        if self.requests.concurrency is None:
            return float(self.requests.arrival_s[i]) - now_s
        return TICK_S if i - len(self.done) >= self.requests.concurrency else 0.0

    def _take(self, result: Any) -> None:
        if result.error:
            raise InputError("a request failed in the engine", _first_line(result.error))
        self.done[result.request_id] = result

    def _check(self, ends: float) -> None:
        if not self.manager.is_running():
            raise InputError("the engine's thread died", _why(self.manager))
        if time.perf_counter() > ends:
            raise InputError("the engine gave no answer in time", f"{len(self.done)} of {self.requests.n} requests")


def _measured(requests: RequestSet, sent: list[float], done: list[Any], client: str, source: str) -> MeasuredRun:
    times = [np.array(x.timestamps or (), dtype=float) for x in done]
    n_out = np.array([len(x.generated_tokens) for x in done])
    lost = sum(len(at) != n for at, n in zip(times, n_out, strict=True))
    if lost:
        raise InputError("requests lost their cache blocks and with them their times; give more blocks", lost)
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


def _document(run: MeasuredRun) -> dict[str, Any]:
    """Per-request lists, seconds."""
    columns = ("arrival_s", "input_tokens", "output_tokens", "ttft_s", "e2e_s", "itl_s")
    return {name: getattr(run, name).tolist() for name in columns} | {
        "n_gaps": list(run.n_gaps),
        "duration_s": run.duration_s,
        "client": run.client,
    }


def _prompts(requests: RequestSet, vocab_size: int, seed: int) -> list[list[int]]:
    rng = np.random.default_rng([requests.seed, seed])
    return [rng.integers(0, vocab_size, size=n).tolist() for n in requests.input_tokens.tolist()]


def _batching(limits: ServedLimits) -> Any:
    """The continuous-batching config of these limits, by the names this release knows."""
    from transformers import ContinuousBatchingConfig

    config: Any = ContinuousBatchingConfig
    known = {f.name for f in fields(config)}
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
    return config(**{name: value for name, value in wanted.items() if name in known})


def _attention() -> str:
    """Releases that always switch to flash attention leave a paged name alone; later ones know only the plain name."""
    from transformers import ContinuousBatchingConfig

    config: Any = ContinuousBatchingConfig
    return "sdpa" if "auto_switch_to_flash" in {f.name for f in fields(config)} else "paged|sdpa"


def _packages() -> tuple[Any, Any]:
    try:
        import torch
        import transformers
        from transformers import ContinuousBatchingConfig  # noqa: F401 (is it there?)
    except ImportError as error:
        raise InputError(
            "this engine needs torch and transformers 5.17 or later", str(error), "pip install 'transformers>=5.17'"
        ) from None
    noise: Any = transformers.utils.logging
    noise.set_verbosity_error()
    noise.disable_progress_bar()
    return torch, transformers


def _device(torch: Any, limits: ServedLimits) -> str:
    if torch.cuda.is_available():
        return "cuda"
    torch.set_num_threads(limits.threads)
    return "cpu"


def _dtype(torch: Any, limits: ServedLimits) -> Any:
    if limits.weight_dtype not in DTYPES:
        raise InputError("a comparison serves unquantised weights", limits.weight_dtype, "fp32, bf16 or fp16")
    return getattr(torch, DTYPES[limits.weight_dtype])


def _version() -> str:
    try:
        return version("transformers")
    except PackageNotFoundError:
        return ""


def _why(manager: Any) -> str:
    return _first_line(manager.background_thread_status.fatal_error or "it was stopped")


def _first_line(error: object) -> str:
    return str(error).strip().split("\n", 1)[0][:300]
