"""A measured run compared with the predictions of its plan for its load, after checks of model and lengths."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, Final, Literal

import numpy as np

from calibration.accuracy.measured_run import MeasuredRun
from calibration.accuracy.measured_summary import MeasuredSummary
from catalogs.arrays import FloatArray
from catalogs.errors import InputError
from catalogs.io.output_files import finite
from catalogs.statistics import resampled_interval
from planner.answer.answer_schema import is_name_of, same_model
from planner.problem.latency_metrics import LATENCY_METRICS
from planner.problem.slo import Slo
from planner.verify.measured_load import LoadSimulator, Measured, MeasuredLoad, load_of
from planner.verify.prediction import Expected, Prediction

Finding = Literal["inside", "faster", "slower", "too few", "not judged"]

#: Permitted relative difference of a mean length or of the rate from the plan. A judgement: latencies follow both, so a
#: larger one makes a run another load.
TOLERANCE: Final = 0.10

#: Standard errors by which chance may explain a difference, which are permitted as well: a normal error is larger in
#: one of 370 cases.
SIGMAS: Final = 3.0

#: Minimum number of samples beyond a percentile. A judgement: with fewer, the percentile is one of the largest samples.
_BEYOND: Final = 5

#: Share of failed requests that chance may explain. A judgement: more change the load of the others.
MOST_FAILED: Final = 0.01

#: Options of the load client with which a result has every latency of a plan.
RECORD: Final = (
    "`vllm bench serve --save-result --save-detailed --percentile-metrics ttft,tpot,itl,e2el "
    "--metric-percentiles 50,90,95,99`"
)

#: Resamples of a bootstrap interval. A judgement: ten of them lie beyond each end of a 90 % interval.
_RESAMPLES: Final = 200

#: Most samples in a resample. A judgement of cost: more narrow the interval below what the stated error leaves.
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
    """A statistic of a measured run; its bounds are the interval of the measurement, of the level of the predicted one.

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
    """A property of the load, planned and measured; `simulated` states that `planned` is the result of a simulation."""

    name: str
    planned: float
    measured: float
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class PlanVerification:
    """The comparison of a run with its plan; `rows` holds every statistic of both sides.

    `as_planned` states that the run has the planned rate. Otherwise the predictions are simulated for its own load.
    """

    prediction: Prediction
    run: Measured
    at: MeasuredLoad
    as_planned: bool
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
                "predicted_for": {
                    "requests_per_s": self.at.requests_per_s,
                    "concurrency": self.at.concurrency,
                    "as_planned": self.as_planned,
                },
                "interval_level": self.prediction.level,
                "load": [asdict(c) for c in self.load],
                "latencies": [row.pop("expected") | row for row in map(asdict, self.rows)],
                "notes": self.notes,
            }
        )
        return found


def runs_document(found: Sequence[PlanVerification]) -> dict[str, Any]:
    """Return the document of `plan verify --json`: that of the only run, or of several runs a list under `runs`."""
    documents = [each.document() for each in found]
    if len(documents) == 1:
        return documents[0]
    return {"schema_version": 1, "holds": all(each.holds for each in found), "runs": documents}


def verify(
    prediction: Prediction,
    run: Measured,
    model: str | None,
    simulator: Callable[[], LoadSimulator],
    served: str | None = None,
) -> PlanVerification:
    """Return the comparison of a measured run with the predictions of its plan.

    Args:
        prediction: The predictions of the plan.
        run: The measured run, or its summary.
        model: The model name in the requests of the run; None if it is unknown.
        simulator: Returns the simulator of the plan, for runs under another load than the planned one.
        served: The name under which the user served the planned model; None if it is not given.

    Raises:
        InputError: The run belongs to another model, its lengths differ from the plan, or its load is unknown.
    """
    notes = [*_model_notes(prediction, model, served), *run.notes]
    lengths = tuple(_same_lengths(prediction, run))
    at = load_of(run)
    as_planned = _is_as_planned(prediction, run, at)
    expected, load = _expected(prediction, run, at, as_planned, simulator)
    rows = tuple(_rows(expected, run, prediction.level))
    if not rows:
        raise InputError("this result has none of the plan's latencies", run.source, hint=f"record with {RECORD}")
    notes += [at.note] if at.note else []
    notes += _recording_notes(run, prediction.metrics)
    if not as_planned:
        planned = f"the plan is for {prediction.requests_per_s:.4g} requests/s"
        notes.append(f"{planned}; predictions are simulated for {at.text}")
    return PlanVerification(prediction, run, at, as_planned, (*lengths, load), rows, tuple(dict.fromkeys(notes)))


