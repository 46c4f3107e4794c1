"""The operators of a drafter's passes: those of its model, and what joins a head's inputs.

What drafts: a model of its own, or a layer that reads the target's hidden states, on the target's ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from calibration.operators.cost import CostSource
from calibration.operators.operators import Gemm, Num
from calibration.operators.roofline import ACTIVATION_BYTES
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.speculation import EAGLE3_FEATURES, Method
from catalogs.models.layers import Attention, LayerGroup
from simulator.layers.operator_call import OperatorCall
from simulator.layers.shard import Shard, latent_passes
from simulator.layers.step import StepCalls


@dataclass(frozen=True, slots=True)
class DraftCalls(StepCalls):
    """first: of the pass over all tokens of a step, which reads the target's hidden states."""

    method: Method = "draft_model"
    first: bool = True

    @classmethod
    def drafting(cls, resolved: ResolvedDeployment, source: CostSource, queries: int, first: bool) -> Self | None:
        """None where a step runs no drafter. `queries`: tokens that each decode brings to the pass."""
        shard, speculation = draft_shard(resolved, queries), resolved.speculation
        if shard is None or speculation is None:
            return None
        return cls(shard, resolved.engine.fuses_norms, source.joins_decodes, speculation.method, first)

    def rank(self, tokens: Num, graph: bool) -> list[OperatorCall]:
        lines = StepCalls.rank(self, tokens, graph)
        if self.method in ("eagle", "mtp"):
            return [*lines, _joining(self.shard, tokens, 2)]
        if self.method == "eagle3":
            wide = [_widened(line, self.shard) for line in lines]
            return [*wide, _joining(self.shard, tokens, EAGLE3_FEATURES)] if self.first else wide
        return lines


def _joining(shard: Shard, tokens: Num, vectors: int) -> OperatorCall:
    """EAGLE and MTP project embedding and hidden state to one width, EAGLE-3 the features of three layers of the
    target; every rank does all of it."""
    hidden = shard.model.hidden_size
    return OperatorCall("join_inputs", "gemm", 1, Gemm(tokens, hidden, vectors * hidden, shard.plain_dtype))


def _widened(line: OperatorCall, shard: Shard) -> OperatorCall:
    """EAGLE-3's layer attends from embedding and feature side by side."""
    if line.name != "qkv_proj" or not isinstance(line.op, Gemm):
        return line
    return replace(line, op=replace(line.op, k=2 * shard.model.hidden_size))


def draft_shard(resolved: ResolvedDeployment, queries: int = 1) -> Shard | None:
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
