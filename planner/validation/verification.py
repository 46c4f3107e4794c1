"""A measured run compared with the predictions of its plan, after checks of the model and the workload."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import numpy as np

from calibration.accuracy.measured_run import MeasuredRun
from catalogs.arrays import FloatArray
from catalogs.errors import InputError
from catalogs.io.output_files import finite
from planner.answer.schema import same_model
from planner.evaluation.confidence import LEVEL
from planner.problem.latency_metrics import LATENCY_METRICS
from planner.problem.slo import Slo
from planner.validation.prediction import Expected, Prediction

Finding = Literal["inside", "faster", "slower", "too few", "not judged"]

#: Permitted relative difference of a mean length or of the rate from the plan. The difference that chance explains, in
#: standard errors, is permitted as well.
TOLERANCE: Final = 0.10

SIGMAS: Final = 3.0

#: Minimum number of samples beyond a percentile. With fewer, the percentile is one of the largest samples.
_BEYOND: Final = 5

#: Share of failed requests that chance may explain.
MOST_FAILED: Final = 0.01

_RESAMPLES: Final = 200

_MAX_RESAMPLED: Final = 20_000


@dataclass(frozen=True, slots=True)
class JudgedStatistic:
    """A statistic as predicted and as measured, with the bounds between which the measured value lies, seconds."""

    expected: Expected
    measured_s: float
    measured_low_s: float
    measured_high_s: float
    finding: Finding

    @property
    def drifted(self) -> bool:
        """Return True if the statistic lies outside its predicted interval."""
        return self.finding in ("faster", "slower")


@dataclass(frozen=True, slots=True)
class Row(JudgedStatistic):
    """A statistic of a measured run; its bounds are the LEVEL interval of the measurement.

    `objective_met` tells whether the measurement meets the objective on this statistic; None if there is no objective,
    or if there are too few samples.
    """

    objective_met: bool | None

    @property
    def missed(self) -> bool:
        """Return True if the measurement lies outside the predicted interval, or misses the objective."""
        return self.drifted or self.objective_met is False


@dataclass(frozen=True, slots=True)
class Comparison:
    """A property of the load, planned and measured."""

    name: str
    planned: float
    measured: float


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
        """Return the share of failed requests."""
        return self.run.n_failed / max(self.run.n + self.run.n_failed, 1)

    @property
    def missed(self) -> list[Row]:
        """Return the statistics that are not as predicted or miss their objective."""
        return [row for row in self.rows if row.missed]

    @property
    def holds(self) -> bool:
        """Return True if the run is as predicted and nearly no request failed."""
        return not self.missed and self.failed_fraction <= MOST_FAILED

    def document(self) -> dict[str, Any]:
        """Return the document of `plan verify --json`."""
        found: dict[str, Any] = finite(
            {
                "schema_version": 1,
                "holds": self.holds,
                "client": self.run.client,
                "source": self.run.source,
                "n_requests": self.run.n,
                "failed_fraction": self.failed_fraction,
                "interval_level": LEVEL,
                "load": [asdict(c) for c in self.load],
                "latencies": [row.pop("expected") | row for row in map(asdict, self.rows)],
                "notes": self.notes,
            }
        )
        return found


def verify(prediction: Prediction, run: MeasuredRun, model: str | None) -> PlanVerification:
    """Return the comparison of a measured run with the predictions of its plan.

    Args:
        prediction: The predictions of the plan.
        run: The measured run.
        model: The model name in the requests of the run; None if it is unknown.

    Raises:
        InputError: The run belongs to another model, or its lengths or its rate differ from the plan.
    """
    notes = [*_model_notes(prediction, model), *run.notes]
    load = tuple(_same_load(prediction, run))
    samples = {name: metric.measured(run) for name, metric in LATENCY_METRICS.items()}
    rows = tuple(_row(row, samples[row.metric]) for row in prediction.rows() if len(samples[row.metric]))
    if not rows:
        raise InputError("this result has none of the plan's latencies", run.source)
    notes += [f"no {name} in this result" for name, values in samples.items() if not len(values)]
    if run.n_failed:
        notes.append(f"{run.n_failed:,} of {run.n + run.n_failed:,} requests failed")
    return PlanVerification(prediction, run, load, rows, tuple(dict.fromkeys(notes)))


def _model_notes(prediction: Prediction, model: str | None) -> list[str]:
    planned = prediction.plan.deployment["model"]
    if model is None:
        return ["the result does not name its model; the plan's model is assumed"]
    if same_model(model, planned) is False:
        raise InputError(f"this result belongs to another model; the plan is for {planned}", model, planned)
    return served_notes([model], planned)


def served_notes(names: list[str], planned: str) -> list[str]:
    """Return a note for each name of a model on a server that is not a name of the planned model."""
    return [
        f"the model on the server has the name {name}; it is compared with the plan's {planned}"
        for name in names
        if not same_model(name, planned)
    ]


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
    span = float(np.ptp(known)) if len(known) else 0.0
    return (len(known) - 1 + run.n_failed) / span if span > 0 else run.requests_per_s


def _near(name: str, planned: float, measured: float, spread: float, run: MeasuredRun) -> Comparison:
    if abs(measured / planned - 1) > max(TOLERANCE, SIGMAS * spread):
        rule = f"this result belongs to another workload: {name} is {measured:.4g}, planned {planned:.4g}"
        raise InputError(rule, run.source, hint="send the requests of `plan deploy`")
    return Comparison(name, planned, measured)


def _row(expected: Expected, samples: FloatArray) -> Row:
    slo = Slo(expected.metric, expected.stat, expected.limit_s or 1.0)
    measured = slo.value_s(samples)
    beyond = len(samples) * (1 - (slo.quantile or 0.0))
    found = finding(expected, measured, measured, beyond)
    met = None if expected.limit_s is None or found == "too few" else measured <= expected.limit_s
    return Row(expected, measured, *bootstrap(samples, slo), found, met)


def finding(expected: Expected, low_s: float, high_s: float, beyond: float) -> Finding:
    """Return how a measurement between `low_s` and `high_s` compares with the predicted interval.

    `beyond` is the number of samples beyond the statistic. Percentiles of single gaps between tokens are not judged,
    because no run-level error of them is known.
    """
    if beyond < _BEYOND:
        return "too few"
    if not LATENCY_METRICS[expected.metric].is_per_request and expected.stat != "mean" and expected.limit_s is None:
        return "not judged"
    if high_s < expected.low_s:
        return "faster"
    return "slower" if low_s > expected.high_s else "inside"


def bootstrap(samples: FloatArray, slo: Slo) -> tuple[float, float]:
    """Return the LEVEL interval of a statistic by the bootstrap (Efron, Annals of Statistics 7(1), 1979), seconds.

    The requests of one run depend on each other, so the true interval is wider. `samples` has shape (n,).
    """
    rng = np.random.default_rng(0)
    few = samples if len(samples) <= _MAX_RESAMPLED else rng.choice(samples, _MAX_RESAMPLED, replace=False)
    drawn = few[rng.integers(0, len(few), (_RESAMPLES, len(few)))]
    values = drawn.mean(axis=1) if slo.quantile is None else np.quantile(drawn, slo.quantile, axis=1)
    low, high = np.quantile(values, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return float(low), float(high)
