"""The differences between two deployments as single changes, with the flags of each, and the length that is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from catalogs.deployments.engine_settings import KEYS as SETTINGS
from catalogs.deployments.layout import Layout
from catalogs.deployments.resolve import resolve_pools
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.launch.arguments import Arguments
from catalogs.launch.command import serve_arguments
from simulator.cluster.compiled import DeploymentDoesNotFit, fit

#: The key of deployment.yaml that states the length.
LENGTH_KEY: Final = "max_model_len"

#: Keys that change together: where the model is placed, and on how many accelerators.
PLACEMENT: Final = (
    "hardware",
    "replicas",
    *(f.name for f in fields(Layout)),
    "pipeline_layers",
    "api_server_count",
    "rank_dispatch",
    "disaggregation",
)

#: Keys that a search keeps: facts about what is served and about the machine, and kernels that are not priced.
KEPT: Final = (
    "max_model_len",
    "gpu_memory_utilization",
    "lora",
    "multimodal",
    "speculative",
    "kv_offload",
    "kv_retention",
    "queue",
    "sampling",
    "preemption",
    "swap_space_gib",
    "activation_dtype",
    "moe_backend",
    "attention_backend",
)

#: Keys that are changes of their own.
SINGLE: Final = (
    "weight_dtype",
    "kv_dtype",
    "max_num_seqs",
    "max_num_batched_tokens",
    "prefix_caching",
    "block_size",
    *(key for key in SETTINGS if key not in KEPT),
)


@dataclass(frozen=True, slots=True)
class Change:
    """One change: keys of deployment.yaml with their value before and after."""

    what: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]


def changes_between(today: Mapping[str, Any], best: Mapping[str, Any]) -> list[Change]:
    """Return the changes from one deployment to another, every null of which is filled in.

    Kept keys differ only where an engine derives them from others, which is no change of its own.
    """
    found = []
    placed = [key for key in PLACEMENT if today.get(key) != best.get(key)]
    if any(key in placed for key in PLACEMENT if key not in ("api_server_count", "rank_dispatch")):
        keys = [key for key in PLACEMENT if key in placed]
        found.append(_change("parallelism", keys, today, best))
    return found + [_change(key, [key], today, best) for key in SINGLE if today.get(key) != best.get(key)]


def _change(what: str, keys: list[str], today: Mapping[str, Any], best: Mapping[str, Any]) -> Change:
    return Change(what, {key: today.get(key) for key in keys}, {key: best.get(key) for key in keys})


def flag_changes(before: Deployment, after: Deployment) -> list[str]:
    """Return the flags that one start command has and the other lacks: "+--flag value", "---flag value".

    An engine or a deployment without a start command has none.
    """
    try:
        old, new = (_arguments(d) for d in (before, after))
    except InputError:
        return []
    one, two = ([" ".join(filter(None, pair)) for pair in a.flags] for a in (old, new))
    model = [f"-{old.model}", f"+{new.model}"] if old.model != new.model else []
    gone = [f"-{flag}" for flag in one if flag not in two]
    return model + gone + [f"+{flag}" for flag in two if flag not in one]


def _arguments(deployment: Deployment) -> Arguments:
    """Return the command line of a replica, that of a decode replica where prefill and decode are separate."""
    return serve_arguments(resolve_pools(deployment)[-1])


def served_length(deployment: Deployment) -> int | None:
    """Return the tokens of the longest sequence that a deployment serves.

    It is the stated length or else the model's, and less where the cache cannot hold the model's. A deployment that
    does not fit in memory has the stated length, or None.

    Raises:
        InputError: The deployment is invalid.
    """
    try:
        resolved, _ = fit(deployment, resolved=resolve_pools(deployment)[-1])
    except DeploymentDoesNotFit:
        return deployment.max_model_len
    return resolved.limits.max_model_len


def length_notes(deployment: Deployment) -> Iterator[str]:
    """Yield which length is kept if the deployment does not state it, and how to allow a shorter one."""
    served = served_length(deployment)
    if deployment.max_model_len is not None or served is None:
        return
    own = resolve_pools(deployment)[-1].limits.max_model_len
    if served < own:
        yield (
            f"the cache of the present deployment holds a sequence of {served:,} tokens, not the {own:,} of the model: "
            f"{served:,} are kept"
        )
        return
    allow = f"add --set {LENGTH_KEY}=N if you need less, so that smaller caches count too"
    yield f"the context length of {served:,} tokens that is served today is kept: {allow}"
