"""Turn the requests of a load client into a measured run; rows that break physics are dropped and named.

The rules: no negative time, no request without tokens, first token not after the last, the gaps of a request within the
rest of its time after its first token, no request longer than the run. Values in the wrong unit break one of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from calibration.accuracy.measured_run import UNSTATED, FailedRequest, MeasuredRun, OfferedLoad
from catalogs.errors import InputError
from catalogs.workloads.limits import MOST_COUNT

#: Factor by which times of one request may contradict each other. A judgement: clients stamp tokens, requests and the
#: run with different calls.
SLACK: Final = 1.05

#: Seconds by which they may do so in addition. A judgement: for short requests.
SLACK_S: Final = 0.01

LONGEST_S: Final = 1e9  # 30 years: too long for a load test, typical of a run in nanoseconds

NAN: Final = float("nan")


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One finished request in seconds and tokens; NaN where the client gives no value.

    tpot_s is the client's own, by the definition of MeasuredRun; NaN means (e2e_s - ttft_s) / (output_tokens - 1).
    `position` counts requests in the order of sending, with failed ones; None where the client does not keep it.
    """

    arrival_s: float
    input_tokens: float
    output_tokens: float
    ttft_s: float
    e2e_s: float
    tpot_s: float = NAN
    itl_s: tuple[float, ...] = ()
    position: int | None = None

    def time_per_token_s(self) -> float:
        """Return the time per token after the first; NaN for a one-token output."""
        if not self.output_tokens > 1:
            return NAN
        return self.tpot_s if math.isfinite(self.tpot_s) else (self.e2e_s - self.ttft_s) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a result states about the run as a whole."""

    client: str
    source: str
    duration_s: float
    n_failed: int
    notes: tuple[str, ...] = ()
    offered: OfferedLoad = UNSTATED
    failures: tuple[FailedRequest, ...] = ()


def measured_run(facts: RunFacts, rows: Sequence[RequestRow]) -> MeasuredRun:
    """Return the run with the rows that respect physics.

    Raises:
        InputError: No request finished, or none respects physics.
    """
    if not 0 < facts.duration_s < LONGEST_S:
        raise InputError(f"this {facts.client} result has no valid duration, seconds", facts.duration_s)
    if not rows:
        why = f": {facts.failures[0].reason}" if facts.failures else ""
        rule = f"no finished request in this {facts.client} result ({facts.n_failed} failed{why})"
        raise InputError(rule, facts.source)
    faults = [_fault(row, facts.duration_s) for row in rows]
    kept = [row for row, fault in zip(rows, faults, strict=True) if fault is None]
    counts = Counter(f for f in faults if f is not None)
    dropped = [f"dropped {n:,} of {len(rows):,} requests: {fault}" for fault, n in sorted(counts.items())]
    if not kept:
        rule = f"no request of this {facts.client} result obeys physics ({', '.join(sorted(counts))}; wrong unit?)"
        raise InputError(rule, facts.source)
    chunked = sum(len(r.itl_s) + 1 < r.output_tokens for r in kept if r.itl_s)
    if chunked:
        dropped.append(
            f"{chunked:,} of {len(kept):,} requests streamed several tokens in a chunk: ITL is between chunks"
        )
    lost = [
        FailedRequest(row.position, fault)
        for row, fault in zip(rows, faults, strict=True)
        if fault is not None and row.position is not None
    ]
    columns = ("arrival_s", "input_tokens", "output_tokens", "ttft_s", "e2e_s")
    arrays: dict[str, Any] = {c: np.array([getattr(r, c) for r in kept], dtype=float) for c in columns}
    return MeasuredRun(
        client=facts.client,
        source=facts.source,
        duration_s=facts.duration_s,
        n_failed=facts.n_failed,
        notes=(*facts.notes, *dropped),
        offered=facts.offered,
        failures=tuple(sorted((*facts.failures, *lost), key=lambda failed: failed.position)),
        **arrays,
        tpot_s=np.array([r.time_per_token_s() for r in kept], dtype=float),
        itl_s=np.array([gap for r in kept for gap in r.itl_s], dtype=float),
        n_gaps=tuple(len(r.itl_s) for r in kept),
    )


def _fault(row: RequestRow, duration_s: float) -> str | None:
    """Return the rule that a request breaks; comparisons with NaN (no value) break none."""
    if row.output_tokens > MOST_COUNT or row.input_tokens > MOST_COUNT:
        return "more tokens than any context"
    times = (row.arrival_s, row.ttft_s, row.e2e_s, row.tpot_s, *row.itl_s)
    left_s = SLACK * (row.e2e_s - row.ttft_s) + SLACK_S
    rules = {
        "no tokens": row.output_tokens < 1 or row.input_tokens < 1,
        "negative time": any(x < 0 for x in times),
        "endless time": any(x > LONGEST_S for x in times),
        "TTFT longer than E2E": row.ttft_s > row.e2e_s + 1e-6,
        "gaps between tokens longer than E2E less TTFT": sum(row.itl_s) > left_s
        or row.time_per_token_s() * (row.output_tokens - 1) > left_s,
        "longer than the run": row.e2e_s > SLACK * duration_s + SLACK_S,
    }
    return next((rule for rule, broken in rules.items() if broken), None)
