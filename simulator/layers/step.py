"""The operators one engine step runs on one rank, as a function of what the batch holds.

Four groups, by what they depend on: all tokens of the step (projections, norms, experts, collectives), sequences that
need logits (output projection, sampling), decodes with their contexts (attention), prompt chunks (attention). Counts
may be numbers or numpy arrays and broadcast, so one call prices a whole table.

Why there are no quantise kernels: an FP8 or FP4 `Gemm` takes a 16-bit input and its measured rows quantise that input
(the public tables time vLLM's whole linear layer), where torch.compile would fuse that into the norm or activation
before it: counted once, never twice. Why all-reduce and norm are separate: vLLM fuses them only when asked to.

The operators of a deployment's steps, by what each follows: tokens, sequences, contexts. One rank, one microbatch.

Here, and nowhere else, it is decided which kinds of lines a step of this engine has: the tables that a run is timed
with, the anatomy of a finished run and the analysis of one step all read them.

Kernels that a step outside CUDA graphs launches one by one from Python, which may take the host longer than running
them takes the device.

A captured decode step is one launch. A step beyond the captured sizes, or one with prefill where an engine captures
decodes only, is launched layer by layer; it takes as long as the slower of host and device. Counts are those of the
engines' sources: a quantised product has a kernel that quantises its input; experts sort and align tokens, multiply
twice with an activation between, and add up; multi-head latent attention is five products, two norms, rotation, two
copies, a cache write and the attention itself. A gated delta rule's scan is 18: the gates' small product, a flag, the
convolution and the copy before it, three contiguous copies, gates, two norms, then cumulated decays, products of the
keys, a triangular solve (a fill and two kernels), its application, states and outputs (SGLang,
layers/attention/fla/chunk.py and hybrid_linear_attn_backend.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from calibration.operators.cost import CostSource
from calibration.operators.operators import (
    GREEDY_BYTES_PER_LOGIT,
    SAMPLING_BYTES_PER_LOGIT,
    SORT_BYTES_PER_LOGIT,
    Collective,
    DecodeAttention,
    Elementwise,
    Gemm,
    GroupedGemm,
    LinearAttentionScan,
    MlaModule,
    Num,
    Operator,
    PrefillAttention,
    window_pairs,
)
from calibration.operators.roofline import ACTIVATION_BYTES as ACT
from calibration.operators.roofline import dtype_bytes
from catalogs.arrays import FloatArray
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.models.layers import Attention, LayerGroup, LinearAttention, MlaAttention, Mlp, Moe, Part
from simulator.core.batch import BatchShape
from simulator.layers.attention import merge_lines, shared_keys
from simulator.layers.encoder import cross_decode_lines, cross_prefill_lines, cross_token_lines, encoder_lines
from simulator.layers.operator_call import OperatorCall
from simulator.layers.shard import Shard
from simulator.network.collectives import ExpertRouting

_AFTER_ALL_REDUCE = frozenset({"input_norm", "post_norm", "final_norm"})


def step_lines(shard: Shard, shape: BatchShape) -> list[OperatorCall]:
    """The operators of one step with this shape, unpadded, on one rank that holds the whole batch."""
    n, c = shape.decodes, shape.prefill_chunks
    lines = token_lines(shard, shape.tokens) + expert_lines(shard, shape.tokens * shard.dp)
    if shape.logits:
        lines += logits_lines(shard, shape.logits + n * (shard.scored - 1))
    if n:
        lines += decode_lines(shard, n, shape.decode_context_sum / n, shape.decode_context_max)
    if c:
        each = shape.prefill_tokens / c
        lines += prefill_lines(shard, c, each, shape.prefill_pairs / shape.prefill_tokens - each / 2)
    return lines


def token_lines(shard: Shard, tokens: Num, graph: bool = True) -> list[OperatorCall]:
    """Everything on an attention rank that follows the number of tokens it holds."""
    hidden = shard.model.hidden_size
    lines = [OperatorCall("embedding", "elementwise", 1, Elementwise("embedding", tokens, 2 * hidden * ACT))]
    lines += _all_reduce(shard, "embedding_all_reduce", 1, tokens, graph)
    for group in shard.model.groups:
        lines += _mixer_lines(shard, group, tokens, graph)
        if group.cross_attention:
            lines += cross_token_lines(shard, group, tokens, graph)
        lines += _ffn_lines(shard, group, tokens, graph)
    lines.append(OperatorCall("final_norm", "elementwise", 1, Elementwise("norm", tokens, 4 * hidden * ACT)))
    if shard.pp > 1:  # hidden states and residual go to the next stage
        send = Collective("send_recv", tokens * (2 * hidden * ACT), 2, graph)
        lines.append(OperatorCall("stage_send", "collective", shard.pp - 1, send, stride=shard.tp * shard.cp))
    return lines


def fused_norm_lines(shard: Shard, tokens: Num, graph: bool = True) -> list[OperatorCall]:
    """`token_lines` of engines whose all-reduce kernel also adds the residual and normalises, at the sizes that run in
    graphs (TensorRT-LLM: AllReduceFusionOp.RESIDUAL_RMS_NORM; larger messages go through NCCL, with a norm after)."""
    lines = token_lines(shard, tokens, graph)
    fused = _AFTER_ALL_REDUCE if graph and shard.tp > 1 else frozenset()
    return [line for line in lines if line.name not in fused]


def _all_reduce(shard: Shard, name: str, count: int, tokens: Num, graph: bool) -> list[OperatorCall]:
    if shard.tp == 1:
        return []
    message = tokens * (shard.model.hidden_size * ACT)
    return [OperatorCall(name, "collective", count, Collective("all_reduce", message, shard.tp, graph))]


def _mixer_lines(shard: Shard, group: LayerGroup, tokens: Num, graph: bool) -> list[OperatorCall]:
    if group.mixer is None:
        return []
    norm = Elementwise("norm", tokens, 4 * shard.model.hidden_size * ACT)  # fused with the residual add
    lines = [OperatorCall("input_norm", "elementwise", group.count, norm)]
    if isinstance(group.mixer, Attention):
        lines += _attention_projections(shard, group.mixer, group.count, tokens)
    elif isinstance(group.mixer, LinearAttention):
        lines += _linear_projections(shard, group.mixer, group.count, tokens)
    elif group.mixer.index_topk_tokens:
        lines += _indexer_projections(shard, group.mixer, group.count, tokens)
    return lines + _all_reduce(shard, "mixer_all_reduce", group.count, tokens, graph)


def _attention_projections(shard: Shard, a: Attention, count: int, tokens: Num) -> list[OperatorCall]:
    hidden, dtype = shard.model.hidden_size, shard.dtype("attention")
    q, k = shard.heads(a) * a.head_dim, shard.kv_heads(a) * a.head_dim
    kv = shard.kv_heads(a) * (a.head_dim + a.value_dim)
    written = kv * (ACT + dtype_bytes(shard.kv_dtype))
    lines = [
        OperatorCall("qkv_proj", "gemm", count, Gemm(tokens, q * (2 if a.output_gate else 1) + kv, hidden, dtype)),
        OperatorCall("rotary", "elementwise", count, Elementwise("rotary", tokens, 2 * (q + k) * ACT)),
        OperatorCall("kv_write", "elementwise", count, Elementwise("kv_write", tokens, written)),
        OperatorCall("o_proj", "gemm", count, Gemm(tokens, hidden, shard.heads(a) * a.value_dim, dtype)),
    ]
    if a.qk_norm:
        lines.append(OperatorCall("qk_norm", "elementwise", count, Elementwise("norm", tokens, 2 * (q + k) * ACT)))
    if a.output_gate:
        lines.append(OperatorCall("output_gate", "elementwise", count, Elementwise("activation", tokens, 3 * q * ACT)))
    return lines


def _linear_projections(shard: Shard, a: LinearAttention, count: int, tokens: Num) -> list[OperatorCall]:
    """Fused input projection (q, k, v, gate, scalars per value head), short convolution, gated norm, output."""
    hidden, dtype = shard.model.hidden_size, shard.dtype("linear_attention")
    value, conv = -(-a.value_size // shard.tp), -(-a.conv_size // shard.tp)
    return [
        OperatorCall("in_proj", "gemm", count, Gemm(tokens, -(-a.input_size // shard.tp), hidden, dtype)),
        OperatorCall("conv", "elementwise", count, Elementwise("activation", tokens, 2 * conv * ACT)),
        OperatorCall("gated_norm", "elementwise", count, Elementwise("norm", tokens, 3 * value * ACT)),
        OperatorCall("out_proj", "gemm", count, Gemm(tokens, hidden, value, dtype)),
    ]


def _indexer_projections(shard: Shard, a: MlaAttention, count: int, tokens: Num) -> list[OperatorCall]:
    """Queries, one key and head weights of a sparse-attention indexer; every rank runs all of it."""
    hidden, dtype = shard.model.hidden_size, shard.dtype("attention")
    return [
        OperatorCall(
            "index_q", "gemm", count, Gemm(tokens, a.index_n_heads * a.index_head_dim, a.q_lora_rank or hidden, dtype)
        ),
        OperatorCall("index_k", "gemm", count, Gemm(tokens, a.index_head_dim + a.index_n_heads, hidden, "bf16")),
    ]


def _ffn_lines(shard: Shard, group: LayerGroup, tokens: Num, graph: bool) -> list[OperatorCall]:
    if group.ffn is None:
        return []
    hidden, count = shard.model.hidden_size, group.count
    lines = [OperatorCall("post_norm", "elementwise", count, Elementwise("norm", tokens, 4 * hidden * ACT))]
    if isinstance(group.ffn, Mlp):
        lines += _times(count, _mlp(shard, "mlp", group.ffn.intermediate_size, group.ffn.gated, tokens))
    else:
        lines += _router(shard, group.ffn, count, tokens)
        if shard.sends_to_experts and shard.tp > 1:  # each tensor rank sent its part of the tokens and got it back
            gather = Collective("all_gather", tokens * (hidden * ACT), shard.tp, graph)
            return [*lines, OperatorCall("ffn_all_gather", "collective", count, gather)]
    return lines + _all_reduce(shard, "ffn_all_reduce", count, tokens, graph)


def _times(count: int, ops: dict[str, Operator]) -> list[OperatorCall]:
    return [
        OperatorCall(name, "gemm" if isinstance(op, Gemm) else "elementwise", count, op) for name, op in ops.items()
    ]


def _mlp(shard: Shard, part: Part, intermediate: int, gated: bool, tokens: Num) -> dict[str, Operator]:
    hidden, width, dtype = shard.model.hidden_size, -(-intermediate // shard.tp), shard.dtype(part)
    up = 2 if gated else 1
    return {
        "gate_up_proj" if gated else "up_proj": Gemm(tokens, up * width, hidden, dtype),
        "activation": Elementwise("activation", tokens, (up + 1) * width * ACT),
        "down_proj": Gemm(tokens, hidden, width, dtype),
    }


def _router(shard: Shard, moe: Moe, count: int, tokens: Num) -> list[OperatorCall]:
    """Router, shared experts and the way into a narrower latent; the routed experts themselves are `expert_lines`."""
    hidden, dtype = shard.model.hidden_size, shard.dtype("shared_experts")
    scores = moe.n_experts * (ACT + 4) + moe.experts_per_token * 8  # 16-bit logits, fp32 scores, chosen ids and weights
    ops: dict[str, Operator] = {
        "router": Gemm(tokens, moe.n_experts, hidden, shard.plain_dtype),
        "routing": Elementwise("routing", tokens, scores),
    }
    if moe.expert_hidden_size:
        ops["latent_in"] = Gemm(tokens, moe.expert_hidden_size, hidden, dtype)
        ops["latent_out"] = Gemm(tokens, hidden, moe.expert_hidden_size, dtype)
    if moe.shared_intermediate_size:
        ops["add_shared"] = Elementwise("activation", tokens, 3 * hidden * ACT)
    return _times(count, ops) + _shared_experts(shard, moe, count, tokens)


def _shared_experts(shard: Shard, moe: Moe, count: int, tokens: Num) -> list[OperatorCall]:
    """In captured decode steps they run on a second stream beside the routed experts (vLLM, SGLang, TensorRT-LLM), or
    as one more expert of the same kernel (SGLang, DeepSeek-V3): their launches and small grids cost nothing then, the
    bytes of their weights still do."""
    if not moe.shared_intermediate_size:
        return []
    ops = _mlp(shard, "shared_experts", moe.shared_intermediate_size, moe.gated, tokens)
    lines = _times(count, {f"shared_{name}": op for name, op in ops.items()})
    return [replace(line, beside_tokens=shard.shared_beside_tokens) for line in lines]


def expert_lines(shard: Shard, tokens: Num, graph: bool = True) -> list[OperatorCall]:
    """Routed experts over all tokens of the data-parallel group, with the exchange before and after.

    vLLM's default for dp > 1 gathers every rank's tokens, runs the local experts and reduce-scatters; with dp = 1 the
    attention ranks already hold every token and the layer ends in the usual all-reduce. The other backends send each
    token to the ranks of its experts and sum what comes back (`_exchange`). Ranks that share prompts count like
    data-parallel ones.
    """
    lines = []
    for group in shard.model.groups:
        if not isinstance(group.ffn, Moe):
            continue
        m = group.ffn
        hidden = m.expert_hidden_size or shard.model.hidden_size
        op = GroupedGemm(
            tokens,
            hidden,
            shard.expert_width(m),
            m.n_experts,
            m.experts_per_token,
            shard.expert_ranks,
            shard.dtype("experts"),
        )
        lines.append(OperatorCall("experts", "moe", group.count, op))
        if shard.sends_to_experts:
            lines += _exchange(shard, m, group.count, tokens, hidden, graph)
        elif shard.exchange_ranks > 1:
            for name, kind in (("dispatch", "all_gather"), ("combine", "reduce_scatter")):
                exchange = Collective(kind, tokens * (hidden * ACT), shard.exchange_ranks, graph)
                lines.append(OperatorCall(name, "collective", group.count, exchange, stride=shard.tp))
    return lines


def _exchange(shard: Shard, moe: Moe, count: int, tokens: Num, hidden: int, graph: bool) -> list[OperatorCall]:
    """Tokens to their experts, in FP8 with a scale for 128 elements where the experts compute in FP8, and back in 16
    bit. SGLang's automatic mode takes the low-latency kernels in captured steps."""
    backend, narrow = shard.layout.all2all_backend, shard.dtype("experts").startswith("fp8")
    quick = backend == "deepep_low_latency" or (backend == "deepep_auto" and graph)
    own = _floats(tokens)[0] / shard.expert_group
    lines = []
    for name, each in (("dispatch", hidden * (1 + 4 / 128) if narrow else hidden * ACT), ("combine", hidden * ACT)):
        routing = ExpertRouting(moe.experts_per_token, each, quick)
        sent = Collective("all_to_all", each * own, shard.expert_group, graph)
        lines.append(OperatorCall(name, "collective", count, sent, routing=routing))
    return lines


