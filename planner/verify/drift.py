"""A running server compared with the plan's predictions for the server's current rate.

A histogram gives a quantile only as the bucket that holds it. A percentile has therefore drifted only if its whole
bucket lies outside the predicted interval. Means are exact. The server measures from the arrival of a request at the
server. The time before that, in the network and in a router, is not in its figures; the plan includes the time of a
router if the deployment has one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from catalogs.errors import InputError
from catalogs.io.output_files import finite
from planner.problem.latency_metrics import LATENCY_METRICS
from planner.problem.slo import STATS, Slo
from planner.verify.prediction import Prediction
from planner.verify.prometheus import Interval
from planner.verify.verification import (
    SIGMAS,
    TOLERANCE,
    Comparison,
    JudgedStatistic,
    finding,
    served_notes,
)

#: Minimum number of requests that must finish in an interval. A judgement: with fewer, means and percentiles are noise.
_MIN_REQUESTS: Final = 20


class DriftRow(JudgedStatistic):
    """A statistic of a server; its bounds are those of a bucket of a histogram, and equal for a mean."""

    __slots__ = ()

    @property
    def missed(self) -> bool:
        """Return True if even the lower bound exceeds the limit of the objective."""
        limit = self.expected.limit_s
        return limit is not None and self.measured_low_s > limit


@dataclass(frozen=True, slots=True)
class Drift:
    """The comparison of a server with its plan.

    `load` holds the rate and mean lengths, planned and current. `shifted` names those that have changed from the plan.
    """

    prediction: Prediction
    n_requests: float
    seconds: float
    load: tuple[Comparison, ...]
    shifted: tuple[str, ...]
    rows: tuple[DriftRow, ...]
    notes: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Return True if the load and the latencies match the plan."""
        return not self.shifted and not any(row.drifted or row.missed for row in self.rows)

    def document(self) -> dict[str, Any]:
        """Return the document of `plan drift --json`."""
        found: dict[str, Any] = finite(
            {
                "schema_version": 1,
                "holds": self.holds,
                "n_requests": self.n_requests,
                "seconds": self.seconds,
                "interval_level": self.prediction.level,
                "load": [asdict(c) for c in self.load],
                "shifted": self.shifted,
                "latencies": [row.pop("expected") | row for row in map(asdict, self.rows)],
                "notes": self.notes,
            }
        )
        return found


def drift(prediction: Prediction, seen: Interval) -> Drift:
    """Return the comparison of an observed interval with the predictions.

    Raises:
        InputError: The server finished too few requests, or its rate lies outside the plan's curve.
    """
    n = seen.counted("requests")
    if n < _MIN_REQUESTS:
        rule = f"at least {_MIN_REQUESTS} requests must finish in the interval"
        raise InputError(rule, f"{n:.0f} in {seen.seconds:.0f} s", hint="give more --seconds")
    rate = n / seen.seconds
    if not prediction.covers(rate):
        most = max((p.requests_per_s for p in prediction.plan.curve), default=prediction.requests_per_s)
        planned = f"(planned: {prediction.requests_per_s:.3g})"
        rule = f"the plan predicts latencies only up to {most:.3g} requests/s {planned}"
        raise InputError(rule, f"{rate:.3g} requests/s now", hint="see plan whatif --rate")
    lengths = [
        Comparison("mean input tokens", prediction.input_mean_tokens, seen.mean_tokens("input")),
        Comparison("mean output tokens", prediction.output_mean_tokens, seen.mean_tokens("output")),
    ]
    allowed = max(TOLERANCE, SIGMAS / math.sqrt(n))
    shifted = tuple(c.name for c in lengths if abs(c.measured / c.planned - 1) > allowed)
    load = (Comparison("requests/s", prediction.requests_per_s, rate), *lengths)
    rows = tuple(_rows(prediction, seen, rate))
    if not rows:
        raise InputError("the server has no metrics for the latencies of the plan", ", ".join(sorted(seen.models)))
    notes = served_notes(sorted(seen.models), prediction.plan.deployment["model"])
    missing = [m for m in prediction.metrics if m not in {row.expected.metric for row in rows}]
    if missing:
        notes.append(f"{', '.join(missing)} not compared: missing in the server's metrics or in the plan")
    return Drift(prediction, n, seen.seconds, load, shifted, rows, tuple(notes))


def _rows(prediction: Prediction, seen: Interval, rate: float) -> Iterator[DriftRow]:
    for metric in LATENCY_METRICS:
        histogram = seen.histogram(metric)
        for stat in STATS if histogram.n > 0 else ():
            expected, quantile = prediction.at(metric, stat, rate), Slo(metric, stat, 1.0).quantile
            if expected is None:
                continue
            value = low = high = histogram.mean_s
            beyond = math.inf
            if quantile is not None:
                value, (low, high) = histogram.quantile_s(quantile), histogram.bucket_s(quantile)
                beyond = histogram.n * (1 - quantile)
            yield DriftRow(expected, value, low, high, finding(expected, low, high, beyond))
