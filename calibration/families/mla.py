"""MLA attention blocks: seconds over a grid of heads per rank, sequences and length, as in the public tables.

The tables hold whole blocks of one layer (projections, absorbed products, attention) of the DeepSeek-V3 shape. Between
nodes time is linear in length, heads and sequences. A corner that ran out of memory follows the growth of the next
smaller batch. Prefill rows start from an empty cache: a chunk with earlier context adds its extra query-key pairs at
the marginal cost per pair of the longest measured prompts, and the up-projection of the context at 60 % of peak
arithmetic. Other MLA shapes (GLM, DeepSeek-V2) and other accelerators scale by the roofline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from calibration.families.base import FittedOn, Parts
from calibration.families.fixed_tiles import FLASHINFER, TABLED
from calibration.families.mla_grid import MlaGrid
from calibration.families.uncalibrated import UncalibratedModel
from calibration.operators.cost import INTERPOLATED, ROOFLINE, broadcast
from calibration.operators.operators import MlaModule
from calibration.operators.roofline import roofline_s
from catalogs.arrays import FloatArray
from catalogs.errors import InputError
from catalogs.hardware.specs import Accelerator

if TYPE_CHECKING:
    import pandas as pd


#: Share of the arithmetic peak that the up-projection of a prompt's earlier context reaches. A judgement: it is one
#: large product, and the tables have no prompts with earlier context.
UP_PROJECTION_EFFICIENCY = 0.6

#: Highest share of the arithmetic peak that is taken for attention over earlier context. A judgement against noise,
#: where the part that is linear in length would make the rest appear faster.
ATTENTION_EFFICIENCY = 0.8

#: The shape that the tables measured: DeepSeek-V3 and R1, Kimi-K2.
REFERENCE_SHAPE = {
    "hidden_size": 7168,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "nope_head_dim": 128,
    "rope_head_dim": 64,
    "v_head_dim": 128,
}

#: Measured projection dtypes that stand in for a dtype, best first; int4 checkpoints keep the attention block in 16
#: bit. Where none of them was measured, any measured dtype stands in, scaled by the roofline like another shape.
STANDS_FOR: dict[str, tuple[str, ...]] = {
    "fp8": (TABLED, "fp8"),
    TABLED: (TABLED, "fp8"),
    FLASHINFER: (FLASHINFER, TABLED, "fp8"),
    "fp4": ("fp4", TABLED),
    "int4": ("bf16",),
    "int8": (TABLED, "bf16"),
    "fp16": ("bf16",),
    "fp32": ("bf16",),
}

GridKey = tuple[str, str, str]  # stage, dtype, kv_dtype


@dataclass(frozen=True, slots=True)
class MlaModel:
    """Grids of seconds by (stage, dtype, kv_dtype)."""

    grids: dict[GridKey, MlaGrid]
    fitted_on: FittedOn
    family: str = field(default="mla", init=False)

    def cost(self, op: MlaModule, accelerator: Accelerator) -> tuple[FloatArray, FloatArray]:
        """Return (seconds, origin) in the broadcast shape of sequences, tokens, pairs and context_tokens."""
        sequences, tokens, pairs, context = broadcast(op.sequences, op.tokens, op.pairs, op.context_tokens)
        found = self._grid(op)
        if found is None:
            return UncalibratedModel(self.family).cost(op, accelerator)
        grid, measured = found
        length = (context if op.stage == "decode" else tokens) / np.maximum(sequences, 1e-9)
        seconds, origin = grid.at(float(op.n_heads), sequences, length)
        if op.stage == "prefill":
            extra_s = self._earlier_context_s(op, grid, pairs - tokens * length / 2.0, context)
            with_context = np.where(extra_s > 0.1 * seconds, ROOFLINE, np.maximum(origin, INTERPOLATED))
            origin = np.where(extra_s > 0.0, with_context, origin)
            seconds = seconds + extra_s
        if op.dtype == FLASHINFER:  # its rows are composed with a law of the products
            origin = np.maximum(origin, INTERPOLATED)
        return self._scaled(op, measured, accelerator, seconds, origin)

    def _grid(self, op: MlaModule) -> tuple[MlaGrid, MlaModule] | None:
        """Return the grid to use, and the operator that it measured (its dtypes, the reference shape).

        None if nothing of the operator's stage was measured, as of prompts where blocks are composed from their parts.
        """
        near = STANDS_FOR.get(op.dtype, (op.dtype,))
        for dtype in (*near, *(d for d in ("bf16", "fp8_block", "fp4") if d not in near)):
            for kv_dtype in (op.kv_dtype, "bf16", "fp8"):
                if (op.stage, dtype, kv_dtype) in self.grids:
                    blocks = dtype == TABLED and op.dtype in ("fp8", TABLED, FLASHINFER)
                    same = op.dtype if blocks else dtype
                    measured = replace(op, dtype=same, kv_dtype=kv_dtype, **dict[str, Any](REFERENCE_SHAPE))
                    return self.grids[op.stage, dtype, kv_dtype], measured
        return None

    def _scaled(
        self, op: MlaModule, measured: MlaModule, accelerator: Accelerator, seconds: FloatArray, origin: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        if measured == op and self.fitted_on.is_same(accelerator):
            return seconds, origin
        here = self.fitted_on.roofline_ratio(measured, accelerator)
        ratio = here * roofline_s(op, accelerator) / np.maximum(roofline_s(measured, accelerator), 1e-30)
        return seconds * ratio, np.full_like(origin, ROOFLINE)

    def _earlier_context_s(
        self, op: MlaModule, grid: MlaGrid, extra_pairs: FloatArray, context: FloatArray
    ) -> FloatArray:
        peak = self.fitted_on.accelerator.flops_for("bf16")
        per_token = 2.0 * op.kv_lora_rank * op.n_heads * (op.nope_head_dim + op.v_head_dim)
        per_pair = 2.0 * op.n_heads * (op.nope_head_dim + op.rope_head_dim + op.v_head_dim)
        pair_s = max(grid.pair_s(float(op.n_heads)), per_pair / (ATTENTION_EFFICIENCY * peak))
        return np.maximum(extra_pairs, 0.0) * pair_s + context * per_token / (UP_PROJECTION_EFFICIENCY * peak)

    def joined(self, lender: MlaModel) -> MlaModel:
        """Return the model with the stages and dtypes that it lacks from a model of the same accelerator."""
        return MlaModel({**lender.grids, **self.grids}, self.fitted_on)

    def to_parts(self) -> Parts:
        """Return readable facts and arrays that `from_parts` reads."""
        keys = sorted(self.grids)
        facts = {
            "grids": [{"stage": s, "dtype": d, "kv_dtype": k} for s, d, k in keys],
            "axes": "heads, sequences, tokens per sequence (decode: cached, prefill: new) -> seconds",
            "shape": REFERENCE_SHAPE,
            "fitted_on": self.fitted_on.to_facts(),
        }
        stored = [self.grids[key].to_arrays() for key in keys]
        return facts, {f"mla_{i}_{n}": a for i, arrays in enumerate(stored) for n, a in arrays.items()}

    @classmethod
    def from_parts(cls, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> MlaModel:
        """Return the model in facts and arrays."""
        grids = {
            (str(g["stage"]), str(g["dtype"]), str(g["kv_dtype"])): MlaGrid.from_arrays(arrays, f"mla_{i}_")
            for i, g in enumerate(facts["grids"])
        }
        return cls(grids, FittedOn.from_facts(facts["fitted_on"]))

    @classmethod
    def fit(cls, rows: pd.DataFrame, accelerator: Accelerator) -> MlaModel:
        """Fit one grid per (stage, dtype, kv_dtype).

        Raises:
            InputError: Rows are not of the reference shape.
        """
        odd = [c for c, v in REFERENCE_SHAPE.items() if bool((rows[c] != v).any())]
        if odd:
            raise InputError("mla rows must be of the DeepSeek-V3 shape", odd[0], str(REFERENCE_SHAPE[odd[0]]))
        grids = {}
        for (stage, dtype, kv_dtype), part in rows.groupby(["stage", "dtype", "kv_dtype"]):
            total = part.context_tokens if stage == "decode" else part.tokens
            points = (part.n_heads, part.sequences, total / part.sequences, part.seconds)
            if part.n_heads.nunique() > 1 and part.sequences.nunique() > 1:  # some kernels ran with one head count only
                grids[str(stage), str(dtype), str(kv_dtype)] = MlaGrid.fit(*(np.asarray(p, np.float64) for p in points))
        return cls(grids, FittedOn.of(accelerator))
