"""A number of users checked by themselves: they wait for answers, think, and ask again, on the deployment chosen.

The search reckons with the rate they make (interactive response time law) and lets requests arrive at random. Users
cannot pile up so: who waits does not ask. So latencies of the closed loop are mostly lower, and its rate tells whether
the one reckoned with was right.

What slower steps would do is simulated, too: if every step took f times as long, users who think Z would see f times
the latencies that users who think Z / f see at the original speed (rescale the clock).

The users of a plan, simulated as they wait and think: brings `closed_loop` and the simulator together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from calibration.accuracy.stated_error import StatedError
from catalogs.arrays import BoolArray, FloatArray
from catalogs.ui.terminal import Line
from catalogs.ui.words import seconds
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.workload import Workload
from planner.answer.answer import Answer
from planner.answer.measure import MOST_REPLICAS
from planner.evaluation.confidence import LEVEL, LEVELS, Factors, interval, probability
from planner.evaluation.evaluator import Observation, OfferedLoad, pooled_value_s
from planner.evaluation.simulated import SimulatedEvaluator
from planner.evaluation.steady_state import SteadyWindow, WindowStatistics, finish_s, observe_window
from planner.problem.slo import Slo
from planner.search.objectives import RunSizes
from simulator.cluster.run import Run
from simulator.cluster.simulate import run

#: Independent seeds of the value, and probability levels of the stated error at which a run is made besides.
SEEDS: Final = 3

#: Requests of each user that are measured, on average, at least.
_EACH: Final = 2

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
class ClosedLoopRun:
    """One observed run: its rate, and the latencies of its steady part."""

    requests_per_s: float
    observation: Observation


@dataclass(frozen=True, slots=True)
class ClosedLoopEvaluator:
    """What users ask. serve: what simulates the deployment. n_requests: measured at least."""

    serve: Callable[[RequestSet], Run]
    workload: Workload
    slos: tuple[Slo, ...]
    n_requests: int
    seed: int

    def observe(self, users: Users, seed: int = 0) -> ClosedLoopRun:
        """One run; seed counts from the desk's own."""
        n = 2 * users.n + max(self.n_requests, _EACH * users.n)
        done = self.serve(users.requests(self.workload, n, self.seed + seed))
        measured = _window(done, users.n)
        rate = (int(measured.sum()) - 1) / float(np.ptp(done.arrival_s[measured]))
        load = OfferedLoad(rate, n, self.seed + seed, whole_cluster=True)
        reading = WindowStatistics(itl="itl" in {slo.metric for slo in self.slos})
        return ClosedLoopRun(rate, observe_window(done, SteadyWindow(measured, 0.0), load, reading))


def _window(done: Run, users: int) -> BoolArray:
    """Requests after everybody's first, sent while every user still had a next one to think about: until as many
    answers are there as requests but for one of each user. (requests,)"""
    order = np.argsort(done.arrival_s, kind="stable")
    answered = done.requests.n - users
    end_s = float(np.sort(finish_s(done))[answered - 1])
    measured = np.zeros(done.requests.n, dtype=np.bool_)
    measured[order[users:]] = True
    return measured & np.less_equal(done.arrival_s, end_s)


def closed_loop_block(desk: ClosedLoopEvaluator, users: Users, open_per_s: float, error: StatedError) -> dict[str, Any]:
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


def _row(slo: Slo, loops: list[ClosedLoopRun], slower: list[ClosedLoopRun], error: StatedError) -> dict[str, Any]:
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


def users_lines(loop: dict[str, Any]) -> Iterator[Line]:
    """Of a `closed_loop` block."""
    span = f"{per_s(loop['ci_low_per_s'])} to {per_s(loop['ci_high_per_s'])}"
    rate = f"they make {per_s(loop['requests_per_s'])} requests/s ({loop['ci_level']:.0%} interval {span})"
    reckoned = f"{per_s(loop['open_requests_per_s'])} was reckoned with, arriving at random"
    yield "Users", f"{loop['users']} simulated as they wait and think: {rate}; {reckoned}"
    for row in loop["slo"]:
        verdict = "met" if row["met"] else "MISSED"
        values = f"{seconds(row['value_s'])} ({seconds(row['ci_low_s'])} to {seconds(row['ci_high_s'])})"
        yield "", f"{row['metric']}.{row['stat']} = {values}: {verdict}, {row['probability_met']:.0%} sure"


def per_s(value: float | None) -> str:
    """A rate, three digits."""
    return "unknown" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


#: Users simulated at most; more are looked at on an even share of the replicas.
MOST_USERS: Final = 20_000


def users_block(answer: Answer, world: SimulatedEvaluator) -> dict[str, Any]:
    """Of the best plan, on all its replicas, or an even share of them where they or the users are many. world: of its
    hardware."""
    request, best = answer.request, answer.entries[0]
    users, replicas = request.users or 1, world.parts(best.candidate)
    share = max(-(-replicas // MOST_REPLICAS), -(-users // MOST_USERS))
    share = next(n for n in range(min(share, replicas), replicas + 1) if replicas % n == 0)
    serve = partial(run, world.serves(best.candidate, share))
    desk = ClosedLoopEvaluator(serve, world.workload, request.slos, RunSizes.for_slos(request.slos).full, request.seed)
    error = StatedError.of(request.engine, float(best.block["calibration"]["operator_error"]))  # type: ignore[index]
    block = closed_loop_block(desk, Users(max(1, round(users / share)), request.think_s), best.requests_per_s, error)
    scaled = {key: block[key] * share for key in ("requests_per_s", "ci_low_per_s", "ci_high_per_s")}
    return block | scaled | {"users": users, "share": share}
