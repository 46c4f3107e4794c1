"""The users of a request, simulated in a closed loop on the recommended deployment.

In a closed loop a user waits for the answer, thinks for a while, and only then sends the next request. The search does
not simulate this. It derives the request rate of the users from the interactive response time law (Denning and Buzen,
ACM Computing Surveys 10(3), 1978) and simulates random arrivals at that rate. A waiting user sends no request, so
latencies in a closed loop are mostly lower. The rate of the closed loop shows whether the derived rate was right.

Steps that take longer than predicted are simulated as well. If every step took f times as long, users with think time Z
would see f times the latencies that users with think time Z / f see at the original speed, because the clock can be
rescaled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from calibration.accuracy.stated_error import StatedError
from catalogs.arrays import BoolArray
from catalogs.io.json_block import JsonBlock
from catalogs.ui.terminal import Line
from catalogs.ui.words import counted, digits
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.workload import Workload
from planner.answer.confirmed_rates import MOST_REPLICAS
from planner.answer.plan_schema import Plan, SloResult
from planner.evaluation.confidence import (
    LEVEL,
    LEVELS,
    SEEDS,
    SPEED,
    Factors,
    confidence_at_levels,
    error_levels,
    interval,
    log_noise,
    seed_values,
)
from planner.evaluation.observation import Load, Observation
from planner.evaluation.run_sizes import run_sizes
from planner.evaluation.steady_state import SteadyWindow, WindowStatistics, finish_s, observe_window
from planner.evaluation.verdict import pooled_value_s, pooled_waiting_share
from planner.problem.request import PlanRequest
from planner.problem.slo import Slo
from planner.sections.section import ChosenPlan, Section, level_words, result_words
from simulator.cluster.run import Run
from simulator.cluster.simulate import simulate

#: Maximum number of simulated users. With more users, an even share of the replicas serves an even share of the users.
#: A judgement of cost.
MOST_USERS: Final = 20_000

#: Minimum mean number of measured requests per user.
_EACH: Final = 2

#: Added to the seed of a run to get the random stream of its think times.
_THINKING: Final = 7919


class UsersInClosedLoop(JsonBlock):
    """The result of the closed loop: the rate of the users, with an interval of level `ci_level`, and the objectives.

    `open_requests_per_s` is the derived rate of the plan. One of `share` equal parts of the replicas was simulated.
    """

    users: int
    think_s: float
    open_requests_per_s: float
    requests_per_s: float | None
    ci_low_per_s: float | None
    ci_high_per_s: float | None
    ci_level: float
    n_seeds: int = SEEDS
    met: bool = True
    slo: list[SloResult]
    share: int = 1


class UsersSection(Section[UsersInClosedLoop]):
    """The section of the users in a closed loop on the recommended plan."""

    name = "closed_loop"
    title = "Users in a closed loop"
    short_title = "Users"
    schema = UsersInClosedLoop

    def wanted(self, request: PlanRequest) -> bool:
        """Return True if the request has a number of users."""
        return request.users is not None

    def compute(self, chosen: ChosenPlan) -> UsersInClosedLoop:
        """Simulate all replicas, or an even share of them if there are many replicas or users."""
        request, chosen_evaluator = chosen.request, chosen.evaluator
        users, replicas = request.users or 1, chosen_evaluator.deployments.even_parts(chosen.candidate)
        share = max(-(-replicas // MOST_REPLICAS), -(-users // MOST_USERS))
        share = next(n for n in range(min(share, replicas), replicas + 1) if replicas % n == 0)
        serve = partial(simulate, chosen_evaluator.deployments.part(chosen.candidate, share))
        n = run_sizes(request).full
        evaluator = ClosedLoopEvaluator(serve, chosen_evaluator.workload, request.slos, n, request.seed)
        all_users = Users(users, request.think_s)
        rate, sure = chosen.evaluated.requests_per_s, request.confidence
        return closed_loop(evaluator, all_users, rate, chosen.error, sure, share)

    def caveat(self, block: UsersInClosedLoop, plan: Plan) -> str:  # noqa: ARG002
        """Return which objectives the users in a closed loop miss, although the plan meets them at its rate."""
        missed = [row.name for row in block.slo if not row.met]
        if not missed:
            return ""
        are = "is" if len(missed) == 1 else "are"
        users = counted(block.users, "user")
        return f"In a closed loop of {users}, {' and '.join(missed)} {are} missed at the required confidence."

    def screen(self, block: UsersInClosedLoop, plan: Plan) -> Iterator[Line]:  # noqa: ARG002
        """Yield the rate of the users, then every objective."""
        rates = (block.requests_per_s, block.ci_low_per_s, block.ci_high_per_s, block.open_requests_per_s)
        rate, low, high, planned = ("unknown" if per_s is None else digits(per_s) for per_s in rates)
        level = level_words(block.ci_level, f"{low} to {high}")
        closed = f"{counted(block.users, 'user')} simulated in a closed loop send {rate} requests/s ({level})"
        yield "Users", f"{closed}; the plan assumes {planned} requests/s with random arrivals"
        for row in block.slo:
            yield "", result_words(row, block.ci_level)


@dataclass(frozen=True, slots=True)
class Users:
    """A number of users with exponentially distributed think times of mean `think_s`."""

    n: int
    think_s: float

    def requests(self, workload: Workload, n_requests: int, seed: int) -> RequestSet:
        """Return requests with the lengths and contents of the workload, sent in a closed loop of the users."""
        drawn = workload.materialise(seed, n_requests)
        thinking = np.random.default_rng([seed, _THINKING]).exponential(self.think_s, drawn.n) if self.think_s else None
        return replace(drawn, arrival_s=np.zeros(drawn.n), concurrency=self.n, think_s=thinking)


@dataclass(frozen=True, slots=True)
class ClosedLoopEvaluator:
    """Simulates users on a deployment with `serve` and measures at least `n_requests` requests."""

    serve: Callable[[RequestSet], Run]
    workload: Workload
    slos: tuple[Slo, ...]
    n_requests: int
    seed: int

    def observe(self, users: Users, seed: int = 0) -> Observation:
        """Return one observed run; its load has the rate of the users. `seed` is added to the evaluator's seed."""
        n = 2 * users.n + max(self.n_requests, _EACH * users.n)
        done = self.serve(users.requests(self.workload, n, self.seed + seed))
        measured = _window(done, users.n)
        rate = (int(measured.sum()) - 1) / float(np.ptp(done.arrival_s[measured]))
        load = Load(rate, n, self.seed + seed, whole_cluster=True)
        return observe_window(done, SteadyWindow(measured, 0.0), load, WindowStatistics.of(self.slos))


