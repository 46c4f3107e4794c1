"""Closed-form estimates of an encoder pool: the time of encoding, its queue, and the work of a second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from catalogs.models.media_items import MediaLayout
from planner.evaluation.closed_forms.disaggregated import DisaggregatedQueueing
from planner.evaluation.closed_forms.queueing import LIGHT, QueueingModel, Utilisation, queue_s
from planner.evaluation.stability import OVERLOAD
from planner.problem.latency_metrics import LATENCY_METRICS
from planner.problem.slo import Slo
from simulator.core.batch import BatchShape, Encoding, TowerWork
from simulator.core.step_log import StepLog
from simulator.costs.step_cost import StepCost
from simulator.layers.towers import encoding_of


def encode_s(cost: StepCost, media: Mapping[MediaLayout, float]) -> float:
    """Return the mean seconds of encoding the items of a request, each alone in its pass.

    Args:
        cost: The step cost of the replicas that encode.
        media: Mean number of items of a request by what they become.
    """
    return sum(n * cost.encoding_s(encoding_of(layout, 1)) for layout, n in media.items())


def second_of_encoding(cost: StepCost, media: Mapping[MediaLayout, float], requests_per_s: float) -> StepLog:
    """Return the log of what one encoder replica does in a second at its own rate, as one step without a prompt."""
    work: dict[str, list[float]] = {"vision": [0.0] * 4, "audio": [0.0] * 4}
    for layout, n in media.items():
        each = getattr(encoding_of(layout, 1), layout.tower)
        work[layout.tower] = [
            sum_ + n * requests_per_s * part for sum_, part in zip(work[layout.tower], each, strict=True)
        ]
    log, total_s = StepLog(), max(requests_per_s * encode_s(cost, media), 1e-9)
    log.add(0.0, 1, BatchShape(prefill_tokens=1, prefill_pairs=0.5, prefill_chunks=1), total_s, 0.0, total_s)
    log.add_encoding(Encoding(*(TowerWork(*work[name]) for name in ("vision", "audio"))))  # type: ignore[arg-type]
    return log


@dataclass(frozen=True, slots=True)
class EncoderPoolQueueing:
    """Closed-form estimates of an encoder pool in front of other replicas, each under the whole rate.

    Attributes:
        language: The replicas behind the pool.
        encoders: Number of encoder replicas.
        encode_s: Mean seconds of encoding the items of a request.
    """

    language: QueueingModel | DisaggregatedQueueing
    encoders: int
    encode_s: float

    @property
    def saturation_per_s(self) -> float:
        """Return the requests per second of the pool that is full first."""
        return min(self.language.saturation_per_s, self.encoders / max(self.encode_s, 1e-12))

    @property
    def light_per_s(self) -> float:
        """Return the requests per second at which requests rarely overlap."""
        return min(self.language.light_per_s, LIGHT * self.encoders / max(self.encode_s, 1e-12))

    def _busy(self, requests_per_s: float) -> float:
        return requests_per_s * self.encode_s / self.encoders

    def latency_s(self, requests_per_s: float, metric: str, quantile: float | None = None) -> float:
        """Return the estimated latency; those that include the first token also wait for the encoding."""
        found, busy = self.language.latency_s(requests_per_s, metric, quantile), self._busy(requests_per_s)
        if busy > OVERLOAD:
            return float("inf")
        if not LATENCY_METRICS[metric].involves("prefill"):
            return found
        return found + self.encode_s + queue_s(busy, self.encode_s, 1.0)

    def utilisation(self, requests_per_s: float, quantile: float | None = None) -> Utilisation:
        """Return the estimated utilisation of the replicas behind the pool; `full` is that of the fuller pool."""
        found = self.language.utilisation(requests_per_s, quantile)
        return replace(found, full=max(found.full, self._busy(requests_per_s)))

    def rates_per_s(self, slos: Sequence[Slo]) -> tuple[float, float]:
        """Return the rates of prefill and decode replicas, neither above that of the encoder pool.

        Raises:
            TypeError: There are no prefill and decode replicas.
        """
        if not isinstance(self.language, DisaggregatedQueueing):
            raise TypeError("only prefill and decode replicas have a rate each")
        prefill, decode = self.language.rates_per_s(slos)
        return min(prefill, self.encoders / max(self.encode_s, 1e-12)), decode

    def run_requests(self, requests_per_s: float, n_requests: int, share: int) -> tuple[int, int]:
        """Return the requests of a run and of a longer run: those of the replicas behind the pool."""
        return self.language.run_requests(requests_per_s, n_requests, share)

    def whole_run_requests(self, requests_per_s: float, n_requests: int, n_alone: int) -> int:
        """Return the requests of a run of all replicas."""
        return self.language.whole_run_requests(requests_per_s, n_requests, n_alone)
