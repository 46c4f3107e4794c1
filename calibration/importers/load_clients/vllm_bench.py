"""Import results of `vllm bench serve --save-result --save-detailed` (vllm/benchmarks/serve.py, 0.10 to 0.32).

All lists are in seconds, one value per request in the order they were sent, including failed ones, which have no output
tokens. `start_times` is the client's own clock. Summaries such as `mean_ttft_ms` are milliseconds over finished
requests and must agree with the lists. Without --save-detailed a result has only the summaries. SGLang's
`bench_serving` writes the same keys, except that its end-to-end time is `e2e_latency`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, Final

import numpy as np
from pydantic import BeforeValidator

from calibration.accuracy.measured_run import FailedRequest, MeasuredRun, Metric, OfferedLoad
from calibration.accuracy.measured_summary import DEVIATION, MeasuredSummary
from calibration.importers.load_clients.request_rows import NAN, RequestRow, RunFacts, measured_run
from calibration.importers.parsing import ForeignDocument, parse
from catalogs.errors import InputError
from catalogs.io.http import plain_text

CLIENT: Final = "vllm bench serve"

#: A statistic of the summary; the client writes the end-to-end time as "e2el".
_STATISTIC: Final = re.compile(r"(mean|median|std|p\d+(?:\.\d+)?)_(ttft|tpot|itl|e2el|e2e_latency)_ms")

_STATS: Final = {"median": "p50", "std": DEVIATION}

_METRICS: Final = {"e2el": "e2e", "e2e_latency": "e2e"}

_MAX_REASON: Final = 200  # characters of an error of a request


def _limit(value: object) -> object:
    """Return a limit of the load; None for the client's word for no limit."""
    return None if value in ("inf", math.inf) else value


_Limit = Annotated[float | None, BeforeValidator(_limit)]


class _Settings(ForeignDocument):
    request_rate: _Limit = None
    max_concurrency: _Limit = None
    ramp_up_strategy: str | None = None

    def offered(self) -> OfferedLoad:
        """Return the load that the client was set to offer."""
        rate, most = self.request_rate, self.max_concurrency
        usable = rate is not None and 0 < rate < math.inf and self.ramp_up_strategy is None
        return OfferedLoad(rate if usable else None, int(most) if most and 1 <= most < math.inf else None)


class _Summary(_Settings):
    duration: float
    completed: int
    failed: int = 0
    total_input_tokens: float = NAN
    total_output_tokens: float = NAN
    max_concurrent_requests: _Limit = None


class _Result(_Settings):
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


def is_summary(document: dict[str, Any]) -> bool:
    """Return whether a result has no per-request lists."""
    return "ttfts" not in document


def read_summary(document: dict[str, Any], source: str) -> MeasuredSummary:
    """Return the summary of a result without per-request lists.

    Raises:
        InputError: It has no latencies either.
    """
    facts = parse(_Summary, document, "vllm bench result", source)
    statistics: dict[str, dict[str, float]] = {}
    for key, value in document.items():
        found = _STATISTIC.fullmatch(key)
        if found is not None and isinstance(value, int | float) and math.isfinite(value):
            metric = _METRICS.get(found[2], found[2])
            statistics.setdefault(metric, {})[_STATS.get(found[1], found[1])] = value * 1e-3
    if not statistics:
        rule = "this result has no per-request lists and no summaries of latencies"
        raise InputError(rule, source, hint="record with vllm bench serve --save-result --save-detailed")
    n = max(facts.completed, 1)
    most = facts.max_concurrent_requests
    return MeasuredSummary(
        client=CLIENT,
        source=source,
        n=facts.completed,
        n_failed=facts.failed,
        duration_s=facts.duration,
        input_mean_tokens=facts.total_input_tokens / n,
        output_mean_tokens=facts.total_output_tokens / n,
        statistics_s=statistics,
        offered=facts.offered(),
        most_in_flight=None if most is None else int(most),
        notes=("this result has no single requests: --save-detailed keeps them",),
    )


def read_vllm_bench(document: dict[str, Any], source: str) -> MeasuredRun:
    """Return the measured run of a result.

    Raises:
        InputError: The lists are missing (no --save-detailed), differ in length, or contradict the summary.
    """
    if is_summary(document):
        rule = "this result has no per-request lists"
        raise InputError(rule, source, hint="record with vllm bench serve --save-result --save-detailed")
    result = parse(_Result, document, "vllm bench result", source)
    _check_lengths(result, source)
    first_s = min(result.start_times, default=0.0)
    failed = tuple(_failures(result))
    lost = {request.position for request in failed}
    kept = [i for i in range(len(result.ttfts)) if i not in lost]
    closing = sum(_closes(result, i) for i in kept)
    notes = (f"the last gap of {closing:,} requests left out: its message held no token",) if closing else ()
    rows = [_row(result, i, first_s) for i in kept]
    facts = RunFacts(CLIENT, source, result.duration, len(failed), notes, result.offered(), failed)
    run = measured_run(facts, rows)
    _check_means(result, run, len(rows), source, ("ttft", "tpot") if closing else ("ttft", "tpot", "itl"))
    return run


def _failures(result: _Result) -> Iterator[FailedRequest]:
    """Yield the requests that failed, with the last line of the client's error."""
    for i in range(len(result.ttfts)):
        error = (result.errors[i] if result.errors else None) or ""
        if error or (result.output_lens[i] == 0 and result.ttfts[i] == 0):
            lines = [line.strip() for line in error.splitlines() if line.strip()]
            yield FailedRequest(i, plain_text(lines[-1] if lines else "no answer", _MAX_REASON))


def _closes(result: _Result, i: int) -> bool:
    """Return whether a last message without a token (llama.cpp sends one) was counted as a gap."""
    return len(result.itls[i]) == result.output_lens[i] > 0


def _row(result: _Result, i: int, first_s: float) -> RequestRow:
    gaps = tuple(result.itls[i][:-1] if _closes(result, i) else result.itls[i])
    return RequestRow(
        arrival_s=result.start_times[i] - first_s if result.start_times else NAN,
        input_tokens=result.input_lens[i],
        output_tokens=result.output_lens[i],
        ttft_s=result.ttfts[i],
        e2e_s=result.latencies[i] if result.latencies else result.ttfts[i] + sum(gaps),
        itl_s=gaps,
        position=i,
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
