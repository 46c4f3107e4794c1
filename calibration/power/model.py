"""How much power an accelerator draws while an operator runs, from its arithmetic and its memory traffic.

    P = idle_w + (tdp_w - idle_w) * (base + compute * u_c) + joules_per_byte * bytes_per_s

u_c is achieved flops over the accelerator's peak (0..1). `base` is what clocks, schedulers and caches of a busy device
take, `compute` what arithmetic adds at its peak: both as shares of the range between idle and limit, because a design's
limit follows its arithmetic. Bytes cost joules: HBM3 and HBM3e take much the same for a byte, so a device with less
bandwidth draws less where memory decides (a share of the limit overstates H100, fitted on H200, by a fifth).

This is the demand at full clocks, which may pass the board's limit. A board holds its limit over tens of milliseconds,
not over a kernel of microseconds, so what is capped is the mean of a step (`capped_w`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from calibration.operators.operators import Gemm, MlaModule, Operator
from catalogs.arrays import FloatArray
from catalogs.errors import InputError
from catalogs.hardware.specs import Accelerator

if TYPE_CHECKING:
    import pandas as pd


#: Groups with rows of their own. `other` (norms, copies, sampling, scans: no matrix units) has rows of streaming alone:
#: what runs the device costs as with products. Ranks of a `collective` mostly wait for each other, with a few dozen
#: blocks on the device; no rows.
FITTED: Final = (
    "gemm",
    "gemm_fp8_block",
    "moe",
    "decode_attention",
    "prefill_attention",
    "mla_decode",
    "mla_prefill",
)

GROUPS: Final = (*FITTED, "other", "collective")

#: Where boards of 700 W settle: large products read 691 W for as long as one looks.
LIMIT_SHARE: Final = 691 / 700

#: Most that a kernel asks for at full clocks, over the limit. The H100 tables time bursts, the H200 tables of the same
#: chip a second at its limit: products of 1,024 rows and more run 1.09 to 1.21 times slower there; power goes with
#: clock x voltage squared, about clock ** 2.5 above idle.
MOST_DEMAND: Final = 1.4

#: Share of the range that a waiting collective takes: half way between a host gap's and a kernel's.
COLLECTIVE_BASE: Final = 0.22


def group_of(op: Operator) -> str:
    """The group of coefficients an operator draws by."""
    if isinstance(op, MlaModule):
        return f"mla_{op.stage}"
    if isinstance(op, Gemm) and op.dtype == "fp8_block":
        return "gemm_fp8_block"
    return op.family if op.family in GROUPS else "other"


@dataclass(frozen=True, slots=True)
class PowerCurve:
    """Coefficients of the formula above, all non-negative, so power never falls as utilisation rises."""

    base: float
    joules_per_byte: float
    compute: float

    def watts(self, compute_fraction: FloatArray, bytes_per_s: FloatArray, accelerator: Accelerator) -> FloatArray:
        """Demand in watts at full clocks, broadcast."""
        span_w = accelerator.tdp_w - accelerator.idle_w
        drawn = accelerator.idle_w + span_w * (self.base + self.compute * compute_fraction)
        most_w = MOST_DEMAND * accelerator.tdp_w
        return np.minimum(drawn + self.joules_per_byte * bytes_per_s, most_w)


@dataclass(frozen=True, slots=True)
class PowerModel:
    """One curve per group of operators."""

    curves: dict[str, PowerCurve]
    provenance: dict[str, Any] = field(default_factory=dict)

    def watts(
        self, group: str, compute_fraction: FloatArray, memory_fraction: FloatArray, accelerator: Accelerator
    ) -> FloatArray:
        """Demand of one accelerator while an operator of the group runs (see the module); fractions are of peaks."""
        u_c, u_m = (np.clip(np.asarray(u, dtype=np.float64), 0.0, 1.0) for u in (compute_fraction, memory_fraction))
        return self.curves[group].watts(u_c, u_m * accelerator.memory_bandwidth_bytes_per_s, accelerator)

    def to_json(self) -> dict[str, Any]:
        curves = {
            g: {"base": c.base, "pj_per_byte": round(c.joules_per_byte * 1e12, 2), "compute": c.compute}
            for g, c in self.curves.items()
        }
        return {"curves": curves, "provenance": self.provenance}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> PowerModel:
        """Raises InputError where a group or coefficient is missing or negative."""
        try:
            curves = {
                g: PowerCurve(float(c["base"]), float(c["pj_per_byte"]) * 1e-12, float(c["compute"]))
                for g, c in raw["curves"].items()
            }
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise InputError("power model needs curves with base, pj_per_byte and compute", str(e)) from None
        if missing := set(GROUPS) - curves.keys():
            raise InputError("power model lacks operator groups", ", ".join(sorted(missing)))
        if any(v < 0 for c in curves.values() for v in asdict(c).values()):
            raise InputError("power coefficients must not be negative")
        return cls(curves, dict(raw.get("provenance", {})))


def capped_w(accelerator: Accelerator) -> float:
    """Most a board draws on average."""
    return LIMIT_SHARE * accelerator.tdp_w


#: Rows count from here on: the collector repeats a kernel (five products at once) up to 3,000 times, for a second at
#: most, and the driver reports means over the last second, so short windows tell what ran before. Products of FP8
#: blocks below 67 us wait for their launches.
LEAST_S: Final = dict.fromkeys(GROUPS, 333e-6) | {"gemm": 20e-6, "gemm_fp8_block": 67e-6, "other": 50e-6}

#: What ran before is mostly less: a row lies lower than the truth three times out of four.
QUANTILE: Final = 0.75

_CELL_BYTES_PER_S, _CELL_FLOPS, _LEAST_ROWS, _FOLDS = 0.25e12, 25e12, 5, 3


def fit_power(rows: pd.DataFrame, accelerator: Accelerator) -> tuple[PowerModel, pd.DataFrame]:
    """Fit one curve per group; returns the model and its held-out error table (by whole shapes).

    rows: columns group, shape, seconds, flops, bytes, compute_fraction, watts. A row weighs less in a crowded cell of
    equal traffic and arithmetic, so that no corner of the grid decides.
    """
    import pandas as pd

    curves: dict[str, PowerCurve] = {}
    errors = []
    for group in FITTED:
        part = _with_cells(rows[(rows.group == group) & (rows.seconds >= LEAST_S[group])])
        curves[group] = _fit_curve(part, accelerator)
        fold = pd.util.hash_pandas_object(part["shape"], index=False) % _FOLDS
        for k in range(_FOLDS):
            curve = _fit_curve(part[fold != k], accelerator)
            errors.append(pd.DataFrame({"group": group, "error": _errors(curve, part[fold == k], accelerator)}))
    dense = curves["gemm"]
    streams = _with_cells(rows[(rows.group == "other") & (rows.seconds >= LEAST_S["other"])])
    curves["other"] = PowerCurve(dense.base, _joules_per_byte(streams, dense.base, accelerator), 0.0)
    curves["collective"] = PowerCurve(COLLECTIVE_BASE, dense.joules_per_byte, 0.0)
    table = pd.concat(errors).groupby("group").error
    held_out = table.agg(
        n="size", median_abs=lambda e: e.abs().median(), p90_abs=lambda e: e.abs().quantile(0.9), bias="mean"
    )
    return PowerModel(curves), held_out.reset_index()


def _joules_per_byte(streams: pd.DataFrame, base: float, accelerator: Accelerator) -> float:
    """Of kernels that only stream, when what runs the device is known."""
    idle_w, span_w = accelerator.idle_w, accelerator.tdp_w - accelerator.idle_w
    each = (streams.watts - idle_w - span_w * base) / streams.bytes_per_s
    return round(float(each.median()) * 1e12, 2) * 1e-12


def _with_cells(rows: pd.DataFrame) -> pd.DataFrame:
    kept = rows.assign(bytes_per_s=rows.bytes / rows.seconds)
    traffic = (kept.bytes_per_s / _CELL_BYTES_PER_S).round()
    cell = traffic * 1e4 + (kept.flops / kept.seconds / _CELL_FLOPS).round()
    return kept.assign(cell=cell, crowd=cell.groupby(cell).transform("size"))


def _drawn_w(curve: PowerCurve, rows: pd.DataFrame, accelerator: Accelerator) -> FloatArray:
    demand = curve.watts(rows.compute_fraction.to_numpy(), rows.bytes_per_s.to_numpy(), accelerator)
    return np.minimum(demand, capped_w(accelerator))


def _errors(curve: PowerCurve, rows: pd.DataFrame, accelerator: Accelerator) -> FloatArray:
    """Relative error against the upper quartile of every cell with a few rows."""
    cells = rows.assign(drawn=_drawn_w(curve, rows, accelerator)).groupby("cell")
    full = cells.size() >= _LEAST_ROWS
    off: FloatArray = (cells.drawn.median() / cells.watts.quantile(QUANTILE) - 1.0)[full].to_numpy()
    return off


def _fit_curve(rows: pd.DataFrame, accelerator: Accelerator) -> PowerCurve:
    from scipy.optimize import least_squares

    watts, weight = rows.watts.to_numpy(), 1.0 / np.sqrt(rows.crowd.to_numpy(dtype=np.float64))

    def residual(x: FloatArray) -> FloatArray:
        off = watts - _drawn_w(PowerCurve(x[0], x[1] * 1e-12, x[2]), rows, accelerator)
        out: FloatArray = off * np.where(off > 0.0, QUANTILE, 1.0 - QUANTILE) * weight
        return out

    bounds = ([0.0, 0.0, 0.0], [1.0, 300.0, 12.0])
    typical = 10.0 * float(np.median(weight))
    found = least_squares(residual, [0.3, 70.0, 1.0], bounds=bounds, loss="soft_l1", f_scale=typical)
    base, pj_per_byte, compute = map(float, found.x)
    return PowerCurve(round(base, 4), round(pj_per_byte, 2) * 1e-12, round(compute, 4))
