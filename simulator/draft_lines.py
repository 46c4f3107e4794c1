"""The operators of a drafter's passes: those of its model, and what joins a head's inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from calibration.operators import Gemm, Num
from catalogs.deployment import Resolved
from catalogs.speculation import EAGLE3_FEATURES, Method
from simulator.draft_shard import draft_shard
from simulator.line import Line
from simulator.pricing import CostSource
from simulator.shard import Shard
from simulator.step_lines import StepLines


@dataclass(frozen=True, slots=True)
class DraftLines(StepLines):
    """first: of the pass over all tokens of a step, which reads the target's hidden states."""

    method: Method = "draft_model"
    first: bool = True

    @classmethod
    def drafting(cls, resolved: Resolved, source: CostSource, queries: int, first: bool) -> Self | None:
        """None where a step runs no drafter. `queries`: tokens that each decode brings to the pass."""
        shard, speculation = draft_shard(resolved, queries), resolved.speculation
        if shard is None or speculation is None:
            return None
        return cls(shard, resolved.engine.fuses_norms, source.joins_decodes, speculation.method, first)

    def rank(self, tokens: Num, graph: bool) -> list[Line]:
        lines = StepLines.rank(self, tokens, graph)
        if self.method in ("eagle", "mtp"):
            return [*lines, _joining(self.shard, tokens, 2)]
        if self.method == "eagle3":
            wide = [_widened(line, self.shard) for line in lines]
            return [*wide, _joining(self.shard, tokens, EAGLE3_FEATURES)] if self.first else wide
        return lines


def _joining(shard: Shard, tokens: Num, vectors: int) -> Line:
    """EAGLE and MTP project embedding and hidden state to one width, EAGLE-3 the features of three layers of the
    target; every rank does all of it."""
    hidden = shard.model.hidden_size
    return Line("join_inputs", "gemm", 1, Gemm(tokens, hidden, vectors * hidden, shard.plain_dtype))


def _widened(line: Line, shard: Shard) -> Line:
    """EAGLE-3's layer attends from embedding and feature side by side."""
    if line.name != "qkv_proj" or not isinstance(line.op, Gemm):
        return line
    return replace(line, op=replace(line.op, k=2 * shard.model.hidden_size))
