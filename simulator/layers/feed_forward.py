"""The feed-forward block of a layer on one rank: one class for each kind, all with the contract `ShardedFeedForward`.

To add a kind of block, write its class here and enter it in FEED_FORWARDS.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import numpy as np

from calibration.operators.flops_and_bytes import ACTIVATION_BYTES as ACT
from calibration.operators.operators import Collective, GroupedGemm, Num
from catalogs.models.layers import LayerGroup, Mlp, Moe
from catalogs.models.mixers import Part
from simulator.interconnect.collectives import ExpertRouting
from simulator.layers.operator_call import (
    QUANTISED,
    OperatorCall,
    all_reduce_calls,
    elementwise_call,
    gemm_call,
    norm_calls,
)
from simulator.layers.shard import Shard

#: Multiple of the hidden size that Marlin's kernels of MXFP4 experts compute, up to which vLLM pads it
#: (quantization/mxfp4.py, Mxfp4MoEMethod.create_weights).
MARLIN_HIDDEN: Final = 256

#: Multiple of the intermediate size on a rank, in the same way.
MARLIN_INTERMEDIATE: Final = 128

#: Bytes of a value that TensorRT-LLM gathers for experts of these data types: NVFP4 has an 8-bit scale for 16 values.
GATHERED_BYTES: Final = {"fp4": 0.5 + 1 / 16, "fp8": 1.0}

#: Kernel launches of routed experts (see `step_launches`).
EXPERT_KERNELS: Final = 6

#: Further kernel launches of routed experts whose products are quantised: one for the input of each of the two.
EXPERT_QUANTISE_KERNELS: Final = 2

#: Kernel launches of the gate of a shared expert: the sigmoid and the product with its output.
SCALE_KERNELS: Final = 2


@dataclass(frozen=True, slots=True)
class ShardedFeedForward(ABC):
    """The feed-forward blocks of `count` identical layers on one rank."""

    shard: Shard
    count: int

    def token_calls(self, tokens: Num, graph: bool) -> list[OperatorCall]:
        """Return the operators that depend on the tokens of one attention rank."""
        norms = norm_calls(self.shard, "ffn", "post_norm", self.count, tokens)
        return [*norms, *self.block_calls(tokens), *self.closing_calls(tokens, graph)]

    @abstractmethod
    def block_calls(self, tokens: Num) -> list[OperatorCall]:
        """Return the operators between the norm and the exchange that closes the block."""

    def closing_calls(self, tokens: Num, graph: bool) -> list[OperatorCall]:
        """Return the all-reduce that closes the block."""
        return all_reduce_calls(self.shard, "ffn_all_reduce", self.count, tokens, graph)

    def expert_calls(self, tokens: Num, graph: bool) -> list[OperatorCall]:  # noqa: ARG002 (dense blocks have no experts)
        """Return the operators that depend on the tokens of the whole expert group; empty for dense blocks."""
        return []

    @abstractmethod
    def part_params(self) -> dict[Part, float]:
        """Return the weights of the matrix products of ONE layer on this rank, by part."""

    @abstractmethod
    def activation_width(self) -> float:
        """Return the values that are alive inside the block for each token of one attention rank."""


@dataclass(frozen=True, slots=True)
class ShardedMlp(ShardedFeedForward):
    """A dense block, divided over tensor ranks."""

    part: Mlp

    @property
    def width(self) -> int:
        """Return the intermediate size on this rank."""
        return -(-self.part.intermediate_size // self.shard.tp)

    def block_calls(self, tokens: Num) -> list[OperatorCall]:
        """Return the projections and the activation."""
        return _mlp_calls(self.shard, "mlp", self.count, self.part, tokens)

    def part_params(self) -> dict[Part, float]:
        """Return the weights of ONE layer on this rank."""
        return {"mlp": self.part.linear_params(self.shard.model.hidden_size) / self.shard.tp}

    def activation_width(self) -> float:
        """Return the values that are alive inside the block for each token."""
        return (3 if self.part.gated else 2) * self.part.intermediate_size / self.shard.tp


@dataclass(frozen=True, slots=True)
class ShardedMoe(ShardedFeedForward):
    """A mixture of experts: router and shared experts on every attention rank, routed experts over the expert group."""

    part: Moe

    @property
    def expert_width(self) -> int:
        """Return the intermediate size of one expert on this rank, expressed for a gated block.

        A block without a gate has two matrices, which count as two thirds of three.
        """
        slices = 1 if self.shard.layout.expert_parallel else self.shard.expert_group
        return -(-self.part.expert_intermediate_size * self.part.matrices // (3 * slices))

    @property
    def _at_once(self) -> bool:
        """Return whether one operator chooses the experts and launches all their kernels."""
        return self.shard.launches_experts_at_once and not self.shard.sends_to_experts

    def block_calls(self, tokens: Num) -> list[OperatorCall]:
        """Return the router, the shared experts and the projections to and from a narrower latent space.

        The routed experts are in `expert_calls`. In captured decode steps, shared experts run on a second stream in
        parallel with them (vLLM, SGLang, TensorRT-LLM), or as one more expert of the same kernel (SGLang, DeepSeek-V3).
        The launches and small grids of shared experts then take no time, but reading their weights still does.
        """
        moe, count, hidden, dtype = self.part, self.count, self._hidden, self.shard.dtype("shared_experts")
        most = self.shard.shared_overlap_tokens
        scores = moe.n_experts * (ACT + 4) + moe.experts_per_token * 8  # 16-bit logits, fp32 scores, ids and weights
        router = "fp32" if moe.fp32_router else self.shard.plain_dtype
        calls = [
            gemm_call("router", count, self.shard.product(tokens, moe.n_experts, hidden, router)),
            replace(
                elementwise_call("routing", count, "routing", tokens, scores),
                kernels=0 if self._at_once else 1,
            ),
        ]
        if moe.fp32_router and self.shard.plain_dtype != "fp32":
            calls.append(elementwise_call("router_input", count, "activation", tokens, hidden * (ACT + 4)))
        if moe.expert_hidden_size:
            latent = moe.expert_hidden_size
            calls.append(gemm_call("latent_in", count, self.shard.product(tokens, latent, hidden, dtype)))
            calls.append(gemm_call("latent_out", count, self.shard.product(tokens, hidden, latent, dtype)))
        if moe.shared_intermediate_size:
            calls.append(elementwise_call("add_shared", count, "activation", tokens, 3 * hidden * ACT))
            block = Mlp(moe.shared_intermediate_size, moe.gated)
            shared = _mlp_calls(self.shard, "shared_experts", count, block, tokens)
            calls += [replace(call, name=f"shared_{call.name}", overlapped_rows=most) for call in shared]
        if moe.shared_gate:
            gate = self.shard.product(tokens, 1, hidden, self.shard.plain_dtype)
            scale = elementwise_call("scale_shared", count, "activation", tokens, 2 * hidden * ACT)
            calls.append(replace(gemm_call("shared_gate", count, gate), overlapped_rows=most))
            calls.append(replace(scale, kernels=SCALE_KERNELS, overlapped_rows=most))
        return calls

    def closing_calls(self, tokens: Num, graph: bool) -> list[OperatorCall]:
        """Return the exchange that closes the block: the sum over tensor ranks, or a gather of their tokens.

        If tokens are sent to their experts, each tensor rank has sent its part of the tokens and received it back, so
        the ranks only gather the parts.
        """
        if not self.shard.sends_to_experts or self.shard.tp == 1:
            return all_reduce_calls(self.shard, "ffn_all_reduce", self.count, tokens, graph)
        gather = Collective("all_gather", tokens * (self._hidden * ACT), self.shard.tp, graph)
        return [OperatorCall("ffn_all_gather", "collective", self.count, gather)]

    def expert_calls(self, tokens: Num, graph: bool) -> list[OperatorCall]:
        """Return the routed experts over all tokens of the data-parallel group, with the exchange before and after.

        vLLM's default for dp > 1 gathers the tokens of every rank, runs the local experts and reduce-scatters. SGLang
        does the same in CUDA graphs; in a step with prompts, each rank writes its tokens into a buffer for those of all
        ranks, which is summed before and after the experts, so that ranks need not be padded to the longest. With dp
        = 1 the attention ranks already hold every token, and the layer ends in the usual all-reduce. The other backends
        send each token to the ranks of its experts and sum the results. Context-parallel ranks count like data-parallel
        ones.
        """
        m, shard, dtype = self.part, self.shard, self.shard.dtype("experts")
        hidden = m.expert_hidden_size or self._hidden
        inner, width = hidden, self.expert_width
        if shard.unpacks_mxfp4:
            inner, width = _up(hidden, MARLIN_HIDDEN), _up(width, MARLIN_INTERMEDIATE)
        copies = shard.layout.redundant_experts
        sizes = (inner, width, m.n_experts + copies, m.experts_per_token, shard.expert_ranks)
        block = shard.expert_block_rows if self._padded(dtype, hidden) else 0
        op = GroupedGemm(tokens, *sizes, dtype, balanced=copies > 0, block_rows=block, skew=m.routing_skew)
        kernels = EXPERT_KERNELS + EXPERT_QUANTISE_KERNELS * (dtype in QUANTISED)
        if self._at_once:
            kernels = 1 + (dtype in QUANTISED)
        calls = [OperatorCall("experts", "moe", self.count, op, kernels=kernels)]
        if shard.sends_to_experts:
            return calls + self._exchange_calls(tokens, hidden, graph)
        if shard.exchange_ranks > 1:
            sums = shard.sums_prompts and not graph and shard.dp > 1
            kinds = ("all_reduce", "all_reduce") if sums else ("all_gather", "reduce_scatter")
            for name, kind in zip(("dispatch", "combine"), kinds, strict=True):
                quantised = shard.gathers_quantised and kind == "all_gather"
                each = GATHERED_BYTES.get(dtype, ACT) if quantised else ACT
                exchange = Collective(kind, cast("Num", tokens * (hidden * each)), shard.exchange_ranks, graph)
                calls.append(OperatorCall(name, "collective", self.count, exchange, stride=shard.tp))
        return calls

    def _padded(self, dtype: str, hidden: int) -> bool:
        """Return whether the engine's padding kernel takes these experts.

        It takes block-scaled FP8 of sizes that are whole blocks. Backends that send each token only to the ranks of its
        experts tell the kernel how many rows each expert has, so that it reserves no others.
        """
        block = self.shard.expert_block_rows
        whole = block and not hidden % block and not self.expert_width % block
        return bool(dtype == "fp8_block" and whole and not self.shard.sends_to_experts)

    def _exchange_calls(self, tokens: Num, hidden: int, graph: bool) -> list[OperatorCall]:
        """Return the exchange of tokens with their experts, on backends that send each token only to those ranks.

        Tokens are sent in FP8 with a scale for 128 elements if the experts compute in FP8, and come back in 16 bit.
        SGLang's automatic mode uses the low-latency kernels in captured steps.
        """
        shard, backend = self.shard, self.shard.layout.all2all_backend
        quick = backend == "deepep_low_latency" or (backend == "deepep_auto" and graph)
        own = np.asarray(tokens, dtype=np.float64) / shard.expert_group
        sent = hidden * (1 + 4 / 128) if shard.dtype("experts").startswith("fp8") else hidden * ACT
        calls = []
        for name, each in (("dispatch", sent), ("combine", hidden * ACT)):
            routing = ExpertRouting(self.part.experts_per_token, each, quick)
            exchange = Collective("all_to_all", each * own, shard.expert_group, graph)
            calls.append(OperatorCall(name, "collective", self.count, exchange, routing=routing))
        return calls

    @property
    def _hidden(self) -> int:
        return self.shard.model.hidden_size

    def part_params(self) -> dict[Part, float]:
        """Return the weights of ONE layer on this rank, by part."""
        copied = 1 + self.shard.layout.redundant_experts / self.part.n_experts
        routed = copied * self.part.routed_params(self._hidden) / self.shard.expert_group
        return {"experts": routed, "shared_experts": self.part.shared_params(self._hidden) / self.shard.tp}

    def activation_width(self) -> float:
        """Return the values that are alive inside the block for each token of one attention rank.

        Every token is copied to each of its experts, and the tokens of all data-parallel ranks meet in the block.
        """
        m, shard = self.part, self.shard
        width = (m.expert_hidden_size or self._hidden) + m.matrices * self.expert_width
        return shard.dp * m.experts_per_token * width / shard.expert_ranks + m.n_experts * 3


#: The class that runs each kind of feed-forward block.
FEED_FORWARDS: Final[dict[type, Callable[[Shard, int, Any], ShardedFeedForward]]] = {Mlp: ShardedMlp, Moe: ShardedMoe}


def sharded_feed_forward(shard: Shard, group: LayerGroup) -> ShardedFeedForward | None:
    """Return the feed-forward blocks of a group of layers on one rank; None if its layers have none."""
    return None if group.ffn is None else FEED_FORWARDS[type(group.ffn)](shard, group.count, group.ffn)


def _up(size: int, multiple: int) -> int:
    """Return the size rounded up to a multiple."""
    return -(-size // multiple) * multiple


def _mlp_calls(shard: Shard, part: Part, count: int, block: Mlp, tokens: Num) -> list[OperatorCall]:
    hidden, width, dtype = shard.model.hidden_size, -(-block.intermediate_size // shard.tp), shard.dtype(part)
    up, name = (2, "gate_up_proj") if block.gated else (1, "up_proj")
    return [
        gemm_call(name, count, shard.product(tokens, up * width, hidden, dtype)),
        elementwise_call("activation", count, "activation", tokens, (up + 1) * width * ACT),
        gemm_call("down_proj", count, shard.product(tokens, hidden, width, dtype)),
    ]
