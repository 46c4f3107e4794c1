"""Mixture-of-experts layers: measured time over the roofline, one curve over tokens per architecture and split.

The key of a curve is (dtype, hidden, intermediate after the TP split, experts per token, experts, expert ranks). Its
values are log(seconds / roofline), where the roofline moves the weights of the experts that receive tokens under
balanced routing. An architecture in the tables uses its own curve. Any other is regressed from its neighbours (Gaussian
kernel over log2 of hidden, intermediate, experts per token, experts per rank, ranks) at equal rows per expert, which
halves the error of comparing at equal tokens.

A layer of experts is a chain of small kernels around two large ones: it chooses the experts, sorts the tokens by
expert, applies the activation and adds up. The chain takes its time however little the products compute, and longer
with more experts, so the regression compares only the time beyond it. The chain of a data type is fitted on its rows of
few tokens: a constant, a part in proportion to the experts, and a share of the roofline. With whole architectures held
out, this lowers the median error at up to 64 tokens from 10.4 to 7.6 % (bf16), 8.9 to 5.5 % (block-scaled FP8) and
47.2 to 19.8 % (MXFP4) on H100 (tests/calibration/families/test_experts_chain.py).

Rows have the routing of service (importers/expert_routing.py): few tokens reach the experts of the usual router, and
many load them as the tables' mild power law does. Of the tables' two power laws, drawn with the collectors' sampler (8
of 256 experts, 4,096 tokens), 1.2 sends half of all tokens to one expert and puts 1.7 times the mean on the busiest of
8 ranks, 1.01 a quarter and 1.5 times: the milder one is nearer to trained routers. The time that a balanced router
takes is a second curve: longer with few tokens, which reach more experts, and shorter with many. A model whose router
is known has the share of that difference which its reach or its imbalance has between the two. One with more skew than
the usual router reaches fewer experts, which saves the time that the curve of few tokens takes for the others.

A batch with more tokens never takes less time, so each curve is made non-decreasing by isotonic regression of
logarithms and interpolated linearly in log time over log tokens. The tables fall by up to 15 % where the engine's tuned
tile sizes change and by up to 20 % from noise; a step, padded to its captured size, does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from calibration.families.base import Parts
from calibration.families.curve import isotonic, origin_at
from calibration.families.grid import groups_by
from calibration.families.nonnegative import nonnegative_of_few
from calibration.operators.cost import INTERPOLATED, ROOFLINE, broadcast
from calibration.operators.expert_loads import DEFAULT_SKEW, imbalance_share, reach_share, reached_by_both
from calibration.operators.flops_and_bytes import bytes_moved, compute_dtype
from calibration.operators.operators import Gemm, GroupedGemm
from calibration.operators.roofline import memory_s, padding_s, roofline_s
from catalogs.arrays import FloatArray
from catalogs.hardware.specs import Accelerator

if TYPE_CHECKING:
    import pandas as pd


#: Measured dtypes that stand in for a dtype, best first. Published fp8 MoE checkpoints (DeepSeek, Qwen3, MiniMax) are
#: block scaled, so block-scaled kernels stand in for fp8 where an architecture was measured in neither.
STANDS_FOR: dict[str, tuple[str, ...]] = {
    "fp8": ("fp8_block", "fp8"),
    "fp8_block": ("fp8_block", "fp8"),
    "int8": ("fp8_block", "fp8"),
    "fp16": ("bf16",),
    "fp32": ("bf16",),
    "fp4": ("fp4", "mxfp4", "mxfp4_mxfp8"),
    "mxfp4": ("mxfp4", "mxfp4_marlin", "fp4"),
    "mxfp4_marlin": ("mxfp4_marlin", "int4", "mxfp4"),
    "mxfp4_mxfp8": ("mxfp4_mxfp8", "mxfp4", "fp4"),
}

#: Dtypes of which one kernel computes the experts, so that they share the chain around it: Marlin unpacks both.
SHARE_CHAIN: dict[str, tuple[str, ...]] = {"mxfp4_marlin": ("mxfp4_marlin", "int4")}

#: Rows of at most this many tokens show the chain around the products.
CHAIN_TOKENS = 8.0

#: Up to this many rows per expert, half a tile, a product takes as long as reading the weights.
ONE_TILE_ROWS = 8.0

#: The chain takes at most this share of the shortest row of a curve.
MOST_CHAIN = 0.9

#: Weights of this multiple of the second-level cache were read from memory, however often a kernel is launched.
COLD = 2.0

NEIGHBOURS = 8

KERNEL_WIDTH = 0.5  # in doublings, chosen by leaving out one architecture at a time

RELIEF_STEP = 1.0 / 32.0  # of log seconds, as bundles store the relief of even loads

NOT_TIMED = -128  # stored steps of a relief that was not timed

FAR = 1.5  # doublings from the nearest measured architecture beyond which a prediction counts as transferred


class Key(NamedTuple):
    """The identity of a curve: the dtype, the architecture of the experts and their split."""

    dtype: str
    hidden_size: int
    intermediate_size: int
    experts_per_token: int
    n_experts: int
    expert_ranks: int

    def features(self) -> FloatArray:
        """Return the coordinates of the kernel regression, in doublings. Shape (5,)."""
        per_rank = self.n_experts / self.expert_ranks
        sizes = (self.hidden_size, self.intermediate_size, self.experts_per_token, per_rank, self.expert_ranks)
        return np.log2(np.asarray(sizes, dtype=np.float64))


@dataclass(frozen=True, slots=True)
class GroupedGemmModel:
    """Curves of log(seconds / roofline) over tokens, one per key."""

    keys: list[Key]
    tokens: FloatArray  # the common token grid, ascending
    log_ratio: npt.NDArray[np.float64]  # (keys, tokens); NaN where not measured
    meta: dict[str, Any] = field(default_factory=dict)
    #: log(seconds with even loads / seconds) in the shape of `log_ratio`; NaN where not measured. It is above 0 where a
    #: balanced router reaches more experts. None: the rows have no such times, and every router has those of the rows.
    log_relief: npt.NDArray[np.float64] | None = None
    #: The model that prices the weights of experts in padded blocks; None: this one does.
    streaming: GroupedGemmModel | None = None
    family: str = field(default="moe", init=False)
    _row: dict[Key, int] = field(init=False, repr=False)
    _chains: dict[tuple[str, str], tuple[float, float]] = field(init=False, repr=False, default_factory=dict)
    _features: npt.NDArray[np.float64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_row", {k: i for i, k in enumerate(self.keys)})
        object.__setattr__(self, "_features", np.array([k.features() for k in self.keys]))

    @property
    def chooses_experts(self) -> bool:
        """Return whether the rows include the kernel that chooses the experts of each token."""
        return bool(self.meta.get("chooses_experts", False))

    def cost(self, op: GroupedGemm, accelerator: Accelerator) -> tuple[FloatArray, FloatArray]:
        """Return (seconds, origin) in the shape of the tokens; sizes and counts are scalars.

        More tokens never take less time. Rows that hold no token (`padding_s`) are added to the measured time.
        """
        if op.block_rows:
            seconds, origin = (self.streaming or self).cost(replace(op, block_rows=0), accelerator)
            return seconds + padding_s(op, accelerator), origin
        (tokens,) = broadcast(op.tokens)
        sizes = [int(getattr(op, name)) for name in Key._fields[1:]]
        candidates = [Key(dtype, *sizes) for dtype in STANDS_FOR.get(op.dtype, (op.dtype,))]
        own = self._own(sorted(candidates, key=lambda key: key.dtype != op.dtype), accelerator)
        if own is not None:
            nodes, ratio = self._nodes(own)
            origin = origin_at(nodes, np.maximum(tokens, 1.0))
            relief = None if self.log_relief is None else self.log_relief[own][~np.isnan(self.log_ratio[own])]
        else:
            nodes = self.tokens
            ratio, relief, origin = self._regressed(candidates, tokens, accelerator)
        grid, seconds = _between(nodes, ratio, op, accelerator)
        if op.skew is None or relief is None:
            return _along(grid, seconds, tokens), origin
        less = _relieved(grid, seconds, np.interp(np.log(grid), np.log(nodes), np.nan_to_num(relief)), op)
        inside = np.minimum(tokens, grid[-1])
        beyond = _along(grid, seconds, tokens) - _along(grid, seconds, inside)
        return _along(grid, less, inside) + beyond * less[-1] / seconds[-1], origin

    def _own(self, candidates: list[Key], accelerator: Accelerator) -> int | None:
        """Return the curve of exactly this architecture, in its own dtype or else in one that stands in for it.

        A dtype with another kind of product (MXFP4 with 16-bit activations instead of 8-bit ones, per-tensor scales
        instead of blocks) stands in only where the right one is unknown.
        """
        dtype = candidates[0].dtype
        known = any(k.dtype == dtype for k in self.keys)
        for key in candidates:
            alike = compute_dtype(key.dtype, accelerator) == compute_dtype(dtype, accelerator)
            alike = alike and (dtype, key.dtype) != ("fp8_block", "fp8")
            if key in self._row and (alike or not known):
                return self._row[key]
        return None

    def _nodes(self, row: int) -> tuple[FloatArray, FloatArray]:
        known = ~np.isnan(self.log_ratio[row])
        return self.tokens[known], self.log_ratio[row][known]

    def _regressed(
        self, candidates: list[Key], tokens: FloatArray, accelerator: Accelerator
    ) -> tuple[FloatArray, FloatArray | None, FloatArray]:
        """Return (log ratio and log relief at the common nodes, origin at the tokens) of other architectures."""
        rows, key = self._rows_of(candidates)
        squared = ((self._features[rows] - key.features()) ** 2).sum(axis=1)
        nearest = np.argsort(squared, kind="stable")[:NEIGHBOURS]
        weights = np.exp(-(squared[nearest] - squared[nearest[0]]) / (2 * KERNEL_WIDTH**2))
        weights = weights / weights.sum()
        beyond_chain, relief = np.zeros_like(self.tokens), np.zeros_like(self.tokens)
        for row, weight in zip(rows[nearest], weights, strict=True):
            curve = self._beyond_chain(int(row), accelerator)
            beyond_chain = beyond_chain + weight * self._at_equal_rows_per_expert(curve, int(row), key)
            if self.log_relief is not None:
                curve = self.log_relief[int(row)]
                relief = relief + weight * self._at_equal_rows_per_expert(curve, int(row), key)
        roofline = roofline_s(GroupedGemm(self.tokens, **key._asdict()), accelerator)
        ratio = np.log(np.exp(beyond_chain) + self.chain_s(key.dtype, key.n_experts, accelerator) / roofline)
        far = np.sqrt(squared[nearest[0]]) > FAR
        beyond = tokens > self.tokens[-1]
        origin = np.where(far | beyond, ROOFLINE, INTERPOLATED)
        return ratio, None if self.log_relief is None else relief, origin

    def chain_s(self, dtype: str, n_experts: int, accelerator: Accelerator) -> float:
        """Return the seconds of the small kernels around the products of a layer with `n_experts` experts."""
        known = (dtype, accelerator.name)
        if known not in self._chains:
            self._chains[known] = self._fitted_chain(dtype, accelerator)
        constant, per_expert = self._chains[known]
        return constant + per_expert * n_experts

    def _fitted_chain(self, dtype: str, accelerator: Accelerator) -> tuple[float, float]:
        """Return (seconds, seconds for each expert) of the chain in rows of few tokens; 0 where there are none."""
        pooled = [d for d in SHARE_CHAIN.get(dtype, (dtype,)) if any(k.dtype == d for k in self.keys)]
        terms, seconds = [], []
        for row, key in enumerate(self.keys):
            if key.dtype not in pooled:
                continue
            nodes, ratio = self._nodes(row)
            few = nodes[nodes <= CHAIN_TOKENS]
            least = roofline_s(GroupedGemm(few, **key._asdict()), accelerator)
            stream = np.outer(least, [key.dtype == d for d in pooled])
            terms.append(np.column_stack([np.ones(len(few)), np.full(len(few), float(key.n_experts)), stream]))
            seconds.append(np.exp(ratio[: len(few)]) * least)
        if not terms or not len(times := np.concatenate(seconds)):
            return 0.0, 0.0
        columns = np.concatenate(terms)
        if np.ptp(columns[:, 1]) == 0.0:  # one number of experts does not say how the time depends on it
            columns[:, 1] = 0.0
        constant, per_expert = nonnegative_of_few(columns, times)[:2]
        return float(constant), float(per_expert)

    def _beyond_chain(self, row: int, accelerator: Accelerator) -> FloatArray:
        """Return log((seconds - chain) / roofline) of a curve, NaN where it was not measured. Shape (tokens,)."""
        key, (nodes, ratio) = self.keys[row], self._nodes(row)
        least = roofline_s(GroupedGemm(nodes, **key._asdict()), accelerator)
        seconds = np.exp(ratio) * least
        chain = min(self.chain_s(key.dtype, key.n_experts, accelerator), MOST_CHAIN * float(seconds.min()))
        curve = np.full_like(self.tokens, np.nan)
        curve[~np.isnan(self.log_ratio[row])] = np.log((seconds - chain) / least)
        return curve

    def _rows_of(self, candidates: list[Key]) -> tuple[npt.NDArray[np.int64], Key]:
        """Return the curves of the first candidate dtype that was measured, or of any dtype where none was."""
        for key in candidates:
            rows = [i for i, k in enumerate(self.keys) if k.dtype == key.dtype]
            if rows:
                return np.array(rows), key
        return np.arange(len(self.keys)), candidates[0]

    def _at_equal_rows_per_expert(self, curve: FloatArray, row: int, key: Key) -> FloatArray:
        theirs = self.keys[row]
        scale = (key.experts_per_token / key.n_experts) / (theirs.experts_per_token / theirs.n_experts)
        known = ~np.isnan(self.log_ratio[row])
        values: FloatArray = np.nan_to_num(curve[known])
        return np.interp(np.log(np.maximum(self.tokens * scale, 1e-9)), np.log(self.tokens[known]), values)

    def joined(self, lender: GroupedGemmModel) -> GroupedGemmModel:
        """Return the model with the curves of dtypes that it lacks from a model of the same accelerator."""
        own = {k.dtype for k in self.keys}
        return self._merged(range(len(self.keys)), lender, [i for i, k in enumerate(lender.keys) if k.dtype not in own])

    def with_cut_experts(self, lender: GroupedGemmModel, dtype: str) -> GroupedGemmModel:
        """Return the model with a lender's curves of the experts of a dtype that are cut, not distributed, over ranks.

        The lender is a model of the same accelerator. Without such curves it lends nothing.
        """
        lent = [i for i, k in enumerate(lender.keys) if k.dtype == dtype and k.expert_ranks == 1]
        if not lent:
            return self
        kept = [i for i, k in enumerate(self.keys) if k.dtype != dtype or k.expert_ranks > 1]
        return self._merged(kept, lender, lent)

    def _merged(self, kept: Sequence[int], lender: GroupedGemmModel, lent: Sequence[int]) -> GroupedGemmModel:
        """Return a model of the curves in the rows `kept` and of those in the rows `lent` of the lender."""
        tokens = np.union1d(self.tokens, lender.tokens)
        curves, relief = np.full((2, len(kept) + len(lent), len(tokens)), np.nan)
        for first, model, rows in ((0, self, kept), (len(kept), lender, lent)):
            if not len(rows):
                continue
            here = np.ix_(np.arange(first, first + len(rows)), np.searchsorted(tokens, model.tokens))
            curves[here] = model.log_ratio[list(rows)]
            relief[here] = np.nan if model.log_relief is None else model.log_relief[list(rows)]
        keys = [*(self.keys[i] for i in kept), *(lender.keys[i] for i in lent)]
        return replace(self, keys=keys, tokens=tokens, log_ratio=curves, log_relief=relief)

    def to_parts(self) -> Parts:
        """Return readable facts and arrays that `from_parts` reads."""
        facts = {
            "dtypes": sorted({k.dtype for k in self.keys}),
            "values": "log(seconds / roofline) by key and tokens",
            "key_columns": ["dtype index", *Key._fields[1:]],
            **self.meta,
        }
        index = {d: i for i, d in enumerate(facts["dtypes"])}
        keys = np.array([[index[k.dtype], *k[1:]] for k in self.keys], dtype=np.int32)
        relief = {} if self.log_relief is None else {"moe_log_relief": _stored(self.log_relief)}
        return facts, {
            "moe_keys": keys,
            "moe_tokens": self.tokens.astype(np.float64),
            "moe_log_ratio": self.log_ratio.astype(np.float32),
            **relief,
        }

    @classmethod
    def from_parts(cls, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> GroupedGemmModel:
        """Return the model in facts and arrays."""
        dtypes = list(facts["dtypes"])
        keys = [Key(dtypes[int(r[0])], *(int(v) for v in r[1:])) for r in arrays["moe_keys"]]
        meta = {k: v for k, v in facts.items() if k not in ("dtypes", "values", "key_columns")}
        tokens = np.asarray(arrays["moe_tokens"], dtype=np.float64)
        relief = arrays.get("moe_log_relief")
        ratio = np.asarray(arrays["moe_log_ratio"], dtype=np.float64)
        return cls(keys, tokens, ratio, meta, None if relief is None else _restored(relief))

    @classmethod
    def fit(cls, rows: pd.DataFrame, accelerator: Accelerator) -> GroupedGemmModel:
        """Fit one curve per key; of several rows for one point the first counts."""
        first = rows.drop_duplicates([*Key._fields, "tokens"])
        tokens = np.sort(first.tokens.unique().astype(np.float64))
        keys, curves, reliefs = [], [], []
        has_even = "even_seconds" in first
        for (dtype, *sizes), part in groups_by(first, *Key._fields):
            key = Key(str(dtype), *map(int, sizes))
            curve, relief = np.full((2, len(tokens)), np.nan)
            at = np.searchsorted(tokens, part.tokens.to_numpy(dtype=np.float64))
            order = np.argsort(at)
            op = GroupedGemm(tokens[at[order]], **key._asdict())
            timed_s = part.seconds.to_numpy(dtype=np.float64)[order]
            cold_s = _cold_s(op, timed_s, accelerator)
            log_s = isotonic(np.log(cold_s))
            curve[at[order]] = log_s - np.log(roofline_s(op, accelerator))
            keys.append(key)
            curves.append(curve)
            if has_even:
                even_s = part.even_seconds.to_numpy(dtype=np.float64)[order]
                even = isotonic(np.log(even_s * cold_s / timed_s))
                relief[at[order]] = even - log_s
            reliefs.append(relief)
        distribution = sorted(rows.distribution.unique()) if "distribution" in rows else []
        meta: dict[str, Any] = {"distribution": distribution}
        if "chooses_experts" in rows and bool(rows.chooses_experts.all()):
            meta["chooses_experts"] = True
        return cls(keys, tokens, np.array(curves), meta, np.array(reliefs) if has_even else None)


def _cold_s(op: GroupedGemm, seconds: FloatArray, accelerator: Accelerator) -> FloatArray:
    """Return the times of an ascending curve, shape (n,), where no weights are read from the cache.

    A collector launches one kernel repeatedly, so the experts of few tokens stay in the second-level cache (96 MB on
    L40S); in a step other layers pass through it. Weights of at least COLD times the cache were read from memory: no
    time is a smaller multiple of the roofline than the shortest of those that memory bounds. Where no such weights were
    timed, the times stay.
    """
    moved, least = bytes_moved(op, accelerator), roofline_s(op, accelerator)
    from_memory = (moved >= COLD * accelerator.cache_bytes) & (memory_s(op, accelerator) >= least * (1 - 1e-9))
    if not from_memory.any():
        return seconds
    return np.maximum(seconds, np.min((seconds / least)[from_memory]) * least)


def _stored(relief: FloatArray) -> npt.NDArray[np.int8]:
    """Return a log relief in steps of RELIEF_STEP, which is below the noise of a row; NOT_TIMED where it is NaN."""
    steps = np.clip(np.round(relief / RELIEF_STEP), NOT_TIMED + 1, -NOT_TIMED - 1)
    return np.where(np.isnan(relief), NOT_TIMED, steps).astype(np.int8)


def _restored(steps: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return the log relief of stored steps, the inverse of `_stored`."""
    return np.where(steps == NOT_TIMED, np.nan, steps * RELIEF_STEP)


