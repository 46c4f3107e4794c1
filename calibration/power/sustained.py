"""The clock of a board whose kernels would draw more power than its limit, and what that does to their times.

A board that computes prompts reaches its power limit and lowers its clock until the mean power fits. Operator tables
time a few dozen executions of one kernel, which short kernels finish before the board reacts. The public tables of
vLLM 0.22 on H200 and B200 were timed for up to a second at the limit (they record watts), and those of other releases
in bursts. Products of matrices in bf16 run in the same library for both: below the limit both times agree, and at the
limit the long ones are 1.1 to 1.2 times the short ones, except for kernels of several milliseconds, whose bursts reach
the limit as well.

    demand_w = idle_w + (tdp_w - idle_w) (base + PRODUCT_COMPUTE u_c) + joules_per_byte x bytes_per_s
    clock    = min(1, ((limit_w - idle_w) / (demand_w - idle_w)) ^ CLOCK_EXPONENT)
    burst    = 1 + (1 / clock of the kernel alone - 1) x t / (t + REACTION_S)

u_c is the share of the peak rate of the operands, t the kernel's time in the table, and `burst` the part of the
slowdown that this time holds already. `base` and the joules of a byte are those of the power model: of products, and of
experts, whose kernels draw more beside their arithmetic. `python tools/sustained_clock.py PROFILES` fits the constants
and prints the errors:

- bf16: the two boards together give 1.38 and 2.4 ms. Fitted on H200 alone they predict B200 as well as when fitted on
  it (median error 5.6 instead of 8.6 % without them), and the other way round (3.2 instead of 12.6 %). Experts in bf16
  ran in one Triton kernel in 0.19 (bursts) and 0.22 and were not fitted; the coefficient lowers their mean error from
  3.3 to 1.9 % on H200 and from 3.7 to 3.0 % on B200.
- 8 bits: at the peak of twice the rate, a board would draw 1.5 times what it draws in bf16. Block-scaled products
  (DeepGEMM in 0.22 and 0.24) and experts of both kinds (Triton in 0.19 and 0.22) give 1.94 on H200, 2.30 on B200 and
  2.06 together, which lowers the median error of products on H200 from 4.3 % with the coefficient of bf16 to 3.1 %. No
  table has dense per-tensor products at the limit; they take the coefficient of the other 8-bit operands.
- 4 bits: kernels of nvfp4 and the work around them differ between the releases by more than the limit explains. They
  keep the coefficient of bf16.

The power model (`calibration/power/model.py`) has other coefficients for products: it is fitted to watts, which a board
at its limit does not exceed, and so it understates what products would draw at full clocks.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from calibration.operators.cost import Cost
from calibration.operators.operators import Gemm, GroupedGemm, Operator
from calibration.operators.roofline import compute_s, math_dtype, memory_s
from calibration.power.model import capped_w, group_of, load_power
from catalogs.arrays import FloatArray
from catalogs.hardware.specs import Accelerator

#: Share of the range from idle power to the limit that a product draws at the peak rate of its operands, besides its
#: base, by dtype of the arithmetic; of other dtypes that of bf16.
PRODUCT_COMPUTE: Final = {"bf16": 1.38, "fp8": 2.06}

#: Time of one kernel in whose burst a board has made half of the adjustment to its limit, seconds.
REACTION_S: Final = 2.4e-3

#: Power above idle goes with clock x voltage squared, about clock ** 2.5 (`calibration/power/model.py`).
CLOCK_EXPONENT: Final = 0.4

#: Data types whose tables time as many executions of a product in one burst as those of bf16 (aiconfigurator,
#: collector/vllm/collect_gemm.py: six layers, three warm-ups and six runs; one layer for the others).
LONG_BURSTS: Final = ("bf16", "fp8")


def lowers_clock(accelerator: Accelerator) -> bool:
    """Return whether tables show that this kind of board computes prompts at its limit: Hopper and Blackwell with HBM.

    No public table of other boards was timed both ways.
    """
    return accelerator.architecture in ("hopper", "blackwell") and accelerator.has_hbm


def demand_w(op: Operator, cost: Cost, accelerator: Accelerator) -> FloatArray:
    """Return the watts that an operator would draw at the highest clock; more than the limit is possible.

    Products and experts follow the formula above, everything else the power model. The shape is that of the operator.
    """
    if not isinstance(op, Gemm | GroupedGemm):
        return cost.watts
    return product_demand_w(op, cost.seconds, accelerator)


def product_demand_w(
    op: Gemm | GroupedGemm, seconds: FloatArray, accelerator: Accelerator, compute: float | None = None
) -> FloatArray:
    """Return the power that a product, or experts, would draw at the highest clock, in watts.

    It follows from the seconds that they take. The shape is that of the operator.
    """
    curve, busy = load_power().curves["moe" if group_of(op) == "moe" else "gemm"], np.maximum(seconds, 1e-12)
    if compute is None:
        compute = PRODUCT_COMPUTE.get(math_dtype(op, accelerator), PRODUCT_COMPUTE["bf16"])
    arithmetic = np.clip(compute_s(op, accelerator) / busy, 0.0, 1.0)
    rate = np.clip(memory_s(op, accelerator) / busy, 0.0, 1.0) * accelerator.memory_bandwidth_bytes_per_s
    span_w = accelerator.tdp_w - accelerator.idle_w
    found: FloatArray = accelerator.idle_w + span_w * (curve.base + compute * arithmetic) + curve.joules_per_byte * rate
    return found


def held_clock(mean_w: FloatArray, accelerator: Accelerator) -> FloatArray:
    """Return the share of the highest clock, above 0 and up to 1, at which a mean demand in watts fits the limit.

    Shape of both: (n,) or ().
    """
    above_idle_w = np.maximum(np.asarray(mean_w, dtype=np.float64) - accelerator.idle_w, 1e-9)
    share: FloatArray = ((capped_w(accelerator) - accelerator.idle_w) / above_idle_w) ** CLOCK_EXPONENT
    return np.minimum(share, 1.0)


def slowed_in_table(alone: FloatArray, seconds: FloatArray, reaction_s: float = REACTION_S) -> FloatArray:
    """Return the factor by which a kernel's time in a table is longer than at the highest clock.

    Args:
        alone: The factor for the kernel repeated without end, at least 1. Shape (n,) or ().
        seconds: Its time in the table. Same shape.
        reaction_s: See REACTION_S.
    """
    factor: FloatArray = 1.0 + (alone - 1.0) * seconds / (seconds + reaction_s)
    return factor


def at_clock(op: Operator, cost: Cost, clock: FloatArray | float, accelerator: Accelerator) -> Cost:
    """Return the cost of an operator at a share of the highest clock, which slows it down unless its row shows that.

    Its watts stay: those of the power model are fitted to boards at their limit.

    Args:
        op: An operator that the clock of the multiprocessors determines: a product, experts or attention of prompts.
        cost: Its cost from a table.
        clock: The share of the highest clock, above 0 and up to 1. Broadcasts to the shape of the operator.
        accelerator: The board.
    """
    longer = 1.0 / np.asarray(clock, dtype=np.float64)
    if isinstance(op, Gemm) and op.dtype in LONG_BURSTS:
        alone = 1.0 / held_clock(demand_w(op, cost, accelerator), accelerator)
        longer = np.maximum(longer / slowed_in_table(alone, cost.seconds), 1.0)
    seconds = cost.seconds * longer
    return Cost(seconds, *(np.broadcast_to(column, seconds.shape) for column in (cost.watts, cost.origin)))