def logits_lines(shard: Shard, sequences: Num) -> list[OperatorCall]:
    """Output projection and sampling, for the sequences that get a token this step."""
    m = shard.model
    lines = [OperatorCall("lm_head", "gemm", 1, Gemm(sequences, shard.vocab, m.hidden_size, shard.plain_dtype))]
    if shard.tp > 1:
        gather = Collective("all_gather", sequences * (m.vocab_size * ACT), shard.tp, graph=False)
        lines.append(OperatorCall("logits_all_gather", "collective", 1, gather))
    if shard.sorts_logits:
        order = Elementwise("sort", sequences, m.vocab_size * SORT_BYTES_PER_LOGIT)
        lines.append(OperatorCall("sort_logits", "elementwise", 1, order))
    kind, per_logit = (
        ("greedy", GREEDY_BYTES_PER_LOGIT) if shard.sampling == "greedy" else ("sampling", SAMPLING_BYTES_PER_LOGIT)
    )
    sampling = Elementwise(kind, sequences, m.vocab_size * per_logit)
    return [*lines, OperatorCall("sampling", "elementwise", 1, sampling)]


def decode_lines(shard: Shard, sequences: Num, mean_context: Num, max_context: Num) -> list[OperatorCall]:
    """Attention of decodes; contexts are per sequence, no window applied.

    Where each brings several tokens (drafts), a kernel reads its cache once for all of them, as it does for the heads
    of a group: to the cost model they are as many more heads (FlashAttention and FlashInfer pack both alike).
    """
    n, mean, longest = _floats(sequences, mean_context, max_context)
    return [line for g in shard.model.groups for line in _decode_group(shard, g, n, mean, longest)]