def _is_as_planned(prediction: Prediction, run: Measured, at: MeasuredLoad) -> bool:
    """Return whether the run had the load of the plan: its stated rate, or a measured one that chance explains."""
    if at.requests_per_s is None:
        return False
    if run.offered.requests_per_s is not None:
        return _is_near(run.offered.requests_per_s, prediction.requests_per_s, 0.0)
    return _is_near(at.requests_per_s, prediction.requests_per_s, SIGMAS / math.sqrt(run.n))


def _expected(
    prediction: Prediction, run: Measured, at: MeasuredLoad, as_planned: bool, simulator: Callable[[], LoadSimulator]
) -> tuple[Sequence[Expected], Comparison]:
    """Return the predicted statistics under the load of the run, and its rate; another load is simulated."""
    planned_per_s = prediction.requests_per_s
    if as_planned:
        return prediction.rows(), Comparison("requests/s", planned_per_s, at.requests_per_s or 0.0)
    expected, rate = simulator().expected(at, run.n)
    if at.requests_per_s is not None:
        return expected, Comparison("requests/s", planned_per_s, at.requests_per_s)
    return expected, Comparison("requests/s", rate, run.n / run.duration_s, simulated=True)


def _rows(expected: Sequence[Expected], run: Measured, level: float) -> Iterator[Row]:
    """Yield the predicted statistics that the run has."""
    measured = {name: MeasuredMetric.of(run, name) for name in {each.metric for each in expected}}
    for each in expected:
        row = _row(each, measured[each.metric], level)
        if row is not None:
            yield row


def _recording_notes(run: Measured, metrics: Iterable[str]) -> Iterator[str]:
    """Yield what the result of the load client lacks: latencies that it did not record, and requests that failed."""
    missing = [f"no {name} in this result" for name in metrics if MeasuredMetric.of(run, name).empty]
    yield from missing
    if missing and isinstance(run, MeasuredSummary):
        yield f"{RECORD} keeps every latency"
    if run.n_failed:
        yield f"{run.n_failed:,} of {run.n + run.n_failed:,} requests failed{_reasons(run)}"


def _reasons(run: Measured) -> str:
    """Return the most frequent reason of failed requests, where the client keeps reasons."""
    failures = run.failures if isinstance(run, MeasuredRun) else ()
    counts = Counter(failed.reason for failed in failures).most_common(1)
    return f" (most often: {counts[0][0]})" if counts else ""


def _model_notes(prediction: Prediction, model: str | None, served: str | None) -> list[str]:
    planned = prediction.plan.deployment["model"]
    if model is None:
        return ["the result does not name its model; the plan's model is assumed"]
    if model == served:
        return served_notes([model], planned)
    if served is not None:
        raise InputError("this result belongs to another model than --served", model, served)
    if same_model(model, planned) is False:
        rule = f"this result belongs to another model; the plan is for {planned}"
        raise InputError(rule, model, planned, hint=f"give --served {model} if that is the name of this model")
    return served_notes([model], planned)


def served_notes(names: list[str], planned: str) -> list[str]:
    """Return a note for each name of a model on a server that is not a name of the planned model."""
    return [
        f"the model on the server has the name {name}; it is compared with the plan's {planned}"
        for name in names
        if not is_name_of(name, planned)
    ]


def _same_lengths(prediction: Prediction, run: Measured) -> Iterator[Comparison]:
    """Yield the mean lengths.

    Raises:
        InputError: A mean is too far from the plan.
    """
    for name, planned in (("input", prediction.input_mean_tokens), ("output", prediction.output_mean_tokens)):
        mean, error = _mean_tokens(run, name, planned)
        if not math.isfinite(mean):
            continue
        if not _is_near(mean, planned, SIGMAS * error / planned):
            words = f"mean {name} tokens is {mean:.4g}, planned {planned:.4g}"
            rule = f"this result belongs to another workload: {words}"
            raise InputError(rule, run.source, hint="send the requests of `plan deploy`, or plan for these lengths")
        yield Comparison(f"mean {name} tokens", planned, mean)


