"""Prefill and decode on separate replicas: closed-form estimates, the best ratios, and the length of runs."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from catalogs.deployments.layout import Layout
from catalogs.deployments.resolution.parallelism import transfer_refusal
from catalogs.deployments.resolve import CatalogLookup
from catalogs.hardware.specs import Hardware
from planner.evaluation.closed_forms.queueing import LIGHT, SHARE_OF_EACH_REPLICA, QueueingModel, Utilisation
from planner.problem.candidate import Candidate, Split
from planner.problem.latency_metrics import LATENCY_METRICS
from planner.problem.request import PlanRequest
from planner.problem.slo import Slo
from planner.space.candidates import kv_dtypes, limits, placements
from planner.space.layouts import layouts, weight_dtypes

#: Prefill-to-decode ratios kept for each hardware if every candidate uses all of it. A judgement: simulations decide
#: between the kept ones, so the closed form need only put the best among its first six.
RATIOS_ON_ALL_HARDWARE: Final = 6

#: Prefill-to-decode ratios kept for each hardware if the cheapest part that carries the rate is searched. A judgement:
#: there are then many sizes of hardware, and the ratios of all of them share the trials of one search.
RATIOS_ON_A_PART: Final = 2

#: Highest utilisation of a prefill replica if an objective includes the first token. A judgement: prompts queue beyond
#: it. By Kingman's formula the mean wait for random arrivals is four prompts at 0.8, and nine at 0.9.
_BUSY: Final = 0.8

#: Factor on the requests of a run for the rerun made while `Observation.undecided`. A judgement: a batch that still
#: fills up in the first run has filled up in the first third of the rerun.
_LONGER: Final = 3


@dataclass(frozen=True, slots=True)
class DisaggregatedQueueing:
    """Closed-form estimates of prefill replicas and decode replicas, each under the whole rate."""

    prefill: QueueingModel
    decode: QueueingModel

    @property
    def saturation_per_s(self) -> float:
        """Return the requests per second of the slower pool.

        Prefill replicas compute without pause. Decode replicas run full batches, unless their API servers are full.
        """
        decode = self.decode
        decoded = decode.seats / (decode.step_s(decode.seats) * self._output_tokens)
        decoded = decode.microbatches * min(decoded, decode.api_server.most_per_s(self._output_tokens))
        return min(self.prefill.microbatches / self.prefill.prefill_s, decoded)

    @property
    def light_per_s(self) -> float:
        """Return the requests per second at which requests rarely overlap: alone, each takes a prompt and steps."""
        alone_s = self.prefill.prefill_s + self.decode.step_s(1) * self._output_tokens
        return LIGHT * min(self.prefill.replicas, self.decode.replicas) / alone_s

    @property
    def _output_tokens(self) -> float:
        return max(self.decode.output_tokens, 1.0)

    def latency_s(self, requests_per_s: float, metric: str, quantile: float | None = None) -> float:
        """Return the estimated latency of the pool that gives the metric's tokens; see QueueingModel.latency_s."""
        if LATENCY_METRICS[metric].is_only_of("prefill"):
            return self.prefill.latency_s(requests_per_s, metric, quantile)
        return self.decode.latency_s(requests_per_s, metric, quantile, self.prefill.prefill_s)

    def utilisation(self, requests_per_s: float, quantile: float | None = None) -> Utilisation:
        """Return the estimated utilisation of the decode replicas."""
        return self.decode.utilisation(requests_per_s, quantile)

    def rates_per_s(self, slos: Sequence[Slo]) -> tuple[float, float]:
        """Return the requests per second that the prefill replicas and the decode replicas carry.

        Decode replicas run a full batch, or the largest that an objective on the time per token permits (Little's law:
        running sequences over the time of a request).
        """
        decode = self.decode
        limit_s = min((slo.limit_s for slo in slos if slo.latency.is_only_of("decode")), default=math.inf)
        larger = range(decode.seats, 1, -1)
        batch = decode.seats - bisect_left(larger, True, key=lambda size: decode.step_s(size) <= limit_s)
        busy = _BUSY if any(slo.latency.involves("prefill") for slo in slos) else 1.0
        computed = busy * self.prefill.microbatches / self.prefill.prefill_s
        return computed, decode.microbatches * batch / (decode.step_s(batch) * self._output_tokens)

    def run_requests(self, requests_per_s: float, n_requests: int, share: int) -> tuple[int, int]:  # noqa: ARG002
        """Return enough requests for each replica of the larger pool, and three times as many; see QueueingModel."""
        replicas = max(self.prefill.replicas, self.decode.replicas) // share
        first = max(n_requests, round(SHARE_OF_EACH_REPLICA * replicas * n_requests))
        return first, _LONGER * first

    def whole_run_requests(self, requests_per_s: float, n_requests: int, n_alone: int) -> int:  # noqa: ARG002
        """Return the requests of a run of all replicas."""
        return self.run_requests(requests_per_s, n_requests, 1)[0]


