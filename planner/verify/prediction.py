"""The predicted latencies of a plan with intervals, by metric and statistic, for comparison with measurements."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from calibration.accuracy.stated_error import StatedError
from catalogs.errors import InputError
from catalogs.io.output_files import finite
from planner.answer.answer_schema import Answer
from planner.answer.plan_schema import Plan, Stats
from planner.evaluation.confidence import Factors, LatencyCurve
from planner.problem.latency_metrics import LATENCY_METRICS
from planner.problem.slo import STATS, Slo

#: Version of the form of a prediction.
SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Expected:
    """One predicted latency statistic at one request rate, with its interval, seconds.

    `high_s` is infinite if slower steps would let the queue grow. `limit_s` is the limit of the objective on this
    statistic, or None if there is no such objective.
    """

    metric: str
    stat: str
    value_s: float
    low_s: float
    high_s: float
    limit_s: float | None = None

    @property
    def name(self) -> str:
        """Return the name of the statistic, for example "ttft.p99"."""
        return f"{self.metric}.{self.stat}"


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predictions of one plan of an answer: its rate, its mean lengths in tokens, and its latencies."""

    answer: Answer
    plan: Plan
    requests_per_s: float
    input_mean_tokens: float
    output_mean_tokens: float

    @classmethod
    def of(cls, answer: Answer, plan: Plan) -> Prediction:
        """Return the predictions of a plan.

        Raises:
            InputError: The plan has no figures.
        """
        rate, out, total = plan.requests_per_s, plan.metric("output_tokens_per_s"), plan.metric("total_tokens_per_s")
        if not rate or out is None or total is None or plan.calibration is None:
            raise InputError("this plan has no figures to compare with: plan again with this version")
        return cls(answer, plan, rate, (total - out) / rate, out / rate)

    @property
    def error(self) -> StatedError:
        """Return the stated error of simulated runs of the engine against measured runs."""
        return StatedError.of(self.answer.request.engine, self.plan.operator_error, self.plan.regime)

    @property
    def level(self) -> float:
        """Return the level of every interval: that of the objectives in the answer."""
        return self.plan.interval_level

    @property
    def ends(self) -> tuple[float, float]:
        """Return the probability levels of the low and the high end of every interval."""
        return (1 - self.level) / 2, (1 + self.level) / 2

    @property
    def metrics(self) -> list[str]:
        """Return the latency metrics that clients and servers report themselves, and those with objectives."""
        reported = [name for name, metric in LATENCY_METRICS.items() if metric.histograms]
        return list(dict.fromkeys([*reported, *(row.metric for row in self.plan.slo)]))

    def rows(self) -> list[Expected]:
        """Return every statistic at the planned rate; a statistic with an objective has the interval of the answer."""
        objectives = {(row.metric, row.stat): row for row in self.plan.slo}
        found = []
        for metric in self.metrics:
            stats = Stats.model_validate((self.plan.metrics or {}).get(f"{metric}_s") or {})
            for stat in STATS:
                value, row = stats.at(stat), objectives.get((metric, stat))
                if row is not None and row.value_s is not None and row.ci_low_s is not None:
                    high = math.inf if row.ci_high_s is None else row.ci_high_s
                    found.append(Expected(metric, stat, row.value_s, row.ci_low_s, high, row.limit_s))
                elif value is not None:
                    found.append(self._expected(metric, stat, value, self.requests_per_s))
        return found

    def at(self, metric: str, stat: str, requests_per_s: float) -> Expected | None:
        """Return a statistic at another rate, along the curve of the answer; None beyond the simulated rates."""
        planned = next((row for row in self.rows() if (row.metric, row.stat) == (metric, stat)), None)
        curve = self.curve(metric, stat)
        if planned is None or curve is None or not self.covers(requests_per_s):
            return None
        value = planned.value_s * curve.value_s(requests_per_s) / curve.value_s(self.requests_per_s)
        at_most_planned = requests_per_s <= self.requests_per_s * (1 + 1e-9)  # A rate is a quotient, hence rounded.
        limit = planned.limit_s if at_most_planned else None
        return replace(self._expected(metric, stat, value, requests_per_s), limit_s=limit)

    def covers(self, requests_per_s: float) -> bool:
        """Return whether a rate lies between half of the lowest and the highest rate that the answer has simulated.

        Below the lowest simulated rate the latency hardly changes.
        """
        rates = [p.requests_per_s for p in self.plan.curve]
        return bool(rates) and min(rates) / 2 <= requests_per_s <= max(rates)

    def curve(self, metric: str, stat: str) -> LatencyCurve | None:
        """Return the statistic as a function of the rate; None if the answer has fewer than two points of it."""
        points = {}
        for p in sorted(self.plan.curve, key=lambda p: p.n_seeds):
            value = p.of(metric).at(stat)
            if value is not None and value > 0:
                points[p.requests_per_s] = (value, p.stable, p.waiting(metric, stat))
        if len(points) < 2:
            return None
        rates = sorted(points)
        values = np.maximum.accumulate([points[r][0] for r in rates])
        stable = np.logical_and.accumulate([points[r][1] for r in rates])
        waiting = np.maximum.accumulate([points[r][2] for r in rates])
        return LatencyCurve(tuple(rates), tuple(map(float, values)), tuple(map(bool, stable)), tuple(waiting.tolist()))

    def _expected(self, metric: str, stat: str, value: float, rate: float) -> Expected:
        return Expected(metric, stat, value, *self._ends(Slo(metric, stat, 1.0), value, rate))

    def _ends(self, slo: Slo, value: float, rate: float) -> Iterator[float]:
        """Yield the low and the high end of the interval of a statistic.

        The stated error of the step time changes the rate, and the error of the statistic itself changes the value.
        """
        factors = Factors.at(np.array(self.ends), slo, self.error)
        curve = self.curve(slo.metric, slo.stat)
        latencies = factors.latency if curve is None else factors.latency_at(curve.waiting_at(rate * factors.speed))
        for speed, latency in zip(factors.speed.tolist(), latencies.tolist(), strict=True):
            if curve is None:
                yield value * latency
            elif speed > 1 and not curve.is_stable(rate * speed):
                yield math.inf
            else:
                yield value * latency * curve.value_s(rate * speed) / curve.value_s(rate)

    def document(self) -> dict[str, Any]:
        """Return the content of prediction.json."""
        request, plan = self.answer.request, self.plan
        return {
            "schema_version": SCHEMA_VERSION,
            **{key: plan.deployment[key] for key in ("model", "engine", "hardware")},
            "workload": request.workload,
            "requests_per_s": self.requests_per_s,
            "input_mean_tokens": self.input_mean_tokens,
            "output_mean_tokens": self.output_mean_tokens,
            "output_tokens_per_s": plan.metric("output_tokens_per_s"),
            "interval_level": self.level,
            "latencies": [finite(asdict(row)) for row in self.rows()],
            "objectives": [slo.text for slo in request.slos],
            "kv_peak_fraction": plan.metric("kv_peak_fraction"),
            "deployment": plan.deployment,
            "calibration": None if plan.calibration is None else plan.calibration.bundle,
            "made_by": self.answer.reproduce.command,
            "versions": self.answer.reproduce.versions,
        }
