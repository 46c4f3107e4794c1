"""Import inference-perf's per_request_lifecycle_metrics.json (0.7; kubernetes-sigs), with all times in seconds.

It is written with `report.request_lifecycle.per_request: true`. Start, end and token times are readings of one
monotonic clock. `output_token_times` repeats the time of a chunk for every token of its text when tokenised again,
which may be more tokens than the engine made. Gaps are therefore taken between `chunk_times`, and the server's token
count is preferred to that of the client.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

from calibration.accuracy.measured_run import MeasuredRun
from calibration.importers.load_clients.request_rows import NAN, RequestRow, RunFacts, measured_run
from calibration.importers.parsing import ForeignDocument, parse
from catalogs.errors import InputError

CLIENT: Final = "inference-perf"


class _Response(ForeignDocument):
    output_tokens: int = 0
    server_usage: dict[str, Any] | None = None
    output_token_times: tuple[float, ...] = ()
    chunk_times: tuple[float, ...] = ()


class _Text(ForeignDocument):
    input_tokens: float | None = None


class _RequestMetrics(ForeignDocument):
    text: _Text = _Text()


class _Info(ForeignDocument):
    request_metrics: _RequestMetrics = _RequestMetrics()
    response_metrics: _Response | None = None
    input_tokens: float | None = None


class _Entry(ForeignDocument):
    start_time: float
    end_time: float
    info: _Info | None = None
    error: Any = None


def recognises(document: Any) -> bool:
    """Return whether a JSON document is the per-request report."""
    first = document[0] if isinstance(document, list) and document else None
    return isinstance(first, dict) and {"start_time", "end_time", "error"} <= first.keys()


def read_inference_perf(document: list[Any], source: str) -> MeasuredRun:
    """Return the measured run of a report.

    Raises:
        InputError: The entries lack `info`, the key that holds token times.
    """
    entries = [parse(_Entry, d, f"inference-perf entry {i + 1}", source) for i, d in enumerate(document)]
    done = [e for e in entries if e.error is None]
    if done and all(e.info is None or e.info.response_metrics is None for e in done):
        raise InputError("entries hold no token times", source, hint="record with per_request_fields: {info: true}")
    first_s, last_s = min(e.start_time for e in entries), max(e.end_time for e in entries)
    facts = RunFacts(CLIENT, source, last_s - first_s, len(entries) - len(done))
    return measured_run(facts, [_row(e, first_s) for e in done])


def _row(entry: _Entry, first_s: float) -> RequestRow:
    info = entry.info or _Info()
    response = info.response_metrics or _Response()
    times = response.chunk_times or response.output_token_times
    tokens_in = info.request_metrics.text.input_tokens
    client_in = info.input_tokens if tokens_in is None else tokens_in
    return RequestRow(
        arrival_s=entry.start_time - first_s,
        input_tokens=_count(response.server_usage, "prompt_tokens", NAN if client_in is None else client_in),
        output_tokens=_count(response.server_usage, "completion_tokens", response.output_tokens),
        ttft_s=times[0] - entry.start_time if times else NAN,
        e2e_s=(times[-1] if times else entry.end_time) - entry.start_time,
        itl_s=tuple(b - a for a, b in pairwise(times)),
    )


def _count(usage: dict[str, Any] | None, key: str, fallback: float) -> float:
    value = (usage or {}).get(key)
    return float(value) if isinstance(value, int | float) else fallback
