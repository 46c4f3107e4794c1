"""Autoscaling options of deployment.yaml: how the number of replicas follows the load.

The rules are those of Kubernetes' HorizontalPodAutoscaler (autoscaling/v2), which KEDA also uses, with its defaults: a
sync period of 15 s, a tolerance of 0.1, immediate scale-up, scale-down to the highest recommendation of the last 300 s,
and growth per period by the larger of 4 replicas and 100 %.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from catalogs.errors import InputError
from catalogs.io.yaml_files import YamlBlock, check_keys
from catalogs.ui.words import counted, human_s, percent

Metric = Literal["queue", "outstanding", "kv", "busy", "ttft"]

#: Metrics that are fractions; their targets lie between 0 and 1.
FRACTIONS: Final = ("kv", "busy")


class ColdStart(YamlBlock):
    """The time between the request for a new replica and the first request that it serves.

    Sources: a 10 GB image takes 7-10 minutes to pull and unpack (Tensorfuse, "The cold start problem", 2025). For
    Llama-3.1-8B on an L40S with everything cached on a volume, loading 16 GB of weights takes 18 s, graph capture 7 s,
    and the rest of vLLM's start (imports, engine, reading back compiled code) 57 s (Tensorfuse, "Reducing GPU cold
    start time when using vLLM", September 2025). A new node is available after 80-120 s; this time is left out by
    default.
    """

    node_s: NonNegativeFloat = 0.0
    image_gb: NonNegativeFloat = 10.0  # 0: the image is already on the node
    image_gb_per_s: PositiveFloat = 0.02
    weights_gb_per_s: PositiveFloat = 0.9  # from disk or network, for a whole replica
    engine_s: NonNegativeFloat = 57.0
    graph_capture_s: NonNegativeFloat = 7.0

    def seconds(self, weight_bytes: float) -> float:
        """Return the seconds until a new replica serves; `weight_bytes` is summed over all its accelerators."""
        fetched_s = self.image_gb / self.image_gb_per_s + weight_bytes / (1e9 * self.weights_gb_per_s)
        return self.node_s + fetched_s + self.engine_s + self.graph_capture_s


class Autoscaling(YamlBlock):
    """The `autoscaling` block of deployment.yaml.

    `target` is the value of `metric` per replica, averaged over the replicas of the pool. The metrics are: `queue`, the
    waiting requests; `outstanding`, the unfinished requests; `kv`, the fraction of the KV cache in use; `busy`, the
    fraction of time spent computing; `ttft`, the seconds to the first token, as the `quantile` over the requests that
    received it, or were still waiting for it, since the last evaluation.
    """

    metric: Metric
    target: PositiveFloat
    min_replicas: NonNegativeInt = 1  # 0: an idle pool is scaled to zero, as KEDA does
    max_replicas: PositiveInt
    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.9
    interval_s: Annotated[float, Field(ge=0.01)] = 15.0
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.1
    scale_up_stabilization_s: NonNegativeFloat = 0.0
    scale_down_stabilization_s: NonNegativeFloat = 300.0
    scale_up_replicas: PositiveInt = 4  # most replicas added per period, or scale_up_percent if that is more
    scale_up_percent: PositiveFloat = 100.0
    cold_start: ColdStart = ColdStart()


def scaling_words(scaling: Autoscaling, start: str) -> str:
    """Return the limits and the target of an autoscaler in words; `start` is the time that a new replica takes."""
    least, most = scaling.min_replicas, scaling.max_replicas
    if least == most:
        return f"always {counted(most, 'replica')}: the autoscaler may use no fewer and no more"
    return (
        f"{least} to {counted(most, 'replica')}, to keep {_target_words(scaling)}; "
        f"a new replica serves {start} after its order"
    )


def _target_words(scaling: Autoscaling) -> str:
    """Return the target of an autoscaler in words."""
    target = scaling.target
    number = "1 request" if target == 1 else f"{target:.3g} requests"
    words = {
        "queue": f"{number} waiting per replica",
        "outstanding": f"{number} unfinished per replica",
        "kv": f"{percent(target)} of the KV cache in use",
        "busy": f"replicas busy {percent(target)} of the time",
        "ttft": f"the time to first token of {percent(scaling.quantile)} of requests at {human_s(target)}",
    }
    return words[scaling.metric]


def parse_autoscaling(data: object, replicas: int) -> Autoscaling:
    """Return the checked `autoscaling` block of a pool that starts with `replicas` replicas.

    Raises:
        InputError: A key is unknown, a value is out of range, or `replicas` lies outside the limits of the block.
    """
    if isinstance(data, dict) and isinstance(data.get("cold_start"), dict):
        data = {**data, "cold_start": check_keys(ColdStart, data["cold_start"], "autoscaling.cold_start")}
    found = check_keys(Autoscaling, data, "autoscaling")
    if found.min_replicas > found.max_replicas:
        rule = f"autoscaling.min_replicas exceeds max_replicas ({found.max_replicas})"
        raise InputError(rule, found.min_replicas, str(found.max_replicas))
    if not max(1, found.min_replicas) <= replicas <= found.max_replicas:
        nearest = min(max(replicas, found.min_replicas, 1), found.max_replicas)
        rule = f"replicas must lie between autoscaling's {found.min_replicas} and {found.max_replicas}"
        raise InputError(rule, replicas, str(nearest))
    if found.metric in FRACTIONS and found.target > 1:
        rule = f"autoscaling.target of {found.metric} must be a fraction between 0 and 1"
        raise InputError(rule, found.target, "0.8")
    return found
