"""State updates of linear attention: utilisation of the roofline by the size of the states and the length of a prompt.

The step of a decode reads and writes every state once and is bound by memory, apart from small batches, which take the
least time that was measured. The chunked kernels of a prompt (flash-linear-attention, chunk_gated_delta_rule) are not:
the chunks of one sequence follow each other, so few heads and sequences leave most of the device idle, and their time
grows with the length of a prompt instead of its arithmetic. Both stages are therefore read from a grid, over the state
values that a rank updates (heads x sequences x head sizes) and the tokens of a sequence.

The public tables time gated delta rules. Other rules with a state, such as Mamba-2, take their utilisation. A stage
that a table lacks keeps the stated efficiency of `uncalibrated.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from calibration.families.base import FittedOn, Parts, operators
from calibration.families.grid import InterpolationGrid
from calibration.families.uncalibrated import UncalibratedModel
from calibration.operators.cost import broadcast
from calibration.operators.operators import LinearAttentionScan
from calibration.operators.roofline import roofline_s
from catalogs.arrays import FloatArray
from catalogs.hardware.specs import Accelerator

if TYPE_CHECKING:
    import pandas as pd


STAGES: Final = ("decode", "prefill")

#: Nodes of a grid for each doubling, so that sizes of 3 times a power of two have one of their own nearby.
NODES_PER_DOUBLING: Final = 2


@dataclass(frozen=True, slots=True)
class LinearAttentionModel:
    """Log-utilisation of the roofline by stage, over log state values and log tokens of a sequence.

    Attributes:
        grids: A grid for each measured stage.
        least_s: The least measured time of each measured stage, seconds.
        fitted_on: The measured accelerator.
    """

    grids: dict[str, InterpolationGrid]
    least_s: dict[str, float]
    fitted_on: FittedOn
    family: str = field(default="linear_attention", init=False)

    def cost(self, op: LinearAttentionScan, accelerator: Accelerator) -> tuple[FloatArray, FloatArray]:
        """Return (seconds, origin) in the broadcast shape of tokens and sequences."""
        grid = self.grids.get(op.stage)
        if grid is None:
            return UncalibratedModel(self.family).cost(op, accelerator)
        utilisation, origin = grid.at(_coordinates(op))
        seconds = roofline_s(op, accelerator) / np.exp(utilisation)
        return np.maximum(seconds, self.least_s[op.stage]), origin

    def to_parts(self) -> Parts:
        """Return readable facts and arrays that `from_parts` reads."""
        arrays: dict[str, npt.NDArray[Any]] = {}
        for stage, grid in self.grids.items():
            arrays |= grid.to_arrays(stage)
        return {"least_s": dict(self.least_s), "fitted_on": self.fitted_on.to_facts()}, arrays

    @classmethod
    def from_parts(cls, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> LinearAttentionModel:
        """Return the model in facts and arrays."""
        least_s = {str(stage): float(seconds) for stage, seconds in facts["least_s"].items()}
        grids = {stage: InterpolationGrid.from_arrays(stage, arrays) for stage in least_s}
        return cls(grids, least_s, FittedOn.from_facts(facts["fitted_on"]))

    @classmethod
    def fit(cls, rows: pd.DataFrame, accelerator: Accelerator) -> LinearAttentionModel:
        """Average the log-utilisation of rows at the nodes of a grid; a time never falls as a prompt gets longer."""
        grids: dict[str, InterpolationGrid] = {}
        least_s: dict[str, float] = {}
        for stage in STAGES:
            part = rows[rows.stage == stage].reset_index(drop=True)
            if len(part):
                grids[stage] = _grid(part, accelerator)
                least_s[stage] = float(part.seconds.min())
        return cls(grids, least_s, FittedOn.of(accelerator))


def _coordinates(op: LinearAttentionScan) -> tuple[FloatArray, FloatArray]:
    """Return (log state values, log tokens of a sequence), in the broadcast shape of tokens and sequences."""
    tokens, sequences = broadcast(op.tokens, op.sequences)
    states = sequences * float(op.n_heads * op.key_head_dim * op.value_head_dim)
    return np.log(np.maximum(states, 1.0)), np.log(np.maximum(tokens / np.maximum(sequences, 1.0), 1.0))


def _grid(rows: pd.DataFrame, accelerator: Accelerator) -> InterpolationGrid:
    points, values = np.zeros((len(rows), 2)), np.zeros(len(rows))
    for op, index in operators(LinearAttentionScan, rows):
        points[index] = np.stack(_coordinates(op), axis=-1)
        values[index] = np.log(roofline_s(op, accelerator) / rows.seconds.to_numpy(dtype=np.float64)[index])
    step = np.log(2.0) / NODES_PER_DOUBLING
    axes = tuple(np.unique(np.round(points[:, d] / step)) * step for d in range(points.shape[1]))
    return InterpolationGrid.from_points(axes, points, values).rising(1.0)
