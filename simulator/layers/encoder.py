"""The operators that an encoder adds to a step: its pass over every prompt's input, and the decoder's cross attention.

The encoder runs once, with the prompt, over the positions of a request's input, each of which attends to all of them.
There are `encoder_tokens` positions where inputs have one length (Whisper), and otherwise one for each prompt token
(T5, BART, NLLB). Its output is projected to keys and values of every decoder layer (`cross_kv_proj`) and written to the
cache once.
Every decoder token then has a query, an attention over the whole encoder output and an output projection. The operators
measured for causal attention price it, with q x encoder positions as their pairs. The convolutions before the encoder
(1 % of its arithmetic) and the spectrogram, which the API server computes, are left out.

A model that encodes its prompt keeps two caches: the keys and values of the prompt, which the cross attention reads,
and those of the output, which the self attention reads. One token takes as many bytes in either of them, so the context
of a decode is the sum of both. The cross attention is priced over the whole context and the self attention over one
token: two kernels whose time is a constant and a part per token take as long for any other division. The start token
of the decoder, one for each sequence, is not counted in its cache. Relative position biases and learned positions add
bytes of weights only.
"""

from __future__ import annotations

import numpy as np

from calibration.operators.flops_and_bytes import ACTIVATION_BYTES as ACT
from calibration.operators.flops_and_bytes import stored_bytes
from calibration.operators.operators import DecodeAttention, Gemm, Matmul, Num, PrefillAttention
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


def encoder_calls(shard: Shard, requests: FloatArray, prompt_tokens: FloatArray) -> Calls:
    """Yield the encoder's pass over the inputs of `requests` requests, and their keys and values in the decoder.

    All arrays broadcast against each other. Shape (...).

    Args:
        shard: The part of the model on one rank.
        requests: The number of requests.
        prompt_tokens: The prompt tokens of each, which are the encoder's input where inputs have no fixed length.
    """
    model, hidden = shard.model, shard.model.hidden_size
    tokens = requests * (model.encoder_tokens or prompt_tokens)
    for group in model.encoder_groups:
        yield from calls_of(group, _encoder_layer_calls(shard, group, requests, tokens))
    for group in (g for g in model.groups if g.cross_attention):
        kv = crossed_attention(shard, group).kv_width
        written = kv * (ACT + stored_bytes(shard.kv_dtype))
        projection = gemm_call("cross_kv_proj", group.count, _product(shard, tokens, kv, hidden))
        write = elementwise_call("cross_kv_write", group.count, "kv_write", tokens, written)
        yield from calls_of(group, (projection, write))


def _encoder_layer_calls(shard: Shard, group: LayerGroup, requests: FloatArray, tokens: FloatArray) -> Calls:
    if group.dense_block is None:
        raise InputError("encoders are simulated only with dense feed-forward blocks", shard.model.name)
    a, mlp = crossed_attention(shard, group), ShardedMlp(shard, group.count, group.dense_block)
    hidden, q, up = shard.model.hidden_size, a.query_width, 2 if mlp.part.gated else 1
    yield elementwise_call("encoder_norm", 2 * group.count, "norm", tokens, 4 * hidden * ACT)
    yield gemm_call("encoder_qkv_proj", group.count, _product(shard, tokens, a.qkv_width, hidden))
    attends = _attention_to_all(a, requests, tokens, tokens / requests)
    yield OperatorCall("encoder_attention", "attention_prefill", group.count, attends)
    yield gemm_call("encoder_o_proj", group.count, _product(shard, tokens, hidden, q))
    yield gemm_call("encoder_up_proj", group.count, _product(shard, tokens, up * mlp.width, hidden))
    yield elementwise_call("encoder_activation", group.count, "activation", tokens, (up + 1) * mlp.width * ACT)
    yield gemm_call("encoder_down_proj", group.count, _product(shard, tokens, hidden, mlp.width))
    yield from all_reduce_calls(shard, "encoder_all_reduce", 2 * group.count, tokens, graph=False)


def cross_token_calls(shard: Shard, group: LayerGroup, tokens: Num, graph: bool) -> Calls:
    """Yield the norm, query and output projection of every decoder token."""
    hidden, q = shard.model.hidden_size, crossed_attention(shard, group).query_width
    yield elementwise_call("cross_norm", group.count, "norm", tokens, 4 * hidden * ACT)
    yield gemm_call("cross_q_proj", group.count, _product(shard, tokens, q, hidden))
    yield gemm_call("cross_o_proj", group.count, _product(shard, tokens, hidden, q))
    yield from all_reduce_calls(shard, "cross_all_reduce", group.count, tokens, graph)


def cross_decode_calls(
    shard: Shard, group: LayerGroup, decodes: FloatArray, mean: FloatArray, longest: FloatArray
) -> Calls:
    """Yield the cross attention of decodes, each of which reads all keys and values of its encoder output.

    All arrays broadcast against each other. Shape (...).

    Args:
        shard: The part of the model on one rank.
        group: Decoder layers.
        decodes: The number of decodes.
        mean: Their mean context, which counts where inputs have no fixed length.
        longest: The longest context.
    """
    a = crossed_attention(shard, group)
    if shard.model.encoder_tokens:
        mean = longest = np.full_like(decodes, float(shard.model.encoder_tokens))
    read = DecodeAttention(decodes, decodes * mean, longest, a.heads, a.kv_heads, a.part.head_dim, shard.kv_dtype)
    yield OperatorCall("cross_attention", "attention_decode", group.count, read)


def cross_prefill_calls(shard: Shard, group: LayerGroup, chunks: FloatArray, each: FloatArray) -> Calls:
    """Yield the attention of the decoder's prompt to the encoder's output.

    These are the `each` tokens of a prompt where inputs have one length, and otherwise the start token, which attends
    to all prompt tokens. All arrays broadcast against each other. Shape (...).
    """
    keys, queries = (shard.model.encoder_tokens, each) if shard.model.encoder_tokens else (each, np.ones_like(each))
    read = _attention_to_all(crossed_attention(shard, group), chunks, chunks * queries, keys)
    yield OperatorCall("cross_attention", "attention_prefill", group.count, read)


def cross_cache_bytes(shard: Shard) -> float:
    """Return the bytes that the encoder's keys and values take in every sequence on one rank.

    They are 0 without an encoder, and where the prompt is its input: prompt tokens count as cached tokens.
    """
    return sum(cross_layer_bytes(shard, group) * group.count for group in shard.model.groups)


def cross_layer_bytes(shard: Shard, group: LayerGroup) -> float:
    """Return the part of `cross_cache_bytes` that one layer takes."""
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


def _attention_to_all(a: ShardedAttention, requests: FloatArray, queries: FloatArray, keys: Num) -> PrefillAttention:
    return a.prefill_attention(requests, queries, queries * keys, None)


def _product(shard: Shard, tokens: Num, n: int, k: int) -> Gemm | Matmul:
    return shard.product(tokens, n, k, shard.dtype("attention"))
