"""Simulated runs of candidates under loads: their length, their observation and their cache.

Runs are cached by candidate and load, and reused if another candidate would certainly make the same run.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from calibration.accuracy.regime import Regime
from calibration.accuracy.stated_error import StatedError
from calibration.complexity.records import LatencyRecords
from catalogs.workloads.length_statistics import LengthStatistics
from catalogs.workloads.replay import Replay
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.synthetic import SyntheticWorkload
from catalogs.workloads.workload import Workload
from planner.evaluation.closed_forms.candidate_forms import CandidateQueueing
from planner.evaluation.deployments import CandidateDeployments
from planner.evaluation.observation import Load, Observation, RunDetail, TracePiece
from planner.evaluation.representative_draws import representative_seed
from planner.evaluation.steady_state import (
    RequestWindow,
    WindowStatistics,
    finish_s,
    observe_run,
    steady_uses,
    steady_window,
)
from planner.evaluation.verdict import judge
from planner.problem.candidate import Candidate
from planner.problem.latency_metrics import ITL
from planner.problem.request import PlanRequest
from simulator.analysis.complexity import latency_records
from simulator.analysis.energy import power_and_energy
from simulator.analysis.metrics import replica_seconds, streaming_notice, summarise
from simulator.cluster.compiled import CompiledDeployment, CompiledFleet
from simulator.cluster.run import Run
from simulator.cluster.run_reuse import reusable_run
from simulator.cluster.simulate import pool_of
from simulator.cluster.simulate import simulate as run

#: Whole runs that are kept. A judgement: the runs behind the figures of a plan are read again by its studies, and a run
#: takes about 0.7 KB for each request.
_KEPT_RUNS: Final = 16

#: Requests of the runs that are kept for candidates whose run would be the same. A judgement: their logs are most of
#: the memory of a plan, about 0.7 KB for each request, here 28 MB.
_ALIKE_REQUESTS: Final = 40_000

#: Time of a run of conversations, in mean times from the first to the last turn. Shorter runs find less of the earlier
#: turns in the cache than a server that has run for long. A judgement: after one span of three, most turns follow an
#: earlier one.
_SESSION_SPANS: Final = 3.0

#: Most requests that a run has because of `_SESSION_SPANS`. A judgement: no more than the longest run for a percentile
#: (`RunSizes.for_slos`).
_MOST_FOR_SESSIONS: Final = 20_000

Settle = Callable[[Candidate, Load], tuple[Run, Observation]]

#: What determines the requests of a run: seed, requests, rate and share.
_Drawn = tuple[int, int, float, int]

#: Requests that are kept to be simulated at other rates, of all draws together. A judgement: three 8-byte numbers for
#: each make 12 MB.
_KEPT_REQUESTS: Final = 500_000


class RunCache:
    """Caches the runs of one workload: the latest runs in full, the observations of all, and the requests of some."""

    def __init__(self, workload: Workload, seed: int) -> None:
        """Create an empty cache; `seed` is that of the request, with which the seeds of loads begin."""
        self.workload = workload
        self.seed = seed
        self.n_requests_simulated = 0
        self._observations: dict[tuple[Candidate, Load], Observation] = {}
        self._runs: OrderedDict[tuple[Candidate, Load], Run] = OrderedDict()
        # Runs with what determines their requests, the most recently used last: candidates that do not reach their
        # limits under a load share one simulation.
        self._alike: list[tuple[_Drawn, Run]] = []
        # Requests at a rate of one per second, by (seed, number, share); the first ones are dropped first.
        self._requests: dict[tuple[int, int, int], RequestSet] = {}

    @cached_property
    def lengths(self) -> LengthStatistics:
        """Return the lengths of the workload's requests, whose means turn a rate of requests into rates of tokens."""
        return self.workload.lengths()

    def run(self, candidate: Candidate, load: Load, settle: Settle) -> Run:
        """Return the run of a candidate under a load; `settle` makes it if it is not in the cache."""
        key = (candidate, load)
        if key not in self._runs:
            self._runs[key], self._observations[key] = settle(candidate, load)
        while len(self._runs) > _KEPT_RUNS:
            self._runs.popitem(last=False)
        return self._runs[key]

    def knows(self, candidate: Candidate, load: Load) -> bool:
        """Return whether the run of a candidate under a load was observed."""
        return (candidate, load) in self._observations

    def observation(self, candidate: Candidate, load: Load, settle: Settle) -> Observation:
        """Return the observation of the run of a candidate under a load."""
        if (candidate, load) not in self._observations:
            self.run(candidate, load, settle)
        return self._observations[candidate, load]

    def simulate(self, part: CompiledDeployment | CompiledFleet, share: int, load: Load, n: int) -> Run:
        """Simulate `n` requests: every `share`-th of the whole load, as a round-robin router gives each part."""
        n = max(n, self.requests_of_sessions(load.requests_per_s / share))
        drawn = (load.seed, n, load.requests_per_s, share)
        if isinstance(part, CompiledDeployment) and (same := self._reused(part, drawn)) is not None:
            return same
        requests = self._drawn(load, n, share)
        self.n_requests_simulated += requests.n
        done = run(part, requests)
        if isinstance(part, CompiledDeployment):
            self._alike.append((drawn, done))
            while len(self._alike) > 1 and sum(each.requests.n for _, each in self._alike) > _ALIKE_REQUESTS:
                self._alike.pop(0)
        return done

    def _drawn(self, load: Load, n: int, share: int) -> RequestSet:
        """Return `n` requests of a load on `share` parts; where rates only divide the arrivals, they are drawn once."""
        seed = self._draw_seed(load, n, share)
        if not self.workload.scales:
            return self.workload.materialise(seed, n * share, load.requests_per_s).every(share)
        key = (load.seed, n, share)
        if key not in self._requests:
            self._requests[key] = self.workload.materialise(seed, n * share, 1.0).every(share)
            while sum(m * k for _, m, k in self._requests) > _KEPT_REQUESTS and len(self._requests) > 1:
                del self._requests[next(iter(self._requests))]
        unit = self._requests[key]
        return replace(unit, arrival_s=unit.arrival_s / load.requests_per_s)

    def _draw_seed(self, load: Load, n: int, share: int) -> int:
        """Return the seed of a representative draw; where the draws cannot be compared, that of the load.

        A workload that is varied has the draws of the original one, with which its results are compared.
        """
        content = self.workload.content
        if not (isinstance(content, SyntheticWorkload) and content.scales and content.has_rate):
            return load.seed
        return representative_seed(content, self.seed, load.seed - self.seed, n, share)

    def _reused(self, part: CompiledDeployment, drawn: _Drawn) -> Run | None:
        """Return the run of another deployment on the same requests if this one would make the same run, or None.

        All runs of these requests then count as used most recently, because the next candidates need them too.
        """
        same = [each for each in self._alike if each[0] == drawn]
        self._alike = [*(each for each in self._alike if each[0] != drawn), *same]
        reusable = (reusable_run(each, pool_of(part, 0, each.requests)) for _, each in same)
        return next((found for found in reusable if found is not None), None)

    def requests_of_sessions(self, requests_per_s: float) -> int:
        """Return the requests of a run in which most turns follow an earlier turn of their session; 0 without turns."""
        content = self.workload.content
        if not isinstance(content, SyntheticWorkload) or content.turns is None:
            return 0
        return min(math.ceil(_SESSION_SPANS * content.turns.span_s * requests_per_s), _MOST_FOR_SESSIONS)


