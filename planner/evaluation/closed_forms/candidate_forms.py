"""Closed forms of candidates: bounds, estimates by queueing models, and the length of their runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from catalogs.deployments.layout import Role
from planner.evaluation.closed_forms.bounds import (
    Discard,
    PromptGrid,
    latency_discard,
    length_discard,
    memory_discard,
    shortest_new_tokens,
)
from planner.evaluation.closed_forms.disaggregated import DisaggregatedQueueing
from planner.evaluation.closed_forms.encoder_pools import EncoderPoolQueueing, encode_s, second_of_encoding
from planner.evaluation.closed_forms.estimates import Estimates
from planner.evaluation.closed_forms.queueing import ApiServerQueue, QueueingModel
from planner.evaluation.deployments import CandidateDeployments
from planner.evaluation.workload_statistics import WorkloadStatistics
from planner.problem.candidate import Candidate
from planner.problem.slo import Slo
from planner.space.speculative import CycleS, per_token
from simulator.core.batch import BatchShape
from simulator.costs.step_cost import StepCost
from simulator.costs.totals import StepTotals

CandidateQueueing = QueueingModel | DisaggregatedQueueing | EncoderPoolQueueing


@dataclass(slots=True)
class StepTimes:
    """The seconds of steps by one step cost, each computed once: candidates that share it ask for the same steps.

    Attributes:
        cost: The step cost.
        decodes_s: Seconds of the decode steps that queueing models ask for, by the number of sequences.
    """

    cost: StepCost
    decodes_s: dict[int, float] = field(default_factory=dict, repr=False)
    _known: dict[tuple[object, ...], float] = field(default_factory=dict, repr=False)

    def cycle_s(self, shape: BatchShape) -> float:
        """Return the seconds from the start of this step to the start of the next."""
        if shape.ranks:
            return self.cost.cycle_s(shape)
        counts = shape.counts()
        if (seconds := self._known.get(counts)) is None:
            seconds = self._known[counts] = self.cost.cycle_s(shape)
        return seconds


@dataclass(eq=False)
class ClosedForms:
    """Closed forms of the candidates of one hardware under the objectives `slos`; they need no simulation.

    `estimates` holds the results by candidate, some of which another process may have computed.
    """

    deployments: CandidateDeployments
    statistics: WorkloadStatistics
    slos: Sequence[Slo]
    estimates: Estimates = field(default_factory=Estimates, repr=False)
    _queueing: dict[Candidate, CandidateQueueing] = field(default_factory=dict, repr=False)
    _operator_errors: dict[Candidate, float] = field(default_factory=dict, repr=False)
    _floors: dict[tuple[object, ...], Discard | None] = field(default_factory=dict, repr=False)
    _step_times: dict[StepCost, StepTimes] = field(default_factory=dict, repr=False)

    def discard(self, candidate: Candidate) -> Discard | None:
        """Return why a candidate can never meet the objectives, or None; the result is cached.

        Each pool is checked for its memory and for the objectives that its role determines.
        """
        known = self.estimates.discards
        if candidate not in known:
            known[candidate] = self._discard(candidate)
        return known[candidate]

    def _discard(self, candidate: Candidate) -> Discard | None:
        for role, pool in candidate.pools:
            found = memory_discard(self.deployments.memory(pool), self.statistics.longest, pool.states_length)
            # A prefill pool ends each request with its first token, an encoder pool without any.
            if found is None and role not in ("prefill", "encode"):
                found = self._length_discard(pool)
            if found is None:
                key = (role, *pool.replica_choices, pool.max_num_seqs, pool.max_num_batched_tokens)
                if key not in self._floors:  # a latency floor is the same for any number of replicas
                    self._floors[key] = self._latency_discard(pool, role)
                found = self._floors[key]
            if found is not None:
                return found
        return None

    def _length_discard(self, pool: Candidate) -> Discard | None:
        resolved = self.deployments.resolved(pool)
        if resolved.queueing.too_long == "truncate":
            return None
        longest, side = resolved.limits.max_model_len, resolved.side_tokens
        return length_discard(longest, self.statistics.sample, self.slos, side)

    def _latency_discard(self, pool: Candidate, role: Role) -> Discard | None:
        slos = [slo for slo in self.slos if slo.latency.is_only_of(role)]
        if not slos:
            return None
        resolved = self.deployments.resolved(pool)
        cycle_s = per_token(self._times(self.deployments.step_cost(pool)).cycle_s, resolved, most=True)
        return latency_discard(cycle_s, resolved.limits, self.statistics.sample, slos, self._prompts)

    @cached_property
    def _prompts(self) -> PromptGrid:
        """Return the lengths of prompts that all bounds share."""
        return PromptGrid.of(shortest_new_tokens(self.statistics.sample))

    def queueing(self, candidate: Candidate) -> CandidateQueueing:
        """Return the queueing model of a candidate.

        Raises:
            InputError: The candidate does not fit in memory.
        """
        if candidate not in self._queueing:
            pools = [self._colocated(pool.candidate) for pool in candidate.pools if pool.role != "encode"]
            found = pools[0] if len(pools) == 1 else DisaggregatedQueueing(*pools)
            role, encoders = candidate.pools[0]
            if role == "encode":
                each_s = encode_s(self.deployments.compiled(encoders).cost, self.statistics.media)
                self._queueing[candidate] = EncoderPoolQueueing(found, encoders.replicas, each_s)
            else:
                self._queueing[candidate] = found
        return self._queueing[candidate]

    def encoding_share(self, candidate: Candidate) -> float:
        """Return the share of the time of a prompt that the towers of the replicas take; 0 without any."""
        compiled, found = self.deployments.compiled(candidate), self._colocated(candidate)
        encoding_s = encode_s(compiled.cost, self.statistics.media)
        return encoding_s / found.prefill_s if encoding_s else 0.0

    def disaggregated(self, candidate: Candidate) -> DisaggregatedQueueing:
        """Return the queueing model of a disaggregated candidate."""
        found = self.queueing(candidate)
        assert isinstance(found, DisaggregatedQueueing)
        return found

    def _colocated(self, candidate: Candidate) -> QueueingModel:
        compiled, lengths = self.deployments.compiled(candidate), self.statistics
        each = lengths.input_mean + lengths.output_mean + compiled.memory.cross_tokens
        held = compiled.memory.max_concurrency_tokens / max(each, 1.0)
        seats = int(max(1, min(candidate.max_num_seqs * candidate.layout.data_parallel, held)))
        times = self._times(compiled.cost)
        return QueueingModel(
            replicas=candidate.replicas,
            microbatches=candidate.microbatches,
            cycle_s=self._with_media(per_token(times.cycle_s, compiled.resolved), compiled.cost),
            seats=max(1, seats // candidate.layout.pipeline_parallel),
            max_num_batched_tokens=candidate.max_num_batched_tokens,
            input_tokens=lengths.input_mean,
            output_tokens=lengths.output_mean,
            api_server=ApiServerQueue(compiled.resolved.engine.host, compiled.resolved.api_server_count),
            variability=lengths.variability,
            input_quantile=lengths.input_at,
            known_step_s=times.decodes_s,
        )

    def _times(self, cost: StepCost) -> StepTimes:
        if cost not in self._step_times:
            self._step_times[cost] = StepTimes(cost)
        return self._step_times[cost]

    def _with_media(self, cycle_s: CycleS, cost: StepCost) -> CycleS:
        """Return the seconds of a step with the encoding of items spread evenly over the tokens of prompts."""
        media = self.statistics.media
        if not media:
            return cycle_s
        per_token_s = encode_s(cost, media) / self.statistics.input_mean
        return lambda shape: cycle_s(shape) + per_token_s * shape.prefill_tokens

    def operator_error(self, candidate: Candidate) -> float:
        """Return the expected relative error of the step times from the operators alone; the result is cached.

        Of two pools it is the larger.
        """
        if candidate not in self._operator_errors:
            seconds = self._typical_seconds(candidate, self.saturation_per_s(candidate))
            self._operator_errors[candidate] = max(totals.expected_error for _, totals in seconds)
        return self._operator_errors[candidate]

    def power_w(self, candidate: Candidate, requests_per_s: float) -> float:
        """Return the estimated power of the whole deployment at a rate, watts, at the servers.

        It counts what `simulator.analysis.energy` counts: steps, idle time, accelerators without a replica, and hosts.
        """
        used, watts, idle_w, host_w = 0, 0.0, 0.0, 0.0
        hardware = candidate.hardware
        for pool, totals in self._typical_seconds(candidate, requests_per_s):
            batches = pool.microbatches / pool.replicas
            busy = min(batches * totals.busy_s, 1.0)
            accelerators = pool.replicas * pool.layout.accelerators
            idle_w = totals.idle_w
            watts += accelerators * (batches * totals.joules_per_accelerator + (1.0 - busy) * idle_w)
            host_w += hardware.node.host_w_per_accelerator * accelerators * busy
            used += accelerators
        idle_host_w = hardware.node.host_idle_w * hardware.n_accelerators / hardware.node.max_accelerators
        return watts + (hardware.n_accelerators - used) * idle_w + host_w + idle_host_w

    def _typical_seconds(self, candidate: Candidate, requests_per_s: float) -> Iterator[tuple[Candidate, StepTotals]]:
        """Yield each pool with the totals of one typical second of one of its microbatches."""
        for role, pool in candidate.pools:
            cost = self.deployments.compiled(pool).cost
            if role == "encode":
                log = second_of_encoding(cost, self.statistics.media, requests_per_s / pool.replicas)
            else:
                log = self._colocated(pool).second_of_work(requests_per_s, role)
            yield pool, cost.totals(log)

    def saturation_per_s(self, candidate: Candidate) -> float:
        """Return the requests per second of the whole deployment with a full batch; the result is cached."""
        known = self.estimates.saturation_per_s
        if candidate not in known:
            known[candidate] = self.queueing(candidate).saturation_per_s
        return known[candidate]

    def light_per_s(self, candidate: Candidate) -> float:
        """Return a rate of the whole deployment at which requests rarely overlap; the result is cached."""
        known = self.estimates.light_per_s
        if candidate not in known:
            known[candidate] = self.queueing(candidate).light_per_s
        return known[candidate]
