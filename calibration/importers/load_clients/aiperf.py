"""Import AIPerf's profile_export.jsonl (0.13; one record per request) as a measured run, and its summary.

Every metric carries its unit; time stamps are Unix nanoseconds. `request_latency` ends with the last content chunk.
`inter_token_latency` may leave out all tokens of the first chunk, so TPOT is computed here instead. The summary,
profile_export_aiperf.json, has the same metrics as statistics; GenAI-Perf wrote the same keys.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BeforeValidator

from calibration.accuracy.measured_run import UNSTATED, MeasuredRun, OfferedLoad
from calibration.accuracy.measured_summary import DEVIATION, MeasuredSummary
from calibration.importers.load_clients.request_rows import NAN, SLACK, SLACK_S, RequestRow, RunFacts, measured_run
from calibration.importers.parsing import ForeignDocument, parse
from catalogs.errors import InputError

CLIENT: Final = "aiperf"

#: The latencies of the summary, under AIPerf's names.
_LATENCIES: Final = {
    "ttft": "time_to_first_token",
    "tpot": "inter_token_latency",  # a mean over each request
    "itl": "inter_chunk_latency",
    "e2e": "request_latency",
}

_STATS: Final = {"avg": "mean", "std": DEVIATION, **{p: p for p in ("p50", "p90", "p95", "p99")}}

#: Seconds of each unit in AIPerf's files.
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}


class _Metric(ForeignDocument):
    value: Annotated[list[float], BeforeValidator(lambda value: value if isinstance(value, list) else [value])]
    unit: str


class _Metadata(ForeignDocument):
    request_start_ns: int
    request_end_ns: int
    benchmark_phase: str = "profiling"
    was_cancelled: bool = False


class _Record(ForeignDocument):
    metadata: _Metadata
    metrics: dict[str, Any]  # a record has dozens of metrics, and four are read
    error: Any = None


class _Statistics(ForeignDocument):
    unit: str
    avg: float | None = None
    std: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None


class _Phase(ForeignDocument):
    name: str = ""
    type: str = ""
    rate: float | None = None
    concurrency: int | None = None
    exclude_from_results: bool = False


class _Input(ForeignDocument):
    phases: tuple[_Phase, ...] = ()


class _SummaryFile(ForeignDocument):
    request_count: _Statistics
    error_request_count: _Statistics | None = None
    benchmark_duration: _Statistics
    input_sequence_length: _Statistics | None = None
    output_sequence_length: _Statistics | None = None
    input_config: _Input | None = None


def recognises(document: Any) -> bool:
    """Return whether a JSON document is one of AIPerf's records."""
    return isinstance(document, dict) and {"metadata", "metrics"} <= document.keys()


def is_summary(document: Any) -> bool:
    """Return whether a JSON document is AIPerf's summary, which has no requests."""
    return isinstance(document, dict) and "request_latency" in document


def read_summary(document: dict[str, Any], source: str) -> MeasuredSummary:
    """Return the summary of one run."""
    facts = parse(_SummaryFile, document, "AIPerf summary", source)
    statistics = {}
    for metric, name in _LATENCIES.items():
        if document.get(name) is None:
            continue
        found = parse(_Statistics, document[name], f"AIPerf metric {name}", source)
        unit_s = _unit_s(found.unit, name)
        values = {stat: getattr(found, key) for key, stat in _STATS.items()}
        statistics[metric] = {stat: value * unit_s for stat, value in values.items() if value is not None}
    inputs, outputs, errors = facts.input_sequence_length, facts.output_sequence_length, facts.error_request_count
    return MeasuredSummary(
        client=CLIENT,
        source=source,
        n=round(facts.request_count.avg or 0.0),
        n_failed=round((errors.avg if errors else None) or 0.0),
        duration_s=(facts.benchmark_duration.avg or 0.0) * _unit_s(facts.benchmark_duration.unit, "benchmark_duration"),
        input_mean_tokens=NAN if inputs is None or inputs.avg is None else inputs.avg,
        output_mean_tokens=NAN if outputs is None or outputs.avg is None else outputs.avg,
        statistics_s=statistics,
        offered=_offered(facts.input_config or _Input()),
        notes=("this result has no single requests: profile_export.jsonl has them",),
    )


def _offered(settings: _Input) -> OfferedLoad:
    """Return the load of the only phase that counts; of several phases, none."""
    phases = [p for p in settings.phases if p.name != "warmup" and not p.exclude_from_results]
    if len(phases) != 1:
        return UNSTATED
    rate, most = phases[0].rate, phases[0].concurrency
    return OfferedLoad(rate if rate and rate > 0 else None, most if most and most > 0 else None)


def read_aiperf(documents: list[Any], source: str) -> MeasuredRun:
    """Return the measured run of one file; warm-up requests are left out, failed and cancelled ones are counted."""
    records = [parse(_Record, d, f"AIPerf record {i + 1}", source) for i, d in enumerate(documents)]
    counted = [r for r in records if r.metadata.benchmark_phase != "warmup"]
    if not counted:
        raise InputError("this AIPerf file holds no request after the warm-up", source)
    first_ns = min(r.metadata.request_start_ns for r in counted)
    last_ns = max(r.metadata.request_end_ns for r in counted)
    done = [r for r in counted if r.error is None and not r.metadata.was_cancelled]
    rows = [_row(r, first_ns, source) for r in done]
    _check_clock(rows, done, source)
    notes = (f"left out {len(records) - len(counted):,} warm-up requests",) if len(counted) < len(records) else ()
    facts = RunFacts(CLIENT, source, (last_ns - first_ns) * 1e-9, len(counted) - len(done), notes)
    return measured_run(facts, rows)


def _row(record: _Record, first_ns: int, source: str) -> RequestRow:
    names = ("input_sequence_length", "output_sequence_length", "time_to_first_token", "request_latency")
    input_tokens, output_tokens, ttft_s, e2e_s = (next(iter(_values(record, n, source)), NAN) for n in names)
    arrival_s = (record.metadata.request_start_ns - first_ns) * 1e-9
    gaps_s = tuple(_values(record, "inter_chunk_latency", source))
    return RequestRow(arrival_s, input_tokens, output_tokens, ttft_s, e2e_s, itl_s=gaps_s)


def _values(record: _Record, name: str, source: str) -> list[float]:
    """Return the values of a metric in seconds or tokens; empty where the record has none."""
    if name not in record.metrics:
        return []
    metric = parse(_Metric, record.metrics[name], f"AIPerf metric {name}", source)
    if name.endswith("_length"):
        return metric.value
    unit_s = _unit_s(metric.unit, name)
    return [v * unit_s for v in metric.value]


def _unit_s(unit: str, name: str) -> float:
    if unit not in _SECONDS:
        raise InputError(f"unknown unit of {name} in this AIPerf file", unit, ", ".join(_SECONDS))
    return _SECONDS[unit]


def _check_clock(rows: list[RequestRow], records: list[_Record], source: str) -> None:
    """Check the unit: latencies must fit between the time stamps of their requests and make up most of that time."""
    fits = 0
    for row, record in zip(rows, records, strict=True):
        wall_s = (record.metadata.request_end_ns - record.metadata.request_start_ns) * 1e-9
        fits += wall_s / 2 - SLACK_S <= row.e2e_s <= SLACK * wall_s + SLACK_S
    if rows and fits < len(rows) / 2:
        raise InputError("request_latency of this AIPerf file does not fit its time stamps; wrong unit?", source)
