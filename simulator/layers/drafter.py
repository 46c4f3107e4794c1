"""What drafts: a model of its own, or a layer that reads the target's hidden states, on the target's ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from calibration.operators.cost import CostSource
from calibration.operators.operators import Gemm, Num
from calibration.operators.roofline import ACTIVATION_BYTES
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.speculation import EAGLE3_FEATURES, Method
from simulator.layers.attention import sharded_mixer
from simulator.layers.operator_call import OperatorCall, gemm_call
from simulator.layers.shard import Shard
from simulator.layers.step import StepCalls


@dataclass(frozen=True, slots=True)
class DraftCalls(StepCalls):
    """The operators of a drafter's passes: those of its model, and what joins a head's inputs.

    `first` marks the pass over all tokens of a step, which reads the target's hidden states.
    """

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
        calls = StepCalls.rank(self, tokens, graph)
        if self.method in ("eagle", "mtp"):
            return [*calls, _joining_call(self.shard, tokens, 2)]
        if self.method == "eagle3":
            wide = [_widened(call, self.shard) for call in calls]
            return [*wide, _joining_call(self.shard, tokens, EAGLE3_FEATURES)] if self.first else wide
        return calls


def _joining_call(shard: Shard, tokens: Num, vectors: int) -> OperatorCall:
    """EAGLE and MTP project embedding and hidden state to one width, EAGLE-3 the features of three layers of the
    target; every rank does all of it."""
    hidden = shard.model.hidden_size
    return gemm_call("join_inputs", 1, Gemm(tokens, hidden, vectors * hidden, shard.plain_dtype))


def _widened(call: OperatorCall, shard: Shard) -> OperatorCall:
    """EAGLE-3's layer attends from embedding and feature side by side."""
    if call.name != "qkv_proj" or not isinstance(call.op, Gemm):
        return call
    return replace(call, op=replace(call.op, k=2 * shard.model.hidden_size))


def draft_shard(resolved: ResolvedDeployment, queries: int = 1) -> Shard | None:
    """The drafter's shard, as wide as the target's (vLLM and SGLang refuse another width for draft models); each decode
    brings it `queries` tokens, of which one is scored. None where a step runs no drafter."""
    speculation, unit = resolved.speculation, resolved.hardware.accelerator
    if speculation is None or speculation.draft is None:
        return None
    draft, engine, layout = speculation.draft, resolved.engine, resolved.layout
    return Shard(
        draft,
        replace(layout, expert_parallel=layout.expert_parallel and draft.is_moe),
        speculation.draft_weight_dtype,
        resolved.kv_dtype,
        "greedy",
        engine.mxfp8_activations and "fp4" in unit.peak_flops,
        engine.shared_experts_beside_tokens,
        queries=queries,
        accelerator=unit,
    )


def joining_bytes(shard: Shard, method: str) -> float:
    """Weights of a head in addition to its layers, on one rank: its projections, and EAGLE-3's own output projection.
    Embedding and output projection are otherwise the target's."""
    hidden = shard.model.hidden_size
    if method != "eagle3":
        return 2.0 * hidden * hidden * ACTIVATION_BYTES
    mixers = (sharded_mixer(shard, group) for group in shard.model.groups)
    wider = sum(mixer.count * mixer.qkv_width for mixer in mixers if mixer) * hidden
    return (EAGLE3_FEATURES * hidden * hidden + wider + shard.vocab * hidden) * ACTIVATION_BYTES
