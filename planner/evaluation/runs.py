"""Simulated runs of candidates under loads: how long they are, what is observed in them, and that each is made once.

Runs are remembered by candidate and load, and reused where another candidate would certainly make the same run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

from calibration.accuracy.stated_error import StatedError
from catalogs.workloads.workload import Workload
from planner.evaluation.deployments import CandidateDeployments
from planner.evaluation.evaluator import Load, Observation, RunDetail, judge
from planner.evaluation.queueing import ColocatedQueueing
from planner.evaluation.steady_state import (
    WindowStatistics,
    finish_s,
    joules_per_output_token,
    observe_run,
    steady_window,
)
from planner.problem.candidate import Candidate
from planner.problem.request import PlanRequest
from simulator.analysis.metrics import streaming_notice, summarise
from simulator.cluster.compiled import CompiledDeployment, CompiledFleet
from simulator.cluster.parallel import reusable_run
from simulator.cluster.run import Run
from simulator.cluster.simulate import pool_of
from simulator.cluster.simulate import simulate as run

_KEPT_RUNS: Final = 16

_ALIKE_RUNS: Final = 48

#: A run lasts so many times the requests in flight at once, but at most so many times what was asked for.
_IN_FLIGHT: Final = 8

_MOST_LONGER: Final = 4

#: Of the requests one replica needs to settle, those each replica of a cluster gets; whether it keeps up is then known.
_OF_A_CLUSTER: Final = 0.6

Settle = Callable[[Candidate, Load], tuple[Run, Observation]]


class RunLength(Protocol):
    """How many requests a run of a candidate needs until it is steady. Never by the clock, so that equal questions
    have equal runs. share: even parts of the deployment, one of which is simulated."""

    def first(self, load: Load, share: int) -> int:
        """Requests of a first run of one part."""

    def longer(self, load: Load, share: int) -> int:
        """Requests of a second run of it where the first left it undecided whether the system keeps up."""

    def whole(self, load: Load, n_alone: int) -> int:
        """Requests of a run of the whole deployment, where a run of one part took n_alone."""


@dataclass(frozen=True, slots=True)
class ColocatedRunLength:
    """Of replicas that serve whole requests: more where many are in flight at once. See RunLength."""

    queueing: ColocatedQueueing
    pipeline_parallel: int

    def first(self, load: Load, share: int) -> int:  # noqa: ARG002
        """So many that most of the run is steady."""
        at_once = self.queueing.in_flight(load.requests_per_s)
        if at_once is None:
            return load.n_requests  # hopelessly overloaded: any run shows it
        enough = _IN_FLIGHT * at_once * self.pipeline_parallel <= load.n_requests
        return load.n_requests * (1 if enough else _MOST_LONGER)

    def longer(self, load: Load, share: int) -> int:  # noqa: ARG002
        """The most there is; no more than the first where that was it."""
        return _MOST_LONGER * load.n_requests

    def whole(self, load: Load, n_alone: int) -> int:  # noqa: ARG002
        """Fewer for each of many replicas than one alone needs."""
        return round(_OF_A_CLUSTER * self.queueing.replicas * n_alone)


class RunCache:
    """Runs of one workload. The latest are kept whole, of all the observations are."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.n_requests_simulated = 0
        self._observations: dict[tuple[Candidate, Load], Observation] = {}
        self._runs: OrderedDict[tuple[Candidate, Load], Run] = OrderedDict()
        # By seed, requests, rate and share; candidates whose limits do not matter at a load are simulated there once.
        self._alike: OrderedDict[tuple[int, int, float, int], list[Run]] = OrderedDict()

    def run(self, candidate: Candidate, load: Load, settle: Settle) -> Run:
        """The run of a candidate under a load, by `settle` where it is not kept."""
        key = (candidate, load)
        if key not in self._runs:
            self._runs[key], self._observations[key] = settle(candidate, load)
        while len(self._runs) > _KEPT_RUNS:
            self._runs.popitem(last=False)
        return self._runs[key]

    def observation(self, candidate: Candidate, load: Load, settle: Settle) -> Observation:
        """What was observed in that run."""
        if (candidate, load) not in self._observations:
            self.run(candidate, load, settle)
        return self._observations[candidate, load]

    def simulate(self, part: CompiledDeployment | CompiledFleet, share: int, load: Load, n: int) -> Run:
        """Run n requests: every share-th of the whole load, which is what a round-robin router hands each part."""
        key = load.seed, n, load.requests_per_s, share
        alike = self._alike.setdefault(key, []) if isinstance(part, CompiledDeployment) else []
        done = _reused(alike, part)
        if done is None:
            requests = self.workload.materialise(load.seed, n * share, load.requests_per_s).every(share)
            self.n_requests_simulated += requests.n
            done = run(part, requests)
            alike.append(done)
        while sum(map(len, self._alike.values())) > _ALIKE_RUNS:
            self._alike.popitem(last=False)
        return done


