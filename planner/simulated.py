"""The world of one request, built from the catalogs, the calibration and the simulator. Everything is remembered."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from catalogs.deployment import resolve
from catalogs.engines import load_engine
from catalogs.grid import DEFAULT_REGION, Grid, load_grid
from catalogs.hardware import parse_hardware
from catalogs.models import load_model
from catalogs.prices import Price, node_price
from catalogs.workloads import RequestSet, Workload, load_workload
from planner.bounds import Discard, EngineLimits, latency_discard
from planner.candidate import Candidate
from planner.deploy import serve_command
from planner.observation import Load, Observation
from planner.request import PlanRequest
from planner.space import Names
from planner.window import observe_run
from planner.world import Facts
from simulator.batch import BatchShape
from simulator.memory import MemoryPlan, size_memory
from simulator.plant import Plant, build_plant

if TYPE_CHECKING:
    from simulator.results import Run

#: Requests drawn to know the lengths of a workload.
_LENGTHS: Final = 2000
_KEPT_RUNS: Final = 16


@dataclass(frozen=True, slots=True)
class Lengths:
    """What the workload's requests look like, tokens."""

    sample: RequestSet
    longest: int
    input_mean: float
    output_mean: float


class SimulatedWorld:
    """Answers the planner's questions by simulating; see planner.world.World."""

    def __init__(self, request: PlanRequest, workload: Workload | None = None) -> None:
        self.request = request
        self.names = Names(load_model(request.model), parse_hardware(request.hardware), load_engine(request.engine))
        self.workload = workload or open_loop(load_workload(request.workload))
        self._plants: dict[Candidate, Plant] = {}
        self._seen: dict[tuple[Candidate, Load], Observation] = {}
        self._runs: OrderedDict[tuple[Candidate, Load], Run] = OrderedDict()
        self._requests: dict[tuple[float, int, int], RequestSet] = {}
        self._price_check()

    def _price_check(self) -> None:
        """Bad names of a price or a grid are refused before anything is simulated."""
        self.price_of(self.request.hardware)
        self.grid()

    def elsewhere(self, hardware: str) -> SimulatedWorld:
        """The same question about other hardware (its price is looked up: an override was for the hardware named)."""
        tariff = replace(self.request.tariff, usd_per_hour=None)
        return SimulatedWorld(replace(self.request, hardware=hardware, tariff=tariff), self.workload)

    # ---- facts

    @cached_property
    def lengths(self) -> Lengths:
        sample = self.workload.materialise(seed=self.request.seed, n_requests=_LENGTHS)
        total = sample.input_tokens + sample.output_tokens
        return Lengths(sample, int(total.max()), float(sample.input_tokens.mean()), float(sample.output_tokens.mean()))

    def plant(self, candidate: Candidate) -> Plant:
        """The candidate, ready to run. InputError where it does not fit."""
        if candidate not in self._plants:
            self._plants[candidate] = build_plant(candidate.deployment(self.request.model, self.request.engine))
        return self._plants[candidate]

    def discard(self, candidate: Candidate) -> Discard | None:
        resolved = resolve(candidate.deployment(self.request.model, self.request.engine))
        found = memory_discard(size_memory(resolved), self.lengths.longest)
        if found is not None:
            return found
        limits = EngineLimits(candidate.max_num_seqs, candidate.max_num_batched_tokens)
        cost = self.plant(candidate).cost
        return latency_discard(cost.cycle_s, limits, self.lengths.sample, self.request.slos)

    def facts(self, candidate: Candidate) -> Facts:
        resolved = resolve(candidate.deployment(self.request.model, self.request.engine))
        memory = size_memory(resolved)
        notices = resolved.notices
        if memory.fits or self._fits_shorter(memory):
            plant = self.plant(candidate)
            resolved, memory, notices = plant.resolved, plant.memory, plant.notices
        command = serve_command(resolved)
        notices = (*self.workload.notices, *self._quality(candidate), *notices)
        block = deployment_block(resolved, self.request.engine)
        return Facts(
            block, memory_block(memory, resolved), command.command, command.notes, tuple(dict.fromkeys(notices))
        )

    def _fits_shorter(self, memory: MemoryPlan) -> bool:
        return memory_discard(memory, self.lengths.longest) is None

    def _quality(self, candidate: Candidate) -> tuple[str, ...]:
        native = self.names.model.weight_dtype
        found = []
        if candidate.weight_dtype != native:
            found.append(f"{candidate.weight_dtype} weights instead of the model's own {native}: check answer quality")
        if candidate.kv_dtype == "fp8":
            found.append("fp8 KV cache: check answer quality on long contexts")
        return tuple(found)

    def price(self, candidate: Candidate) -> Price | None:
        return self.price_of(candidate.hardware)

    def price_of(self, hardware: str) -> Price | None:
        tariff = self.request.tariff
        if tariff.usd_per_hour is None:
            reading = tariff.reading
            return node_price(parse_hardware(hardware), reading, tariff.cloud, tariff.region)  # type: ignore[arg-type]
        whole, part = self.names.hardware.n_accelerators, parse_hardware(hardware).n_accelerators
        price = Price.user(tariff.usd_per_hour * part / whole)
        return price if part == whole else replace(price, note=f"{part} of {whole} accelerators")

    def grid(self) -> Grid:
        return load_grid(self.request.tariff.grid or DEFAULT_REGION)

    # ---- rates to start from

    def fluid_requests_per_s(self, candidate: Candidate) -> float:
        """Saturation rate if every step were as full as limits and KV allow, at mean lengths."""
        plant, lengths = self.plant(candidate), self.lengths
        context = lengths.input_mean + lengths.output_mean / 2
        held = plant.memory.max_concurrency_tokens / max(context + lengths.output_mean / 2, 1.0)
        batch = int(max(1, min(candidate.max_num_seqs, held)))
        decodes = BatchShape(
            decodes=batch,
            decode_context_sum=int(batch * context),
            decode_context_max=int(2 * context),
            logits=batch,
        )
        chunk = max(int(lengths.input_mean), 1)
        n = max(1, candidate.max_num_batched_tokens // chunk)
        prefill = BatchShape(prefill_tokens=n * chunk, prefill_pairs=n * chunk**2 / 2, prefill_chunks=n, logits=n)
        decode_s = plant.cost.cycle_s(decodes) * lengths.output_mean / batch
        return candidate.replicas / (decode_s + plant.cost.cycle_s(prefill) / n)

    def light_requests_per_s(self, candidate: Candidate) -> float:
        """One request in twenty meets another on its replica."""
        cycle_s = self.plant(candidate).cost.cycle_s
        context = int(self.lengths.input_mean + self.lengths.output_mean / 2)
        one = BatchShape(decodes=1, decode_context_sum=context, decode_context_max=context, logits=1)
        return candidate.replicas * 0.05 / (cycle_s(one) * max(self.lengths.output_mean, 1.0))

    # ---- simulated runs

    def observe(self, candidate: Candidate, load: Load) -> Observation:
        key = (candidate, load)
        if key not in self._seen:
            self._seen[key] = observe_run(self._run(candidate, load), load, self._metrics)
        return self._seen[key]

    @cached_property
    def _metrics(self) -> frozenset[str]:
        return frozenset(slo.metric for slo in self.request.slos) | {"ttft", "tpot", "e2e"}
