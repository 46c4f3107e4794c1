"""The mixer of a layer on one rank: one class for each kind of attention, all with the contract `ShardedMixer`.

To add a kind of mixer, write its class here, or in a module of its own as compressed attention has, and enter it in
MIXERS. The class defines which operators run, the bytes that a sequence takes in the cache, and the weights and
activations that a rank holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from calibration.operators.flops_and_bytes import ACTIVATION_BYTES as ACT
from calibration.operators.flops_and_bytes import stored_bytes
from calibration.operators.operators import (
    BYTES_PER_SCORE,
    Collective,
    DecodeAttention,
    Elementwise,
    Gemm,
    LinearAttentionScan,
    MlaModule,
    Num,
    PrefillAttention,
    window_pairs,
)
from catalogs.arrays import FloatArray
from catalogs.models.compressed_attention import CompressedAttention
from catalogs.models.layers import LayerGroup
from catalogs.models.mixers import Attention, LinearAttention, MlaAttention
from simulator.layers.cache_exchange import gather_calls, merge_calls
from simulator.layers.compressed_attention import ShardedCompressedAttention
from simulator.layers.mixer import JoinsDecodes, ShardedMixer, clip
from simulator.layers.operator_call import (
    QUANTISED,
    Calls,
    OperatorCall,
    elementwise_call,
    gated_norm_calls,
    gemm_call,
)
from simulator.layers.shard import Shard

#: Kernel launches of a gated delta rule's scan, counted in SGLang's sources (see `step_launches`).
SCAN_KERNELS: Final = 18

#: Copies of the queries, keys and values of decodes, whose rows the convolution leaves side by side.
SCAN_COPIES: Final = 3

#: Kernel launches of an MLA block (see `step_launches`).
MLA_KERNELS: Final = 12

#: Further kernel launches of an MLA block whose products are quantised: one for the input of each of the five.
MLA_QUANTISE_KERNELS: Final = 5

#: Kernel launches of an output gate: copies of the queries and of the gate, the sigmoid and the product.
GATE_KERNELS: Final = 4

#: Bytes of a token: one sum of squares in fp32 for its queries and one for its keys.
NORM_SQUARES_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class ShardedAttention(ShardedMixer):
    """MHA, GQA and MQA. Tensor ranks divide the query heads, and the KV heads as long as there are enough of them."""

    part: Attention

    @property
    def heads(self) -> int:
        """Return the query heads on this rank."""
        return self.part.rank_heads(self.shard.tp)

    @property
    def kv_heads(self) -> int:
        """Return the KV heads on this rank."""
        return self.part.rank_kv_heads(self.shard.tp)

    @property
    def query_width(self) -> int:
        """Return the width of the queries on this rank."""
        return self.heads * self.part.head_dim

    @property
    def key_width(self) -> int:
        """Return the width of the keys on this rank."""
        return self.kv_heads * self.part.head_dim

    @property
    def kv_width(self) -> int:
        """Return the width of the keys and values of one token in one layer on this rank."""
        return self.kv_heads * (self.part.head_dim + self.part.value_dim)

    @property
    def output_width(self) -> int:
        """Return the width of the attention output on this rank."""
        return self.heads * self.part.value_dim

    @property
    def qkv_width(self) -> int:
        """Return the outputs of the projection to queries, keys and values on this rank."""
        return self.query_width + self.kv_width

    def token_calls(self, tokens: Num, graph: bool) -> list[OperatorCall]:
        """Return the operators of every token.

        Where a norm runs over all heads, tensor ranks add up the squares of their heads in one all-reduce for queries
        and keys (vLLM, MiniMaxText01RMSNormTP.forward_qk). It divides the work between the two sums of a layer and adds
        none, so the ranks do not wait for each other any longer in total.
        """
        calls = ShardedMixer.token_calls(self, tokens, graph)
        if self.part.qk_norm_over_heads and self.shard.tp > 1:
            squares = Collective("all_reduce", tokens * NORM_SQUARES_BYTES, self.shard.tp, graph)
            calls.append(OperatorCall("qk_norm_all_reduce", "collective", self.count, squares, skewed=False))
        return calls

    def projection_calls(self, tokens: Num) -> list[OperatorCall]:
        """Return the projections, rotation and cache write, with the model's query-key norm and output gate."""
        a, count, hidden, dtype = self.part, self.count, self.shard.model.hidden_size, self.shard.dtype("attention")
        q, k, kv = self.query_width, self.key_width, self.kv_width
        written = kv * (ACT + stored_bytes(self.shard.kv_dtype))
        calls = [
            gemm_call(
                "qkv_proj", count, self.shard.product(tokens, q * (2 if a.output_gate else 1) + kv, hidden, dtype)
            ),
            elementwise_call("rotary", count, "rotary", tokens, 2 * (q + k) * ACT),
            elementwise_call("kv_write", count, "kv_write", tokens, written),
            gemm_call("o_proj", count, self.shard.product(tokens, hidden, self.output_width, dtype)),
        ]
        if a.qk_norm:
            calls.append(elementwise_call("qk_norm", count, "norm", tokens, 2 * (q + k) * ACT))
        if a.output_gate:
            gated = elementwise_call("output_gate", count, "activation", tokens, 3 * q * ACT)
            calls.append(replace(gated, kernels=GATE_KERNELS))
        return calls

    def decode_calls(self, sequences: FloatArray, mean: FloatArray, longest: FloatArray, joins: JoinsDecodes) -> Calls:
        """Yield the attention of decodes, each over its window of the context.

        If the engine's kernel takes prompts and decodes at once, a decode is a prompt chunk of one token whose keys are
        not split over the device.

        All arrays broadcast against each other. Shape (...).
        """
        a, shard, n = self.part, self.shard, sequences
        if shard.kv_shards == 1 and joins(a.head_dim, shard.kv_dtype):
            tokens = n * shard.queries
            pairs = tokens * (clip(mean, a.window_tokens) + 0.5 * shard.queries)
            joined = self.prefill_attention(n, tokens, pairs, a.window_tokens)
            yield OperatorCall("joined_decode_attention", "attention_decode", self.count, joined)
            return
        read, top = (clip(x, a.window_tokens) / shard.kv_shards for x in (mean, longest))
        heads = self.heads * shard.joined_heads * shard.queries
        op = DecodeAttention(n, n * read, top, heads, self.kv_heads, a.head_dim, shard.kv_dtype, a.window_tokens)
        yield OperatorCall("decode_attention", "attention_decode", self.count, op)
        yield from merge_calls(shard, self.count, n, self.query_width, self.output_width)

    def prefill_calls(self, chunks: FloatArray, each: FloatArray, prior: FloatArray) -> Calls:
        """Yield the attention of prompt chunks of `each` new tokens after `prior` earlier ones.

        All arrays broadcast against each other. Shape (...).
        """
        a, shard = self.part, self.shard
        # Each rank takes one early and one late part of the prompt, so the pairs divide evenly.
        tokens = chunks * each / shard.cp
        pairs = chunks * window_pairs(each, prior, a.window_tokens) / shard.cp
        op = self.prefill_attention(chunks, tokens, pairs, a.window_tokens)
        yield OperatorCall("prefill_attention", "attention_prefill", self.count, op)
        token_bytes = self.kv_width * stored_bytes(shard.kv_dtype)
        kept = chunks * clip(prior, a.window_tokens)
        yield from gather_calls(shard, self.count, token_bytes, chunks * each, kept)

    def prefill_attention(
        self, chunks: FloatArray, tokens: FloatArray, pairs: FloatArray, window_tokens: int | None
    ) -> PrefillAttention:
        """Return the operator for `pairs` of a query and a key, in `chunks` sequences with `tokens` queries.

        All arrays broadcast against each other. Shape (...).
        """
        a, kv_dtype = self.part, self.shard.kv_dtype
        return PrefillAttention(chunks, tokens, pairs, self.heads, self.kv_heads, a.head_dim, kv_dtype, window_tokens)

    def cache_bytes(self, tokens: float) -> float:
        """Return the cache of one sequence of `tokens` in all layers; windowed layers keep only their window."""
        kept = min(tokens, self.part.window_tokens or tokens)
        return self.count * kept * self.kv_width * stored_bytes(self.shard.kv_dtype)

    def linear_params(self) -> float:
        """Return the weights of the matrix products of ONE layer on this rank."""
        a = self.part
        return self.shard.model.hidden_size * ((a.q_size + a.output_size) / self.shard.tp + self.kv_width)

    def activation_width(self) -> float:
        """Return the values that are alive inside the block for each token."""
        return (self.part.q_size + self.part.kv_size + self.part.output_size) / self.shard.tp


