"""The operators that an encoder adds to a step: its pass over every prompt's input, and the decoder's cross attention.

The encoder runs once, with the prompt, over `encoder_tokens` positions of a request, each of which attends to all of
them. Its output is projected to keys and values of every decoder layer (`cross_kv_proj`) and written to the cache once.
Every decoder token then has a query, an attention over the whole encoder output and an output projection. The operators
measured for causal attention price it, with q x encoder positions as their pairs. The convolutions before the encoder
(1 % of its arithmetic) and the spectrogram, which the API server computes, are left out.
"""

from __future__ import annotations

import numpy as np

from calibration.operators.operators import DecodeAttention, Gemm, Num, PrefillAttention
from calibration.operators.roofline import ACTIVATION_BYTES as ACT
from calibration.operators.roofline import stored_bytes
from catalogs.arrays import FloatArray
from catalogs.errors import InputError
from catalogs.models.layers import LayerGroup
from simulator.layers.attention import ShardedAttention
from simulator.layers.feed_forward import ShardedMlp
from simulator.layers.operator_call import (
    Calls,
    OperatorCall,
    all_reduce_calls,
    calls_of,
    elementwise_call,
    gemm_call,
)
from simulator.layers.shard import Shard


def encoder_calls(shard: Shard, requests: FloatArray) -> Calls:
    """Yield the encoder's pass over the inputs of `requests` requests, and their keys and values in the decoder.

    All arrays broadcast against each other. Shape (...).
    """
    model, hidden = shard.model, shard.model.hidden_size
    tokens = requests * model.encoder_tokens
    for group in model.encoder_groups:
        yield from calls_of(group, _encoder_layer_calls(shard, group, requests, tokens))
    for group in (g for g in model.groups if g.cross_attention):
        kv = crossed_attention(shard, group).kv_width
        written = kv * (ACT + stored_bytes(shard.kv_dtype))
        projection = gemm_call("cross_kv_proj", group.count, _gemm(shard, tokens, kv, hidden))
        write = elementwise_call("cross_kv_write", group.count, "kv_write", tokens, written)
        yield from calls_of(group, (projection, write))


def _encoder_layer_calls(shard: Shard, group: LayerGroup, requests: FloatArray, tokens: FloatArray) -> Calls:
    if group.dense_block is None:
        raise InputError("encoders are simulated only with dense feed-forward blocks", shard.model.name)
    a, mlp = crossed_attention(shard, group), ShardedMlp(shard, group.count, group.dense_block)
    hidden, q, up = shard.model.hidden_size, a.query_width, 2 if mlp.part.gated else 1
    yield elementwise_call("encoder_norm", 2 * group.count, "norm", tokens, 4 * hidden * ACT)
    yield gemm_call("encoder_qkv_proj", group.count, _gemm(shard, tokens, a.qkv_width, hidden))
    attends = _attention_to_all(a, requests, tokens)
    yield OperatorCall("encoder_attention", "attention_prefill", group.count, attends)
    yield gemm_call("encoder_o_proj", group.count, _gemm(shard, tokens, hidden, q))
    yield gemm_call("encoder_up_proj", group.count, _gemm(shard, tokens, up * mlp.width, hidden))
    yield elementwise_call("encoder_activation", group.count, "activation", tokens, (up + 1) * mlp.width * ACT)
    yield gemm_call("encoder_down_proj", group.count, _gemm(shard, tokens, hidden, mlp.width))
    yield from all_reduce_calls(shard, "encoder_all_reduce", 2 * group.count, tokens, graph=False)


def cross_token_calls(shard: Shard, group: LayerGroup, tokens: Num, graph: bool) -> Calls:
    """Yield the norm, query and output projection of every decoder token."""
    hidden, q = shard.model.hidden_size, crossed_attention(shard, group).query_width
    yield elementwise_call("cross_norm", group.count, "norm", tokens, 4 * hidden * ACT)
    yield gemm_call("cross_q_proj", group.count, _gemm(shard, tokens, q, hidden))
    yield gemm_call("cross_o_proj", group.count, _gemm(shard, tokens, hidden, q))
    yield from all_reduce_calls(shard, "cross_all_reduce", group.count, tokens, graph)


def cross_decode_calls(shard: Shard, group: LayerGroup, decodes: FloatArray) -> Calls:
    """Yield the cross attention of decodes, each of which reads all keys and values of its encoder output.

    All arrays broadcast against each other. Shape (...).
    """
    a, length = crossed_attention(shard, group), float(shard.model.encoder_tokens)
    longest = np.full_like(decodes, length)
    read = DecodeAttention(decodes, decodes * length, longest, a.heads, a.kv_heads, a.part.head_dim, shard.kv_dtype)
    yield OperatorCall("cross_attention", "attention_decode", group.count, read)


def cross_prefill_calls(shard: Shard, group: LayerGroup, chunks: FloatArray, each: FloatArray) -> Calls:
    """Yield the attention of the prompt's own tokens to the encoder's output.

    All arrays broadcast against each other. Shape (...).
    """
    read = _attention_to_all(crossed_attention(shard, group), chunks, chunks * each)
    yield OperatorCall("cross_attention", "attention_prefill", group.count, read)


def cross_cache_bytes(shard: Shard) -> float:
    """Return the bytes of one sequence's encoder keys and values on one rank; 0 without an encoder."""
    return sum(cross_layer_bytes(shard, group) * group.count for group in shard.model.groups)


def cross_layer_bytes(shard: Shard, group: LayerGroup) -> float:
    """Return the bytes of one sequence's encoder keys and values in one layer on one rank; 0 without an encoder."""
    if not (shard.model.is_encoder_decoder and group.cross_attention):
        return 0.0
    return shard.model.encoder_tokens * crossed_attention(shard, group).kv_width * stored_bytes(shard.kv_dtype)


def crossed_attention(shard: Shard, group: LayerGroup) -> ShardedAttention:
    """Return the attention of an encoder layer, or of a decoder layer to the encoder's output.

    Raises:
        InputError: The layers have another kind of mixer.
    """
    if group.plain_attention is None:
        raise InputError("encoders and cross attention are simulated only with plain attention", shard.model.name)
    return ShardedAttention(shard, group.count, group.plain_attention)


def _attention_to_all(a: ShardedAttention, requests: FloatArray, queries: FloatArray) -> PrefillAttention:
    return a.prefill_attention(requests, queries, queries * a.shard.model.encoder_tokens, None)


def _gemm(shard: Shard, tokens: Num, n: int, k: int) -> Gemm:
    return Gemm(tokens, n, k, shard.dtype("attention"))
