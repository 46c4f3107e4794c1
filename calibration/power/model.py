"""The power that an accelerator draws while an operator runs, from the operator's arithmetic and memory traffic.

    P = idle_w + (tdp_w - idle_w) * (base + compute * u_c) + joules_per_byte * bytes_per_s

u_c is achieved flops over the accelerator's peak (0..1). `base` is the share of clocks, schedulers and caches of a busy
device, and `compute` the share that arithmetic adds at its peak. Both are shares of the range between idle and limit,
because the limit of a design follows its arithmetic. Memory traffic costs joules per byte: HBM3 and HBM3e need about
the same energy for a byte, so a device with less bandwidth draws less where memory is the bottleneck. (A share of the
limit, fitted on H200, overstates H100 by a fifth.)

The result is the demand at full clocks, which may exceed the board's limit. A board holds its limit over tens of
milliseconds, not over a kernel of microseconds, so the cap applies to the mean of a step (`capped_w`).
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from calibration.operators.flops_and_bytes import distinct_experts
from calibration.operators.operators import (
    Convolution,
    Gemm,
    GroupedGemm,
    Matmul,
    MlaModule,
    NonCausalAttention,
    Operator,
)
from catalogs.arrays import FloatArray
from catalogs.errors import InputError
from catalogs.hardware.specs import Accelerator
from catalogs.io.yaml_files import DATA

#: Groups with measured rows. `other` (norms, copies, sampling, scans: no matrix units) has rows of streaming kernels
#: only, and takes its `base` from matrix products. Ranks of a `collective` mostly wait for each other, with a few dozen
#: blocks on the device; it has no rows.
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

#: Sustained power of boards with a limit of 700 W, as a share of the limit: large products read 691 W for as long as
#: they run.
LIMIT_SHARE: Final = 691 / 700

#: Largest demand of a kernel at full clocks, as a multiple of the limit. The H100 tables time bursts; the H200 tables
#: of the same chip run a second at its limit: products of 1,024 rows and more run 1.09 to 1.21 times slower there.
#: Power goes with clock x voltage squared, about clock ** 2.5 above idle.
MOST_DEMAND: Final = 1.4

#: Share of the range that a rank draws while it polls in a collective for the others. Boards at 100 % utilisation in
#: servers that hang read 152 W on H100 (NCCL issue 1550), 268 W in the mean of four B200 (TensorRT-LLM issue 5391) and
#: 66 W on a V100 whose idle neighbour reads 53 (GLM-130B issue 32): 0.063, 0.092 and 0.053 of the range.
COLLECTIVE_BASE: Final = 0.07


def group_of(op: Operator) -> str:
    """Return the name of the coefficient group of an operator.

    The group `moe` was fitted per counted operation of kernels that also compute rows without tokens. Experts in blocks
    of which every row is counted (`block_rows`) are matrix products like any other.
    """
    if isinstance(op, MlaModule):
        return f"mla_{op.stage}"
    if isinstance(op, Gemm) and op.dtype.startswith("fp8_block"):
        return "gemm_fp8_block"
    if isinstance(op, NonCausalAttention):  # the same kernels without a mask
        return "prefill_attention"
    if isinstance(op, Matmul | Convolution) or pads_experts(op):
        return "gemm"
    return op.family if op.family in GROUPS else "other"


def pads_experts(op: Operator) -> bool:
    """Return whether the operator computes experts in blocks of which rows without a token count too."""
    return isinstance(op, GroupedGemm) and bool(op.block_rows)


def computing_share(op: Operator) -> FloatArray:
    """Return the share of an operator's time in which the mean rank computes and does not wait, in 0..1.

    It is 1 for everything but experts that ranks share. The rank with the most active experts sets the time of their
    kernel, and the others wait for it in the next collective. With t tokens that choose k of N experts evenly, an
    expert is active with the probability q = 1 - (1 - k/N)^t, and a rank with n = N / ranks experts has n q of them
    with the variance n q (1 - q). The largest of as many normal variables (Blom, *Statistical Estimates and Transformed
    Beta-Variables*, 1958) stands for the busiest rank, which has at least one active expert and at most n. Experts in
    padded blocks take the same time on every rank. The result has the shape of the operator's tokens.
    """
    if not isinstance(op, GroupedGemm) or op.expert_ranks == 1 or pads_experts(op):
        return np.ones(())
    ranks, tokens = op.expert_ranks, np.maximum(np.asarray(op.tokens, dtype=np.float64), 1.0)
    held = op.n_experts / ranks
    mean = distinct_experts(tokens, op.n_experts, op.experts_per_token) / ranks
    spread = np.sqrt(np.maximum(mean * (1.0 - mean / held), 0.0))
    most = mean + NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) * spread
    share: FloatArray = mean / np.maximum(np.minimum(most, held), np.minimum(mean * ranks, 1.0))
    return np.minimum(share, 1.0)


@dataclass(frozen=True, slots=True)
class PowerCurve:
    """The coefficients of one operator group; all are non-negative, so power never falls as utilisation rises."""

    base: float
    joules_per_byte: float
    compute: float

    def watts(self, compute_fraction: FloatArray, bytes_per_s: FloatArray, accelerator: Accelerator) -> FloatArray:
        """Return the demand in watts at full clocks, in the broadcast shape of the arguments."""
        span_w = accelerator.tdp_w - accelerator.idle_w
        without_memory = accelerator.idle_w + span_w * (self.base + self.compute * compute_fraction)
        return np.minimum(without_memory + self.joules_per_byte * bytes_per_s, MOST_DEMAND * accelerator.tdp_w)


@dataclass(frozen=True, slots=True)
class PowerModel:
    """The fitted power model: one curve per operator group, and its provenance."""

    curves: dict[str, PowerCurve]
    provenance: dict[str, Any] = field(default_factory=dict)

    def watts(
        self, group: str, compute_fraction: FloatArray, memory_fraction: FloatArray, accelerator: Accelerator
    ) -> FloatArray:
        """Return the power demand in watts of an accelerator that runs an operator of `group`.

        Both fractions are shares of the accelerator's peaks, clipped to 0..1; the result has their broadcast shape.
        """
        u_c, u_m = (np.clip(np.asarray(u, dtype=np.float64), 0.0, 1.0) for u in (compute_fraction, memory_fraction))
        return self.curves[group].watts(u_c, u_m * accelerator.memory_bandwidth_bytes_per_s, accelerator)

    def operator_w(
        self, op: Operator, compute_fraction: FloatArray, memory_fraction: FloatArray, accelerator: Accelerator
    ) -> FloatArray:
        """Return the mean power demand in watts of the ranks that run an operator, as `watts` does.

        Arithmetic and traffic are those of the mean rank. A rank that waits for the busiest one draws the base of a
        collective instead of its own. Shape of all arrays: that of the operator, (n,) or ().
        """
        group = group_of(op)
        whole_w = self.watts(group, compute_fraction, memory_fraction, accelerator)
        saved = (1.0 - computing_share(op)) * max(self.curves[group].base - self.curves["collective"].base, 0.0)
        return whole_w - saved * (accelerator.tdp_w - accelerator.idle_w)

    def to_json(self) -> dict[str, Any]:
        """Return the model as JSON data, the inverse of `from_json`."""
        curves = {
            g: {"base": c.base, "pj_per_byte": round(c.joules_per_byte * 1e12, 2), "compute": c.compute}
            for g, c in self.curves.items()
        }
        return {"curves": curves, "provenance": self.provenance}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> PowerModel:
        """Return the model in JSON data.

        Raises:
            InputError: A group or a coefficient is missing, or a coefficient is negative.
        """
        try:
            curves = {
                g: PowerCurve(float(c["base"]), float(c["pj_per_byte"]) * 1e-12, float(c["compute"]))
                for g, c in raw["curves"].items()
            }
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise InputError("power model needs curves with base, pj_per_byte and compute", str(e)) from None
        if missing := set(GROUPS) - curves.keys():
            raise InputError("power model lacks operator groups", ", ".join(sorted(missing)))
        if not all(0 <= v < math.inf for c in curves.values() for v in asdict(c).values()):
            raise InputError("power coefficients must be finite and not negative")
        return cls(curves, dict(raw.get("provenance", {})))


def capped_w(accelerator: Accelerator) -> float:
    """Return the largest mean power of a board in watts."""
    return LIMIT_SHARE * accelerator.tdp_w


#: One file serves all hardware, because the coefficients are shares of each board's limit.
FILE_NAME: Final = "power.json"


@lru_cache(maxsize=1)
def load_power() -> PowerModel:
    """Load the shipped power model.

    Raises:
        InputError: The file is missing or damaged.
    """
    path = DATA / "calibrations" / FILE_NAME
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise InputError("the power model cannot be read as JSON", str(path)) from None
    return PowerModel.from_json(raw)
