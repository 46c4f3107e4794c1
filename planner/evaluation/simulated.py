"""The world of one request, built from the catalogs, the calibration and the simulator. Everything is remembered.

Other numbers of the same replica, on hardware that has room for them and no more.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from calibration.accuracy.stated_error import StatedError, stated_errors_digest
from calibration.bundles.bundle import Bundle, load_bundle
from catalogs.arrays import FloatArray
from catalogs.deployments.resolve import CatalogLookup, resolve
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.economics.electricity import DEFAULT_REGION, Grid, load_grid
from catalogs.economics.prices import Price
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.launch.command import serve_command
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.workload import Workload, load_workload
from planner.evaluation.evaluator import CandidateFacts, Observation, OfferedLoad, RunDetail, judge
from planner.evaluation.queueing import ApiServerQueue, QueueingModel, Utilisation
from planner.evaluation.steady_state import (
    WindowStatistics,
    finish_s,
    joules_per_output_token,
    observe_run,
    steady_window,
)
from planner.problem.candidate import Candidate
from planner.problem.load_curve import steady
from planner.problem.request import PlanRequest
from planner.problem.tariff import table_price
from planner.space.bounds import Discard, latency_discard, memory_discard
from planner.space.candidates import candidates, widest_limits
from planner.space.speculative import per_token
from simulator.analysis.metrics import streaming_notice, summarise
from simulator.cluster.compiled import CompiledDeployment, CompiledFleet, fit
from simulator.cluster.parallel import reusable_run
from simulator.cluster.run import Run
from simulator.cluster.simulate import pool_of, run
from simulator.costs.compile import compile_step_cost
from simulator.costs.step_cost import StepCost
from simulator.costs.tables import graph_limit
from simulator.memory.plan import MemoryPlan, size_memory

#: Requests drawn to know the lengths of a workload.
_LENGTHS: Final = 2000

_KEPT_RUNS: Final = 16

_ALIKE_RUNS: Final = 48

#: A run lasts so many times the requests in flight at once, but at most so many times what was asked for.
_IN_FLIGHT: Final = 8

_MOST_LONGER: Final = 4

#: Of the requests one replica needs to settle, those each replica of a cluster gets; whether it keeps up is then known.
_OF_A_CLUSTER: Final = 0.6


@dataclass(frozen=True, slots=True)
class WorkloadLengths:
    """What the workload's requests look like, tokens."""

    sample: RequestSet
    longest: int
    input_mean: float
    output_mean: float
    variability: float  # squared coefficients of variation of the gaps between arrivals and of prompt lengths, added

    def input_at(self, quantile: float) -> float:
        """Tokens of the prompt at this quantile of lengths."""
        return float(np.quantile(self.sample.input_tokens, quantile))


