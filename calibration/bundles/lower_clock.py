"""The time and power of an operator at a lower clock: how a board respects a power limit below its own.

Under a limit the board lowers its clock, and with it the voltage, until its mean power fits. With f the clock as a
share of the unlimited clock, and v the voltage likewise:

    v(f) = max(least_voltage, 1 - voltage_slope (1 - f))
    P(f) = idle_w + f v^2 x (base of a busy device) + v^2 / t(f) x (arithmetic at f = 1) + (bytes) / t(f)

Arithmetic and bytes take the same energy however long they last, and they last t(f) times as long;
calibration/power/model.py has the share of each at f = 1. Memory has a clock of its own, which limits do not change. So
time is a smooth maximum of the part of memory and the part of the clock:

    t(f) = ((1 + (r / f)^4) / (1 + r^4))^(1/4),  r = the clock's part over memory's

r is the time of arithmetic over the time of bytes, at their peaks. It is at least the share of the measured time that
memory does not explain (latency depends on the clock), and at least 0.5: no kernel saturates memory with less than half
of the clock.

Measured: v(f) on two boards, the 4 and the 0.5 on one of them, under vLLM at 300-550 W (`benchmarks/power_caps.py` fits
them again and shows the errors). Other boards take the curve of the more similar kind; on an A40, on which neither was
fitted, the mean errors are 3.8 and 4.6 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from calibration.bundles.bundle import Bundle
from calibration.operators.cost import AdjustedCosts, Cost
from calibration.operators.operators import Collective, Operator
from calibration.operators.roofline import compute_s, memory_s
from calibration.power.model import MOST_DEMAND, group_of
from catalogs.arrays import FloatArray
from catalogs.hardware.specs import Accelerator

#: Exponent of the smooth maximum of arithmetic and memory time. Fitted with `LEAST_CLOCK_PART` to 10 throughputs of a
#: dense model under limits, within 1.6 % on average; 10 of a mixture of experts, not fitted, are within 2.9 %.
SHARPNESS: Final = 4.0

#: Least ratio of the time that follows the clock to the time of memory. Fitted with `SHARPNESS`.
LEAST_CLOCK_PART: Final = 0.5

#: Lowest measured clocks, as a share of the highest; lower ones follow the formula.
LEAST_MEASURED: Final = 0.41


@dataclass(frozen=True, slots=True)
class VoltageCurve:
    """Voltage as a share of the voltage at the highest clock."""

    slope: float
    least: float
    measured_on: str
    source: str

    def at(self, clock: float) -> float:
        """Return the share of voltage at clocks given as a share of the highest clock."""
        return max(self.least, 1.0 - self.slope * (1.0 - clock))


#: Fitted to 33 clocks of transformer layers in bf16, 855-1335 MHz: watts within 0.8 % on average. Used for all boards
#: except those below.
DATACENTER: Final = VoltageCurve(0.88, 0.80, "a100-80gb", "ml-energy/zeus @38cb3f90, sosp24_data (Apache-2.0)")

#: Fitted to 20 limits of 300-550 W, two models, one and 32 requests at once: watts within 1.7 % on average. Used for
#: boards with similarly high clocks (GeForce and RTX, Ada).
WORKSTATION: Final = VoltageCurve(
    1.74, 0.85, "rtxpro6000-workstation", "Light-Heart-Labs/MMBT-Messy-Model-Bench-Tests @f4d2a4ea, vllm-power-sweep"
)


def voltage_curve(accelerator: Accelerator) -> tuple[VoltageCurve, bool]:
    """Return the voltage curve of the board, and whether it was measured on this kind of board."""
    found = WORKSTATION if accelerator.high_clocks else DATACENTER
    return found, accelerator.name.startswith(found.measured_on.removesuffix("-workstation"))


def stretch(arithmetic_s: FloatArray, memory_s: FloatArray, seconds: FloatArray, clock: float) -> FloatArray:
    """Return the factor by which times grow at a clock, given as a share of the highest, above 0 and up to 1.

    The seconds of arithmetic and memory are at their peaks; the measured seconds are at the highest clock.
    All have Shape (n,).
    """
    with np.errstate(divide="ignore"):
        ratio = np.where(memory_s > 0, arithmetic_s / np.maximum(memory_s, 1e-30), np.inf)
    unexplained = 1.0 - memory_s / np.maximum(seconds, 1e-30)
    part = np.clip(np.maximum(ratio, unexplained), LEAST_CLOCK_PART, 1e3)
    n = SHARPNESS
    found: FloatArray = ((1.0 + (part / clock) ** n) / (1.0 + part**n)) ** (1.0 / n)
    return found


@dataclass(frozen=True, slots=True)
class Clocked(AdjustedCosts):
    """The costs of a calibration at a lower clock."""

    source: Bundle
    clock: float

    def cost(self, op: Operator) -> Cost:
        """Return the seconds, watts and origin of an operator at this clock."""
        unit, at_full = self.source.accelerator, self.source.cost(op)
        seconds = np.maximum(at_full.seconds, 1e-12)
        work_s, bytes_s = compute_s(op, unit), memory_s(op, unit)
        if isinstance(op, Collective):  # the link keeps its clock; the kernel takes the minimum part
            longer = stretch(np.zeros_like(seconds), seconds, seconds, self.clock)
        else:
            longer = stretch(work_s, bytes_s, seconds, self.clock)
        watts = self._watts(op, (work_s / seconds, bytes_s / seconds), at_full.watts, longer)
        return Cost(at_full.seconds * longer, watts, at_full.origin)

    def _watts(
        self, op: Operator, shares: tuple[FloatArray, FloatArray], at_full_w: FloatArray, longer: FloatArray
    ) -> FloatArray:
        unit, curve = self.source.accelerator, self.source.power.curves[group_of(op)]
        voltage = voltage_curve(unit)[0].at(self.clock)
        u_c, u_m = (np.clip(u, 0.0, 1.0) for u in shares)
        span_w = unit.tdp_w - unit.idle_w
        bytes_w = curve.joules_per_byte * u_m * unit.memory_bandwidth_bytes_per_s
        full_w = span_w * (curve.base + curve.compute * u_c) + bytes_w
        lower_w = span_w * voltage**2 * (self.clock * curve.base + curve.compute * u_c / longer) + bytes_w / longer
        kept = np.minimum(at_full_w - unit.idle_w, MOST_DEMAND * unit.tdp_w) / np.maximum(full_w, 1e-9)
        out: FloatArray = unit.idle_w + lower_w * np.clip(kept, 0.0, 1.0)
        return out
