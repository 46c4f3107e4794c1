"""How much power an accelerator draws while an operator runs, from how hard it uses arithmetic and memory.

    P = idle_w + (tdp_w - idle_w) * min(1, base + memory * u_m ** memory_exponent + compute * u_c ** compute_exponent)

u_c and u_m are achieved flops and bytes per second over the accelerator's peaks (0..1). The cap is the board's power
limit: large matrix products sit at it. Fractions transfer between accelerators by design, which is the only transfer
made: the same utilisation draws the same share of the range between idle and limit.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from catalogs.errors import InputError
from catalogs.hardware import Accelerator

if TYPE_CHECKING:
    import pandas as pd

FloatArray = npt.NDArray[np.float64]

#: Coefficient groups: matrix products (dense and grouped) and everything that streams attention state.
GROUP_OF_FAMILY = {
    "gemm": "gemm",
    "moe": "gemm",
    "mla": "attention",
    "prefill_attention": "attention",
    "decode_attention": "attention",
}


@dataclass(frozen=True, slots=True)
class PowerCurve:
    """Coefficients of the formula above, all non-negative, so power never falls as utilisation rises."""

    base: float
    memory: float
    memory_exponent: float
    compute: float
    compute_exponent: float

    def fraction(self, compute_fraction: FloatArray, memory_fraction: FloatArray) -> FloatArray:
        """Share of the range idle..limit, 0..1, broadcast over utilisations in 0..1."""
        u_c, u_m = np.clip(compute_fraction, 0.0, 1.0), np.clip(memory_fraction, 0.0, 1.0)
        raw = self.base + self.memory * u_m**self.memory_exponent + self.compute * u_c**self.compute_exponent
        return np.minimum(1.0, raw)


@dataclass(frozen=True, slots=True)
class PowerModel:
    """One curve per operator group; kernels without matrix units (norms, copies, collectives) use `other`."""

    curves: dict[str, PowerCurve]
    provenance: dict[str, Any] = field(default_factory=dict)

    def watts(
        self, family: str, compute_fraction: FloatArray, memory_fraction: FloatArray, accelerator: Accelerator
    ) -> FloatArray:
        """Mean power in watts of one accelerator while the operator runs (arrays broadcast)."""
        curve = self.curves[GROUP_OF_FAMILY.get(family, "other")]
        span_w = accelerator.tdp_w - accelerator.idle_w
        return accelerator.idle_w + span_w * curve.fraction(np.asarray(compute_fraction), np.asarray(memory_fraction))

    def to_json(self) -> dict[str, Any]:
        return {"curves": {g: asdict(c) for g, c in self.curves.items()}, "provenance": self.provenance}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> PowerModel:
        """Raises InputError where a group or coefficient is missing or negative."""
        try:
            curves = {g: PowerCurve(**{k: float(v) for k, v in c.items()}) for g, c in raw["curves"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise InputError("power model needs curves with five numbers each", str(e)) from None
        if missing := {"gemm", "attention", "other"} - curves.keys():
            raise InputError("power model lacks operator groups", ", ".join(sorted(missing)))
        if any(v < 0 for c in curves.values() for v in asdict(c).values()):
            raise InputError("power coefficients must not be negative")
        return cls(curves, dict(raw.get("provenance", {})))


def fit_power(rows: pd.DataFrame, min_seconds: float = 20e-6) -> tuple[PowerModel, pd.DataFrame]:
    """Fit one curve per group; returns the model and its held-out error table.

    rows: columns family, shape (held out as a whole), seconds, compute_fraction, memory_fraction, power_fraction
    (watts above idle over the range idle..limit). Kernels shorter than `min_seconds` are left out: a sampled mean over
    them is mostly the gaps between launches.
    """
    import pandas as pd

    kept = rows[(rows.seconds >= min_seconds) & rows.power_fraction.notna()].copy()
    kept["group"] = kept.family.map(GROUP_OF_FAMILY).fillna("other")
    curves: dict[str, PowerCurve] = {}
    errors = []
    for group, part in kept.groupby("group"):
        curves[str(group)] = _fit_curve(_binned(part))
        fold = pd.util.hash_pandas_object(part["shape"], index=False) % 5
        for k in range(5):
            curve = _fit_curve(_binned(part[fold != k]))
            test = _binned(part[fold == k])
            got = curve.fraction(test.compute_fraction.to_numpy(), test.memory_fraction.to_numpy())
            errors.append(pd.DataFrame({"group": group, "error": got / test.power_fraction.to_numpy() - 1}))
    # Streaming kernels without matrix units: the memory part of the dense curve, which is fitted on weight streaming.
    dense = curves["gemm"]
    curves["other"] = PowerCurve(dense.base, dense.memory, dense.memory_exponent, 0.0, 1.0)
    table = pd.concat(errors).groupby("group").error
    held_out = table.agg(
        n="size", median_abs=lambda e: e.abs().median(), p90_abs=lambda e: e.abs().quantile(0.9), bias="mean"
    )
    return PowerModel(curves), held_out.reset_index()


def _binned(rows: pd.DataFrame) -> pd.DataFrame:
    """Upper-quartile power by utilisation cell (steps of 0.05).

    A row is the mean of a short, unsynchronised sample that may include idle time but can never exceed what the kernel
    draws: the noise is one-sided (the same kernel is listed between 290 W and 650 W), so the upper quartile is nearer
    the truth than the median.
    """
    cells = rows.assign(
        u_c=(rows.compute_fraction * 20).round() / 20, u_m=(rows.memory_fraction * 20).round() / 20
    ).groupby(["u_c", "u_m"])
    out = cells[["compute_fraction", "memory_fraction"]].median()
    out["power_fraction"] = cells.power_fraction.quantile(0.75)
    out["n"] = cells.size()
    return out[out.n >= 5].reset_index(drop=True)


def _fit_curve(cells: pd.DataFrame) -> PowerCurve:
    from scipy.optimize import least_squares

    u_c, u_m = cells.compute_fraction.to_numpy(), cells.memory_fraction.to_numpy()
    want, weight = cells.power_fraction.to_numpy(), np.sqrt(np.minimum(cells.n.to_numpy(), 200))

    def residual(x: FloatArray) -> FloatArray:
        off: FloatArray = (PowerCurve(*x).fraction(u_c, u_m) - want) * weight
        return off

    bounds = ([0.02, 0.0, 0.5, 0.0, 0.3], [0.35, 2.0, 2.0, 4.0, 2.0])
    found = least_squares(residual, [0.25, 0.6, 1.0, 0.8, 0.6], bounds=bounds, loss="soft_l1", f_scale=0.5)
    return PowerCurve(*(round(float(v), 4) for v in found.x))
