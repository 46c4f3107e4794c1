"""Simulated runs of candidates under loads: their length, their observation and their cache.

Runs are cached by candidate and load, and reused if another candidate would certainly make the same run.
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

#: A run has this many times the requests in flight, but at most `_MOST_LONGER` times the requests of its load.
_IN_FLIGHT: Final = 8

_MOST_LONGER: Final = 4

#: Each replica of a cluster gets this share of the requests that one replica needs until it is steady. A run of one
#: replica has already decided whether the system keeps up.
_OF_A_CLUSTER: Final = 0.6

Settle = Callable[[Candidate, Load], tuple[Run, Observation]]


class RunLength(Protocol):
    """Determines how many requests a run of a candidate needs until it is steady.

    The number never depends on the clock, so that equal requests have equal runs. `share` is the number of even parts
    of the deployment, one of which is simulated.
    """

    def first(self, load: Load, share: int) -> int:
        """Return the requests of a first run of one part."""

    def longer(self, load: Load, share: int) -> int:
        """Return the requests of a second run of one part, if the first cannot decide whether the system keeps up."""

    def whole(self, load: Load, n_alone: int) -> int:
        """Return the requests of a run of the whole deployment; a run of one part needed `n_alone`."""


@dataclass(frozen=True, slots=True)
class ColocatedRunLength:
    """The run length of replicas that serve whole requests: longer if many requests are in flight; see RunLength."""

    queueing: ColocatedQueueing
    pipeline_parallel: int

    def first(self, load: Load, share: int) -> int:  # noqa: ARG002
        """Return enough requests that most of the run is steady."""
        at_once = self.queueing.in_flight(load.requests_per_s)
        if at_once is None:
            return load.n_requests  # far overloaded: any run shows it
        enough = _IN_FLIGHT * at_once * self.pipeline_parallel <= load.n_requests
        return load.n_requests * (1 if enough else _MOST_LONGER)

    def longer(self, load: Load, share: int) -> int:  # noqa: ARG002
        """Return the most requests of a run; a first run may already have as many."""
        return _MOST_LONGER * load.n_requests

    def whole(self, load: Load, n_alone: int) -> int:  # noqa: ARG002
        """Return fewer requests for each of many replicas than one replica alone needs."""
        return round(_OF_A_CLUSTER * self.queueing.replicas * n_alone)


class RunCache:
    """Caches the runs of one workload: the latest runs in full, and the observations of all runs."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.n_requests_simulated = 0
        self._observations: dict[tuple[Candidate, Load], Observation] = {}
        self._runs: OrderedDict[tuple[Candidate, Load], Run] = OrderedDict()
        # By seed, requests, rate and share: candidates that do not reach their limits at a load share one simulation.
        self._alike: OrderedDict[tuple[int, int, float, int], list[Run]] = OrderedDict()

    def run(self, candidate: Candidate, load: Load, settle: Settle) -> Run:
        """Return the run of a candidate under a load; `settle` makes it if it is not in the cache."""
        key = (candidate, load)
        if key not in self._runs:
            self._runs[key], self._observations[key] = settle(candidate, load)
        while len(self._runs) > _KEPT_RUNS:
            self._runs.popitem(last=False)
        return self._runs[key]

    def observation(self, candidate: Candidate, load: Load, settle: Settle) -> Observation:
        """Return the observation of the run of a candidate under a load."""
        if (candidate, load) not in self._observations:
            self.run(candidate, load, settle)
        return self._observations[candidate, load]

    def simulate(self, part: CompiledDeployment | CompiledFleet, share: int, load: Load, n: int) -> Run:
        """Simulate `n` requests: every `share`-th of the whole load, as a round-robin router gives each part."""
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
    """Return one of these runs if it is certainly the run that `part` would make, else None."""
    if not isinstance(part, CompiledDeployment):
        return None
    found = (reusable_run(each, pool_of(part, 0, each.requests)) for each in alike)
    return next((same for same in found if same is not None), None)


class SimulatedRuns:
    """Simulates the candidates of one hardware; `length` determines how many requests the runs of a candidate need."""

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
        self._reading = WindowStatistics.of(request.slos, request.objective == "energy")

    def observe(self, candidate: Candidate, load: Load) -> Observation:
        """Return the steady part of a run under a load, from the cache or from a new simulation."""
        return self.cache.observation(candidate, load, self._settle)

    def detail(self, candidate: Candidate, load: Load) -> RunDetail:
        """Return all results of a run under a load, from the cache or from a new simulation."""
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
        """Simulate a load; simulate it longer if it is undecided whether the system keeps up (it may still fill up)."""
        if load.whole_cluster:
            return self._settle_whole(candidate, load)
        parts, length = self._deployments.even_parts(candidate), self._length(candidate)
        n, longer = length.first(load, parts), length.longer(load, parts)
        done, seen = self._once(candidate, parts, load, n)
        if n < longer and load.patient and self._is_open(seen):
            return self._once(candidate, parts, load, longer)
        return done, seen

    def _settle_whole(self, candidate: Candidate, load: Load) -> tuple[Run, Observation]:
        """Simulate every replica and the router in a shorter run; a run of one part decides its stability."""
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
        """Return whether the objectives are met so far and it is undecided whether the system keeps up."""
        return seen.undecided and judge([seen], self._request.slos).value_ratio <= 1
