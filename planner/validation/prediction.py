"""The predicted latencies of a plan with intervals, by metric and statistic, for comparison with measurements."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from calibration.accuracy.stated_error import StatedError
from catalogs.errors import InputError
from planner.answer.plan_schema import Plan, Stats
from planner.answer.schema import Answer
from planner.evaluation.confidence import LEVEL, Factors, LatencyCurve
from planner.problem.latency_metrics import LATENCY_METRICS
from planner.problem.slo import Slo

STATS: Final = ("mean", "p50", "p90", "p95", "p99")

SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Expected:
    """One statistic at one rate, seconds. high_s is infinite where slower steps would let the queue grow.

    limit_s: of the objective on this statistic, None where there is none.
    """

    metric: str
    stat: str
    value_s: float
    low_s: float
    high_s: float
    limit_s: float | None = None

    @property
    def name(self) -> str:
        return f"{self.metric}.{self.stat}"

    def as_dict(self) -> dict[str, object]:
        high = self.high_s if math.isfinite(self.high_s) else None
        return {
            "metric": self.metric,
            "stat": self.stat,
            "value_s": self.value_s,
            "low_s": self.low_s,
            "high_s": high,
            "limit_s": self.limit_s,
        }


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of one plan of an answer. Lengths are means in tokens."""

    answer: Answer
    plan: Plan
    requests_per_s: float
    input_mean_tokens: float
    output_mean_tokens: float

    @classmethod
    def of(cls, answer: Answer, plan: Plan) -> Prediction:
        """Raises InputError for a plan that has no figures."""
        rate, out, total = plan.requests_per_s, plan.metric("output_tokens_per_s"), plan.metric("total_tokens_per_s")
        if not rate or out is None or total is None or plan.calibration is None:
            raise InputError("this plan has no figures to compare with: plan again with this version")
        return cls(answer, plan, rate, (total - out) / rate, out / rate)

    @property
    def error(self) -> StatedError:
        known = self.plan.calibration
        return StatedError.of(self.answer.request.engine, known.of_operators if known else 0.0)

    def rows(self) -> list[Expected]:
        """At the planned rate; an objective's own interval is the answer's."""
        objectives = {(row.metric, row.stat): row for row in self.plan.slo}
        found = []
        for metric in LATENCY_METRICS:
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
        """At another rate, along the curve of the answer; None beyond the rates simulated."""
        planned = next((row for row in self.rows() if (row.metric, row.stat) == (metric, stat)), None)
        curve = self.curve(metric, stat)
        if planned is None or curve is None or not self.reaches(requests_per_s):
            return None
        value = planned.value_s * curve.value_s(requests_per_s) / curve.value_s(self.requests_per_s)
        limit = planned.limit_s if requests_per_s <= self.requests_per_s else None
        found = self._expected(metric, stat, value, requests_per_s)
        return Expected(metric, stat, value, found.low_s, found.high_s, limit)

    def reaches(self, requests_per_s: float) -> bool:
        """Whether the answer's curve holds this rate (a little beyond its ends latency hardly differs)."""
        rates = [p.requests_per_s for p in self.plan.curve]
        return bool(rates) and min(rates) / 2 <= requests_per_s <= max(rates)

    def curve(self, metric: str, stat: str) -> LatencyCurve | None:
        """The statistic against the rate; None where the answer keeps no two points of it."""
        points = {}
        for p in sorted(self.plan.curve, key=lambda p: p.n_seeds):
            value = p.of(metric).at(stat)
            if value is not None and value > 0:
                points[p.requests_per_s] = (value, p.stable)
        if len(points) < 2:
            return None
        rates = sorted(points)
        values = np.maximum.accumulate([points[r][0] for r in rates])
        stable = np.logical_and.accumulate([points[r][1] for r in rates])
        return LatencyCurve(tuple(rates), tuple(map(float, values)), tuple(map(bool, stable)))

    def _expected(self, metric: str, stat: str, value: float, rate: float) -> Expected:
        ends = list(self._ends(Slo(metric, stat, 1.0), value, rate))
        return Expected(metric, stat, value, ends[0], ends[1])

    def _ends(self, slo: Slo, value: float, rate: float) -> Iterator[float]:
        """Low and high: every step slower by the stated error moves the rate, the statistic's own error the value."""
        factors = Factors.at(np.array([(1 - LEVEL) / 2, (1 + LEVEL) / 2]), slo, self.error)
        curve = self.curve(slo.metric, slo.stat)
        for speed, latency in zip(map(float, factors.speed), map(float, factors.latency), strict=True):
            if curve is None:
                yield value * latency
            elif speed > 1 and not curve.is_stable(rate * speed):
                yield math.inf
            else:
                yield value * latency * curve.value_s(rate * speed) / curve.value_s(rate)

    def document(self) -> dict[str, Any]:
        """prediction.json."""
        asked, plan = self.answer.request, self.plan
        return {
            "schema_version": SCHEMA_VERSION,
            "model": plan.deployment["model"],
            "engine": plan.deployment["engine"],
            "hardware": plan.deployment["hardware"],
            "workload": asked.workload,
            "requests_per_s": self.requests_per_s,
            "input_mean_tokens": self.input_mean_tokens,
            "output_mean_tokens": self.output_mean_tokens,
            "output_tokens_per_s": plan.metric("output_tokens_per_s"),
            "interval_level": LEVEL,
            "latencies": [row.as_dict() for row in self.rows()],
            "objectives": [slo.text for slo in asked.slos],
            "kv_peak_fraction": plan.metric("kv_peak_fraction"),
            "deployment": plan.deployment,
            "calibration": None if plan.calibration is None else plan.calibration.bundle,
            "made_by": self.answer.reproduce.command,
            "versions": self.answer.reproduce.versions,
        }