def _relieved(grid: FloatArray, seconds: FloatArray, relief: FloatArray, op: GroupedGemm) -> FloatArray:
    """Return the seconds under the router of `op`, ascending, from those of the tables' loads and the log relief.

    In logarithms, the excess over even loads is in proportion to the imbalance, and what a balanced router takes longer
    because it reaches more experts is in proportion to the experts that the router of `op` reaches beyond the usual. A
    router with more skew than the usual one reads fewer experts. Its loads are those of the tables, or of the usual
    router where these are more uneven: more uneven ones were not timed.
    """
    sizes, skew = (op.n_experts, op.experts_per_token, op.expert_ranks), float(op.skew or 0.0)
    uneven, unread_s = imbalance_share(grid, sizes, min(skew, DEFAULT_SKEW)), np.zeros_like(grid)
    if skew > DEFAULT_SKEW:
        uneven, unread_s = np.maximum(uneven, 1.0), _unread_s(grid, seconds, op)
    share = np.where(relief > 0.0, reach_share(grid, sizes[:2], skew), 1.0 - uneven)
    return np.maximum.accumulate(seconds * np.exp(share * relief) - unread_s)


def _unread_s(grid: FloatArray, seconds: FloatArray, op: GroupedGemm) -> FloatArray:
    """Return the seconds that a router with more skew than the usual one saves, because it reads fewer experts.

    Up to ONE_TILE_ROWS rows per expert, a curve over tokens is one over the experts that they reach under the usual
    router. The result, in the shape of the grid, is the difference between the experts of both routers on that curve.
    """
    sizes = (op.n_experts, op.experts_per_token, op.expert_ranks)
    usual, own = reached_by_both(grid, sizes, float(op.skew or 0.0))
    few = grid * op.experts_per_token <= ONE_TILE_ROWS * op.n_experts
    streamed = np.interp([usual, own], usual[few], seconds[few])  # beyond the few tokens, their last value
    return np.asarray(streamed[0] - streamed[1], dtype=np.float64)


