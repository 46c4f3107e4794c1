"""The users of a request, simulated in a closed loop on the recommended deployment.

Each user waits for the answer, thinks, and sends the next request. The search instead derives the request rate of the
users from the interactive response time law and simulates random arrivals at that rate. In a closed loop a waiting user
sends no request, so latencies are mostly lower; the rate of the closed loop shows whether the derived rate was right.

Slower steps are simulated as well. If every step took f times as long, users with think time Z would see f times the
latencies that users with think time Z / f see at the original speed, because the clock can be rescaled.
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
from planner.evaluation.confidence import LEVEL, LEVELS, SEEDS, SPEED, Confidence, Factors, interval, probability
from planner.evaluation.evaluator import Load, Observation, pooled_value_s
from planner.evaluation.steady_state import SteadyWindow, WindowStatistics, finish_s, observe_window
from planner.problem.request import PlanRequest
from planner.problem.slo import Slo
from planner.search.objectives import RunSizes
from planner.sections.section import SIMULATED, ChosenPlan, interval_words, verdict_words
from simulator.cluster.run import Run
from simulator.cluster.simulate import simulate

#: Maximum number of simulated users. With more users, an even share of the replicas serves an even share of the users.
MOST_USERS: Final = 20_000

#: Minimum mean number of measured requests per user.
_EACH: Final = 2

#: Added to the seed of a run to get the random stream of its think times.
_THINKING: Final = 7919


class UsersInClosedLoop(JsonBlock):
    """The result of the closed loop: the rate of the users and the objectives, with intervals of level `ci_level`.

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

    def scaled(self, share: int, users: int) -> UsersInClosedLoop:
        """Return the figures of all `users` from the simulation of one of `share` equal parts."""
        names = ("requests_per_s", "ci_low_per_s", "ci_high_per_s")
        rates = {name: None if (rate := getattr(self, name)) is None else rate * share for name in names}
        return self.model_copy(update={**rates, "users": users, "share": share})


class UsersSection:
    """The section of the users in a closed loop on the recommended plan."""

    name = "closed_loop"
    schema = UsersInClosedLoop

    def wanted(self, request: PlanRequest) -> bool:
        """Return True if the request has a number of users."""
        return request.users is not None

    def compute(self, chosen: ChosenPlan) -> UsersInClosedLoop:
        """Simulate all replicas, or an even share of them if there are many replicas or users."""
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
        """Yield the rate of the users, then every objective."""
        span = f"{_per_s(block.ci_low_per_s)} to {_per_s(block.ci_high_per_s)}"
        rate = f"{_per_s(block.requests_per_s)} requests/s ({100 * block.ci_level:.0f} % interval: {span})"
        planned = f"the plan assumes {_per_s(block.open_requests_per_s)} requests/s with random arrivals"
        yield "Users", f"{block.users} users simulated in a closed loop send {rate}; {planned}"
        for row in block.slo:
            values = f"{seconds(row.value_s)} ({interval_words(row.ci_low_s, row.ci_high_s)})"
            yield "", f"{row.name} = {values}: {verdict_words(row.met, row.probability_met)}"

    def page(self, block: UsersInClosedLoop, plan: Plan) -> Iterable[html_page.PageSection]:
        """Return the lines of the screen as a table."""
        lines = table(("quantity", "result"), list(self.screen(block, plan)), words=2)
        return [html_page.PageSection("Users in a closed loop", [paragraph(SIMULATED), lines], "Users")]


def _per_s(value: float | None) -> str:
    """Return a rate with three significant digits."""
    return "unknown" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


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

    def faster(self, factor: float) -> Users:
        """Return the users with think times shorter by `factor`."""
        return Users(self.n, self.think_s / factor)


@dataclass(frozen=True, slots=True)
class ClosedLoopRun:
    """An observed run: its request rate, and the latencies of its steady state."""

    requests_per_s: float
    observation: Observation


@dataclass(frozen=True, slots=True)
class ClosedLoopEvaluator:
    """Simulates users on a deployment with `serve` and measures at least `n_requests` requests."""

    serve: Callable[[RequestSet], Run]
    workload: Workload
    slos: tuple[Slo, ...]
    n_requests: int
    seed: int

    def observe(self, users: Users, seed: int = 0) -> ClosedLoopRun:
        """Return one observed run; `seed` is added to the seed of the evaluator."""
        n = 2 * users.n + max(self.n_requests, _EACH * users.n)
        done = self.serve(users.requests(self.workload, n, self.seed + seed))
        measured = _window(done, users.n)
        rate = (int(measured.sum()) - 1) / float(np.ptp(done.arrival_s[measured]))
        load = Load(rate, n, self.seed + seed, whole_cluster=True)
        reading = WindowStatistics.of(self.slos)
        return ClosedLoopRun(rate, observe_window(done, SteadyWindow(measured, 0.0), load, reading))


def _window(done: Run, users: int) -> BoolArray:
    """Return the measured requests of a run. Shape (requests,).

    Measured are the requests after the first of each user, sent while every user still had a next request: until the
    number of answers is the number of requests minus the number of users.
    """
    order = np.argsort(done.arrival_s, kind="stable")
    answered = done.requests.n - users
    end_s = float(np.sort(finish_s(done))[answered - 1])
    measured = np.zeros(done.requests.n, dtype=np.bool_)
    measured[order[users:]] = True
    return measured & np.less_equal(done.arrival_s, end_s)


def closed_loop(desk: ClosedLoopEvaluator, users: Users, open_per_s: float, error: StatedError) -> UsersInClosedLoop:
    """Return the rate and the objectives of the users with LEVEL intervals, from several seeds and error levels.

    Args:
        desk: Simulates the users.
        users: The users of the simulated part.
        open_per_s: Derived rate of the plan, requests per second.
        error: Stated error of the simulator, which sets the speeds of slower steps.
    """
    loops = [desk.observe(users, seed) for seed in range(SEEDS)]
    speeds = error.factors(SPEED, np.array(LEVELS))
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
    """Return the standard error of the logarithm of a mean over independent seeds; 0 if it is undefined."""
    if not (np.isfinite(values) & (values > 0)).all():
        return 0.0
    return float(np.std(np.log(values), ddof=1) / math.sqrt(len(values)))