class SimulatedEvaluator:
    """Answers the planner's questions by simulating; see planner.world.World."""

    def __init__(self, request: PlanRequest, workload: Workload | None = None) -> None:
        self.request = request
        self.names = CatalogLookup.of(request.model, request.engine, request.hardware)
        self.notices: tuple[str, ...] = ()
        given = workload or open_loop(load_workload(request.workload))
        self.workload = steady(given) if request.over_time else given
        self._plants: dict[Candidate, CompiledDeployment] = {}
        self._fluid: dict[Candidate, float] = {}
        self._resolved: dict[Candidate, ResolvedDeployment] = {}
        self._floors: dict[tuple[object, ...], Discard | None] = {}
        self._costs: dict[tuple[object, ...], StepCost] = {}
        self._seen: dict[tuple[Candidate, OfferedLoad], Observation] = {}
        self._runs: OrderedDict[tuple[Candidate, OfferedLoad], Run] = OrderedDict()
        # By seed, requests, rate and share; candidates whose limits do not matter at a load are simulated there once.
        self._alike: OrderedDict[tuple[int, int, float, int], list[Run]] = OrderedDict()
        self.n_requests_simulated = 0
        self._price_check()

    def _price_check(self) -> None:
        """Bad names of a price or a grid are refused before anything is simulated."""
        self.price_of(self.request.hardware)
        self.grid()

    def elsewhere(self, hardware: str) -> SimulatedEvaluator:
        """The same question about other hardware (its price is looked up: an override was for the hardware named)."""
        tariff = replace(self.request.tariff, usd_per_hour=None)
        return SimulatedEvaluator(replace(self.request, hardware=hardware, tariff=tariff), self.workload)

    def of(self, candidate: Candidate) -> SimulatedEvaluator:  # noqa: ARG002
        """The world that simulates this candidate: the only one there is."""
        return self

    def names_of(self, candidate: Candidate) -> CatalogLookup:  # noqa: ARG002
        return self.names

    def space(self) -> list[Candidate]:
        """Every legal candidate."""
        return candidates(self.request, self.names)

    # ---- facts

    @cached_property
    def lengths(self) -> WorkloadLengths:
        sample = self.workload.materialise(seed=self.request.seed, n_requests=_LENGTHS)
        total = sample.input_tokens + sample.output_tokens
        means = float(sample.input_tokens.mean()), float(sample.output_tokens.mean())
        variability = _cv2(np.diff(np.sort(sample.arrival_s))) + _cv2(sample.input_tokens)
        return WorkloadLengths(sample, int(total.max()), *means, variability)

    @property
    def mean_output_tokens(self) -> float:
        """Of a request."""
        return self.lengths.output_mean

    def plant(self, candidate: Candidate) -> CompiledDeployment:
        """The candidate, ready to run. InputError where it does not fit."""
        if candidate not in self._plants:
            resolved, memory = fit(candidate.deployment(self.request.model, self.request.engine))
            self._plants[candidate] = CompiledDeployment(resolved, memory, self._cost(candidate), self._bundle)
        return self._plants[candidate]

    @cached_property
    def _bundle(self) -> Bundle:
        return load_bundle(self.names.hardware.accelerator)

    @property
    def calibrated(self) -> bool:
        """Whether anything of this hardware, or of a neighbour of its architecture, was measured."""
        return bool(self._bundle.models)

    @property
    def fingerprint(self) -> str:
        return f"{self._bundle.name} {sorted(self._bundle.provenance.items(), key=str)} {stated_errors_digest()}"

    def _cost(self, candidate: Candidate) -> StepCost:
        """Step costs shared by all that run the same ranks and capture the same graphs, compiled for the widest limits.

        They agree with a compilation for the candidate's own limits to a few parts in ten thousand.
        """
        own = self.resolved(candidate)
        graphs = graph_limit(own)
        key = (*candidate.ranks, graphs)
        if key not in self._costs:
            tokens, seqs = widest_limits(self.names, self.request.fixed)
            wide = replace(own, limits=replace(own.limits, max_num_batched_tokens=tokens, max_num_seqs=seqs))
            if graph_limit(wide) != graphs:
                wide = replace(own, limits=replace(own.limits, max_num_batched_tokens=tokens))
            self._costs[key] = compile_step_cost(wide, self._bundle)
        return self._costs[key]

    def discard(self, candidate: Candidate) -> Discard | None:
        found = memory_discard(size_memory(self.resolved(candidate)), self.lengths.longest)
        if found is not None:
            return found
        key = (*candidate.ranks, candidate.max_num_seqs, candidate.max_num_batched_tokens)
        if key not in self._floors:  # a latency floor is the same for any number of replicas
            resolved = self.resolved(candidate)
            cycle_s = per_token(self._cost(candidate).cycle_s, resolved, most=True)
            self._floors[key] = latency_discard(cycle_s, resolved.limits, self.lengths.sample, self.request.slos)
        return self._floors[key]

    def resolved(self, candidate: Candidate) -> ResolvedDeployment:
        """The candidate with every name looked up; its memory is not sized."""
        if candidate not in self._resolved:
            self._resolved[candidate] = resolve(candidate.deployment(self.request.model, self.request.engine))
        return self._resolved[candidate]

    def facts(self, candidate: Candidate) -> CandidateFacts:
        resolved = self.resolved(candidate)
        memory, notices = size_memory(resolved), resolved.notices
        if memory_discard(memory, self.lengths.longest) is None:
            plant = self.plant(candidate)
            resolved, memory, notices = plant.resolved, plant.memory, plant.notices
        serve = serve_command(resolved)
        notices = (*self._quality(candidate), *self.workload.notices, *notices)
        block = resolved.filled_in(candidate.deployment(self.request.model, self.request.engine))
        block |= {"model": resolved.model.hf_id or resolved.model.name, "kv_blocks": memory.kv_blocks}
        return CandidateFacts(
            block, memory_block(memory, resolved), serve.command, serve.notes, tuple(dict.fromkeys(notices))
        )

    def _quality(self, candidate: Candidate) -> tuple[str, ...]:
        native = self.names.model.weight_dtype
        found = []
        if candidate.weight_dtype != native:
            own = memory_discard(
                size_memory(self.resolved(replace(candidate, weight_dtype=native))), self.lengths.longest
            )
            reason = "" if own is None else f" because in {native} it does not fit ({own.reason})"
            said = f"{candidate.weight_dtype} weights instead of the model's own {native}{reason}: check answer quality"
            found.append(said)
        if candidate.kv_dtype == "fp8":
            found.append("fp8 KV cache: check answer quality on long contexts")
        return tuple(found)

    def price(self, candidate: Candidate) -> Price | None:
        return self.price_of(candidate.hardware)

    def price_of(self, hardware: str) -> Price | None:
        tariff = self.request.tariff
        if tariff.usd_per_hour is None:
            return table_price(parse_hardware(hardware), tariff)
        whole, part = self.names.hardware.n_accelerators, parse_hardware(hardware).n_accelerators
        price = Price.user(tariff.usd_per_hour * part / whole)
        return price if part == whole else replace(price, note=f"{part} of {whole} accelerators")

    def grid(self) -> Grid:
        return load_grid(self.request.tariff.grid or DEFAULT_REGION)

    # ---- rates to start from

    def flow(self, candidate: Candidate) -> QueueingModel:
        plant, lengths = self.plant(candidate), self.lengths
        each = lengths.input_mean + lengths.output_mean + plant.memory.cross_tokens
        held = plant.memory.max_concurrency_tokens / max(each, 1.0)
        seats = int(max(1, min(candidate.max_num_seqs * candidate.layout.data_parallel, held)))
        seats = max(1, seats // candidate.layout.pipeline_parallel)
        tokens = candidate.max_num_batched_tokens
        door = ApiServerQueue(plant.resolved.engine.host, candidate.layout.data_parallel)
        means = lengths.input_mean, lengths.output_mean
        cycle_s = per_token(plant.cost.cycle_s, plant.resolved)
        return QueueingModel(cycle_s, seats, tokens, *means, door, lengths.variability, lengths.input_at)

    def fluid_requests_per_s(self, candidate: Candidate) -> float:
        if candidate not in self._fluid:
            self._fluid[candidate] = candidate.lanes * self.flow(candidate).saturation_per_s
        return self._fluid[candidate]

    def light_requests_per_s(self, candidate: Candidate) -> float:
        return candidate.replicas * self.flow(candidate).light_per_s

    def guess_s(self, candidate: Candidate, requests_per_s: float, metric: str, quantile: float | None = None) -> float:
        return self.flow(candidate).latency_s(requests_per_s / candidate.lanes, metric, quantile)

    def strain(self, candidate: Candidate, requests_per_s: float, quantile: float | None = None) -> Utilisation:
        return self.flow(candidate).strain(requests_per_s / candidate.lanes, quantile)

    # ---- simulated runs

    def observe(self, candidate: Candidate, load: OfferedLoad) -> Observation:
        key = (candidate, load)
        if key not in self._seen:
            self._run(candidate, load)
        return self._seen[key]

    @cached_property
    def _reading(self) -> WindowStatistics:
        return WindowStatistics("itl" in {slo.metric for slo in self.request.slos}, self.request.objective == "energy")

    def detail(self, candidate: Candidate, load: OfferedLoad) -> RunDetail:
        done = self._run(candidate, load)
        blocks = summarise(done)
        observation = self.observe(candidate, load)
        window = steady_window(done.arrival_s, finish_s(done)).measured
        outputs = float(done.requests.output_tokens[window].mean())
        inputs = float(done.requests.input_tokens[window].mean())
        done_per_s = blocks["metrics"]["requests_per_s"] * (1 if load.whole_cluster else self.parts(candidate))
        rate = load.requests_per_s if observation.stable else done_per_s
        power_w = joules_per_output_token(done, window, observation.stable) * rate * outputs
        streaming = streaming_notice(self.streams(candidate).resolved, rate * outputs)
        return RunDetail(
            observation,
            blocks["metrics"],
            blocks["time_breakdown"],
            blocks["calibration"],
            rate * outputs,
            rate * (inputs + outputs),
            power_w,
            StatedError.of(self.request.engine, float(blocks["calibration"]["operator_error"])),
            (streaming,) if streaming else (),
        )

    def _run(self, candidate: Candidate, load: OfferedLoad) -> Run:
        key = (candidate, load)
        if key not in self._runs:
            self._runs[key], self._seen[key] = self._settled(candidate, load)
        while len(self._runs) > _KEPT_RUNS:
            self._runs.popitem(last=False)
        return self._runs[key]

    def _settled(self, candidate: Candidate, load: OfferedLoad) -> tuple[Run, Observation]:
        """Simulate, and longer while it is undecided whether the system keeps up: near saturation it fills slowly."""
        if load.whole_cluster:
            share = replace(load, whole_cluster=False)
            n_alone = self._run(candidate, share).requests.n
            n = round(_OF_A_CLUSTER * candidate.replicas * n_alone)
            done, seen = self._once(self.plant(candidate), 1, load, n)
            return done, replace(seen, growth_fraction=self._seen[candidate, share].growth_fraction)
        plant = self.plant(candidate) if candidate.replicas == 1 else self.part(candidate, candidate.replicas)
        n = self._enough(candidate, load)
        done, seen = self._once(plant, candidate.replicas, load, n)
        if n < _MOST_LONGER * load.n_requests and load.patient and self._open(seen):
            return self._once(plant, candidate.replicas, load, _MOST_LONGER * load.n_requests)
        return done, seen

    def _once(self, plant: CompiledDeployment, share: int, load: OfferedLoad, n: int) -> tuple[Run, Observation]:
        """Run n requests: every share-th of the whole load, which is what a round-robin router hands each replica."""
        asked = load.seed, n, load.requests_per_s, share
        alike = self._alike.setdefault(asked, [])
        done = next(
            (same for each in alike if (same := reusable_run(each, pool_of(plant, 0, each.requests))) is not None), None
        )
        if done is None:
            requests = self.workload.materialise(load.seed, n * share, load.requests_per_s).every(share)
            self.n_requests_simulated += requests.n
            done = run(plant, requests)
            alike.append(done)
        while sum(map(len, self._alike.values())) > _ALIKE_RUNS:
            self._alike.popitem(last=False)
        return done, observe_run(done, load, self._reading)

    def _open(self, seen: Observation) -> bool:
        """The objectives hold so far, and it is undecided whether the system keeps up."""
        return seen.undecided and judge([seen], self.request.slos).value_ratio <= 1

    def parts(self, candidate: Candidate) -> int:
        """Even parts of a deployment, of which one is simulated under its share of the load."""
        return candidate.replicas

    def streams(self, candidate: Candidate) -> CompiledDeployment:
        """Of the replicas that send tokens to clients."""
        return self.plant(candidate)

    def serves(self, candidate: Candidate, share: int) -> CompiledDeployment | CompiledFleet:
        """What serves requests: one of `share` even parts of the deployment."""
        return self.part(candidate, share)

    def part(self, candidate: Candidate, share: int) -> CompiledDeployment:
        """One of `share` even parts of its replicas, on its part of the hardware: what energy and latency are reckoned
        from where the whole is not simulated."""
        plant = self.plant(candidate)
        replicas = plant.resolved.replicas // share
        return plant if share == 1 else with_replicas(plant, replicas)

    def _enough(self, candidate: Candidate, load: OfferedLoad) -> int:
        """More requests where many are in flight at once, so that most of the run is steady. Never by the clock."""
        at_once = self.flow(candidate).in_flight(load.requests_per_s / candidate.lanes)
        if at_once is None:
            return load.n_requests  # hopelessly overloaded: any run shows it
        enough = _IN_FLIGHT * at_once * candidate.layout.pipeline_parallel <= load.n_requests
        return load.n_requests * (1 if enough else _MOST_LONGER)


def _cv2(values: FloatArray | npt.NDArray[np.int64]) -> float:
    """The squared coefficient of variation."""
    mean = float(values.mean()) if len(values) else 0.0
    return float(values.var()) / mean**2 if mean > 0 else 0.0


def open_loop(workload: Workload) -> Workload:
    """The workload, if its arrivals have a rate that can be scaled. Raises InputError otherwise."""
    if workload.closed_loop or not workload.content.has_rate:
        rule = f"planning scales a rate of arrivals, and workload {workload.name} has none (closed loop or all at once)"
        raise InputError(rule, None, "arrivals: {poisson: {}}")
    return workload


def memory_block(memory: MemoryPlan, resolved: ResolvedDeployment) -> dict[str, object]:
    """Bytes of one accelerator."""
    return {
        "device_bytes": resolved.hardware.accelerator.memory_bytes,
        "usable_bytes": memory.budget_bytes,
        "weights_bytes": memory.weights_bytes,
        "activation_bytes": memory.activation_bytes,
        "non_torch_bytes": memory.non_torch_bytes,
        "kv_bytes": memory.kv_bytes,
        "kv_blocks": memory.kv_blocks,
        "kv_tokens_per_replica": memory.max_concurrency_tokens,
        "equation": memory.equation,
        "fits": memory.fits,
        "why": memory.why or None,
    }


def with_replicas(plant: CompiledDeployment, replicas: int, room_for: int | None = None) -> CompiledDeployment:
    """The plant with so many replicas, side by side on one node with room for `room_for` of them (None: for all)."""
    resolved = plant.resolved
    accelerators = (room_for or replicas) * resolved.accelerators_per_replica
    room = replace(resolved.hardware, accelerators_per_node=accelerators, n_nodes=1)
    return replace(plant, resolved=replace(resolved, replicas=replicas, hardware=room))
