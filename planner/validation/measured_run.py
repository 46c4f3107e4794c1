"""A measured run compared with the predictions of its plan, after checks of the model and the workload."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from calibration.accuracy.measured_run import MeasuredRun
from catalogs.arrays import FloatArray
from catalogs.errors import InputError
from planner.answer.schema import same_model
from planner.evaluation.confidence import LEVEL
from planner.problem.latency_metrics import LATENCY_METRICS
from planner.problem.slo import Slo
from planner.validation.prediction import Expected, Prediction

Finding = Literal["inside", "faster", "slower", "too few", "not judged"]

#: Mean lengths and the rate may be so far off, or as far as chance explains (standard errors).
TOLERANCE: Final = 0.10

_SIGMAS: Final = 3.0

#: Requests that a statistic needs beyond it; of fewer, a percentile is the largest or next to it.
_BEYOND: Final = 5

#: Of all requests sent, failed ones that are taken for chance.
MOST_FAILED: Final = 0.01

_RESAMPLES: Final = 200

_MOST_RESAMPLED: Final = 20_000


@dataclass(frozen=True, slots=True)
class Row:
    """A statistic as predicted and as measured, in seconds, with the LEVEL interval of the measurement.

    met: the objective on this statistic, None where there is none.
    """

    expected: Expected
    measured_s: float
    measured_low_s: float
    measured_high_s: float
    finding: Finding
    met: bool | None

    @property
    def missed(self) -> bool:
        return self.finding in ("faster", "slower") or self.met is False

    def as_dict(self) -> dict[str, object]:
        return {
            **self.expected.as_dict(),
            "measured_s": self.measured_s,
            "measured_low_s": self.measured_low_s,
            "measured_high_s": self.measured_high_s,
            "finding": self.finding,
            "objective_met": self.met,
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """A property of the load, planned and measured."""

    name: str
    planned: float
    measured: float

    def as_dict(self) -> dict[str, object]:
        return {"name": self.name, "planned": self.planned, "measured": self.measured}


@dataclass(frozen=True, slots=True)
class PlanVerification:
    """The comparison of a run with its plan; `rows` holds every statistic of both sides."""

    prediction: Prediction
    run: MeasuredRun
    load: tuple[Comparison, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    @property
    def failed_fraction(self) -> float:
        return self.run.n_failed / max(self.run.n + self.run.n_failed, 1)

    @property
    def missed(self) -> list[Row]:
        return [row for row in self.rows if row.missed]

    @property
    def holds(self) -> bool:
        return not self.missed and self.failed_fraction <= MOST_FAILED

    def document(self) -> dict[str, Any]:
        return {
            "schema_version": 1,
            "holds": self.holds,
            "client": self.run.client,
            "source": self.run.source,
            "n_requests": self.run.n,
            "failed_fraction": self.failed_fraction,
            "interval_level": LEVEL,
            "load": [c.as_dict() for c in self.load],
            "latencies": [row.as_dict() for row in self.rows],
            "notes": list(self.notes),
        }


def verify(prediction: Prediction, run: MeasuredRun, model: str | None) -> PlanVerification:
    """Raises InputError for a run of another model, or of other lengths or another rate than planned.

    model: the name the run's clients asked for, None where it is not told.
    """
    notes = [*_model_notes(prediction, model), *run.notes]
    load = tuple(_same_load(prediction, run))
    rows = []
    for expected in prediction.rows():
        samples = LATENCY_METRICS[expected.metric].measured(run)
        if len(samples):
            rows.append(_row(expected, samples))
    if not rows:
        raise InputError("this result has none of the plan's latencies", run.source)
    notes += [f"no {name} in this result" for name, m in LATENCY_METRICS.items() if not len(m.measured(run))]
    if run.n_failed:
        notes.append(f"{run.n_failed:,} of {run.n + run.n_failed:,} requests failed")
    return PlanVerification(prediction, run, load, tuple(rows), tuple(dict.fromkeys(notes)))


def _model_notes(prediction: Prediction, model: str | None) -> list[str]:
    planned = str(prediction.plan.deployment["model"])
    if model is None:
        return ["the result does not name its model; the plan's model is assumed"]
    if same_model(model, planned) is False:
        raise InputError(f"this result belongs to another model; the plan is for {planned}", model, planned)
    if same_model(model, planned) is None:
        return [f"the model on the server has the name {model}; it is compared with the plan's {planned}"]
    return []


def _same_load(prediction: Prediction, run: MeasuredRun) -> Iterator[Comparison]:
    """Yield the mean lengths and the arrival rate.

    Raises:
        InputError: A value is too far from the plan.
    """
    for name, planned, values in (
        ("input tokens", prediction.input_mean_tokens, run.input_tokens),
        ("output tokens", prediction.output_mean_tokens, run.output_tokens),
    ):
        known = values[np.isfinite(values)]
        if len(known):
            spread = float(np.std(known)) / math.sqrt(len(known)) / planned
            yield _near(f"mean {name}", planned, float(known.mean()), spread, run)
    rate = arrival_rate_per_s(run)
    yield _near("requests/s", prediction.requests_per_s, rate, 1 / math.sqrt(run.n), run)


def arrival_rate_per_s(run: MeasuredRun) -> float:
    """Return the rate of all sent requests if arrivals are known, else of the finished requests."""
    known = run.arrival_s[np.isfinite(run.arrival_s)]
    span = float(known.max() - known.min()) if len(known) > 1 else 0.0
    if span <= 0:
        return run.requests_per_s
    return (len(known) - 1 + run.n_failed) / span


def _near(name: str, planned: float, measured: float, spread: float, run: MeasuredRun) -> Comparison:
    off = measured / planned - 1
    if abs(off) > max(TOLERANCE, _SIGMAS * spread):
        rule = f"this result belongs to another workload: {name} is {measured:.4g}, planned {planned:.4g}"
        raise InputError(rule, run.source, "the requests of `plan deploy`")
    return Comparison(name, planned, measured)


def _row(expected: Expected, samples: FloatArray) -> Row:
    slo = Slo(expected.metric, expected.stat, expected.limit_s or 1.0)
    measured = slo.value_s(samples)
    low, high = bootstrap(samples, slo)
    met = None if expected.limit_s is None else measured <= expected.limit_s
    beyond = len(samples) * (1 - slo.quantile) if slo.quantile is not None else len(samples)
    if beyond < _BEYOND:
        return Row(expected, measured, low, high, "too few", None)
    if untold(expected):
        return Row(expected, measured, low, high, "not judged", met)
    return Row(expected, measured, low, high, finding(measured, expected), met)


def untold(expected: Expected) -> bool:
    """Return True for percentiles of single gaps, for which no run-level error is known."""
    single = not LATENCY_METRICS[expected.metric].is_per_request
    return single and expected.stat != "mean" and expected.limit_s is None


def finding(measured_s: float, expected: Expected) -> Finding:
    if measured_s < expected.low_s:
        return "faster"
    return "slower" if measured_s > expected.high_s else "inside"


def bootstrap(samples: FloatArray, slo: Slo) -> tuple[float, float]:
    """Return the LEVEL interval of a statistic by bootstrap (Efron 1979). Requests of one run depend on
    each other, so the true one is wider."""
    rng = np.random.default_rng(0)
    few = samples if len(samples) <= _MOST_RESAMPLED else rng.choice(samples, _MOST_RESAMPLED, replace=False)
    drawn = few[rng.integers(0, len(few), (_RESAMPLES, len(few)))]
    values = drawn.mean(axis=1) if slo.quantile is None else np.quantile(drawn, slo.quantile, axis=1)
    low, high = np.quantile(values, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return float(low), float(high)
