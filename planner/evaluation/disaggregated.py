"""Prompts and decoding on replicas of their own: ratios worth looking at by closed form, and their simulated runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

from catalogs.deployments.layout import Role
from catalogs.deployments.resolve import CatalogLookup
from catalogs.hardware.catalog import parse_hardware
from catalogs.launch.command import serve_command
from planner.evaluation.evaluator import CandidateFacts, Observation, OfferedLoad
from planner.evaluation.queueing import LIGHT, Utilisation
from planner.evaluation.simulated import SimulatedEvaluator, memory_block
from planner.evaluation.steady_state import observe_run
from planner.problem.candidate import Candidate, Split
from planner.problem.request import PlanRequest
from planner.problem.slo import Slo
from planner.space.bounds import Discard, latency_discard, memory_discard
from planner.space.candidates import kv_dtypes, limits, placements, weight_dtypes
from planner.space.layouts import layouts
from planner.space.speculative import per_token
from simulator.cluster.compiled import CompiledDeployment, CompiledFleet
from simulator.cluster.options import DisaggregationPolicy
from simulator.cluster.run import Run
from simulator.cluster.simulate import run
from simulator.memory.plan import size_memory

_PREFILL: Final[Role] = "prefill"

_DECODE: Final[Role] = "decode"

#: Ratios looked at for each piece of hardware: where all of it is used, and where a rate asks for as little as will do.
MOST: Final = 6

MOST_OF_A_PART: Final = 2

#: Share of the time prompts may keep a prefill replica busy where a first token is promised: beyond it they queue.
_BUSY: Final = 0.8

#: Of the requests one replica needs to settle, those each of several gets; and how much longer an undecided run is.
_OF_EACH: Final = 0.6

_LONGER: Final = 3

#: What a reader does with the two commands.
_NOTE: Final = "put the engine's router before both, which pairs them: `plan deploy` writes all of it"


class DisaggregatedEvaluator(SimulatedEvaluator):
    """A world with split candidates beside the others. What a half can do is asked of it as a candidate of its own."""

    @cached_property
    def _splits(self) -> list[Candidate]:
        return list(worthwhile(self))

    def space(self) -> list[Candidate]:
        """Every legal candidate, and of the ratios those that carry most by closed form."""
        plain = super().space()
        order = {text: i for i, text in enumerate(dict.fromkeys(c.hardware for c in plain))}
        return sorted([*plain, *self._splits], key=lambda c: order[c.hardware])

    # ---- closed forms

    def rates_per_s(self, candidate: Candidate) -> tuple[float, float]:
        """Requests/s that the prefill replicas compute, and that the others decode with their seats full or, where a
        time per token is promised, as full as that allows (Little's law: seats over the time a request holds one)."""
        prefill, decode = candidate.halves
        outputs = max(self.lengths.output_mean, 1.0)
        flow = self.flow(decode)
        batch = _fullest(flow.step_s, flow.seats, self.request.slos)
        busy = _BUSY if any(slo.metric in ("ttft", "e2e") for slo in self.request.slos) else 1.0
        computed = busy * prefill.lanes / self.flow(prefill).prefill_s
        return computed, decode.lanes * batch / (flow.step_s(batch) * outputs)

    def fluid_requests_per_s(self, candidate: Candidate) -> float:
        if not candidate.split:
            return super().fluid_requests_per_s(candidate)
        prefill, decode = candidate.halves
        flow = self.flow(decode)
        decoded = decode.lanes * flow.seats / (flow.step_s(flow.seats) * max(self.lengths.output_mean, 1.0))
        return min(prefill.lanes / self.flow(prefill).prefill_s, decoded)

    def light_requests_per_s(self, candidate: Candidate) -> float:
        if not candidate.split:
            return super().light_requests_per_s(candidate)
        lone_s = sum(self.flow(half).step_s(1) for half in candidate.halves) * max(self.lengths.output_mean, 1.0)
        return LIGHT * min(candidate.replicas, candidate.split.replicas) / lone_s

    def guess_s(self, candidate: Candidate, requests_per_s: float, metric: str, quantile: float | None = None) -> float:
        if not candidate.split:
            return super().guess_s(candidate, requests_per_s, metric, quantile)
        prefill, decode = candidate.halves
        if metric == "ttft":
            return super().guess_s(prefill, requests_per_s, metric, quantile)
        decoding = super().guess_s(decode, requests_per_s, metric, quantile)
        return decoding + (self.flow(prefill).prefill_s if metric == "e2e" else 0.0)

    def strain(self, candidate: Candidate, requests_per_s: float, quantile: float | None = None) -> Utilisation:
        return super().strain(candidate.halves[1] if candidate.split else candidate, requests_per_s, quantile)

    def discard(self, candidate: Candidate) -> Discard | None:
        """Each half by what it does: memory of both, first tokens of the one, times per token of the other."""
        if not candidate.split:
            return super().discard(candidate)
        for half, metrics in zip(candidate.halves, (("ttft",), ("tpot", "itl")), strict=True):
            found = memory_discard(size_memory(self.resolved(half)), self.lengths.longest)
            slos = [slo for slo in self.request.slos if slo.metric in metrics]
            if found is None and slos:
                cycle_s, held = self._cost(half).cycle_s, self.resolved(half)
                floor_s = per_token(cycle_s, held, most=True)
                found = latency_discard(floor_s, held.limits, self.lengths.sample, slos)
            if found is not None:
                return found
        return None

    # ---- runs

    def serves(self, candidate: Candidate, share: int) -> CompiledDeployment | CompiledFleet:
        if not candidate.split:
            return super().serves(candidate, share)
        return self.fleet(candidate, share)

    def fleet(self, candidate: Candidate, share: int) -> CompiledFleet:
        """One of `share` even parts of it, both pools side by side on their part of the hardware."""
        plants = []
        for half, role in zip(candidate.halves, (_PREFILL, _DECODE), strict=True):
            plant = self.plant(half)
            resolved = replace(plant.resolved, role=role, replicas=half.replicas // share)
            if share > 1:
                room = replace(resolved.hardware, accelerators_per_node=candidate.accelerators // share, n_nodes=1)
                resolved = replace(resolved, hardware=room)
            plants.append(replace(plant, resolved=resolved))
        engine = plants[-1].resolved.engine
        return CompiledFleet(
            tuple(plants), None, DisaggregationPolicy(engine.first_token), engine.kv_transfer, engine.transfer_queues
        )

    def parts(self, candidate: Candidate) -> int:
        return math.gcd(candidate.replicas, candidate.split.replicas) if candidate.split else super().parts(candidate)

    def streams(self, candidate: Candidate) -> CompiledDeployment:
        return super().streams(candidate.halves[1] if candidate.split else candidate)

    def _settled(self, candidate: Candidate, load: OfferedLoad) -> tuple[Run, Observation]:
        """As the plain ones: an even part first, longer while it is undecided whether it keeps up; then the whole."""
        if not candidate.split:
            return super()._settled(candidate, load)
        parts = self.parts(candidate)
        if not load.whole_cluster:
            done, seen = self._served(candidate, load, parts, 1)
            undecided = load.patient and self._open(seen)
            return self._served(candidate, load, parts, _LONGER) if undecided else (done, seen)
        alone = replace(load, whole_cluster=False)
        own = self._run(candidate, alone), self._seen[candidate, alone]
        if parts == 1:
            return own[0], replace(own[1], load=load)
        done, seen = self._served(candidate, load, 1, 1)
        return done, replace(seen, growth_fraction=own[1].growth_fraction)

    def _served(self, candidate: Candidate, load: OfferedLoad, share: int, times: int) -> tuple[Run, Observation]:
        """One of `share` even parts under its part of the load."""
        most = max(candidate.replicas, candidate.split.replicas) // share
        n = times * max(load.n_requests, round(_OF_EACH * most * load.n_requests))
        requests = self.workload.materialise(load.seed, n * share, load.requests_per_s).every(share)
        self.n_requests_simulated += requests.n
        done = run(self.fleet(candidate, share), requests)
        return done, observe_run(done, load, self._reading)

    # ---- what a reader sees

    def facts(self, candidate: Candidate) -> CandidateFacts:
        if not candidate.split:
            return super().facts(candidate)
        prefill, decode = (self.plant(half) for half in candidate.halves)
        found = super().facts(candidate.halves[1])
        written = candidate.deployment(self.request.model, self.request.engine)
        apart = written.disaggregation.model_dump() if written.disaggregation else None
        first, own = (
            serve_command(replace(plant.resolved, role=role, replicas=1))
            for plant, role in ((prefill, _PREFILL), (decode, _DECODE))
        )
        counts = (
            f"start {candidate.split.replicas} of the prefill servers and {candidate.replicas} of the decode servers"
        )
        notes = (f"prefill: {first.command}", counts, _NOTE)
        block = found.deployment | {"disaggregation": apart}
        return replace(
            found,
            deployment=block,
            memory=memory_block(decode.memory, decode.resolved),
            command=own.command,
            command_notes=(*own.notes, *notes),
        )


def worthwhile(world: DisaggregatedEvaluator) -> Iterator[Candidate]:
    """The ratios that carry most by closed form, for each piece of hardware a plain candidate may have."""
    request, names = world.request, world.names
    by_text: dict[str, list[tuple[float, Candidate]]] = {}
    for candidate in ratios(request, names):
        if world.discard(candidate) is None:
            carried = min(world.rates_per_s(candidate))
            by_text.setdefault(candidate.hardware, []).append((-carried, candidate))
    most = MOST if len(by_text) == 1 else MOST_OF_A_PART
    for found in by_text.values():
        yield from (candidate for _, candidate in sorted(found)[:most])


def ratios(request: PlanRequest, names: CatalogLookup) -> Iterator[Candidate]:
    """Every x prefill and y decode replicas that fill a piece of hardware, at the engine's default limits: two layouts,
    one precision. y is as many as there is room for."""
    kinds = [layout for layout in layouts(request, names) if layout.pipeline_parallel == 1]
    seqs, tokens = limits(names, request.fixed)[0]
    texts = dict.fromkeys(text for layout in kinds for text, _ in placements(request, names, layout))
    for text in texts:
        hardware = parse_hardware(text)
        room, per_node = hardware.n_accelerators, hardware.accelerators_per_node
        for first in kinds:
            for x in range(1, room // first.accelerators + 1):
                for second in kinds:
                    y = (room - x * first.accelerators) // second.accelerators
                    if y < 1 or max(first.accelerators, second.accelerators) > per_node:
                        continue
                    for w in weight_dtypes(request, names):
                        for kv in kv_dtypes(names, request.fixed):
                            yield Candidate(text, y, second, w, kv, seqs, tokens, Split(x, first), request.fixed.rest)


def _fullest(step_s: Callable[[int], float], seats: int, slos: Sequence[Slo]) -> int:
    """Sequences decoded at once at most: all seats, or as many as keep the time per token promised."""
    limit_s = min((slo.limit_s for slo in slos if slo.metric in ("tpot", "itl")), default=math.inf)
    low, high = 1, seats
    while low < high:
        middle = (low + high + 1) // 2
        if step_s(middle) <= limit_s:
            low = middle
        else:
            high = middle - 1
    return low
