"""The material of a report, independent of its source: a profile, a bundle or rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from catalogs.hardware.specs import Accelerator
from catalogs.ui.charts import FAMILY_WORDS

if TYPE_CHECKING:
    import pandas as pd


#: Columns of CalibrationReport.held: one row per prediction of a shape that the fit did not use.
HELD_COLUMNS: Final = ("family", "how", "shape", "measured_s", "predicted_s", "bytes")

#: Columns of CalibrationReport.measured: one row per measured operator. compute_share and memory_share are of the
#: peaks.
MEASURED_COLUMNS: Final = (
    *("family", "shape", "seconds", "flops", "bytes", "compute_share", "memory_share"),
    *("watts", "disturbed"),
)

OFF_GRID: Final = "off-grid shape"

GROUP: Final = "group left out"

EDGE: Final = "past a shorter grid"


@dataclass(frozen=True, slots=True)
class FamilyLine:
    """One row of the table of errors; n_fit is None where it is not known."""

    family: str
    how: str
    n_fit: int | None
    n: int
    median: float
    p90: float
    bias: float


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

    `held` and `measured` are None where there were no rows; `missing` lists what the page then cannot show.
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
        shown.setdefault(flops, f"{dtype} {_rate(flops / 1e12)}")
    return ", ".join(list(shown.values())[:3]) or "not measured"


def _rate(x: float) -> str:
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"
