"""A running server compared with the plan's predictions for the server's current rate.

A histogram knows a quantile only up to its bucket: a percentile has drifted where its whole bucket lies outside the
predicted interval. Means are exact. The server's clock starts when a request arrives there: what the network and a
router before it take is not in its figures, and is in the plan's only where the plan has a router.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from catalogs.errors import InputError
from planner.answer.schema import same_model
from planner.evaluation.confidence import LEVEL
from planner.problem.latency_metrics import LATENCY_METRICS
from planner.problem.slo import Slo
from planner.validation.measured_run import TOLERANCE, Comparison, untold
from planner.validation.prediction import STATS, Expected, Prediction
from planner.validation.prometheus import Interval

Finding = Literal["inside", "faster", "slower", "too few", "not judged"]

#: Requests that an interval must hold, and those a percentile needs beyond it.
_LEAST: Final = 20

_BEYOND: Final = 5

_SIGMAS: Final = 3.0


@dataclass(frozen=True, slots=True)
class DriftRow:
    """A statistic of the server between `low_s` and `high_s` (equal for a mean); `value_s` is the estimate, seconds."""

    expected: Expected
    value_s: float
    low_s: float
    high_s: float
    finding: Finding

    @property
    def drifted(self) -> bool:
        return self.finding in ("faster", "slower")

    @property
    def missed(self) -> bool:
        """Return True if even the lower bound exceeds the limit of the objective."""
        limit = self.expected.limit_s
        return limit is not None and self.low_s > limit

    def as_dict(self) -> dict[str, object]:
        return {
            **self.expected.as_dict(),
            "measured_s": self.value_s,
            "measured_low_s": self.low_s,
            "measured_high_s": self.high_s if math.isfinite(self.high_s) else None,
            "finding": self.finding,
        }


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
        return not self.shifted and not any(row.drifted or row.missed for row in self.rows)

    def document(self) -> dict[str, Any]:
        return {
            "schema_version": 1,
            "holds": self.holds,
            "n_requests": self.n_requests,
            "seconds": self.seconds,
            "interval_level": LEVEL,
            "load": [c.as_dict() for c in self.load],
            "shifted": list(self.shifted),
            "latencies": [row.as_dict() for row in self.rows],
            "notes": list(self.notes),
        }


def drift(prediction: Prediction, seen: Interval) -> Drift:
    """Return the comparison of an observed interval with the predictions.

    Raises:
        InputError: The server finished too few requests, or its rate lies outside the plan's curve.
    """
    n = seen.counted("requests")
    if n < _LEAST:
        rule = f"at least {_LEAST} requests must finish in the interval"
        raise InputError(rule, f"{n:.0f} in {seen.seconds:.0f} s", "--seconds longer")
    rate = n / seen.seconds
    if not prediction.reaches(rate):
        most = max((p.requests_per_s for p in prediction.plan.curve), default=prediction.requests_per_s)
        rule = f"the plan has latencies up to {most:.3g} requests/s (planned: {prediction.requests_per_s:.3g})"
        raise InputError(rule, f"{rate:.3g} requests/s now", "plan whatif --rate")
    lengths = [
        Comparison("mean input tokens", prediction.input_mean_tokens, seen.mean_tokens("input")),
        Comparison("mean output tokens", prediction.output_mean_tokens, seen.mean_tokens("output")),
    ]
    allowed = max(TOLERANCE, _SIGMAS / math.sqrt(n))
    shifted = tuple(c.name for c in lengths if abs(c.measured / c.planned - 1) > allowed)
    load = (Comparison("requests/s", prediction.requests_per_s, rate), *lengths)
    rows = tuple(_rows(prediction, seen, rate))
    if not rows:
        raise InputError("the server has no metrics for the latencies of the plan", ", ".join(sorted(seen.models)))
    return Drift(prediction, n, seen.seconds, load, shifted, rows, tuple(_notes(prediction, seen, rows)))


def _rows(prediction: Prediction, seen: Interval, rate: float) -> Iterator[DriftRow]:
    for metric in LATENCY_METRICS:
        histogram = seen.histogram(metric)
        if histogram.n <= 0:
            continue
        for stat in STATS:
            expected = prediction.at(metric, stat, rate)
            if expected is None:
                continue
            quantile = Slo(metric, stat, 1.0).quantile
            if quantile is None:
                mean = histogram.mean_s
                yield DriftRow(expected, mean, mean, mean, _finding(expected, mean, mean))
            else:
                low, high = histogram.bucket_s(quantile)
                value = histogram.quantile_s(quantile)
                few = histogram.n * (1 - quantile) < _BEYOND
                yield DriftRow(expected, value, low, high, "too few" if few else _finding(expected, low, high))


def _finding(expected: Expected, low_s: float, high_s: float) -> Finding:
    if untold(expected):
        return "not judged"
    if high_s < expected.low_s:
        return "faster"
    return "slower" if low_s > expected.high_s else "inside"


def _notes(prediction: Prediction, seen: Interval, rows: tuple[DriftRow, ...]) -> Iterator[str]:
    planned = str(prediction.plan.deployment["model"])
    for name in sorted(seen.models):
        if not same_model(name, planned):
            yield f"the model on the server has the name {name}; it is compared with the plan's {planned}"
    told = {row.expected.metric for row in rows}
    missing = [m for m in LATENCY_METRICS if m not in told]
    if missing:
        yield f"{', '.join(missing)} not compared: missing in the server's metrics or in the plan"
