"""Imported rows without those that claim more than the hardware's peak."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calibration.gate import GateReport, gate
from catalogs.errors import InputError
from catalogs.hardware import Accelerator

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
