"""Mixture-of-experts layers: measured time over the roofline, one curve over tokens per architecture and split.

A curve's key is (dtype, hidden, intermediate after the TP split, experts per token, experts, expert ranks); its values
are log(seconds / roofline), where the roofline moves the weights of the experts touched under balanced routing. An
architecture in the tables uses its own curve. One that is not is regressed from its neighbours (Gaussian kernel over
log2 of hidden, intermediate, experts per token, experts per rank, ranks) at equal rows per expert, which halves the
error of comparing at equal tokens.

Routing. The tables hold balanced routing and power laws; under expert parallelism they time the rank with the most
work. The kept one is the power law with exponent 1.01: routing in service is skewed, so balanced is too kind. Drawn
with the collectors' sampler (8 of 256 experts, 4,096 tokens), 1.2 sends half of all tokens to one expert and puts 1.7
times the mean on the busiest of 8 ranks, 1.01 a quarter and 1.5 times: the milder is nearer to what trained, load
balanced routers do. Small batches touch some 20 % fewer experts than balanced routing, so a measured time may lie below
the balanced roofline. On H100 the choice is worth -18 % at 8 to 64 tokens and +5 % above 512 without expert
parallelism, +25 % at 4,096 tokens on 2 to 8 ranks. Another project's profile of Qwen3-30B-A3B on RTX PRO 6000, at the
number of experts that random routing touches, lies 8 % (median) from 1.01; from balanced up to 54 % at 16 tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from calibration.cost import INTERPOLATED, MEASURED, ROOFLINE, Array, broadcast
from calibration.families.curve import NODE_TOLERANCE
from calibration.family import Parts
from calibration.operators import GroupedGemm
from calibration.roofline import roofline_s
from catalogs.errors import InputError
from catalogs.hardware import Accelerator

if TYPE_CHECKING:
    import pandas as pd

#: Which measured dtype stands for which, best first. Published fp8 MoE checkpoints (DeepSeek, Qwen3, MiniMax) are block
#: scaled, so block-scaled kernels answer for fp8 where both were measured.
STANDS_FOR: dict[str, tuple[str, ...]] = {
    "fp8": ("fp8_block", "fp8"),
    "fp8_block": ("fp8_block", "fp8"),
    "int8": ("fp8_block", "fp8"),
    "fp16": ("bf16",),
    "fp32": ("bf16",),
}
NEIGHBOURS = 8
KERNEL_WIDTH = 0.5  # in doublings, chosen by leave-one-architecture-out
FAR = 1.5  # doublings from the nearest measured architecture beyond which an answer counts as transferred


class Key(NamedTuple):
    dtype: str
    hidden_size: int
    intermediate_size: int
    experts_per_token: int
    n_experts: int
    expert_ranks: int

    def features(self) -> Array:
        per_rank = self.n_experts / self.expert_ranks
        sizes = (self.hidden_size, self.intermediate_size, self.experts_per_token, per_rank, self.expert_ranks)
        return np.log2(np.asarray(sizes, dtype=np.float64))


@dataclass(frozen=True, slots=True)
class GroupedGemmModel:
    keys: list[Key]
    tokens: Array  # the common token grid, ascending
    log_ratio: npt.NDArray[np.float64]  # (keys, tokens); NaN where not measured
    meta: dict[str, Any] = field(default_factory=dict)
    family: str = field(default="moe", init=False)
    _row: dict[Key, int] = field(init=False, repr=False)
    _features: npt.NDArray[np.float64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_row", {k: i for i, k in enumerate(self.keys)})
        object.__setattr__(self, "_features", np.array([k.features() for k in self.keys]))

    def cost(self, op: GroupedGemm, accelerator: Accelerator) -> tuple[Array, Array]:
        """(seconds, origin) of the shape of tokens; sizes and counts are scalars."""
        (tokens,) = broadcast(op.tokens)
        for key in _candidates(op):
            if key in self._row:
                ratio, origin = self._own_curve(self._row[key], tokens)
                seconds = np.exp(ratio) * roofline_s(op, accelerator)
                return np.where(origin == ROOFLINE, self._tail_s(self._row[key], op, accelerator), seconds), origin
        ratio, origin = self._regressed(_candidates(op), tokens)
        return np.exp(ratio) * roofline_s(op, accelerator), origin

    def _tail_s(self, row: int, op: GroupedGemm, accelerator: Accelerator) -> Array:
        """Beyond the last node time goes on along the line through the last two."""
        nodes, values = self._nodes(row)
        if len(nodes) < 2:
            return np.asarray(np.exp(values[-1]) * roofline_s(op, accelerator), dtype=np.float64)
        (t0, t1), (s0, s1) = nodes[-2:], np.exp(values[-2:]) * roofline_s(replace(op, tokens=nodes[-2:]), accelerator)
        slope = max(float((s1 - s0) / (t1 - t0)), 0.0)
        return np.asarray(s1 + (np.asarray(op.tokens, dtype=np.float64) - t1) * slope)

    def _own_curve(self, row: int, tokens: Array) -> tuple[Array, Array]:
        x = np.maximum(tokens, 1.0)
        nodes, values = self._nodes(row)
        right = np.clip(np.searchsorted(nodes, x), 0, len(nodes) - 1)
        near = np.minimum(np.abs(nodes[right] / x - 1), np.abs(nodes[np.maximum(right - 1, 0)] / x - 1))
        inside = np.where(near < NODE_TOLERANCE, MEASURED, INTERPOLATED)
        return np.interp(np.log(x), np.log(nodes), values), np.where(x > nodes[-1] * 1.000001, ROOFLINE, inside)

    def _nodes(self, row: int) -> tuple[Array, Array]:
        known = ~np.isnan(self.log_ratio[row])
        return self.tokens[known], self.log_ratio[row][known]

    def _regressed(self, candidates: list[Key], tokens: Array) -> tuple[Array, Array]:
        rows, key = self._rows_of(candidates)
        squared = ((self._features[rows] - key.features()) ** 2).sum(axis=1)
        nearest = np.argsort(squared, kind="stable")[:NEIGHBOURS]
        weights = np.exp(-(squared[nearest] - squared[nearest[0]]) / (2 * KERNEL_WIDTH**2))
        weights = weights / weights.sum()
        ratio = np.zeros_like(tokens)
        for row, weight in zip(rows[nearest], weights, strict=True):
            ratio = ratio + weight * self._at_equal_rows_per_expert(int(row), key, tokens)
        far = np.sqrt(squared[nearest[0]]) > FAR
        beyond = tokens > self.tokens[-1]
        return ratio, np.where(far | beyond, ROOFLINE, INTERPOLATED)

    def _rows_of(self, candidates: list[Key]) -> tuple[npt.NDArray[np.int64], Key]:
        """Curves of the first candidate dtype that was measured at all; of any dtype where none was."""
        for key in candidates:
            rows = [i for i, k in enumerate(self.keys) if k.dtype == key.dtype]
            if rows:
                return np.array(rows), key
        return np.arange(len(self.keys)), candidates[0]

    def _at_equal_rows_per_expert(self, row: int, key: Key, tokens: Array) -> Array:
        theirs = self.keys[row]
        scale = (key.experts_per_token / key.n_experts) / (theirs.experts_per_token / theirs.n_experts)
        nodes, values = self._nodes(row)
        return np.interp(np.log(np.maximum(tokens * scale, 1e-9)), np.log(nodes), values)

    def to_parts(self) -> Parts:
        facts = {
            "dtypes": sorted({k.dtype for k in self.keys}),
            "values": "log(seconds / roofline) by key and tokens",
            "key_columns": ["dtype index", *Key._fields[1:]],
            **self.meta,
        }
        index = {d: i for i, d in enumerate(facts["dtypes"])}
        keys = np.array([[index[k.dtype], *k[1:]] for k in self.keys], dtype=np.int32)
        return facts, {
            "moe_keys": keys,
            "moe_tokens": self.tokens.astype(np.float64),
            "moe_log_ratio": self.log_ratio.astype(np.float32),
        }

    @classmethod
    def from_parts(cls, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> GroupedGemmModel:
        dtypes = list(facts["dtypes"])
        keys = [Key(dtypes[int(r[0])], *(int(v) for v in r[1:])) for r in arrays["moe_keys"]]
        meta = {k: v for k, v in facts.items() if k not in ("dtypes", "values", "key_columns")}
        tokens = np.asarray(arrays["moe_tokens"], dtype=np.float64)
        return cls(keys, tokens, np.asarray(arrays["moe_log_ratio"], dtype=np.float64), meta)

    @classmethod
    def fit(cls, rows: pd.DataFrame, accelerator: Accelerator) -> GroupedGemmModel:
        """One curve per key; the first of several rows for one point counts. InputError where there is no row."""
        if not len(rows):
            raise InputError("no moe rows to fit")
        first = rows.drop_duplicates([*Key._fields, "tokens"])
        tokens = np.sort(first.tokens.unique().astype(np.float64))
        keys, curves = [], []
        for key, part in _by_key(first):
            curve = np.full(len(tokens), np.nan)
            at = np.searchsorted(tokens, part.tokens.to_numpy(dtype=np.float64))
            curve[at] = np.log(part.seconds.to_numpy() / roofline_s(_op(key, part.tokens.to_numpy()), accelerator))
            keys.append(key)
            curves.append(curve)
        distribution = sorted(rows.distribution.unique()) if "distribution" in rows else []
        return cls(keys, tokens, np.array(curves), {"distribution": distribution})


def _by_key(rows: pd.DataFrame) -> Iterator[tuple[Key, pd.DataFrame]]:
    for values, part in rows.groupby(list(Key._fields)):
        dtype, *sizes = cast(tuple[Any, ...], values)
        yield Key(str(dtype), *(int(v) for v in sizes)), part


def _op(key: Key, tokens: Any) -> GroupedGemm:
    return GroupedGemm(
        tokens,
        hidden_size=key.hidden_size,
        intermediate_size=key.intermediate_size,
        n_experts=key.n_experts,
        experts_per_token=key.experts_per_token,
        expert_ranks=key.expert_ranks,
        dtype=key.dtype,
    )


def _candidates(op: GroupedGemm) -> list[Key]:
    sizes = (op.hidden_size, op.intermediate_size, op.experts_per_token, op.n_experts, op.expert_ranks)
    return [Key(d, *(int(s) for s in sizes)) for d in STANDS_FOR.get(op.dtype, (op.dtype,))]
