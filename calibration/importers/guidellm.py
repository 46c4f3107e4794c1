"""Import GuideLLM's benchmarks.json (report schema 2, guidellm 0.8; 0.3 and later share the names) as measured runs.

A report holds one benchmark per rate; each keeps its requests by status. Times are Unix seconds, except that names in
_ms are milliseconds. `time_per_output_token_ms` is (last token - start) / tokens and so includes the first token;
`inter_token_latency_ms` is TPOT as defined here. Single gaps are not in the file.
"""

from __future__ import annotations

from typing import Any, Final

from calibration.accuracy.measured_run import MeasuredRun
from calibration.importers.parsing import Foreign, parse
from calibration.importers.request_rows import NAN, RequestRow, RunFacts, measured_run
from catalogs.errors import InputError

CLIENT: Final = "guidellm"

NO_GAPS: Final = "guidellm keeps no single gaps: no ITL"


class _Timings(Foreign):
    request_start: float | None = None
    last_token_iteration: float | None = None


class _Info(Foreign):
    timings: _Timings = _Timings()


class _Request(Foreign):
    request_latency: float | None = None
    time_to_first_token_ms: float | None = None
    inter_token_latency_ms: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    request_start_time: float | None = None
    start_time: float | None = None  # before 0.4
    info: _Info = _Info()


class _Requests(Foreign):
    successful: list[_Request]
    errored: tuple[Any, ...] = ()
    incomplete: tuple[Any, ...] = ()


class _Totals(Foreign):
    successful: int
    errored: int = 0
    incomplete: int = 0


class _Metrics(Foreign):
    request_totals: _Totals | None = None


class _Benchmark(Foreign):
    duration: float | None = None
    requests: _Requests
    metrics: _Metrics = _Metrics()


class _Report(Foreign):
    benchmarks: list[_Benchmark]


def recognises(document: Any) -> bool:
    """Return whether a JSON document is a GuideLLM report."""
    return isinstance(document, dict) and isinstance(document.get("benchmarks"), list)


def read_guidellm(document: dict[str, Any], source: str) -> list[MeasuredRun]:
    """Read one run per benchmark.

    Raises:
        InputError: The report is damaged or empty, or its requests break physics.
    """
    report = parse(_Report, document, "GuideLLM report", source)
    if not report.benchmarks:
        raise InputError("this GuideLLM report holds no benchmark", source)
    several = len(report.benchmarks) > 1
    return [_run(b, f"{source} benchmark {i + 1}" if several else source) for i, b in enumerate(report.benchmarks)]


def _run(benchmark: _Benchmark, source: str) -> MeasuredRun:
    done, totals = benchmark.requests.successful, benchmark.metrics.request_totals
    starts = [s for r in done if (s := _start(r)) is not None]
    first_s = min(starts, default=0.0)
    rows = [_row(r, first_s) for r in done]
    span_s = max((r.arrival_s + r.e2e_s for r in rows if r.arrival_s == r.arrival_s), default=0.0)
    notes = [NO_GAPS]
    unfinished = totals.incomplete if totals else len(benchmark.requests.incomplete)
    if unfinished:
        notes.append(f"{unfinished:,} requests were unfinished when the run ended")
    if totals and len(done) < totals.successful:
        notes.append(f"the report holds {len(done):,} of {totals.successful:,} finished requests")
    failed = totals.errored if totals else len(benchmark.requests.errored)
    return measured_run(RunFacts(CLIENT, source, benchmark.duration or span_s, failed, tuple(notes)), rows)


def _start(request: _Request) -> float | None:
    return request.request_start_time if request.request_start_time is not None else request.start_time


def _row(request: _Request, first_s: float) -> RequestRow:
    start = _start(request)
    return RequestRow(
        arrival_s=NAN if start is None else start - first_s,
        input_tokens=_or_nan(request.prompt_tokens),
        output_tokens=request.output_tokens or 0,
        ttft_s=_or_nan(request.time_to_first_token_ms) * 1e-3,
        e2e_s=_to_last_token_s(request),
        tpot_s=_or_nan(request.inter_token_latency_ms) * 1e-3,
    )


def _to_last_token_s(request: _Request) -> float:
    """Return the latency to the last token; request_latency lasts until the stream is closed."""
    timings = request.info.timings
    if timings.request_start is not None and timings.last_token_iteration is not None:
        return timings.last_token_iteration - timings.request_start
    return _or_nan(request.request_latency)


def _or_nan(value: float | None) -> float:
    return NAN if value is None else value
