"""How the number of a pool's replicas follows the load, and how long a new one takes, as deployment.yaml says it.

The rules are those of Kubernetes' HorizontalPodAutoscaler (autoscaling/v2), which KEDA drives as well: the defaults are
its own (sync period 15 s, tolerance 0.1, up at once, down after the highest recommendation of 300 s, up by the larger
of 4 and 100 % a period).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt

from catalogs.errors import InputError
from catalogs.io.yaml_files import check_keys

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

Metric = Literal["queue", "outstanding", "kv", "busy", "ttft"]

#: Metrics that are shares: their targets lie in 0..1.
FRACTIONS: Final = ("kv", "busy")


class _Keys(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ColdStart(_Keys):
    """What passes between an order for a replica and its first request.

    Sources: a 10 GB image takes 7-10 minutes to pull and unpack (Tensorfuse, "The cold start problem", 2025);
    Llama-3.1-8B on an L40S with everything cached on a volume: 16 GB of weights in 18 s, graph capture 7 s, all else of
    vLLM's start (imports, engine, compiled code read back) 57 s (Tensorfuse, "Reducing GPU cold start time when using
    vLLM", September 2025); a new node is there after 80-120 s, left out unless asked for.
    """

    node_s: Seconds = 0.0
    image_gb: Seconds = 10.0  # 0: it lies on the node
    image_gb_per_s: Positive = 0.02
    weights_gb_per_s: Positive = 0.9  # from disk or network, of a whole replica
    engine_s: Seconds = 57.0
    graph_capture_s: Seconds = 7.0

    def seconds(self, weight_bytes: float) -> float:
        """Of a replica with so many bytes of weights, over all its accelerators."""
        fetched_s = self.image_gb / self.image_gb_per_s + weight_bytes / (1e9 * self.weights_gb_per_s)
        return self.node_s + fetched_s + self.engine_s + self.graph_capture_s


class Autoscaling(_Keys):
    """metric and target: of a replica, on average. queue: waiting requests; outstanding: unfinished ones; kv: share of
    its cache in use; busy: share of time it computes; ttft: seconds, the `quantile` of those who got or wait for their
    first token since the last look."""

    metric: Metric
    target: Positive
    min_replicas: NonNegativeInt = 1  # 0: an idle pool goes away, as with KEDA
    max_replicas: PositiveInt
    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.9
    interval_s: Annotated[float, Field(ge=0.01, allow_inf_nan=False)] = 15.0
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.1
    scale_up_stabilization_s: Seconds = 0.0
    scale_down_stabilization_s: Seconds = 300.0
    scale_up_replicas: PositiveInt = 4  # most a period, or the percentage if that is more
    scale_up_percent: Positive = 100.0
    cold_start: ColdStart = ColdStart()


def parse_autoscaling(data: object, replicas: int) -> Autoscaling:
    """The block of a pool that begins with so many replicas. Raises InputError with the nearest choice."""
    if isinstance(data, dict) and isinstance(data.get("cold_start"), dict):
        data = {**data, "cold_start": check_keys(ColdStart, data["cold_start"], "autoscaling.cold_start")}
    found = check_keys(Autoscaling, data, "autoscaling")
    if found.min_replicas > found.max_replicas:
        raise InputError(
            f"autoscaling.min_replicas is beyond max_replicas ({found.max_replicas})",
            found.min_replicas,
            str(found.max_replicas),
        )
    if not max(1, found.min_replicas) <= replicas <= found.max_replicas:
        nearest = min(max(replicas, found.min_replicas, 1), found.max_replicas)
        rule = f"replicas must lie within autoscaling's {found.min_replicas} to {found.max_replicas}"
        raise InputError(rule, replicas, str(nearest))
    if found.metric in FRACTIONS and found.target > 1:
        raise InputError(f"autoscaling.target of {found.metric} is a share from 0 to 1", found.target, "0.8")
    return found