def _mean_tokens(run: Measured, side: str, typical: float) -> tuple[float, float]:
    """Return the mean length and its standard error; NaN without lengths.

    A summary does not have the deviation of lengths; it is then taken to be `typical`, as of exponential lengths.
    """
    if isinstance(run, MeasuredSummary):
        return getattr(run, f"{side}_mean_tokens"), typical / math.sqrt(run.n)
    values: FloatArray = getattr(run, f"{side}_tokens")
    known = values[np.isfinite(values)]
    if not len(known):
        return math.nan, 0.0
    return float(known.mean()), float(np.std(known)) / math.sqrt(len(known))


def _is_near(measured: float, planned: float, chance: float) -> bool:
    """Return True if the relative difference is permitted, or as small as chance may explain."""
    return abs(measured / planned - 1) <= max(TOLERANCE, chance)


@dataclass(frozen=True, slots=True)
class MeasuredMetric:
    """One latency metric of a result: its samples, of shape (n,), or the statistics of a summary of `n` requests."""

    samples_s: FloatArray
    summary: MeasuredSummary | None
    name: str

    @classmethod
    def of(cls, run: Measured, name: str) -> MeasuredMetric:
        """Return the metric of a run."""
        if isinstance(run, MeasuredSummary):
            return cls(np.empty(0), run, name)
        return cls(LATENCY_METRICS[name].measured(run), None, name)

    @property
    def empty(self) -> bool:
        """Return True if the result does not have the metric."""
        if self.summary is not None:
            return not self.summary.statistics_s.get(self.name)
        return not len(self.samples_s)

    @property
    def n(self) -> int:
        """Return the number of samples; where a summary counts no gaps between tokens, an estimate."""
        if self.summary is None:
            return len(self.samples_s)
        gaps = np.nan_to_num(self.summary.output_mean_tokens, nan=2.0) - 1.0
        return self.summary.n if LATENCY_METRICS[self.name].is_per_request else int(self.summary.n * max(gaps, 1.0))

    def value_s(self, slo: Slo, level: float) -> tuple[float, float, float] | None:
        """Return a statistic with its interval of a level, seconds; None if the result does not have it.

        Percentiles of a summary have no interval.
        """
        if self.summary is None:
            return (slo.value_s(self.samples_s), *bootstrap(self.samples_s, slo, level)) if self.n else None
        value = self.summary.value_s(self.name, slo.stat)
        if value is None:
            return None
        if slo.quantile is not None:
            return value, value, value
        spread = NormalDist().inv_cdf((1 + level) / 2) * self.summary.mean_error_s(self.name)
        return value, max(value - spread, 0.0), value + spread


def _row(expected: Expected, metric: MeasuredMetric, level: float) -> Row | None:
    slo = Slo(expected.metric, expected.stat, expected.limit_s or 1.0)
    values = metric.value_s(slo, level)
    if values is None:
        return None
    measured, low, high = values
    beyond = metric.n * (1 - (slo.quantile or 0.0))
    found = finding(expected, measured, measured, beyond)
    met = None if expected.limit_s is None or found == "too few" else measured <= expected.limit_s
    return Row(expected, measured, low, high, found, met)


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


def bootstrap(samples: FloatArray, slo: Slo, level: float) -> tuple[float, float]:
    """Return the interval of a level of a statistic of resampled requests, seconds.

    The requests of one run depend on each other, so the true interval is wider. `samples` has shape (n,).
    """
    rng = np.random.default_rng(0)
    few = samples if len(samples) <= _MAX_RESAMPLED else rng.choice(samples, _MAX_RESAMPLED, replace=False)

    def statistic(drawn: FloatArray) -> FloatArray:
        return np.asarray(drawn.mean(axis=1) if slo.quantile is None else np.quantile(drawn, slo.quantile, axis=1))

    return resampled_interval((few,), statistic, level, _RESAMPLES, rng)
