"""The same question asked of a world that differs in one thing: lengths, shared prompts, host times, step times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np

from catalogs.engines.profile import HostTimes
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.workload import Workload
from planner.evaluation.evaluator import LoadEvaluator, Observation, OfferedLoad
from planner.evaluation.multi_hardware import HardwareChoiceEvaluator
from planner.evaluation.simulated import SimulatedEvaluator
from planner.problem.candidate import Candidate
from simulator.cluster.compiled import CompiledDeployment, with_host

#: Host times that a busier or slower host has more of. What one process streams, and how ranks wait, is not the host's.
_HOST_SECONDS: Final = frozenset(
    {"step_s", "step_s_per_sequence", "step_gap_s", "request_s", "request_s_per_input_token", "output_s"}
)

_SHARED_BLOCK_TOKENS: Final = 16


@dataclass(frozen=True)
class VariedWorkload(Workload):
    """A workload whose requests are longer or shorter, or share the first part of every prompt.

    shared: None leaves contents as they are; 0 makes every prompt unique; 0.5 lets the first half be the same text.
    """

    input_factor: float = 1.0
    output_factor: float = 1.0
    shared: float | None = None

    @classmethod
    def of(
        cls, workload: Workload, input_factor: float = 1.0, output_factor: float = 1.0, shared: float | None = None
    ) -> VariedWorkload:
        kept = (workload.name, workload.source, workload.content, workload.notices)
        return cls(*kept, input_factor, output_factor, shared)

    def materialise(
        self, seed: int | None = None, n_requests: int | None = None, requests_per_s: float | None = None
    ) -> RequestSet:
        drawn = Workload.materialise(self, seed, n_requests, requests_per_s)
        inputs = np.maximum(np.rint(drawn.input_tokens * self.input_factor), 1).astype(np.int64)
        outputs = np.maximum(np.rint(drawn.output_tokens * self.output_factor), 1).astype(np.int64)
        varied = replace(drawn, input_tokens=inputs, output_tokens=outputs)
        if self.shared is not None:
            return _sharing(varied, self.shared)
        if drawn.block_hashes is None:
            return varied
        full = (inputs + outputs) // drawn.hash_block_tokens
        return replace(varied, block_hashes=tuple(h[:n] for h, n in zip(drawn.block_hashes, full, strict=True)))


def _sharing(requests: RequestSet, share: float) -> RequestSet:
    """The first `share` of every prompt is the start of one common text."""
    if not share:
        return replace(requests, block_hashes=None)
    blocks = (requests.input_tokens * share).astype(np.int64) // _SHARED_BLOCK_TOKENS
    hashes = tuple(tuple(range(n)) for n in blocks.tolist())
    return replace(requests, block_hashes=hashes, hash_block_tokens=_SHARED_BLOCK_TOKENS)


class VariedEvaluator(SimulatedEvaluator):
    """A world of other requests, or of a host that takes `host_factor` times as long."""

    def __init__(self, world: SimulatedEvaluator, workload: Workload | None, host_factor: float) -> None:
        super().__init__(world.request, workload or world.workload)
        self._world = world
        self._host_factor = host_factor
        self._hosted: dict[Candidate, CompiledDeployment] = {}

    def plant(self, candidate: Candidate) -> CompiledDeployment:
        """The other world's, which depends on no workload; on its own host."""
        plain = self._world.plant(candidate)
        if self._host_factor == 1.0:
            return plain
        if candidate not in self._hosted:
            self._hosted[candidate] = with_host(plain, slower_host(plain.resolved.engine.host, self._host_factor))
        return self._hosted[candidate]


class VariedEvaluators:
    """The same change of every world behind one door (see planner.worlds.Worlds)."""

    def __init__(
        self, worlds: HardwareChoiceEvaluator, workload: Workload | None = None, host_factor: float = 1.0
    ) -> None:
        self._worlds, self._workload, self._host_factor = worlds, workload, host_factor
        self._varied: dict[str, VariedEvaluator] = {}

    def of(self, candidate: Candidate) -> VariedEvaluator:
        """The changed world that simulates this candidate."""
        plain = self._worlds.of(candidate)
        text = plain.request.hardware
        if text not in self._varied:
            self._varied[text] = VariedEvaluator(plain, self._workload, self._host_factor)
        return self._varied[text]

    def fluid_requests_per_s(self, candidate: Candidate) -> float:
        return self.of(candidate).fluid_requests_per_s(candidate)

    def light_requests_per_s(self, candidate: Candidate) -> float:
        return self.of(candidate).light_requests_per_s(candidate)

    def observe(self, candidate: Candidate, load: OfferedLoad) -> Observation:
        return self.of(candidate).observe(candidate, load)


def slower_host(host: HostTimes, factor: float) -> HostTimes:
    """The same host, every time of its own `factor` times as long."""
    values = {f.name: getattr(host, f.name) * factor for f in fields(host) if f.name in _HOST_SECONDS}
    return replace(host, **values)


@dataclass(frozen=True, slots=True)
class SlowerSteps:
    """A world in which every step takes `factor` times as long: the same runs, the clock rescaled."""

    world: LoadEvaluator
    factor: float

    def fluid_requests_per_s(self, candidate: Candidate) -> float:
        return self.world.fluid_requests_per_s(candidate) / self.factor

    def light_requests_per_s(self, candidate: Candidate) -> float:
        return self.world.light_requests_per_s(candidate) / self.factor

    def observe(self, candidate: Candidate, load: OfferedLoad) -> Observation:
        seen = self.world.observe(candidate, replace(load, requests_per_s=load.requests_per_s * self.factor))
        samples: Mapping[str, np.ndarray] = {m: v * self.factor for m, v in seen.samples_s.items()}
        return replace(seen, load=load, samples_s=samples)
