"""Measured times of an accelerator, applied to another that borrows its tables (`calibrated_like` of a hardware file).

Two boards of one chip differ in their memory alone. The time of a kernel beyond its roofline (launch, first loads,
reductions, tails) then belongs to the chip and stays, and only the roofline is exchanged:

    t = min(1, t' / r') r + max(0, t' - r'),  t': measured time, r': roofline of its board, r: roofline of the other

Measured: H100 and H200 are one chip at 3.35 and 4.8 TB/s, and both have tables. From one to the other, bf16 products of
1 to 128 rows have a median error of 1 to 3 % by this rule and 7 to 12 % if utilisation were the same, and decode
attention 1 to 3 % instead of 3 to 41 % (`tests/calibration/bundles/test_borrowed_times.py`).

Boards with another number of units, and MIG slices, take the utilisation: there the time beyond the roofline is also
that of units that are missing, and no pair of boards was measured.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from calibration.families.base import FamilyModel
from calibration.operators.operators import Collective, HostLaunch, Operator
from calibration.operators.roofline import roofline_s
from catalogs.arrays import FloatArray
from catalogs.hardware.specs import Accelerator

#: Relative error of operator times that another board of the same chip lends, beyond the error of its tables: the bound
#: of the median errors between H100 and H200, above.
SAME_CHIP_ERROR: Final = 0.03

#: Largest relative difference of the peak of 16-bit products between boards of one chip: boost clocks differ slightly.
SAME_PEAK: Final = 0.01


def same_chip(one: Accelerator, other: Accelerator) -> bool:
    """Return whether two accelerators compute alike, so that they differ in their memory alone; MIG slices never do."""
    if ":" in one.name or ":" in other.name:
        return False
    peaks = one.flops_for("bf16"), other.flops_for("bf16")
    return abs(peaks[0] - peaks[1]) <= SAME_PEAK * max(peaks)


def borrowed_cost(
    model: FamilyModel, op: Operator, measured: Accelerator, target: Accelerator
) -> tuple[FloatArray, FloatArray]:
    """Return (seconds, origin) of an operator on `target` from the tables of `measured`, a board of the same chip.

    Shape of both: that of the operator. Collectives and launches have no roofline of memory and are taken as they are.
    """
    if isinstance(op, Collective | HostLaunch):
        return model.cost(op, target)
    seconds, origin = model.cost(op, measured)
    least_s, other_s = roofline_s(op, measured), roofline_s(op, target)
    used = np.minimum(seconds / np.maximum(least_s, 1e-30), 1.0)
    return other_s * used + np.maximum(seconds - least_s, 0.0), origin


def stand_ins(accelerator: Accelerator) -> dict[str, str | None]:
    """Return the names of the bundles to try, best first, with the notice of each; None for that of the accelerator."""
    name, parent = accelerator.name, accelerator.name.split(":")[0]
    rule = "transferred: operators measured on {} applied to the roofline of " + name
    found: dict[str, str | None] = {name: None}
    if parent != name:
        found[parent] = f"{rule.format(parent)} (MIG slice)"
    if accelerator.calibrated_like:
        found.setdefault(accelerator.calibrated_like, rule.format(accelerator.calibrated_like))
    return found