def mixed_decode_lines(
    shard: Shard, sequences: Num, mean_context: Num, max_context: Num, joins: Callable[[int, str], bool]
) -> list[OperatorCall]:
    """Attention of decodes in a step that also has prefill. Where the engine's kernel takes both at once (`joins` by
    head size and KV type), a decode is a prompt chunk of one token, with its keys not split over the device."""
    n, mean, longest = _floats(sequences, mean_context, max_context)
    lines = []
    for g in shard.model.groups:
        a = g.mixer
        if isinstance(a, Attention) and shard.kv_shards == 1 and joins(a.head_dim, shard.kv_dtype):
            tokens = n * shard.queries
            pairs = tokens * (_clip(mean, a.window_tokens) + 0.5 * shard.queries)
            joined = _prefill(shard, a, n, tokens, pairs)
            lines.append(OperatorCall("joined_decode_attention", "attention_decode", g.count, joined))
            if g.cross_attention:
                lines += cross_decode_lines(shard, g, n)
        else:
            lines += _decode_group(shard, g, n, mean, longest)
    return lines


def _prefill(shard: Shard, a: Attention, chunks: FloatArray, tokens: FloatArray, pairs: FloatArray) -> PrefillAttention:
    heads, kv_heads = shard.heads(a), shard.kv_heads(a)
    return PrefillAttention(chunks, tokens, pairs, heads, kv_heads, a.head_dim, shard.kv_dtype, a.window_tokens)


