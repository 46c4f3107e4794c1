"""Prefill and decode on separate replicas: closed-form estimates, the best ratios, and the length of runs."""

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
from planner.problem.latency_metrics import LATENCY_METRICS
from planner.problem.request import PlanRequest
from planner.problem.slo import Slo
from planner.space.candidates import kv_dtypes, limits, placements, weight_dtypes
from planner.space.layouts import layouts

#: Ratios kept for each hardware: if all of it is used, and if the cheapest part that carries a rate is searched.
MOST: Final = 6

MOST_OF_A_PART: Final = 2

#: Highest utilisation of a prefill replica if an objective includes the first token: beyond it prompts queue.
_BUSY: Final = 0.8

#: Each of several replicas gets this share of the requests that one replica needs until it is steady; an undecided run
#: is repeated with `_LONGER` times the requests.
_OF_EACH: Final = 0.6

_LONGER: Final = 3


@dataclass(frozen=True, slots=True)
class DisaggregatedQueueing:
    """Closed-form estimates of prefill replicas and decode replicas, each under the whole rate."""

    prefill: ColocatedQueueing
    decode: ColocatedQueueing

    @property
    def saturation_per_s(self) -> float:
        """Return the requests per second of the slower pool: prefill without pause, or decode with a full batch."""
        model = self.decode.model
        decoded = self.decode.lanes * model.seats / (model.step_s(model.seats) * self._output_tokens)
        return min(self.prefill.lanes / self.prefill.model.prefill_s, decoded)

    @property
    def light_per_s(self) -> float:
        """Return the requests per second at which requests rarely overlap."""
        alone_s = sum(side.model.step_s(1) for side in (self.prefill, self.decode)) * self._output_tokens
        return LIGHT * min(self.prefill.replicas, self.decode.replicas) / alone_s

    @property
    def _output_tokens(self) -> float:
        return max(self.decode.model.output_tokens, 1.0)

    def latency_s(self, requests_per_s: float, metric: str, quantile: float | None = None) -> float:
        """First tokens as the prefill replicas give them, later ones as the others do. See QueueingModel.latency_s."""
        if LATENCY_METRICS[metric].is_only_of("prefill"):
            return self.prefill.latency_s(requests_per_s, metric, quantile)
        return self.decode.latency_s(requests_per_s, metric, quantile, self.prefill.model.prefill_s)

    def utilisation(self, requests_per_s: float, quantile: float | None = None) -> Utilisation:
        """Return the estimated utilisation of the decode replicas."""
        return self.decode.utilisation(requests_per_s, quantile)

    def rates_per_s(self, slos: Sequence[Slo]) -> tuple[float, float]:
        """Return the requests per second that the prefill replicas and the decode replicas carry.

        Decode replicas run a full batch, or the largest that an objective on the time per token permits (Little's law:
        running sequences over the time of a request).
        """
        model = self.decode.model
        batch = _fullest(model.step_s, model.seats, slos)
        busy = _BUSY if any(slo.latency.involves("prefill") for slo in slos) else 1.0
        computed = busy * self.prefill.lanes / self.prefill.model.prefill_s
        return computed, self.decode.lanes * batch / (model.step_s(batch) * self._output_tokens)


def _fullest(step_s: Callable[[int], float], seats: int, slos: Sequence[Slo]) -> int:
    """Sequences decoded at once at most: all seats, or as many as keep the time per token promised."""
    limit_s = min((slo.limit_s for slo in slos if slo.latency.is_only_of("decode")), default=math.inf)
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
    """The run length of disaggregated deployments; see planner.evaluation.runs.RunLength.

    `most_replicas` is the number of replicas of the larger pool.
    """

    most_replicas: int

    def first(self, load: Load, share: int) -> int:
        """Return enough requests for each replica of the larger pool to become steady."""
        return max(load.n_requests, round(_OF_EACH * (self.most_replicas // share) * load.n_requests))

    def longer(self, load: Load, share: int) -> int:
        """Return the requests of a second run, if the first cannot decide whether the system keeps up."""
        return _LONGER * self.first(load, share)

    def whole(self, load: Load, n_alone: int) -> int:  # noqa: ARG002
        """Return the requests of a run of the whole deployment."""
        return self.first(load, 1)


def best_ratios(
    found: Iterable[Candidate], queueing: Callable[[Candidate], DisaggregatedQueueing], slos: Sequence[Slo]
) -> Iterator[Candidate]:
    """Yield the candidates with the highest estimated rates, for each hardware among those found."""
    by_hardware: dict[Hardware, list[tuple[float, Candidate]]] = {}
    for candidate in found:
        carried = min(queueing(candidate).rates_per_s(slos))
        by_hardware.setdefault(candidate.hardware, []).append((-carried, candidate))
    most = MOST if len(by_hardware) == 1 else MOST_OF_A_PART
    for rated in by_hardware.values():
        yield from (candidate for _, candidate in sorted(rated)[:most])


def ratios(request: PlanRequest, names: CatalogLookup) -> Iterator[Candidate]:
    """Yield every combination of x prefill and y decode replicas that fills a piece of hardware.

    Each combination has two layouts, one precision and the engine's default limits; y is the most that fits.
    """
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
    """Return both kinds of candidate in the hardware order of `plain`; on each hardware, `plain` comes first."""
    order = {hardware: i for i, hardware in enumerate(dict.fromkeys(c.hardware for c in plain))}
    return sorted([*plain, *split], key=lambda c: order[c.hardware])
