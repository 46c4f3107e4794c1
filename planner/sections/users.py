"""A number of users checked by themselves: they wait for answers, think, and ask again, on the deployment chosen.

The search reckons with the rate they make (interactive response time law) and lets requests arrive at random. Users
cannot pile up so: a user who waits sends no request. So latencies of the closed loop are mostly lower, and its rate
tells whether the one reckoned with was right.

What slower steps would do is simulated, too: if every step took f times as long, users who think Z would see f times
the latencies that users who think Z / f see at the original speed (rescale the clock).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from calibration.accuracy.stated_error import StatedError
from catalogs.arrays import BoolArray, FloatArray
from catalogs.io.json_block import JsonBlock
from catalogs.ui import html_page
from catalogs.ui.html_page import paragraph, table
from catalogs.ui.terminal import Line
from catalogs.ui.words import seconds
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.workload import Workload
from planner.answer.measure import MOST_REPLICAS
from planner.answer.plan_schema import Plan, SloResult
from planner.evaluation.confidence import LEVEL, LEVELS, SEEDS, Confidence, Factors, interval, probability
from planner.evaluation.evaluator import Load, Observation, pooled_value_s
from planner.evaluation.steady_state import SteadyWindow, WindowStatistics, finish_s, observe_window
from planner.problem.request import PlanRequest
from planner.problem.slo import Slo
from planner.search.objectives import RunSizes
from planner.sections.section import SIMULATED, ChosenPlan
from simulator.cluster.run import Run
from simulator.cluster.simulate import simulate

#: Users simulated at most; of more, an even share of the replicas serves an even share of the users.
MOST_USERS: Final = 20_000

#: Requests of each user that are measured, on average, at least.
_EACH: Final = 2

#: Added to the seed of a run for the stream of its thinking times.
_THINKING: Final = 7919


class UsersInClosedLoop(JsonBlock):
    """The users in their closed loop: the rate they make, the objectives, with intervals of level `ci_level`.

    open_requests_per_s: the rate the plan reckons with. share: one of so many even parts of the replicas was simulated.
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

    def scaled(self, share: int, users: int) -> UsersInClosedLoop:
        """Return the figures of all `users`, of which one of `share` even parts was simulated."""
        names = ("requests_per_s", "ci_low_per_s", "ci_high_per_s")
        rates = {name: None if (rate := getattr(self, name)) is None else rate * share for name in names}
        return self.model_copy(update={**rates, "users": users, "share": share})


class UsersSection:
    """The users of the request, simulated as they wait and think on the best plan."""

    name = "closed_loop"
    schema = UsersInClosedLoop

    def wanted(self, request: PlanRequest) -> bool:
        """Only a request for users has the section."""
        return request.users is not None

    def compute(self, chosen: ChosenPlan) -> UsersInClosedLoop:
        """Simulate all replicas, or an even share of them where they or the users are many."""
        request, world = chosen.request, chosen.world
        users, replicas = request.users or 1, world.deployments.even_parts(chosen.candidate)
        share = max(-(-replicas // MOST_REPLICAS), -(-users // MOST_USERS))
        share = next(n for n in range(min(share, replicas), replicas + 1) if replicas % n == 0)
        serve = partial(simulate, world.deployments.part(chosen.candidate, share))
        desk = ClosedLoopEvaluator(
            serve, world.workload, request.slos, RunSizes.for_slos(request.slos).full, request.seed
        )
        part = Users(max(1, round(users / share)), request.think_s)
        return closed_loop(desk, part, chosen.measured.requests_per_s, chosen.error).scaled(share, users)

    def screen(self, block: UsersInClosedLoop, plan: Plan) -> Iterator[Line]:  # noqa: ARG002
        """Return the rate that the users make, then every objective."""
        span = f"{_per_s(block.ci_low_per_s)} to {_per_s(block.ci_high_per_s)}"
        rate = f"they make {_per_s(block.requests_per_s)} requests/s ({block.ci_level:.0%} interval {span})"
        reckoned = f"{_per_s(block.open_requests_per_s)} was reckoned with, arriving at random"
        yield "Users", f"{block.users} simulated as they wait and think: {rate}; {reckoned}"
        for row in block.slo:
            verdict = "met" if row.met else "MISSED"
            values = f"{seconds(row.value_s)} ({seconds(row.ci_low_s)} to {seconds(row.ci_high_s)})"
            yield "", f"{row.name} = {values}: {verdict}, {row.probability_met:.0%} sure"

    def page(self, block: UsersInClosedLoop, plan: Plan) -> Iterable[html_page.PageSection]:
        """Return the lines of the screen as a table."""
        lines = table(("what", "found"), list(self.screen(block, plan)), words=2)
        return [html_page.PageSection("Users in a closed loop", [paragraph(SIMULATED), lines], "Users")]


def _per_s(value: float | None) -> str:
    """Return a rate with three digits."""
    return "unknown" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


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
        load = Load(rate, n, self.seed + seed, whole_cluster=True)
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


def closed_loop(desk: ClosedLoopEvaluator, users: Users, open_per_s: float, error: StatedError) -> UsersInClosedLoop:
    """Simulate the users over seeds and at levels of the stated error: rate and objectives with LEVEL intervals.

    open_per_s: the rate the plan reckons with.
    """
    loops = [desk.observe(users, seed) for seed in range(SEEDS)]
    speeds = error.factors("e2e", np.array(LEVELS))
    slower = [desk.observe(users.faster(float(f))) for f in speeds]
    rates = np.array([loop.requests_per_s for loop in loops])
    moved = np.array([loop.requests_per_s for loop in slower]) / speeds
    low, high = interval(float(rates.mean()), moved, _noise(rates))
    rows = [_slo_result(slo, loops, slower, error) for slo in desk.slos]
    return UsersInClosedLoop(
        users=users.n,
        think_s=users.think_s,
        open_requests_per_s=open_per_s,
        requests_per_s=float(rates.mean()),
        ci_low_per_s=low,
        ci_high_per_s=high,
        ci_level=LEVEL,
        n_seeds=SEEDS,
        met=all(row.met for row in rows),
        slo=rows,
    )


def _slo_result(slo: Slo, loops: list[ClosedLoopRun], slower: list[ClosedLoopRun], error: StatedError) -> SloResult:
    value_s = pooled_value_s([loop.observation for loop in loops], slo)
    factors = Factors.at(np.array(LEVELS), slo, error).latency
    moved = factors * np.array([slo.value_s(loop.observation.samples_s[slo.metric]) for loop in slower])
    noise = _noise(np.array([slo.value_s(loop.observation.samples_s[slo.metric]) for loop in loops]))
    bars = Confidence(value_s, *interval(value_s, moved, noise), probability(moved, noise, slo.limit_s))
    return SloResult.of(slo, value_s, bars)


def _noise(values: FloatArray) -> float:
    """Standard error of the logarithm of a mean over independent seeds; 0 where it cannot be told."""
    if not (np.isfinite(values) & (values > 0)).all():
        return 0.0
    return float(np.std(np.log(values), ddof=1) / math.sqrt(len(values)))
