"""The material of a report, independent of its source: a profile, a bundle or rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import pandas as pd

from calibration.families.base import HeldOutErrors
from catalogs.hardware.specs import Accelerator
from catalogs.ui.charts import FAMILY_WORDS

OFF_GRID: Final = "off-grid shape"

GROUP: Final = "group left out"

EDGE: Final = "past a shorter grid"


@dataclass(frozen=True, slots=True)
class FamilyLine:
    """One row of the table of errors; `region` of the errors is one of OFF_GRID, GROUP and EDGE.

    `n_fit` is the number of fitted rows, or None where it is not known.
    """

    errors: HeldOutErrors
    n_fit: int | None


@dataclass(frozen=True, slots=True)
class Coverage:
    """The coverage of a queue of shapes that the planner uses; the three shares add to 1."""

    queue: str
    n: int
    measured: float
    interpolated: float
    outside: float


@dataclass(frozen=True, slots=True)
class FieldImportance:
    """The typical error of predictions, as a factor, with one field of unseen shapes shuffled."""

    family: str
    field: str
    factor: float
    base: float  # with nothing shuffled


@dataclass(frozen=True, slots=True)
class CalibrationReport:
    """The material of one report.

    `held` has one row per prediction of a shape that the fit did not use, with the columns of `held_out.held_frame`.
    `measured` has one row per measured operator, with those of `held_out.measured_frame`. Both are None where there
    were no rows; `missing` lists what the page then cannot show.
    """

    title: str
    subtitle: str
    accelerator: Accelerator
    cards: list[tuple[str, str]]
    facts: list[tuple[str, str]]
    notices: list[str]
    errors: list[FamilyLine]
    coverage: list[Coverage]
    held: pd.DataFrame | None = None
    measured: pd.DataFrame | None = None
    importance: list[FieldImportance] = field(default_factory=list)
    no_power: str = ""
    missing: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)  # remarks on how to read the errors


def title_of(family: str) -> str:
    """Return the family in plain words."""
    return FAMILY_WORDS.get(family, family)


def peaks_text(accelerator: Accelerator) -> str:
    """Return a text such as "bf16 989, fp8 1,979": TFLOP/s of at most three dtypes with different rates."""
    shown: dict[float, str] = {}
    for dtype, flops in accelerator.peak_flops.items():
        rate = flops / 1e12
        shown.setdefault(flops, f"{dtype} {rate:,.0f}" if rate >= 100 else f"{dtype} {rate:.3g}")
    return ", ".join(list(shown.values())[:3]) or "not measured"
