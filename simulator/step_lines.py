"""The operators of a deployment's steps, by what each follows: tokens, sequences, contexts. One rank, one microbatch.

Here, and nowhere else, it is decided which kinds of lines a step of this engine has: the tables that a run is timed
with, the anatomy of a finished run and the analysis of one step all read them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from calibration.operators import Num
from catalogs.deployment import Resolved
from simulator.layers import (
    decode_lines,
    expert_lines,
    fused_norm_lines,
    logits_lines,
    mixed_decode_lines,
    prefill_lines,
    token_lines,
)
from simulator.line import Line
from simulator.pricing import CostSource
from simulator.shard import Shard


@dataclass(frozen=True, slots=True)
class StepLines:
    """joins_decodes: whether decodes beside prompts run in the prompts' kernel, by head size and KV dtype."""

    shard: Shard
    fuses_norms: bool
    joins_decodes: Callable[[int, str], bool]

    @classmethod
    def of(cls, resolved: Resolved, source: CostSource) -> StepLines:
        return cls(Shard.of(resolved), resolved.engine.fuses_norms, source.joins_decodes)

    def rank(self, tokens: Num, graph: bool) -> list[Line]:
        """What follows the tokens on an attention rank, in a CUDA graph or beyond."""
        return (fused_norm_lines if self.fuses_norms else token_lines)(self.shard, tokens, graph)

    def group(self, tokens: Num, graph: bool) -> list[Line]:
        """What follows the tokens of the group that experts are shared by; none in dense models."""
        return expert_lines(self.shard, tokens, graph)

    def logits(self, sequences: Num) -> list[Line]:
        """What follows the sequences that need a next token."""
        return logits_lines(self.shard, sequences)

    def decode(self, sequences: Num, mean_context: Num, max_context: Num) -> list[Line]:
        """Attention of decodes in a step without prompts."""
        return decode_lines(self.shard, sequences, mean_context, max_context)

    def mixed_decode(self, sequences: Num, mean_context: Num, max_context: Num) -> list[Line]:
        """Attention of decodes beside prompts."""
        return mixed_decode_lines(self.shard, sequences, mean_context, max_context, self.joins_decodes)

    def prefill(self, chunks: Num, chunk_tokens: Num, prior: Num) -> list[Line]:
        """Attention of prompt chunks, `prior` tokens before each."""
        return prefill_lines(self.shard, chunks, chunk_tokens, prior)