def _reused(alike: list[Run], part: CompiledDeployment | CompiledFleet) -> Run | None:
    """A run among these that is certainly the one `part` would make."""
    if not isinstance(part, CompiledDeployment):
        return None
    found = (reusable_run(each, pool_of(part, 0, each.requests)) for each in alike)
    return next((same for same in found if same is not None), None)


class SimulatedRuns:
    """Runs the candidates of one hardware. length: how many requests the runs of a candidate need."""

    def __init__(
        self,
        request: PlanRequest,
        deployments: CandidateDeployments,
        length: Callable[[Candidate], RunLength],
        cache: RunCache,
    ) -> None:
        self._request = request
        self._deployments = deployments
        self._length = length
        self.cache = cache
        self._reading = WindowStatistics("itl" in {slo.metric for slo in request.slos}, request.objective == "energy")

    def observe(self, candidate: Candidate, load: Load) -> Observation:
        """The steady part of a run; simulated, unless it is remembered."""
        return self.cache.observation(candidate, load, self._settle)

    def detail(self, candidate: Candidate, load: Load) -> RunDetail:
        """Everything about a run; simulated, unless it is remembered."""
        done = self.cache.run(candidate, load, self._settle)
        blocks = summarise(done)
        observation = self.observe(candidate, load)
        window = steady_window(done.arrival_s, finish_s(done)).measured
        outputs = float(done.requests.output_tokens[window].mean())
        inputs = float(done.requests.input_tokens[window].mean())
        parts = 1 if load.whole_cluster else self._deployments.even_parts(candidate)
        rate = load.requests_per_s if observation.stable else blocks["metrics"]["requests_per_s"] * parts
        streaming = streaming_notice(self._deployments.streaming(candidate).resolved, rate * outputs)
        return RunDetail(
            observation=observation,
            metrics=blocks["metrics"],
            time_breakdown=blocks["time_breakdown"],
            calibration=blocks["calibration"],
            output_tokens_per_s=rate * outputs,
            total_tokens_per_s=rate * (inputs + outputs),
            power_w=joules_per_output_token(done, window, observation.stable) * rate * outputs,
            error=StatedError.of(self._request.engine, float(blocks["calibration"]["operator_error"])),
            notices=(streaming,) if streaming else (),
        )

    def _settle(self, candidate: Candidate, load: Load) -> tuple[Run, Observation]:
        """Simulate, and longer while it is undecided whether the system keeps up: near saturation it fills slowly."""
        if load.whole_cluster:
            return self._settle_whole(candidate, load)
        parts, length = self._deployments.even_parts(candidate), self._length(candidate)
        n, longer = length.first(load, parts), length.longer(load, parts)
        done, seen = self._once(candidate, parts, load, n)
        if n < longer and load.patient and self._is_open(seen):
            return self._once(candidate, parts, load, longer)
        return done, seen

    def _settle_whole(self, candidate: Candidate, load: Load) -> tuple[Run, Observation]:
        """Every replica and the router, in a shorter run; whether it keeps up is known from one part alone."""
        alone = replace(load, whole_cluster=False)
        part = self.cache.run(candidate, alone, self._settle)
        seen_alone = self.observe(candidate, alone)
        if self._deployments.even_parts(candidate) == 1:
            return part, replace(seen_alone, load=load)
        n = self._length(candidate).whole(load, part.requests.n)
        done, seen = self._once(candidate, 1, load, n)
        return done, replace(seen, growth_fraction=seen_alone.growth_fraction)

    def _once(self, candidate: Candidate, share: int, load: Load, n: int) -> tuple[Run, Observation]:
        done = self.cache.simulate(self._deployments.part(candidate, share), share, load, n)
        return done, observe_run(done, load, self._reading)

    def _is_open(self, seen: Observation) -> bool:
        """The objectives hold so far, and it is undecided whether the system keeps up."""
        return seen.undecided and judge([seen], self._request.slos).value_ratio <= 1