def _between(
    nodes: FloatArray, ratio: FloatArray, op: GroupedGemm, accelerator: Accelerator
) -> tuple[FloatArray, FloatArray]:
    """Return (tokens, seconds), both ascending: the nodes, and powers of two between and before them.

    The added points follow the shape of the roofline, which knows how many experts receive tokens, and stay within the
    nodes on both sides.
    """
    powers = 2.0 ** np.arange(0.0, np.ceil(np.log2(nodes[-1])))
    grid = np.unique(np.concatenate([nodes, powers]))
    shaped = np.exp(np.interp(np.log(grid), np.log(nodes), ratio))
    seconds = shaped * roofline_s(replace(op, tokens=grid), accelerator)
    known = np.maximum.accumulate(seconds[np.searchsorted(grid, nodes)])
    right = np.clip(np.searchsorted(nodes, grid), 0, len(nodes) - 1)
    low = np.where(grid < nodes[0], 0.0, known[np.clip(np.searchsorted(nodes, grid, side="right") - 1, 0, None)])
    return grid, np.maximum.accumulate(np.clip(seconds, low, known[right]))


def _along(nodes: FloatArray, seconds: FloatArray, tokens: FloatArray) -> FloatArray:
    """Interpolate log time linearly over log tokens.

    Past the last node, time itself is extrapolated linearly from the last two nodes.
    """
    x = np.maximum(tokens, 1.0)
    inside = np.exp(np.interp(np.log(x), np.log(nodes), np.log(seconds)))
    slope = (seconds[-1] - seconds[-2]) / (nodes[-1] - nodes[-2]) if len(nodes) > 1 else seconds[-1] / nodes[-1]
    return np.asarray(inside + np.maximum(x - nodes[-1], 0.0) * slope, dtype=np.float64)


