"""What drafts: a model of its own, or a layer that reads the target's hidden states, on the target's ranks."""

from __future__ import annotations

from dataclasses import replace

from calibration.roofline import ACTIVATION_BYTES
from catalogs.deployment import Resolved
from catalogs.model_parts import Attention, LayerGroup
from catalogs.speculation import EAGLE3_FEATURES
from simulator.shard import Shard, latent_passes


def draft_shard(resolved: Resolved, queries: int = 1) -> Shard | None:
    """The drafter's shard, as wide as the target's (vLLM and SGLang refuse another width for draft models); each decode
    brings it `queries` tokens, of which one is scored. None where a step runs no drafter."""
    speculation = resolved.speculation
    if speculation is None or speculation.draft is None:
        return None
    draft, engine, layout = speculation.draft, resolved.engine, resolved.layout
    return Shard(
        draft,
        replace(layout, expert_parallel=layout.expert_parallel and draft.is_moe),
        speculation.draft_weight_dtype,
        resolved.kv_dtype,
        "greedy",
        engine.mxfp8_activations and "fp4" in resolved.hardware.accelerator.peak_flops,
        engine.shared_experts_beside_tokens,
        queries=queries,
        latent_passes=latent_passes(draft, resolved, queries),
    )


def joining_bytes(shard: Shard, method: str) -> float:
    """Weights of a head beside its layers on one rank: its projections, and EAGLE-3's own output projection. Embedding
    and output projection are otherwise the target's."""
    hidden = shard.model.hidden_size
    if method != "eagle3":
        return 2.0 * hidden * hidden * ACTIVATION_BYTES
    wider = sum(g.count * _qkv_width(shard, g) for g in shard.model.groups) * hidden
    return (EAGLE3_FEATURES * hidden * hidden + wider + shard.vocab * hidden) * ACTIVATION_BYTES


def _qkv_width(shard: Shard, group: LayerGroup) -> int:
    a = group.mixer
    if not isinstance(a, Attention):
        return 0
    return shard.heads(a) * a.head_dim + shard.kv_heads(a) * (a.head_dim + a.value_dim)
