"""Memory-bound kernels: one monotone curve of seconds against bytes for each kind.

A curve bends where the bytes outgrow the second-level cache, so bytes over bandwidth alone is not enough. A kind
without rows is derived from the measured `quantize` curve of the same accelerator: its floor times the kind's floor
ratio, plus its time above the floor times the kind's streaming ratio. The ratios below are those of RTX PRO 6000, the
one accelerator where both were measured (LLMServingSim layers under vLLM 0.19 against aiconfigurator's
static_scaled_fp8_quant, kernels moving 16 KB to 1 MB for the floor, 4 to 64 MB for streaming). Costs are per kernel:
the caller knows which kernels a compiled engine fuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from calibration.families.base import FittedOn, Parts
from calibration.families.curve import MonotoneCurve, pack, unpack
from calibration.operators.cost import INTERPOLATED, ROOFLINE, broadcast
from calibration.operators.operators import BYTES_PER_SCORE, SORT_BYTES_PER_LOGIT, Elementwise
from catalogs.arrays import FloatArray
from catalogs.errors import InputError
from catalogs.hardware.specs import Accelerator

if TYPE_CHECKING:
    import pandas as pd


REFERENCE = "quantize"

BIN_PER_DOUBLING = 2  # rows are pooled by half doublings of bytes

#: Ratios (floor, streaming) to `quantize` by kind. Sampling is a dozen kernels over the logits.
RATIO_TO_QUANTIZE: dict[str, tuple[float, float]] = {
    "quantize": (1.0, 1.0),
    "norm": (1.2, 3.0),
    "activation": (1.3, 1.3),
    "rotary": (1.3, 2.2),
    "embedding": (2.0, 1.2),
    "sampling": (9.0, 0.35),
}

#: Kinds that public tables do not time, and the measured kind that each resembles: a KV write scatters rows, gating a
#: router reduces them, and taking the largest logit is one of the passes of sampling.
ALIASES = {"kv_write": "rotary", "routing": "norm", "greedy": "sampling"}

#: Sorting all logits, which no table times. vLLM pull requests 32558, 33538, 40376 and 51507 (H200 where they name it)
#: time that path at 0.10 ms for one row of 32,768 words, 0.35 for 48; of 131,072 words 1.00 for 64, 2.27 for 128, 6.15
#: for 512: 12 to 18 us each. The constants of sorting are read from these times.
SORT = "sort"

#: Kernels of sorting, each with the floor of `quantize`, which explain the time of one row above.
SORT_KERNELS = 50

#: Share of memory bandwidth that the bytes of sorting reach below `SEGMENTED_ROWS` rows.
SORT_BANDWIDTH_SHARE = 0.38

#: From this number of rows on, PyTorch sorts each row in one block, and no longer all rows over the whole device
#: (ATen, native/cuda/Sort.cu: segmented_sort_pairs from 128 segments on). A block reads and scatters its row alone, so
#: multiprocessors limit the rate and not the memory: 512 rows on H200 move half of its bandwidth.
SEGMENTED_ROWS = 128

#: Seconds for each word of a row that one block takes, whatever the number of rows. With `SEGMENTED_S_PER_WORD` it is
#: the line through the times of 128 and 512 rows above, less the floors of the kernels. The same form holds for the
#: kernel alone on an older device (PyTorch issue 63456, 120,000 words: 1.5 ms for one row, 1.8 for 16, 12 for 256).
SEGMENT_S_PER_WORD = 6.9e-9

#: Further seconds for each word of every row, on a device with `SEGMENTED_SMS` multiprocessors.
SEGMENTED_S_PER_WORD = 7.7e-11

#: Multiprocessors of the device of these times: an H200.
SEGMENTED_SMS = 132

#: Selecting the entries that each token attends to (sparse attention). Public tables of SGLang time its kernel,
#: fast_topk_transform_fused, with scores of one distribution; the constants of selecting are read from them.
SELECT = "select"

#: Seconds of a row beside many others. With `SELECT_SCORE_S`, times are, in the median over the rows of GLM-5, 5 and
#: 10 % too long on B200 and GB200 and 11 and 17 % too short on H200 and H100.
SELECT_ROW_S = 30e-9

#: Seconds of each score of a row beside many others.
SELECT_SCORE_S = 3.5e-12

#: Seconds of a row that one block takes however few rows there are: with `SELECT_BLOCK_SCORE_S`, the line through the
#: rows of 1 to 64 tokens of the same tables, which differ by 5 % between the four accelerators.
SELECT_BLOCK_S = 9.5e-6

#: Seconds of each score of such a row.
SELECT_BLOCK_SCORE_S = 0.39e-9

#: Scoring all cached entries for tokens that decode: a kernel that streams the keys of the indexer.
SCORE = "score"

# bytes of these kinds count many passes over the same logits, most of them in the cache
PASSES_REPEAT = {"sampling", "greedy"}

#: Share of the second-level cache beyond which streaming slows down: 96 of 128 MB on RTX PRO 6000.
CACHE_SHARE = 0.75

#: Share of the peak bandwidth that streaming reaches beyond the cache: quantize reaches 0.90 on H100, 0.91 on RTX PRO
#: 6000.
MEMORY_EFFICIENCY = 0.9


@dataclass(frozen=True, slots=True)
class ElementwiseModel:
    """Curves of seconds against bytes by kind."""

    curves: dict[str, MonotoneCurve]
    fitted_on: FittedOn
    family: str = field(default="elementwise", init=False)

    def cost(self, op: Elementwise, accelerator: Accelerator) -> tuple[FloatArray, FloatArray]:
        """Return (seconds, origin) in the shape of the tokens.

        Raises:
            InputError: The kind is unknown.
        """
        tokens, per_token = broadcast(op.tokens, op.bytes_per_token)
        size = tokens * per_token
        if op.kind == SORT and SORT not in self.curves:
            launched = SORT_KERNELS * self._floor(REFERENCE if REFERENCE in self.curves else min(self.curves))
            seconds = launched + _sorting_s(tokens, per_token / SORT_BYTES_PER_LOGIT, accelerator)
            return seconds, np.full_like(seconds, ROOFLINE)
        if op.kind == SELECT:
            seconds = tokens * SELECT_ROW_S + size / BYTES_PER_SCORE * SELECT_SCORE_S
            seconds = np.maximum(seconds, size / accelerator.memory_bandwidth_bytes_per_s)
            one_block = SELECT_BLOCK_S + per_token / BYTES_PER_SCORE * SELECT_BLOCK_SCORE_S
            return np.maximum(seconds, one_block), np.full_like(seconds, ROOFLINE)
        if op.kind == SCORE:
            rate = MEMORY_EFFICIENCY * accelerator.memory_bandwidth_bytes_per_s
            seconds = self._floor(REFERENCE if REFERENCE in self.curves else min(self.curves)) + size / rate
            return seconds, np.full_like(seconds, ROOFLINE)
        seconds, origin, floor = self._here(op.kind, size)
        if self.fitted_on.is_same(accelerator):
            return seconds, origin
        moved = floor + (seconds - floor) * self.fitted_on.bandwidth_ratio(accelerator)
        return moved, np.full_like(moved, ROOFLINE)

    def _here(self, kind: str, size: FloatArray) -> tuple[FloatArray, FloatArray, float]:
        """Return (seconds, origin, floor) on the accelerator of the fit; pooled nodes count as interpolated."""
        kind = kind if kind in self.curves else ALIASES.get(kind, kind)
        if kind in self.curves:
            seconds, origin = self._at(kind, size)
            return seconds, np.maximum(origin, INTERPOLATED), self._floor(kind)
        if kind not in RATIO_TO_QUANTIZE:
            raise InputError("unknown kind of elementwise kernel", kind, ", ".join([*RATIO_TO_QUANTIZE, *ALIASES]))
        return self._derived(kind, size)

    def _derived(self, kind: str, size: FloatArray) -> tuple[FloatArray, FloatArray, float]:
        """Return (seconds, origin, floor) of a kind without rows, derived from quantize or else from the first curve.

        Slower streaming is limited to the rate of device memory.
        """
        source = REFERENCE if REFERENCE in self.curves else min(self.curves, key=lambda k: (k in ALIASES, k))
        to, by = RATIO_TO_QUANTIZE[kind], RATIO_TO_QUANTIZE[ALIASES.get(source, source)]
        seconds, _ = self._at(source, size)
        base = self._floor(source)
        streaming = seconds - base
        slower = np.minimum(to[1] / by[1] * streaming, np.maximum(streaming, size / self._memory_rate()))
        floor = to[0] / by[0] * base
        return floor + slower, np.full_like(seconds, ROOFLINE), floor

    def _floor(self, kind: str) -> float:
        return float(self.curves[kind].seconds[0])

    def _at(self, kind: str, size: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return (seconds, origin) of a curve.

        Past its last node the bytes exceed the cache and move at the rate of device memory.
        """
        curve = self.curves[kind]
        seconds, origin = curve.at(size)
        if kind in PASSES_REPEAT:
            return seconds, origin
        full = max(float(curve.size[-1]), CACHE_SHARE * self.fitted_on.accelerator.cache_bytes)
        held, _ = curve.at(np.minimum(size, full))
        return np.maximum(seconds, held + np.maximum(size - full, 0.0) / self._memory_rate()), origin

    def _memory_rate(self) -> float:
        return MEMORY_EFFICIENCY * self.fitted_on.accelerator.memory_bandwidth_bytes_per_s

    def to_parts(self) -> Parts:
        """Return readable facts and arrays that `from_parts` reads."""
        kinds = sorted(self.curves)
        facts = {"kinds": kinds, "fitted_on": self.fitted_on.to_facts(), "axes": "bytes, seconds"}
        return facts, pack(self.family, [self.curves[k] for k in kinds])

    @classmethod
    def from_parts(cls, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> ElementwiseModel:
        """Return the model in facts and arrays."""
        named = dict(zip(map(str, facts["kinds"]), unpack("elementwise", arrays), strict=True))
        return cls(named, FittedOn.from_facts(facts["fitted_on"]))

    @classmethod
    def fit(cls, rows: pd.DataFrame, accelerator: Accelerator) -> ElementwiseModel:
        """Fit one curve per kind."""
        curves = {str(kind): _pooled(part) for kind, part in rows.groupby("kind")}
        return cls(curves, FittedOn.of(accelerator))


def _sorting_s(rows: FloatArray, words: FloatArray, accelerator: Accelerator) -> FloatArray:
    """Return the seconds of sorting `rows` rows of `words` words each, without the floors of the kernels.

    Where the multiprocessors are not known, the memory limits any number of rows. Shape of all: (n,) or ().
    """
    whole_s = rows * words * SORT_BYTES_PER_LOGIT / (SORT_BANDWIDTH_SHARE * accelerator.memory_bandwidth_bytes_per_s)
    if not accelerator.multiprocessors:
        return whole_s
    each = rows * (SEGMENTED_S_PER_WORD * SEGMENTED_SMS / accelerator.multiprocessors)
    return np.where(rows < SEGMENTED_ROWS, whole_s, words * (SEGMENT_S_PER_WORD + each))


def _pooled(rows: pd.DataFrame) -> MonotoneCurve:
    size = (rows.tokens * rows.bytes_per_token).to_numpy(dtype=np.float64)
    label = np.round(np.log2(size) * BIN_PER_DOUBLING)
    both = np.log(np.stack([size, rows.seconds.to_numpy(dtype=np.float64)]))
    # Both axes take geometric means, because a bin spans a factor of 1.4.
    return MonotoneCurve.fit(*np.array([np.exp([np.mean(v[label == b]) for v in both]) for b in np.unique(label)]).T)