def balanced_experts(
    op: GroupedGemm, price: Callable[[Gemm], tuple[FloatArray, FloatArray]], accelerator: Accelerator
) -> tuple[FloatArray, FloatArray]:
    """Return (seconds, origin) of experts with equal loads on one rank, in the shape of the tokens.

    With copies of its popular experts (EPLB: DeepSeek's expert-parallel load balancer), each of the experts and copies
    on a rank has the same number of rows. Tokens that are sent to the ranks of their experts arrive sorted by expert,
    and one kernel computes the products of all experts (DeepGEMM's grouped products in vLLM and SGLang). Its tiles are
    full, so it takes as long as one dense product of as many rows, or as reading the weights of the experts that
    receive tokens. The curves of this module cannot state this: their rows have the skew of routing without copies,
    which at 32 ranks makes the busiest rank several times slower than the others.

    Args:
        op: The experts; `n_experts` includes the copies.
        price: Returns (seconds, origin) of a dense product.
        accelerator: The accelerator of the rank.
    """
    (tokens,) = broadcast(op.tokens)
    rows = np.maximum(tokens * op.experts_per_token / op.expert_ranks, 1.0)
    gate_and_up = Gemm(rows, 2 * op.intermediate_size, op.hidden_size, op.dtype)
    down = Gemm(rows, op.hidden_size, op.intermediate_size, op.dtype)
    parts = [price(product) for product in (gate_and_up, down)]
    seconds, origin = sum(part[0] for part in parts), np.maximum(parts[0][1], parts[1][1])
    least = memory_s(op, accelerator)
    known = np.where(origin > INTERPOLATED, ROOFLINE, INTERPOLATED)
    return np.maximum(seconds, least), np.where(least > seconds, ROOFLINE, known)