def _window(done: Run, users: int) -> BoolArray:
    """Return which requests of a run are measured. Shape (requests,).

    The first request of each user is not measured. The others are measured if they were sent while every user still
    had a next request, that is, until the number of answers is the number of requests minus the number of users.
    """
    end_s = float(np.sort(finish_s(done))[done.requests.n - users - 1])
    measured = np.zeros(done.requests.n, dtype=np.bool_)
    measured[np.argsort(done.arrival_s, kind="stable")[users:]] = True
    return measured & np.less_equal(done.arrival_s, end_s)


def closed_loop(
    evaluator: ClosedLoopEvaluator, users: Users, open_per_s: float, error: StatedError, sure: float, share: int = 1
) -> UsersInClosedLoop:
    """Return the rate and the objectives of the users with LEVEL intervals, from several seeds and error levels.

    Args:
        evaluator: Simulates the users of one part of the deployment.
        users: All users.
        open_per_s: Derived rate of the plan, requests per second.
        error: Stated error of the simulator, which sets the speeds of slower steps.
        sure: The confidence with which an objective must be met.
        share: Number of equal parts of the deployment; one is simulated with its part of the users.
    """
    part = Users(max(1, round(users.n / share)), users.think_s)
    loops = [evaluator.observe(part, seed) for seed in range(SEEDS)]
    levels = error_levels(sure)
    speeds = error.factors(SPEED, np.array(levels))
    slower = [evaluator.observe(Users(part.n, part.think_s / float(speed))) for speed in speeds]
    rates = np.array([loop.load.requests_per_s for loop in loops])
    mean, of_interval = float(rates.mean()), [levels.index(level) for level in LEVELS]
    moved = (np.array([loop.load.requests_per_s for loop in slower]) / speeds)[of_interval]
    low, high = interval(mean, mean * moved / rates[0], float(np.std(np.log(rates), ddof=1) / math.sqrt(SEEDS)))
    rows = [slo_row(slo, loops, slower, error, sure) for slo in evaluator.slos]
    return UsersInClosedLoop(
        users=users.n,
        think_s=users.think_s,
        open_requests_per_s=open_per_s,
        requests_per_s=mean * share,
        ci_low_per_s=low * share,
        ci_high_per_s=high * share,
        ci_level=LEVEL,
        n_seeds=SEEDS,
        met=all(row.met for row in rows),
        slo=rows,
        share=share,
    )


def slo_row(
    slo: Slo, loops: list[Observation], slower: list[Observation], error: StatedError, sure: float
) -> SloResult:
    """Return the row of an objective in a closed loop.

    Args:
        slo: The objective.
        loops: Runs of independent seeds.
        slower: Runs of the first seed with the times between requests divided by the factors of the error of the speed
            at `error_levels(sure)`. Their ratios to the first of `loops` count: its chance is not an effect of slower
            steps.
        error: Stated error of the simulator.
        sure: The confidence with which the objective must be met.
    """
    value_s, noise, levels = pooled_value_s(loops, slo), log_noise(seed_values(loops, slo)), error_levels(sure)
    waiting = np.array([pooled_waiting_share([loop], slo) for loop in slower])
    factors = Factors.at(np.array(levels), slo, error, waiting).latency
    moved = factors * np.array([slo.value_s(loop.samples_s[slo.metric]) for loop in slower])
    first_s = slo.value_s(loops[0].samples_s[slo.metric])
    if 0 < first_s < math.inf and math.isfinite(value_s):
        moved = moved * (value_s / first_s)
    bars = confidence_at_levels(value_s, moved, noise, slo, sure, levels)
    return SloResult.of(slo, value_s, bars, sure, ci_level=bars.level)
