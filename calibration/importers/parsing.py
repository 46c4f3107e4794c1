"""Imported rows without those that claim more than the hardware's peak.

Foreign JSON checked at the door: what is missing or of the wrong type becomes one line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from calibration.rows.physics_check import GateReport, gate
from catalogs.errors import InputError
from catalogs.hardware.specs import Accelerator

if TYPE_CHECKING:
    import pandas as pd


def gated(
    tables: dict[str, pd.DataFrame], accelerator: Accelerator
) -> tuple[dict[str, pd.DataFrame], dict[str, GateReport]]:
    """(rows by family that obey physics, what was rejected by family); a family of which nothing is left is only in
    the second. InputError where nothing at all is left."""
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


class Foreign(BaseModel):
    """A document of another project: the keys that are read; others may come and go."""

    model_config = ConfigDict(extra="ignore")


M = TypeVar("M", bound=Foreign)


def parse(model: type[M], document: Any, what: str, source: str) -> M:
    """The document as `model`; InputError names the first key that is wrong."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(x) for x in first["loc"]) or "document"
        raise InputError(f"not a whole {what} ({where}: {first['msg']})", source) from None