@dataclass(frozen=True, slots=True)
class ShardedMla(ShardedMixer):
    """Multi-head latent attention. Tensor ranks divide the heads, and each rank keeps the whole latent cache.

    The block's projections belong to the measured module. Only those of a sparse-attention indexer and of an output
    gate are separate.
    """

    part: MlaAttention

    @property
    def heads(self) -> int:
        """Return the query heads on this rank."""
        return -(-self.part.n_heads // self.shard.tp)

    def projection_calls(self, tokens: Num) -> list[OperatorCall]:
        """Return the queries, the key and the head weights of an indexer, and the output gate of this rank's heads.

        Every rank runs the whole indexer. A layer that attends to the selection of an earlier layer runs none
        (GLM-5.2).
        """
        a, hidden, dtype = self.part, self.shard.model.hidden_size, self.shard.dtype("attention")
        calls = []
        if a.runs_indexer:
            query = self.shard.product(tokens, a.index_n_heads * a.index_head_dim, a.q_lora_rank or hidden, dtype)
            key = Gemm(tokens, a.index_head_dim + a.index_n_heads, hidden, "bf16")
            calls = [gemm_call("index_q", self.count, query), gemm_call("index_k", self.count, key)]
        if a.output_gate:
            width = self.heads * a.v_head_dim
            gate = gemm_call("gate_proj", self.count, self.shard.product(tokens, width, hidden, dtype))
            calls += [gate, elementwise_call("output_gate", self.count, "activation", tokens, 3 * width * ACT)]
        return calls

    def decode_calls(self, sequences: FloatArray, mean: FloatArray, longest: FloatArray, joins: JoinsDecodes) -> Calls:
        """Yield the attention of decodes with a mean and a longest context.

        The tables have one query per sequence. Each further query is another row to project. It reads the cache again
        only to the extent that arithmetic, not bytes, determines the time (see `cache_passes`).

        All arrays broadcast against each other. Shape (...).
        """
        del joins, longest  # decodes and prompts run in different MLA modules, which divide contexts evenly
        a, shard, n = self.part, self.shard, sequences
        read = n * clip(mean, a.index_topk_tokens) / shard.kv_shards
        rows = n * shard.queries
        yield self._module_call("decode", rows, rows, 0.0 * n, read * self.cache_passes())
        latent = self.heads * a.kv_lora_rank
        yield from merge_calls(shard, self.count, n, self.heads * (a.kv_lora_rank + a.rope_head_dim), latent)
        if a.runs_indexer:
            # One kernel of DeepGEMM in every engine (fp8_paged_mqa_logits): keys are read once for all queries.
            keys = mean * (a.index_bytes_per_token + BYTES_PER_SCORE * shard.queries)
            yield OperatorCall("indexer", "attention_decode", self.count, Elementwise("score", n, keys))
            chosen = Elementwise("select", rows, BYTES_PER_SCORE * mean)
            yield OperatorCall("select_entries", "attention_decode", self.count, chosen)

    def prefill_calls(self, chunks: FloatArray, each: FloatArray, prior: FloatArray) -> Calls:
        """Yield the attention of prompt chunks of `each` new tokens after `prior` earlier ones.

        A prompt with more tokens than an indexer selects attends in the absorbed form: every token reads its own
        selected entries of the latent cache, as a sequence that decodes does, so no two tokens share a block of keys
        (SGLang, nsa_backend.py: forward_extend; shorter prompts, MHA_ONE_SHOT, expand keys and values). Before
        Blackwell its kernels multiply in 16 bits, and an 8-bit cache is converted first (dequantize_k_cache_paged).

        All arrays broadcast against each other. Shape (...).
        """
        a, shard, c = self.part, self.shard, chunks
        tokens = c * each / shard.cp
        pairs = c * window_pairs(each, prior, a.index_topk_tokens) / shard.cp
        selects = np.asarray(each + prior > (a.index_topk_tokens or np.inf)) & np.ones(pairs.shape, dtype=np.bool_)
        if not selects.all():
            yield replace(self._module_call("prefill", c, tokens, pairs, c * prior), runs=~selects)
        if selects.any():
            unit = shard.accelerator
            converts = unit is not None and "fp4" not in unit.peak_flops
            absorbed = self._module_call("decode", tokens, tokens, 0.0 * c, pairs, "bf16" if converts else "")
            yield replace(absorbed, name="mla_prefill", kind="attention_prefill", runs=selects)
        token_bytes = (a.kv_lora_rank + a.rope_head_dim) * stored_bytes(shard.kv_dtype)
        yield from gather_calls(shard, self.count, token_bytes, c * each, c * prior)
        if a.runs_indexer:
            scored = c * window_pairs(each, prior, None) / shard.cp
            index = PrefillAttention(c, tokens, scored, a.index_n_heads, 1, a.index_head_dim // 2, "fp8")
            yield OperatorCall("indexer", "attention_prefill", self.count, index)
            if selects.any():
                each_token = BYTES_PER_SCORE * scored / np.maximum(tokens, 1.0)
                chosen = Elementwise("select", tokens, each_token)
                yield OperatorCall("select_entries", "attention_prefill", self.count, chosen, runs=selects)

    def _module_call(
        self,
        stage: str,
        sequences: FloatArray,
        tokens: FloatArray,
        pairs: FloatArray,
        context: FloatArray,
        kv_dtype: str = "",
    ) -> OperatorCall:
        a, shard = self.part, self.shard
        op = MlaModule(
            stage,
            sequences,
            tokens,
            pairs,
            context,
            n_heads=self.heads,
            hidden_size=shard.model.hidden_size,
            q_lora_rank=a.q_lora_rank or 0,
            kv_lora_rank=a.kv_lora_rank,
            nope_head_dim=a.nope_head_dim,
            rope_head_dim=a.rope_head_dim,
            v_head_dim=a.v_head_dim,
            dtype=shard.dtype("attention"),
            kv_dtype=kv_dtype or shard.kv_dtype,
        )
        kernels = MLA_KERNELS + MLA_QUANTISE_KERNELS * (op.dtype in QUANTISED)
        return OperatorCall(f"mla_{stage}", f"attention_{stage}", self.count, op, kernels=kernels)

    def cache_passes(self) -> float:
        """Return the effective number of times that the cache is read for all queries of a decode.

        It is read once while bytes bound the kernel, and in proportion to the queries once arithmetic does. With all
        heads of a rank at once, arithmetic soon does.
        """
        a, unit, queries = self.part, self.shard.accelerator, self.shard.queries
        if queries == 1 or unit is None:
            return 1.0
        compute_s = 2.0 * self.heads * (2 * a.kv_lora_rank + a.rope_head_dim) / unit.flops_for("bf16")
        memory_s = a.latent_size * stored_bytes(self.shard.kv_dtype) / unit.memory_bandwidth_bytes_per_s
        return max(queries * compute_s / memory_s, 1.0) / max(compute_s / memory_s, 1.0)

    def cache_bytes(self, tokens: float) -> float:
        """Return the latent cache of one sequence of `tokens` in all layers."""
        return self.count * tokens * self.part.kv_bytes_per_token(stored_bytes(self.shard.kv_dtype))

    def linear_params(self) -> float:
        """Return the weights of ONE layer on this rank. Down-projections and the indexer are on every rank."""
        a, hidden = self.part, self.shard.model.hidden_size
        shared = hidden * ((a.q_lora_rank or 0) + a.latent_size) + a.indexer_params(hidden)
        return shared + (a.linear_params(hidden) - shared) / self.shard.tp

    def activation_width(self) -> float:
        """Return the values that are alive inside the block for each token."""
        a = self.part
        return 2 * (a.q_size + a.n_heads * (a.nope_head_dim + a.v_head_dim)) / self.shard.tp


@dataclass(frozen=True, slots=True)
class ShardedLinearAttention(ShardedMixer):
    """Linear attention and Mamba-2. Tensor ranks divide the value heads, and with them the state."""

    part: LinearAttention

    def projection_calls(self, tokens: Num) -> list[OperatorCall]:
        """Return the input projections, short convolution, gated norm and output projection.

        The input projections give q, k, v, the gate, and the scalars per value head: in Mamba-2 in one product; in a
        gated delta rule in one for q, k, v and the gate and one in 16 bit for the scalars, on a second stream of
        captured steps, or one after the other for q, k and v, the gate, and each kind of scalar (`splits_scan_inputs`).
        """
        a, count, shard = self.part, self.count, self.shard
        hidden, dtype = shard.model.hidden_size, shard.dtype("linear_attention")
        value, conv = -(-a.value_size // shard.tp), -(-a.conv_size // shard.tp)
        scalars, plain = a.n_head_gates * -(-a.n_value_heads // shard.tp), shard.plain_dtype
        inputs = [("in_proj", -(-a.input_size // shard.tp), dtype)]
        if a.n_head_gates > 1 and shard.splits_scan_inputs:
            each = ("in_proj_head_gates", scalars // a.n_head_gates, plain)
            inputs = [("in_proj", conv, dtype), ("in_proj_gate", value, dtype), *[each] * a.n_head_gates]
        elif a.n_head_gates > 1:
            inputs = [("in_proj", conv + value, dtype), ("in_proj_head_gates", scalars, plain)]
        products = [gemm_call(name, count, shard.product(tokens, n, hidden, kind)) for name, n, kind in inputs]
        if len(products) == 2:
            products[1] = replace(products[1], overlapped_rows=shard.shared_overlap_tokens)
        return [
            *products,
            elementwise_call("conv", count, "activation", tokens, 2 * conv * ACT),
            *gated_norm_calls(count, tokens, value, -(-a.n_key_heads // shard.tp), a.is_mamba and shard.norms_in_torch),
            gemm_call("out_proj", count, shard.product(tokens, hidden, value, dtype)),
        ]

    def decode_calls(self, sequences: FloatArray, mean: FloatArray, longest: FloatArray, joins: JoinsDecodes) -> Calls:
        """Yield one step of the scan for each decode, after copies of its inputs where these are projected apart.

        The kernel of those versions takes contiguous inputs only, which slices of several rows are not (SGLang, pull
        request 20627; fused_sigmoid_gating_recurrent.py, `input_guard`).

        All arrays broadcast against each other. Shape (...).
        """
        del mean, longest, joins  # the size of a state does not depend on the context
        a, rows = self.part, sequences * self.shard.queries
        if a.n_head_gates > 1 and self.shard.splits_scan_inputs:
            each = Elementwise("activation", rows, 2 * ACT * a.conv_size / (SCAN_COPIES * self.shard.tp))
            yield OperatorCall("scan_copies", "attention_decode", SCAN_COPIES * self.count, each, runs=rows > 1)
        yield self._scan_call("decode", rows, sequences)

    def prefill_calls(self, chunks: FloatArray, each: FloatArray, prior: FloatArray) -> Calls:
        """Yield the scan over the new tokens of prompt chunks.

        All arrays broadcast against each other. Shape (...).
        """
        del prior
        yield self._scan_call("prefill", chunks * each, chunks)

    def _scan_call(self, stage: str, tokens: FloatArray, sequences: FloatArray) -> OperatorCall:
        a, heads = self.part, -(-self.part.n_value_heads // self.shard.tp)
        op = LinearAttentionScan(tokens, sequences, heads, a.key_head_dim, a.value_head_dim, stage)
        return OperatorCall(f"scan_{stage}", f"attention_{stage}", self.count, op, kernels=SCAN_KERNELS)

    def cache_bytes(self, tokens: float) -> float:
        """Return the state of one sequence in all layers; it does not depend on the number of tokens."""
        del tokens
        return self.count * self.part.state_bytes() / self.shard.tp

    def linear_params(self) -> float:
        """Return the weights of the matrix products of ONE layer on this rank."""
        return self.part.linear_params(self.shard.model.hidden_size) / self.shard.tp

    def activation_width(self) -> float:
        """Return the values that are alive inside the block for each token."""
        return 2 * self.part.input_size / self.shard.tp


#: The class of each kind of mixer.
MIXERS: Final[dict[type, Callable[[Shard, int, Any], ShardedMixer]]] = {
    Attention: ShardedAttention,
    MlaAttention: ShardedMla,
    CompressedAttention: ShardedCompressedAttention,
    LinearAttention: ShardedLinearAttention,
}


def sharded_mixer(shard: Shard, group: LayerGroup) -> ShardedMixer | None:
    """Return the mixers of a group of layers on one rank; None if its layers have none."""
    return None if group.mixer is None else MIXERS[type(group.mixer)](shard, group.count, group.mixer)