def _floats(*counts: Num) -> list[FloatArray]:
    return [np.asarray(c, dtype=np.float64) for c in counts]


def _decode_group(
    shard: Shard, g: LayerGroup, n: FloatArray, mean: FloatArray, longest: FloatArray
) -> Iterator[OperatorCall]:
    a, kind = g.mixer, "attention_decode"
    if isinstance(a, Attention):
        seen, top = (_clip(x, a.window_tokens) / shard.kv_shards for x in (mean, longest))
        heads = shard.heads(a) * shard.joined_heads * shard.queries
        op = DecodeAttention(n, n * seen, top, heads, shard.kv_heads(a), a.head_dim, shard.kv_dtype, a.window_tokens)
        yield OperatorCall("decode_attention", kind, g.count, op)
        yield from merge_lines(shard, g.count, n, shard.heads(a) * a.head_dim, shard.heads(a) * a.value_dim)
        if g.cross_attention:
            yield from cross_decode_lines(shard, g, n)
    elif isinstance(a, MlaAttention):
        seen = n * _clip(mean, a.index_topk_tokens) / shard.kv_shards
        yield OperatorCall("mla_decode", kind, g.count, _mla_decode(shard, a, n, seen))
        latent = shard.heads(a) * a.kv_lora_rank
        yield from merge_lines(shard, g.count, n, shard.heads(a) * (a.kv_lora_rank + a.rope_head_dim), latent)
        if a.index_topk_tokens:  # only keys are read and scored: half the head size gives those bytes and flops
            index = DecodeAttention(
                n, n * mean, longest, a.index_n_heads * shard.queries, 1, a.index_head_dim // 2, "fp8"
            )
            yield OperatorCall("indexer", kind, g.count, index)
    elif isinstance(a, LinearAttention):
        yield OperatorCall("scan_decode", kind, g.count, _scan(shard, a, n * shard.queries, n, "decode"))


