"""Prefill and decode on replicas of their own: which ratios carry most by closed form, and how long their runs are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from catalogs.deployments.resolve import CatalogLookup
from catalogs.hardware.specs import Hardware
from planner.evaluation.evaluator import Load
from planner.evaluation.queueing import LIGHT, ColocatedQueueing, Utilisation
from planner.problem.candidate import Candidate, Split
from planner.problem.request import PlanRequest
from planner.problem.slo import Slo
from planner.space.candidates import kv_dtypes, limits, placements, weight_dtypes
from planner.space.layouts import layouts

#: Ratios kept for each piece of hardware: where all of it is used, and where a rate needs as little as will do.
MOST: Final = 6

MOST_OF_A_PART: Final = 2

#: Share of the time prompts may keep a prefill replica busy where a first token is promised: beyond it they queue.
_BUSY: Final = 0.8

#: Of the requests one replica needs to settle, those each of several gets; and how much longer an undecided run is.
_OF_EACH: Final = 0.6

_LONGER: Final = 3


@dataclass(frozen=True, slots=True)
class DisaggregatedQueueing:
    """Closed-form guesses of prefill replicas and decode replicas, each under the whole rate."""

    prefill: ColocatedQueueing
    decode: ColocatedQueueing

    @property
    def saturation_per_s(self) -> float:
        """Requests/s of the slower side: prompts computed all the time, or every seat decoding."""
        model = self.decode.model
        decoded = self.decode.lanes * model.seats / (model.step_s(model.seats) * self._output_tokens)
        return min(self.prefill.lanes / self.prefill.model.prefill_s, decoded)

    @property
    def light_per_s(self) -> float:
        """Requests/s at which requests hardly ever meet."""
        alone_s = sum(side.model.step_s(1) for side in (self.prefill, self.decode)) * self._output_tokens
        return LIGHT * min(self.prefill.replicas, self.decode.replicas) / alone_s

    @property
    def _output_tokens(self) -> float:
        return max(self.decode.model.output_tokens, 1.0)

    def latency_s(self, requests_per_s: float, metric: str, quantile: float | None = None) -> float:
        """First tokens as the prefill replicas give them, later ones as the others do. See QueueingModel.latency_s."""
        if metric == "ttft":
            return self.prefill.latency_s(requests_per_s, metric, quantile)
        decoding_s = self.decode.latency_s(requests_per_s, metric, quantile)
        return decoding_s + (self.prefill.model.prefill_s if metric == "e2e" else 0.0)

    def utilisation(self, requests_per_s: float, quantile: float | None = None) -> Utilisation:
        """Of the decode replicas."""
        return self.decode.utilisation(requests_per_s, quantile)

    def rates_per_s(self, slos: Sequence[Slo]) -> tuple[float, float]:
        """Requests/s that the prefill replicas compute, and that the others decode with their seats full or, where a
        time per token is promised, as full as that allows (Little's law: seats over the time a request holds one)."""
        model = self.decode.model
        batch = _fullest(model.step_s, model.seats, slos)
        busy = _BUSY if any(slo.metric in ("ttft", "e2e") for slo in slos) else 1.0
        computed = busy * self.prefill.lanes / self.prefill.model.prefill_s
        return computed, self.decode.lanes * batch / (model.step_s(batch) * self._output_tokens)


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


@dataclass(frozen=True, slots=True)
class DisaggregatedRunLength:
    """How many requests a run needs. See planner.evaluation.runs.RunLength."""

    most_replicas: int  # of the larger pool

    def first(self, load: Load, share: int) -> int:
        """Enough for each replica of the larger pool to settle."""
        return max(load.n_requests, round(_OF_EACH * (self.most_replicas // share) * load.n_requests))

    def longer(self, load: Load, share: int) -> int:
        """Of a run after which it is undecided whether the system keeps up."""
        return _LONGER * self.first(load, share)

    def whole(self, load: Load, n_alone: int) -> int:  # noqa: ARG002
        """Of the whole deployment."""
        return self.first(load, 1)


def best_ratios(
    found: Iterable[Candidate], queueing: Callable[[Candidate], DisaggregatedQueueing], slos: Sequence[Slo]
) -> Iterator[Candidate]:
    """The ratios that carry most by closed form, for each piece of hardware among those found."""
    by_hardware: dict[Hardware, list[tuple[float, Candidate]]] = {}
    for candidate in found:
        carried = min(queueing(candidate).rates_per_s(slos))
        by_hardware.setdefault(candidate.hardware, []).append((-carried, candidate))
    most = MOST if len(by_hardware) == 1 else MOST_OF_A_PART
    for rated in by_hardware.values():
        yield from (candidate for _, candidate in sorted(rated)[:most])


def ratios(request: PlanRequest, names: CatalogLookup) -> Iterator[Candidate]:
    """Every x prefill and y decode replicas that fill a piece of hardware, at the engine's default limits: two layouts,
    one precision. y is as many as there is room for."""
    kinds = [layout for layout in layouts(request, names) if layout.pipeline_parallel == 1]
    seqs, tokens = limits(names, request.fixed)[0]
    for hardware in dict.fromkeys(part for layout in kinds for part, _ in placements(request, names, layout)):
        room, per_node = hardware.n_accelerators, hardware.accelerators_per_node
        for first in kinds:
            for x in range(1, room // first.accelerators + 1):
                for second in kinds:
                    y = (room - x * first.accelerators) // second.accelerators
                    if y < 1 or max(first.accelerators, second.accelerators) > per_node:
                        continue
                    for w in weight_dtypes(request, names):
                        for kv in kv_dtypes(names, request.fixed):
                            split = Split(x, first)
                            yield Candidate(hardware, y, second, w, kv, seqs, tokens, split, request.fixed.rest)


def with_ratios(plain: Sequence[Candidate], split: Iterable[Candidate]) -> list[Candidate]:
    """Both kinds of candidate, on each piece of hardware the plain ones first, in the order of the plain ones'."""
    order = {hardware: i for i, hardware in enumerate(dict.fromkeys(c.hardware for c in plain))}
    return sorted([*plain, *split], key=lambda c: order[c.hardware])
