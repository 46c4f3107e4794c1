"""Checks that importers share: rows against hardware peaks, and JSON of other projects against a schema.

The first key that is missing or of the wrong type becomes a one-line error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from calibration.bundles.ranges import first_fault
from calibration.rows.physics_check import GateReport, gate
from catalogs.errors import InputError
from catalogs.hardware.specs import Accelerator

if TYPE_CHECKING:
    import pandas as pd


def gated(
    tables: dict[str, pd.DataFrame], accelerator: Accelerator
) -> tuple[dict[str, pd.DataFrame], dict[str, GateReport]]:
    """Return the rows by family that respect the hardware peaks, and the counts of rejected rows by family.

    A family without any row left is only in the second.

    Raises:
        InputError: No row of any family is left.
    """
    kept, reports = {}, {}
    for family, rows in tables.items():
        good, reports[family] = gate(family, rows, accelerator)
        if len(good):
            kept[family] = good
    if not kept:
        raise InputError(
            f"no row obeys the peaks of {accelerator.name}", f"{sum(r.n_in for r in reports.values())} rows"
        )
    return kept, reports


@dataclass(frozen=True, slots=True)
class EngineSteps:
    """The steps of an engine in a file.

    Attributes:
        rows: One row per step, with `seconds` and the contents of the batch (columns: iteration_log.py,
            forward_bench.py).
        what: The noun for the rows.
        notes: Descriptions of what was left out.
    """

    rows: pd.DataFrame
    what: str
    notes: tuple[str, ...]


class ForeignDocument(BaseModel, extra="ignore"):
    """A document of another project: its fields are the keys that are read; all other keys are ignored."""


M = TypeVar("M", bound=ForeignDocument)


def parse(model: type[M], document: Any, what: str, source: str) -> M:
    """Return a document of another project as a validated `model`; `what` names the kind of document in errors.

    Raises:
        InputError: A key is missing or of the wrong type.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise InputError(f"not a valid {what} ({first_fault(error, 'document')})", source) from None
