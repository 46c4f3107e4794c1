"""Import results of `vllm bench serve --save-result --save-detailed` (vllm/benchmarks/serve.py, 0.10 to 0.32).

All lists are in seconds, one value per request in the order they were sent, including failed ones, which have no output
tokens. `start_times` is the client's own clock. Summaries such as `mean_ttft_ms` are milliseconds over finished
requests and must agree with the lists.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from calibration.accuracy.measured_run import MeasuredRun, Metric
from calibration.importers.parsing import Foreign, parse
from calibration.importers.request_rows import NAN, RequestRow, RunFacts, measured_run
from catalogs.errors import InputError

CLIENT: Final = "vllm bench serve"


class _Result(Foreign):
    duration: float
    input_lens: list[int]
    output_lens: list[int]
    ttfts: list[float]
    itls: list[list[float]]
    errors: tuple[str | None, ...] = ()
    start_times: tuple[float, ...] = ()
    latencies: tuple[float, ...] = ()
    mean_ttft_ms: float | None = None
    mean_tpot_ms: float | None = None
    mean_itl_ms: float | None = None


def recognises(document: Any) -> bool:
    """Return whether a JSON document is one of this client's results, detailed or not."""
    return isinstance(document, dict) and {"duration", "completed", "request_throughput"} <= document.keys()


def read_vllm_bench(document: dict[str, Any], source: str) -> MeasuredRun:
    """Return the measured run of a result.

    Raises:
        InputError: The lists are missing (no --save-detailed), differ in length, or contradict the summary.
    """
    if "ttfts" not in document:
        rule = "this result has no per-request lists"
        raise InputError(rule, source, hint="record with vllm bench serve --save-result --save-detailed")
    result = parse(_Result, document, "vllm bench result", source)
    _check_lengths(result, source)
    first_s = min(result.start_times, default=0.0)
    kept = [i for i in range(len(result.ttfts)) if not _failed(result, i)]
    closing = sum(_closes(result, i) for i in kept)
    notes = (f"the last gap of {closing:,} requests left out: its message held no token",) if closing else ()
    rows = [_row(result, i, first_s) for i in kept]
    n_failed = len(result.ttfts) - len(kept)
    run = measured_run(RunFacts(CLIENT, source, result.duration, n_failed, notes), rows)
    _check_means(result, run, len(rows), source, ("ttft", "tpot") if closing else ("ttft", "tpot", "itl"))
    return run


def _closes(result: _Result, i: int) -> bool:
    """Return whether a last message without a token (llama.cpp sends one) was counted as a gap."""
    return len(result.itls[i]) == result.output_lens[i] > 0


def _failed(result: _Result, i: int) -> bool:
    error = result.errors[i] if result.errors else None
    return bool(error) or (result.output_lens[i] == 0 and result.ttfts[i] == 0)


def _row(result: _Result, i: int, first_s: float) -> RequestRow:
    gaps = tuple(result.itls[i][:-1] if _closes(result, i) else result.itls[i])
    return RequestRow(
        arrival_s=result.start_times[i] - first_s if result.start_times else NAN,
        input_tokens=result.input_lens[i],
        output_tokens=result.output_lens[i],
        ttft_s=result.ttfts[i],
        e2e_s=result.latencies[i] if result.latencies else result.ttfts[i] + sum(gaps),
        itl_s=gaps,
    )


def _check_lengths(result: _Result, source: str) -> None:
    n, optional = len(result.ttfts), ("errors", "start_times", "latencies")
    for name in ("input_lens", "output_lens", "itls", *optional):
        found = len(getattr(result, name))
        if found != n and (found or name not in optional):
            raise InputError(f"lists of this result differ in length: {n} ttfts, {found} {name}", source)


def _check_means(result: _Result, run: MeasuredRun, n_finished: int, source: str, metrics: tuple[Metric, ...]) -> None:
    """Compare the client's own means over the same requests, against a wrong unit or an edited list."""
    if run.n < n_finished:  # the client averaged rows that are dropped here
        return
    for metric in metrics:
        key = f"mean_{metric}_ms"
        stated_ms, own_ms = getattr(result, key), run.stat(metric, "mean") * 1e3
        if stated_ms and np.isfinite(own_ms) and abs(own_ms - stated_ms) > 0.01 * stated_ms:
            raise InputError(f"{key} is {stated_ms:.4g} but the lists give {own_ms:.4g} ms; wrong unit?", source)
