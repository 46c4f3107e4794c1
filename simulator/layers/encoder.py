"""What an encoder adds to the operators of a step: its own pass over every prompt's input, and what decoder layers read
of its output.

The encoder runs once, with the prompt, over `encoder_tokens` positions a request, each attending to all of them. Its
output is projected to keys and values of every decoder layer (`cross_kv_proj`) and written to the cache once; every
decoder token then has a query, an attention over all of it and an output projection of its own. The pairs of operators
that measure causal attention stand for it: q x encoder positions. Left out: the convolutions before the encoder (1 % of
its arithmetic) and the spectrogram, which the API server computes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from calibration.operators.operators import Collective, DecodeAttention, Elementwise, Gemm, Num, PrefillAttention
from calibration.operators.roofline import ACTIVATION_BYTES as ACT
from calibration.operators.roofline import dtype_bytes
from catalogs.arrays import FloatArray
from catalogs.models.layers import Attention, LayerGroup, Mlp
from simulator.layers.operator_call import OperatorCall
from simulator.layers.shard import Shard


def encoder_lines(shard: Shard, requests: FloatArray) -> Iterator[OperatorCall]:
    """The pass of the encoder over the inputs of so many requests, and their keys and values in the decoder."""
    model, hidden = shard.model, shard.model.hidden_size
    tokens = requests * model.encoder_tokens
    for group in model.encoder_groups:
        a, ffn = _attention(group), group.ffn
        assert isinstance(ffn, Mlp)
        q, width, up = shard.heads(a) * a.head_dim, -(-ffn.intermediate_size // shard.tp), 2 if ffn.gated else 1
        both = Elementwise("norm", tokens, 4 * hidden * ACT)
        yield OperatorCall("encoder_norm", "elementwise", 2 * group.count, both)
        yield OperatorCall("encoder_qkv_proj", "gemm", group.count, _gemm(shard, tokens, q + _kv(shard, a), hidden))
        yield OperatorCall("encoder_attention", "attention_prefill", group.count, _attends(shard, a, requests, tokens))
        yield OperatorCall("encoder_o_proj", "gemm", group.count, _gemm(shard, tokens, hidden, q))
        yield OperatorCall("encoder_up_proj", "gemm", group.count, _gemm(shard, tokens, up * width, hidden))
        gate = Elementwise("activation", tokens, (up + 1) * width * ACT)
        yield OperatorCall("encoder_activation", "elementwise", group.count, gate)
        yield OperatorCall("encoder_down_proj", "gemm", group.count, _gemm(shard, tokens, hidden, width))
        yield from _all_reduce(shard, "encoder_all_reduce", 2 * group.count, tokens, graph=False)
    for group in (g for g in model.groups if g.cross_attention):
        kv = _kv(shard, _attention(group))
        yield OperatorCall("cross_kv_proj", "gemm", group.count, _gemm(shard, tokens, kv, hidden))
        written = Elementwise("kv_write", tokens, kv * (ACT + dtype_bytes(shard.kv_dtype)))
        yield OperatorCall("cross_kv_write", "elementwise", group.count, written)


def cross_token_lines(shard: Shard, group: LayerGroup, tokens: Num, graph: bool) -> Iterator[OperatorCall]:
    """Norm, query and output projection of every decoder token."""
    hidden, a = shard.model.hidden_size, _attention(group)
    q = shard.heads(a) * a.head_dim
    yield OperatorCall("cross_norm", "elementwise", group.count, Elementwise("norm", tokens, 4 * hidden * ACT))
    yield OperatorCall("cross_q_proj", "gemm", group.count, _gemm(shard, tokens, q, hidden))
    yield OperatorCall("cross_o_proj", "gemm", group.count, _gemm(shard, tokens, hidden, q))
    yield from _all_reduce(shard, "cross_all_reduce", group.count, tokens, graph)


def cross_decode_lines(shard: Shard, group: LayerGroup, decodes: FloatArray) -> Iterator[OperatorCall]:
    """Every decode reads all keys and values of its input: as many at the first token as at the last."""
    a, length = _attention(group), float(shard.model.encoder_tokens)
    longest = np.full_like(decodes, length)
    read = DecodeAttention(
        decodes, decodes * length, longest, shard.heads(a), shard.kv_heads(a), a.head_dim, shard.kv_dtype
    )
    yield OperatorCall("cross_attention", "attention_decode", group.count, read)


def cross_prefill_lines(
    shard: Shard, group: LayerGroup, chunks: FloatArray, each: FloatArray
) -> Iterator[OperatorCall]:
    """The prompt's own tokens attend to the encoder's output."""
    read = _attends(shard, _attention(group), chunks, chunks * each)
    yield OperatorCall("cross_attention", "attention_prefill", group.count, read)


def _attends(shard: Shard, a: Attention, requests: FloatArray, queries: FloatArray) -> PrefillAttention:
    pairs = queries * shard.model.encoder_tokens
    return PrefillAttention(
        requests, queries, pairs, shard.heads(a), shard.kv_heads(a), a.head_dim, shard.kv_dtype, None
    )


def _attention(group: LayerGroup) -> Attention:
    assert isinstance(group.mixer, Attention)
    return group.mixer


def _kv(shard: Shard, a: Attention) -> int:
    return shard.kv_heads(a) * (a.head_dim + a.value_dim)


def _gemm(shard: Shard, tokens: Num, n: int, k: int) -> Gemm:
    return Gemm(tokens, n, k, shard.dtype("attention"))


def _all_reduce(shard: Shard, name: str, count: int, tokens: Num, graph: bool) -> Iterator[OperatorCall]:
    if shard.tp > 1:
        message = tokens * (shard.model.hidden_size * ACT)
        yield OperatorCall(name, "collective", count, Collective("all_reduce", message, shard.tp, graph))
