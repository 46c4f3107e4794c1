"""A number of users checked by themselves: they wait for answers, think, and ask again, on the deployment chosen.

The search reckons with the rate they make (interactive response time law) and lets requests arrive at random. Users
cannot pile up so: who waits does not ask. So latencies of the closed loop are mostly lower, and its rate tells whether
the one reckoned with was right.

What slower steps would do is simulated, too: if every step took f times as long, users who think Z would see f times
the latencies that users who think Z / f see at the original speed (rescale the clock).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from calibration.stated_error import StatedError
from catalogs.request_set import RequestSet
from catalogs.workloads import Workload
from planner.confidence import LEVEL, Factors
from planner.observation import Load, Observation, pooled_value_s
from planner.slo import FloatArray, Slo
from planner.window import Reading, Window, finish_s, observe_window
from simulator.run_record import Run

BoolArray = npt.NDArray[np.bool_]

#: Independent seeds of the value, and probability levels of the stated error at which a run is made besides.
SEEDS: Final = 3
LEVELS: Final = (0.05, 0.25, 0.5, 0.75, 0.95)
#: Requests of each user that are measured, on average, at least.
_EACH: Final = 2
#: Two-sided 90 % quantile of Student's t for SEEDS - 1 degrees of freedom.
_T90: Final = 2.920
_DENSE: Final = 201
#: What an infinite latency is taken as between two levels: far beyond any limit.
_ENDLESS_S: Final = 1e9
#: Added to the seed of a run for the stream of its thinking times.
_THINKING: Final = 7919


@dataclass(frozen=True, slots=True)
class Users:
    """n of them, who each wait an exponential time of mean think_s between an answer and their next request."""

    n: int
    think_s: float

    def requests(self, workload: Workload, n_requests: int, seed: int) -> RequestSet:
        """Of the workload's lengths and contents, sent when the users come to it."""
        drawn = workload.materialise(seed, n_requests)
        thinking = np.random.default_rng([seed, _THINKING]).exponential(self.think_s, drawn.n) if self.think_s else None
        return replace(drawn, arrival_s=np.zeros(drawn.n), concurrency=self.n, think_s=thinking)

    def faster(self, factor: float) -> Users:
        """Who think so many times shorter."""
        return Users(self.n, self.think_s / factor)


@dataclass(frozen=True, slots=True)
class Loop:
    """One observed run: its rate, and the latencies of its steady part."""

    requests_per_s: float
    observation: Observation


@dataclass(frozen=True, slots=True)
class Desk:
    """What users ask. serve: what simulates the deployment. n_requests: measured at least."""

    serve: Callable[[RequestSet], Run]
    workload: Workload
    slos: tuple[Slo, ...]
    n_requests: int
    seed: int

    def observe(self, users: Users, seed: int = 0) -> Loop:
        """One run; seed counts from the desk's own."""
        n = 2 * users.n + max(self.n_requests, _EACH * users.n)
        done = self.serve(users.requests(self.workload, n, self.seed + seed))
        measured = _window(done, users.n)
        rate = (int(measured.sum()) - 1) / float(np.ptp(done.arrival_s[measured]))
        load = Load(rate, n, self.seed + seed, whole_cluster=True)
        reading = Reading(itl="itl" in {slo.metric for slo in self.slos})
        return Loop(rate, observe_window(done, Window(measured, 0.0), load, reading))


def _window(done: Run, users: int) -> BoolArray:
    """Requests after everybody's first, sent while every user still had a next one to think about: until as many
    answers are there as requests but for one of each user. (requests,)"""
    order = np.argsort(done.arrival_s, kind="stable")
    answered = done.requests.n - users
    end_s = float(np.sort(finish_s(done))[answered - 1])
    measured = np.zeros(done.requests.n, dtype=np.bool_)
    measured[order[users:]] = True
    return measured & np.less_equal(done.arrival_s, end_s)


def closed_loop_block(desk: Desk, users: Users, open_per_s: float, error: StatedError) -> dict[str, Any]:
    """What the answer says of its users: rate and objectives in the closed loop, with LEVEL intervals.

    open_per_s: the rate the plan reckons with.
    """
    loops = [desk.observe(users, seed) for seed in range(SEEDS)]
    speeds = error.factors("e2e", np.array(LEVELS))
    slower = [desk.observe(users.faster(float(f))) for f in speeds]
    rates = np.array([loop.requests_per_s for loop in loops])
    moved = np.array([loop.requests_per_s for loop in slower]) / speeds
    low, high = interval(float(rates.mean()), moved, _noise(rates))
    rows = [_row(slo, loops, slower, error) for slo in desk.slos]
    return {
        "users": users.n,
        "think_s": users.think_s,
        "open_requests_per_s": open_per_s,
        "requests_per_s": float(rates.mean()),
        "ci_low_per_s": low,
        "ci_high_per_s": high,
        "ci_level": LEVEL,
        "n_seeds": SEEDS,
        "met": all(row["met"] for row in rows),
        "slo": rows,
    }


def _row(slo: Slo, loops: list[Loop], slower: list[Loop], error: StatedError) -> dict[str, Any]:
    value_s = pooled_value_s([loop.observation for loop in loops], slo)
    factors = Factors.at(np.array(LEVELS), slo, error).latency
    moved = factors * np.array([slo.value_s(loop.observation.samples_s[slo.metric]) for loop in slower])
    noise = _noise(np.array([slo.value_s(loop.observation.samples_s[slo.metric]) for loop in loops]))
    low, high = interval(value_s, moved, noise)
    return {
        "metric": slo.metric,
        "stat": slo.stat,
        "limit_s": slo.limit_s,
        "value_s": value_s,
        "ci_low_s": low,
        "ci_high_s": high,
        "met": bool(value_s <= slo.limit_s),
        "probability_met": probability(moved, noise, slo.limit_s),
    }


def _noise(values: FloatArray) -> float:
    """Standard error of the logarithm of a mean over independent seeds; 0 where it cannot be told."""
    if not (np.isfinite(values) & (values > 0)).all():
        return 0.0
    return float(np.std(np.log(values), ddof=1) / math.sqrt(len(values)))


def interval(value: float, moved: FloatArray, noise: float, levels: Sequence[float] = LEVELS) -> tuple[float, float]:
    """As `planner.confidence.confidence` has it: moved (levels,) are the values at levels of the stated error. Ends may
    be infinite; both are nan where the value itself is."""
    if not 0 < value < math.inf:
        return math.nan, math.nan
    logs = np.log(moved / value)
    middle = float(np.interp(0.5, levels, logs)) if np.isfinite(logs).all() else float(logs.min())
    low, high = (math.hypot(float(end) - middle, _T90 * noise) for end in (logs.min(), logs.max()))
    return value * math.exp(middle - low), value * math.exp(middle + high)


def probability(moved: FloatArray, noise: float, limit_s: float, levels: Sequence[float] = LEVELS) -> float:
    """The share of the stated error (and of the noise) under which the limit is met."""
    at = (np.arange(_DENSE) + 0.5) / _DENSE
    margins = math.log(limit_s) - np.interp(at, levels, np.log(np.minimum(moved, _ENDLESS_S)))
    if noise <= 0:
        return float(np.mean(margins >= 0))
    normal = NormalDist()
    return float(np.mean([normal.cdf(float(m) / noise) for m in margins]))
