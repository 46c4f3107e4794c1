"""Import GuideLLM's benchmarks.json (report schema 2, guidellm 0.8; 0.3 and later share the names) as measured runs.

A report holds one benchmark per rate; each keeps its requests by status. Times are Unix seconds, except that names in
_ms are milliseconds. `time_per_output_token_ms` is (last token - start) / tokens and so includes the first token;
`inter_token_latency_ms` is TPOT as defined here. Single gaps are not in the file.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Final

from pydantic import AliasChoices, BeforeValidator, Field

from calibration.accuracy.measured_run import MeasuredRun, OfferedLoad
from calibration.importers.load_clients.request_rows import NAN, RequestRow, RunFacts, measured_run
from calibration.importers.parsing import ForeignDocument, parse
from catalogs.errors import InputError

CLIENT: Final = "guidellm"

NO_GAPS: Final = "guidellm keeps no single gaps: no ITL"


#: A number that a report may leave out or give as null.
Number = Annotated[float, BeforeValidator(lambda value: NAN if value is None else value)]


class _Timings(ForeignDocument):
    request_start: Number = NAN
    last_token_iteration: Number = NAN


class _Info(ForeignDocument):
    timings: _Timings = _Timings()


class _Request(ForeignDocument):
    request_latency: Number = NAN
    time_to_first_token_ms: Number = NAN
    inter_token_latency_ms: Number = NAN
    prompt_tokens: Number = NAN
    output_tokens: Annotated[float, BeforeValidator(lambda value: value or 0.0)] = 0.0
    start: Number = Field(NAN, validation_alias=AliasChoices("request_start_time", "start_time"))  # second: before 0.4
    info: _Info = _Info()


class _Requests(ForeignDocument):
    successful: list[_Request]
    errored: tuple[Any, ...] = ()
    incomplete: tuple[Any, ...] = ()


class _Totals(ForeignDocument):
    successful: int
    errored: int = 0
    incomplete: int = 0


class _Metrics(ForeignDocument):
    request_totals: _Totals | None = None


class _Strategy(ForeignDocument):
    type_: str = ""
    rate: float | None = None
    streams: int | None = None
    max_concurrency: int | None = None

    def offered(self) -> OfferedLoad:
        """Return the load of the strategy; it is in the result from 0.6 on."""
        if self.type_ == "synchronous":
            return OfferedLoad(concurrency=1)
        return OfferedLoad(self.rate, self.streams or self.max_concurrency)


class _Config(ForeignDocument):
    strategy: _Strategy = _Strategy()


class _Benchmark(ForeignDocument):
    config: _Config = _Config()
    duration: float | None = None
    requests: _Requests
    metrics: _Metrics = _Metrics()


class _Report(ForeignDocument):
    benchmarks: list[_Benchmark]


def recognises(document: Any) -> bool:
    """Return whether a JSON document is a GuideLLM report."""
    return isinstance(document, dict) and isinstance(document.get("benchmarks"), list)


def read_guidellm(document: dict[str, Any], source: str) -> list[MeasuredRun]:
    """Return one measured run per benchmark of a report.

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
    first_s = min((r.start for r in done if not math.isnan(r.start)), default=0.0)
    rows = [_row(r, first_s) for r in done]
    span_s = max((r.arrival_s + r.e2e_s for r in rows if not math.isnan(r.arrival_s)), default=0.0)
    notes = [NO_GAPS]
    unfinished = totals.incomplete if totals else len(benchmark.requests.incomplete)
    if unfinished:
        notes.append(f"{unfinished:,} requests were unfinished when the run ended")
    if totals and len(done) < totals.successful:
        notes.append(f"the report holds {len(done):,} of {totals.successful:,} finished requests")
    failed = totals.errored if totals else len(benchmark.requests.errored)
    offered = benchmark.config.strategy.offered()
    return measured_run(RunFacts(CLIENT, source, benchmark.duration or span_s, failed, tuple(notes), offered), rows)


def _row(request: _Request, first_s: float) -> RequestRow:
    timings = request.info.timings
    to_last_token_s = timings.last_token_iteration - timings.request_start  # request_latency ends with the stream
    return RequestRow(
        arrival_s=request.start - first_s,
        input_tokens=request.prompt_tokens,
        output_tokens=request.output_tokens,
        ttft_s=request.time_to_first_token_ms * 1e-3,
        e2e_s=request.request_latency if math.isnan(to_last_token_s) else to_last_token_s,
        tpot_s=request.inter_token_latency_ms * 1e-3,
    )