@dataclass(eq=False)
class SimulatedRuns:
    """Simulates the candidates of one hardware; their queueing models determine how many requests their runs need."""

    request: PlanRequest
    deployments: CandidateDeployments
    queueing: Callable[[Candidate], CandidateQueueing]
    cache: RunCache

    def observe(self, candidate: Candidate, load: Load) -> Observation:
        """Return the steady part of a run under a load, from the cache or from a new simulation."""
        return self.cache.observation(candidate, load, self._settle)

    def run_requests(self, candidate: Candidate, load: Load) -> int:
        """Return the requests that a run of one part of a deployment has under a load, unless it is extended."""
        parts = self.deployments.even_parts(candidate)
        n, _ = self.queueing(candidate).run_requests(load.requests_per_s, load.n_requests, parts)
        return max(n, self.cache.requests_of_sessions(load.requests_per_s / parts))

    def detail(self, candidate: Candidate, load: Load) -> RunDetail:
        """Return all results of a run under a load, from the cache or from a new simulation."""
        done = self.cache.run(candidate, load, self._settle)
        blocks = summarise(done)
        known = blocks["calibration"]
        regime = Regime.read(known["stated_error"])
        observation = self.observe(candidate, load)
        measured = steady_window(done.arrival_s, finish_s(done)).measured
        parts = 1 if load.whole_cluster else self.deployments.even_parts(candidate)
        rate = load.requests_per_s if observation.stable else blocks["metrics"]["requests_per_s"] * parts
        lengths = self.cache.lengths
        output_tokens_per_s = rate * lengths.output_tokens.mean
        streaming = streaming_notice(self.deployments.streaming(candidate).resolved, output_tokens_per_s)
        uses, tokens = steady_uses(done, measured, observation.stable)
        drawn = power_and_energy(uses, tokens)
        joules = drawn["energy"]["total_j_per_output_token"]
        # The window has more or fewer tokens than the load has on average; every power is that of the load.
        if joules is not None and uses[0].duration_s > 0:
            own_per_s = tokens / uses[0].duration_s
            drawn["power"] = {
                name: None if w is None else w * output_tokens_per_s / parts / own_per_s
                for name, w in drawn["power"].items()
            }
        window = RequestWindow(done, measured)
        return RunDetail(
            observation=observation,
            metrics=blocks["metrics"] | drawn,
            samples_s={"queue": window.per_request(done.queue_s), ITL.name: window.token_gaps_s()},
            time_breakdown=replica_seconds(uses),
            calibration=known,
            requests_per_s=rate,
            output_tokens_per_s=output_tokens_per_s,
            total_tokens_per_s=output_tokens_per_s + rate * lengths.input_tokens.mean,
            power_w=math.nan if joules is None else joules * output_tokens_per_s,
            error=StatedError.of(self.request.engine, float(known["operator_error"]), regime),
            notices=() if streaming is None else (streaming,),
            piece=self._piece(done.requests),
        )

    def _piece(self, requests: RequestSet) -> TracePiece | None:
        """Return the statistics of the requests of a run if they are a piece of a trace, which the seed chooses."""
        content = self.cache.workload.content
        is_piece = isinstance(content, Replay) and content.pieces and requests.n < len(content.trace.input_tokens)
        return TracePiece.of(requests) if is_piece and requests.n else None

    def records(self, candidate: Candidate, load: Load) -> LatencyRecords:
        """Return the latencies of the completed requests in the steady part of a run, with their parts."""
        done = self.cache.run(candidate, load, self._settle)
        return latency_records(done, steady_window(done.arrival_s, finish_s(done)).measured)

    def _settle(self, candidate: Candidate, load: Load) -> tuple[Run, Observation]:
        """Simulate a load; simulate it longer if it is undecided whether the system keeps up (it may still fill up)."""
        if load.whole_cluster:
            return self._settle_whole(candidate, load)
        parts, queueing = self.deployments.even_parts(candidate), self.queueing(candidate)
        n, longer = queueing.run_requests(load.requests_per_s, load.n_requests, parts)
        if not load.patient:
            return self._once(candidate, parts, load, n)
        first = replace(load, patient=False)
        seen = replace(self.observe(candidate, first), load=load)
        if n < longer and seen.undecided and judge([seen], self.request.slos).value_ratio <= 1:
            return self._once(candidate, parts, load, longer)
        return self.cache.run(candidate, first, self._settle), seen

    def _settle_whole(self, candidate: Candidate, load: Load) -> tuple[Run, Observation]:
        """Simulate every replica and the router in a shorter run; a run of one part decides its stability."""
        alone = replace(load, whole_cluster=False)
        part = self.cache.run(candidate, alone, self._settle)
        seen_alone = self.observe(candidate, alone)
        if self.deployments.even_parts(candidate) == 1:
            return part, replace(seen_alone, load=load)
        n = self.queueing(candidate).whole_run_requests(load.requests_per_s, load.n_requests, part.requests.n)
        done, seen = self._once(candidate, 1, load, n)
        return done, replace(seen, growth_fraction=seen_alone.growth_fraction)

    def _once(self, candidate: Candidate, share: int, load: Load, n: int) -> tuple[Run, Observation]:
        reading = WindowStatistics.of(self.request.slos, self.request.objective in ("energy", "carbon"))
        done = self.cache.simulate(self.deployments.part(candidate, share), share, load, n)
        return done, observe_run(done, load, reading)
