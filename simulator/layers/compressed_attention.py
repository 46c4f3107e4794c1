"""Attention over a window and over compressed entries (DeepSeek-V4) on one rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from calibration.operators.flops_and_bytes import ACTIVATION_BYTES as ACT
from calibration.operators.flops_and_bytes import stored_bytes
from calibration.operators.operators import (
    BYTES_PER_SCORE,
    DecodeAttention,
    Elementwise,
    Gemm,
    Num,
    PrefillAttention,
    window_pairs,
)
from catalogs.arrays import FloatArray
from catalogs.models.compressed_attention import CompressedAttention
from simulator.layers.cache_exchange import gather_calls, merge_calls
from simulator.layers.mixer import JoinsDecodes, ShardedMixer, clip
from simulator.layers.operator_call import Calls, OperatorCall, elementwise_call, gemm_call

#: Fewest heads that the kernels of compressed attention compute.
LEAST_HEADS: Final = 64

SCORE_BYTES: Final = 4  # of a number of an entry before it is formed: weights and sums are in fp32


@dataclass(frozen=True, slots=True)
class ShardedCompressedAttention(ShardedMixer):
    """Attention over a window and over compressed entries (DeepSeek-V4).

    Tensor ranks divide the query heads and the groups of the output projection; each keeps all entries.
    """

    part: CompressedAttention

    @property
    def heads(self) -> int:
        """Return the query heads on this rank."""
        return -(-self.part.n_heads // self.shard.tp)

    @property
    def groups(self) -> int:
        """Return the groups of the output projection on this rank."""
        return -(-self.part.o_groups // self.shard.tp)

    def projection_calls(self, tokens: Num) -> list[OperatorCall]:
        """Return the projections, the norms and rotation of queries and keys, and the forming of entries.

        The first product of the output is one for each group of heads, which are one kernel.
        """
        a, count, shard, hidden = self.part, self.count, self.shard, self.shard.model.hidden_size
        dtype, query = shard.dtype("attention"), self.heads * a.head_dim
        normed, rotated = a.q_lora_rank + a.head_dim + query, self.heads * a.rope_head_dim + a.rope_head_dim
        written = a.head_dim * ACT + a.entry_bytes(stored_bytes(shard.kv_dtype))
        calls = [
            gemm_call("latent_proj", count, shard.product(tokens, a.q_lora_rank + a.head_dim, hidden, dtype)),
            gemm_call("query_proj", count, shard.product(tokens, query, a.q_lora_rank, dtype)),
            elementwise_call("qk_norm", count, "norm", tokens, 2 * normed * ACT),
            elementwise_call("rotary", count, "rotary", tokens, 2 * rotated * ACT),
            elementwise_call("kv_write", count, "kv_write", tokens, written),
            gemm_call("o_group_proj", count, shard.product(tokens, self.groups * a.o_lora_rank, a.group_size, dtype)),
            gemm_call("o_proj", count, shard.product(tokens, hidden, self.groups * a.o_lora_rank, dtype)),
        ]
        if a.compress_ratio is not None:
            product = Gemm(tokens, a.compressor_size, hidden, "bf16")
            calls.append(gemm_call("compressor", count, product))
            moved = a.compressor_size * SCORE_BYTES * (1 + 0.5 / a.compress_ratio)
            calls.append(elementwise_call("compress", count, "activation", tokens, moved))
        if a.index_topk_entries is not None:
            query_product = shard.product(tokens, a.index_n_heads * a.index_head_dim, a.q_lora_rank, dtype)
            calls.append(gemm_call("index_q", count, query_product))
            calls.append(gemm_call("index_k", count, Gemm(tokens, a.index_n_heads, hidden, "bf16")))
        return calls

    def decode_calls(self, sequences: FloatArray, mean: FloatArray, longest: FloatArray, joins: JoinsDecodes) -> Calls:
        """Yield the attention of decodes over their window and their entries, after the selection of entries.

        All arrays broadcast against each other. Shape (...).
        """
        del joins  # prompts and decodes run in different kernels
        a, shard, n = self.part, self.shard, sequences
        read, top = (self._attended(x) / shard.kv_shards for x in (mean, longest))
        op = self._attention(n, n * read, top, shard.joined_heads * shard.queries)
        yield OperatorCall("compressed_decode", "attention_decode", self.count, op)
        width = self.heads * a.head_dim
        yield from merge_calls(shard, self.count, n, width, width)
        if a.index_topk_entries is not None and a.compress_ratio is not None:
            entries = mean / a.compress_ratio
            scored = entries * (a.index_bytes_per_entry + BYTES_PER_SCORE * shard.queries)
            yield OperatorCall("indexer", "attention_decode", self.count, Elementwise("score", n, scored))
            chosen = Elementwise("select", n * shard.queries, BYTES_PER_SCORE * entries)
            yield OperatorCall("select_entries", "attention_decode", self.count, chosen)

    def _attention(
        self, queries: FloatArray, vectors: FloatArray, most: FloatArray, at_once: int = 1
    ) -> DecodeAttention:
        """Return the operator of queries that each read their own cached vectors, `vectors` in all and `most` at most.

        A vector is both key and value, so it is read once: as half as many keys and values for twice as many heads. The
        kernels of FlashMLA take at least 64 query heads, to which engines pad those of a rank.

        All arrays broadcast against each other. Shape (...).
        """
        heads = 2 * max(self.heads * at_once, LEAST_HEADS)
        return DecodeAttention(queries, vectors / 2, most / 2, heads, 1, self.part.head_dim, self.shard.kv_dtype)

    def _attended(self, context: FloatArray) -> FloatArray:
        """Return the cached vectors that a query attends to. Shape of `context`."""
        a, window = self.part, np.minimum(context, self.part.window_tokens)
        if a.compress_ratio is None:
            return window
        return window + clip(context / a.compress_ratio, a.index_topk_entries)

    def prefill_calls(self, chunks: FloatArray, each: FloatArray, prior: FloatArray) -> Calls:
        """Yield the attention of prompt chunks of `each` new tokens after `prior` earlier ones.

        Every token reads its own window and entries, as a sequence that decodes does.

        All arrays broadcast against each other. Shape (...).
        """
        a, shard, c = self.part, self.shard, chunks
        tokens, pairs = c * each / shard.cp, window_pairs(each, prior, a.window_tokens)
        if a.compress_ratio is not None:
            pairs = pairs + window_pairs(each, prior, a.attended_tokens) / a.compress_ratio
        pairs = c * pairs / shard.cp
        op = self._attention(tokens, pairs, pairs / np.maximum(tokens, 1.0))
        yield OperatorCall("compressed_prefill", "attention_prefill", self.count, op)
        token_bytes = a.entry_bytes(stored_bytes(shard.kv_dtype))
        yield from gather_calls(shard, self.count, token_bytes, c * each, c * self._attended(prior))
        if a.index_topk_entries is not None and a.compress_ratio is not None:
            scored = c * window_pairs(each, prior, None) / (a.compress_ratio * shard.cp)
            index = PrefillAttention(c, tokens, scored, a.index_n_heads, 1, a.index_head_dim // 2, "fp8")
            yield OperatorCall("indexer", "attention_prefill", self.count, index)
            behind = a.index_topk_entries * a.compress_ratio  # tokens of the most entries that are all attended to
            selects = np.asarray(each + prior > behind) & np.ones(scored.shape, dtype=np.bool_)
            if selects.any():
                chosen = Elementwise("select", tokens, BYTES_PER_SCORE * scored / np.maximum(tokens, 1.0))
                yield OperatorCall("select_entries", "attention_prefill", self.count, chosen, runs=selects)

    def cache_bytes(self, tokens: float) -> float:
        """Return the window and the entries of one sequence of `tokens` in all layers."""
        a, element_bytes = self.part, stored_bytes(self.shard.kv_dtype)
        window = min(tokens, a.window_tokens) * a.entry_bytes(element_bytes)
        return self.count * (window + tokens * a.kv_bytes_per_token(element_bytes))

    def linear_params(self) -> float:
        """Return the weights of ONE layer on this rank. Products into the latents and the indexer are on every rank."""
        hidden = self.shard.model.hidden_size
        shared = self.part.shared_params(hidden)
        return shared + (self.part.linear_params(hidden) - shared) / self.shard.tp

    def activation_width(self) -> float:
        """Return the values that are alive inside the block for each token."""
        return 2 * self.part.q_size / self.shard.tp + self.part.compressor_size