def prefill_lines(shard: Shard, chunks: Num, chunk_tokens: Num, mean_context: Num) -> list[OperatorCall]:
    """Attention of `chunks` prompt chunks of `chunk_tokens` new tokens after `mean_context` earlier ones each."""
    c, q, x = _floats(chunks, chunk_tokens, mean_context)
    lines = [line for g in shard.model.groups for line in _prefill_group(shard, g, c, q, x)]
    return [*lines, *encoder_lines(shard, c + 0.0 * q + 0.0 * x)] if shard.model.is_encoder_decoder else lines


def _prefill_group(shard: Shard, g: LayerGroup, c: FloatArray, q: FloatArray, x: FloatArray) -> Iterator[OperatorCall]:
    a, kind = g.mixer, "attention_prefill"
    tokens = c * q / shard.cp  # shared so that every rank has its part of the pairs, early tokens and late ones
    if isinstance(a, Attention):
        pairs = c * window_pairs(q, x, a.window_tokens) / shard.cp
        yield OperatorCall("prefill_attention", kind, g.count, _prefill(shard, a, c, tokens, pairs))
        each = shard.kv_heads(a) * (a.head_dim + a.value_dim) * dtype_bytes(shard.kv_dtype)
        yield from shared_keys(shard, g.count, each, c * q, c * _clip(x, a.window_tokens))
        if g.cross_attention:
            yield from cross_prefill_lines(shard, g, c, q)
    elif isinstance(a, MlaAttention):
        pairs = c * window_pairs(q, x, a.index_topk_tokens) / shard.cp
        yield OperatorCall("mla_prefill", kind, g.count, _mla(shard, a, "prefill", (c, tokens, pairs, c * x)))
        each = (a.kv_lora_rank + a.rope_head_dim) * dtype_bytes(shard.kv_dtype)
        yield from shared_keys(shard, g.count, each, c * q, c * x)
        if a.index_topk_tokens:
            scored = c * window_pairs(q, x, None) / shard.cp
            index = PrefillAttention(c, tokens, scored, a.index_n_heads, 1, a.index_head_dim // 2, "fp8")
            yield OperatorCall("indexer", kind, g.count, index)
    elif isinstance(a, LinearAttention):
        yield OperatorCall("scan_prefill", kind, g.count, _scan(shard, a, c * q, c, "prefill"))


def _clip(context: FloatArray, window: int | None) -> FloatArray:
    return context if window is None else np.minimum(context, window)


def _mla(
    shard: Shard, a: MlaAttention, stage: str, counts: tuple[FloatArray, FloatArray, FloatArray, FloatArray]
) -> MlaModule:
    sequences, tokens, pairs, context = counts
    return MlaModule(
        stage,
        sequences,
        tokens,
        pairs,
        context,
        shard.heads(a),
        shard.model.hidden_size,
        a.q_lora_rank or 0,
        a.kv_lora_rank,
        a.nope_head_dim,
        a.rope_head_dim,
        a.v_head_dim,
        shard.dtype("attention"),
        shard.kv_dtype,
    )


def _mla_decode(shard: Shard, a: MlaAttention, n: FloatArray, seen: FloatArray) -> MlaModule:
    """`seen`: cached tokens that the sequences hold, in all. Tables have one query a sequence; each further one is a
    further row to project, and reads the cache once more as far as arithmetic, not bytes, sets the time."""
    rows = n * shard.queries
    return _mla(shard, a, "decode", (rows, rows, 0.0 * n, seen * shard.latent_passes))


def _scan(shard: Shard, a: LinearAttention, tokens: Num, sequences: Num, stage: str) -> LinearAttentionScan:
    heads = -(-a.n_value_heads // shard.tp)
    return LinearAttentionScan(tokens, sequences, heads, a.key_head_dim, a.value_head_dim, stage)


@dataclass(frozen=True, slots=True)
class StepCalls:
    """joins_decodes: whether decodes beside prompts run in the prompts' kernel, by head size and KV dtype."""

    shard: Shard
    fuses_norms: bool
    joins_decodes: Callable[[int, str], bool]

    @classmethod
    def of(cls, resolved: ResolvedDeployment, source: CostSource) -> StepCalls:
        return cls(Shard.of(resolved), resolved.engine.fuses_norms, source.joins_decodes)

    def rank(self, tokens: Num, graph: bool) -> list[OperatorCall]:
        """What follows the tokens on an attention rank, in a CUDA graph or beyond."""
        return (fused_norm_lines if self.fuses_norms else token_lines)(self.shard, tokens, graph)

    def group(self, tokens: Num, graph: bool) -> list[OperatorCall]:
        """What follows the tokens of the group that experts are shared by; none in dense models."""
        return expert_lines(self.shard, tokens, graph)

    def logits(self, sequences: Num) -> list[OperatorCall]:
        """What follows the sequences that need a next token."""
        return logits_lines(self.shard, sequences)

    def decode(self, sequences: Num, mean_context: Num, max_context: Num) -> list[OperatorCall]:
        """Attention of decodes in a step without prompts."""
        return decode_lines(self.shard, sequences, mean_context, max_context)

    def mixed_decode(self, sequences: Num, mean_context: Num, max_context: Num) -> list[OperatorCall]:
        """Attention of decodes beside prompts."""
        return mixed_decode_lines(self.shard, sequences, mean_context, max_context, self.joins_decodes)

    def prefill(self, chunks: Num, chunk_tokens: Num, prior: Num) -> list[OperatorCall]:
        """Attention of prompt chunks, `prior` tokens before each."""
        return prefill_lines(self.shard, chunks, chunk_tokens, prior)


_QUANTISED: Final = frozenset({"fp8", "fp8_block", "fp4", "int8", "mxfp4_mxfp8"})

_PROMPT_TOKENS: Final = 1024  # any number: launches do not depend on it


def step_launches(shard: Shard) -> int:
    """Kernels of one eager step with prefill on one rank."""
    lines = token_lines(shard, _PROMPT_TOKENS, graph=False) + expert_lines(
        shard, _PROMPT_TOKENS * shard.dp, graph=False
    )
    lines += logits_lines(shard, 1) + prefill_lines(shard, 1, _PROMPT_TOKENS, 0)
    return sum(line.count * _kernels(line) for line in lines)


def _kernels(line: OperatorCall) -> int:
    op = line.op
    if isinstance(op, Gemm):
        return 1 + (op.dtype in _QUANTISED)
    if isinstance(op, GroupedGemm):
        return 6 + 2 * (op.dtype in _QUANTISED)
    if isinstance(op, MlaModule):
        return 12 + 5 * (op.dtype in _QUANTISED)
    return 18 if isinstance(op, LinearAttentionScan) else 1
