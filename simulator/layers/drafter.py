"""The operators of a drafter: a separate model, or a layer over the target's hidden states, on the target's ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from calibration.operators.cost import CostSource
from calibration.operators.flops_and_bytes import ACTIVATION_BYTES
from calibration.operators.operators import Gemm, Matmul, Num
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.speculation import EAGLE3_FEATURES, Method
from simulator.layers.attention import sharded_mixer
from simulator.layers.operator_call import OperatorCall, gemm_call
from simulator.layers.shard import Shard
from simulator.layers.step import StepCalls, fused_rows


@dataclass(frozen=True, slots=True)
class DraftCalls(StepCalls):
    """The operators of a drafter's passes: those of its model, and the projection of a draft head's inputs.

    `first` marks the pass over all tokens of a step, which reads the target's hidden states.
    """

    method: Method = "draft_model"
    first: bool = True

    @classmethod
    def drafting(cls, resolved: ResolvedDeployment, source: CostSource, queries: int, first: bool) -> Self | None:
        """Return the operators of a drafter; None if a step runs no drafter.

        Args:
            resolved: The deployment of the target.
            source: The source of operator costs.
            queries: Tokens that each decode brings to the pass.
            first: Whether this is the pass over all tokens of a step.
        """
        shard, speculation = draft_shard(resolved, queries), resolved.speculation
        if shard is None or speculation is None:
            return None
        return cls(shard, fused_rows(resolved), source.joins_decodes, method=speculation.method, first=first)

    def rank(self, tokens: Num, graph: bool = True) -> list[OperatorCall]:
        """Return the operators that depend on the tokens of an attention rank, with the projection of head inputs."""
        calls = StepCalls.rank(self, tokens, graph)
        if self.method in ("eagle", "mtp"):
            return [*calls, _joining_call(self.shard, tokens, 2)]
        if self.method == "eagle3":
            # EAGLE-3's layer attends from the concatenated embedding and feature.
            for i, call in enumerate(calls):
                if call.name == "qkv_proj" and isinstance(call.op, Gemm | Matmul):
                    calls[i] = replace(call, op=replace(call.op, k=2 * self.shard.model.hidden_size))
            return [*calls, _joining_call(self.shard, tokens, EAGLE3_FEATURES)] if self.first else calls
        return calls


def _joining_call(shard: Shard, tokens: Num, vectors: int) -> OperatorCall:
    """Return the projection of a head's inputs to one width; every rank computes all of it.

    EAGLE and MTP project the embedding and the hidden state, EAGLE-3 the features of three layers of the target.
    """
    hidden = shard.model.hidden_size
    return gemm_call("join_inputs", 1, shard.product(tokens, hidden, vectors * hidden, shard.plain_dtype))


def draft_shard(resolved: ResolvedDeployment, queries: int = 1) -> Shard | None:
    """Return the drafter's shard, as wide as the target's; None if a step runs no drafter.

    vLLM and SGLang refuse another tensor-parallel width for draft models. Each decode brings the drafter `queries`
    tokens, of which one is scored.
    """
    speculation, layout = resolved.speculation, resolved.layout
    if speculation is None or speculation.draft is None:
        return None
    return replace(
        Shard.of(resolved),
        model=speculation.draft,
        layout=replace(layout, expert_parallel=layout.expert_parallel and speculation.draft.is_moe),
        weight_dtype=speculation.draft_weight_dtype,
        sampling="greedy",
        sorts_logits=False,
        queries=queries,
        scored=1,
    )


def joining_bytes(shard: Shard, method: str) -> float:
    """Return the bytes of a draft head's weights on one rank, in addition to those of its layers.

    These are the projections of its inputs and EAGLE-3's own output projection. Embedding and output projection are
    otherwise those of the target.
    """
    hidden = shard.model.hidden_size
    if method != "eagle3":
        return 2.0 * hidden * hidden * ACTIVATION_BYTES
    mixers = (sharded_mixer(shard, group) for group in shard.model.groups)
    wider = sum(mixer.count * mixer.qkv_width for mixer in mixers if mixer) * hidden
    return (EAGLE3_FEATURES * hidden * hidden + wider + shard.vocab * hidden) * ACTIVATION_BYTES
