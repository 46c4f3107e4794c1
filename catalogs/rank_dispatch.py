"""How requests come to the data-parallel ranks of a replica: the engine's way, or what a deployment asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from catalogs.engines import EngineProfile, RankDispatch
from catalogs.errors import InputError

if TYPE_CHECKING:
    from catalogs.deployment import Deployment, Layout


def rank_dispatch_of(deployment: Deployment, engine: EngineProfile, layout: Layout) -> RankDispatch | None:
    """None where a replica has one rank, which is balanced.

    Raises InputError for a key without ranks, or where only one scheduler for all of them is simulated: beside a
    pipeline, LoRA, KV offload or swap, and for engines without ranks of their own.
    """
    asked = deployment.rank_dispatch
    if layout.data_parallel == 1:
        if asked not in (None, "balanced"):
            rule = "rank_dispatch is for ranks that step together: data_parallel of a mixture-of-experts model"
            raise InputError(rule, asked, "rank_dispatch: null")
        return None
    alone = _alone(deployment, engine, layout)
    if asked not in (None, "balanced") and alone:
        raise InputError(f"ranks are simulated as one scheduler {alone}", f"rank_dispatch: {asked}", "balanced")
    return asked or ("balanced" if alone else engine.rank_dispatch)


def _alone(d: Deployment, engine: EngineProfile, layout: Layout) -> str:
    """Why one scheduler stands for all ranks; "" where each may have its own."""
    if engine.rank_dispatch == "balanced":
        return f"for {engine.name}"
    beside = (
        ("a pipeline", layout.pipeline_parallel > 1),
        ("LoRA", d.lora is not None),
        ("KV offload", d.kv_offload is not None),
        ("swap", d.preemption == "swap"),
    )
    return next((f"beside {what}" for what, there in beside if there), "")