def best_ratios(
    found: Iterable[Candidate], queueing: Callable[[Candidate], DisaggregatedQueueing], slos: Sequence[Slo]
) -> Iterator[Candidate]:
    """Yield the candidates with the highest estimated rates, for each hardware among those found."""
    by_hardware: dict[Hardware, list[tuple[float, Candidate]]] = {}
    for candidate in found:
        carried = min(queueing(candidate).rates_per_s(slos))
        by_hardware.setdefault(candidate.hardware, []).append((-carried, candidate))
    most = RATIOS_ON_ALL_HARDWARE if len(by_hardware) == 1 else RATIOS_ON_A_PART
    for rated in by_hardware.values():
        yield from (candidate for _, candidate in sorted(rated)[:most])


def ratios(request: PlanRequest, names: CatalogLookup) -> Iterator[Candidate]:
    """Yield every combination of x prefill and y decode replicas that fills a piece of hardware.

    Each combination has two layouts of which the second can read what the first writes, one precision and the engine's
    default limits; y is the most that fits.
    """
    kinds = _single_stages(request, names)
    dtypes = list(product(weight_dtypes(request, names), kv_dtypes(names, request.fixed)))
    seqs, tokens = limits(names, request.fixed)[0]
    for hardware in dict.fromkeys(part for layout in kinds for part, _ in placements(request, names, layout)):
        n_most, per_node = hardware.n_accelerators, hardware.accelerators_per_node
        fitting = [layout for layout in kinds if layout.accelerators <= per_node]
        for first in fitting:
            readers = [second for second in fitting if _unread(names, first, second) is None]
            for x, second in product(range(1, n_most // first.accelerators + 1), readers):
                y = (n_most - x * first.accelerators) // second.accelerators
                if y >= 1:
                    split, rest = Split(x, first), request.further_keys
                    yield from (Candidate(hardware, y, second, w, kv, seqs, tokens, split, rest) for w, kv in dtypes)


def refused_pairs(request: PlanRequest, names: CatalogLookup) -> list[str]:
    """Return a line about the pairs of layouts that `ratios` leaves out, with the reason of the first; [] for none."""
    kinds = _single_stages(request, names)
    reasons = [why for pair in product(kinds, kinds) if (why := _unread(names, *pair)) is not None]
    if not reasons:
        return []
    n = len(reasons)
    return [
        f"not compared, {n} pair{'' if n == 1 else 's'} of prefill and decode layouts, the first because {reasons[0]}"
    ]


def _single_stages(request: PlanRequest, names: CatalogLookup) -> list[Layout]:
    return [layout for layout in layouts(request, names) if layout.pipeline_parallel == 1]


def _unread(names: CatalogLookup, prefill: Layout, decode: Layout) -> str | None:
    return transfer_refusal(names.model, names.engine, prefill, decode)
