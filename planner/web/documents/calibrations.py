"""What is calibrated and how well: measured operators by hardware, and whole runs by engine."""

from __future__ import annotations

from typing import Any, Final

from calibration.accuracy.regime import UNKNOWN
from calibration.accuracy.reliability import load_reliability
from calibration.accuracy.stated_error import METRICS, StatedError, load_file
from calibration.bundles.bundle import Bundle, load_bundle
from calibration.families.uncalibrated import DEFAULTS
from catalogs.errors import InputError, nearest_name
from catalogs.hardware.catalog import list_hardware, parse_hardware
from planner.web.documents.catalogs import calibration_of
from planner.web.documents.shapes import CalibrationItem, FamilyItem, WholeRunItem

#: Facts of a bundle that are listed: where its measurements come from.
_FACTS: Final = ("engine", "engine_version", "driver", "sources")


def calibrations() -> dict[str, Any]:
    """Return the calibration of every accelerator, the errors of whole runs, and how often predictions were right."""
    reliability = load_reliability()
    return {
        "items": [calibration(name) for name in list_hardware()],
        "whole_runs": whole_runs(),
        "reliability": reliability.model_dump(mode="json"),
    }


def calibration(name: str) -> CalibrationItem:
    """Return the calibration of one accelerator.

    Raises:
        InputError: The accelerator is unknown, or its calibration is damaged.
    """
    if name not in list_hardware():
        raise InputError("unknown accelerator", name, nearest_name(name, list_hardware()) or "h100")
    unit = parse_hardware(name).accelerator
    bundle, (calibrated, source) = load_bundle(unit), calibration_of(unit)
    facts = {key: bundle.provenance.get(key) for key in _FACTS}
    return {
        "name": name,
        "calibrated": calibrated,
        "calibrated_on": source,
        "bundle": bundle.name,
        "own": calibrated != "none" and not bundle.shipped,
        "engine": facts["engine"],
        "engine_version": facts["engine_version"],
        "driver": facts["driver"],
        "sources": facts["sources"],
        "families": [_family(bundle, family) for family in DEFAULTS],
        "notices": list(bundle.notices),
    }


def _family(bundle: Bundle, family: str) -> FamilyItem:
    return {
        "family": family,
        "measured": family in bundle.models,
        "rows": bundle.provenance.get("rows", {}).get(family, {}),
        "error": bundle.relative_error(family),
        "held_out": bundle.provenance.get("held_out", {}).get(family, []),
    }


def whole_runs() -> list[WholeRunItem]:
    """Return the errors of whole simulated runs by engine; engines without compared runs are left out."""
    found: list[WholeRunItem] = []
    for engine in dict.fromkeys(group.engine for group in load_file().groups):
        block = StatedError.of(engine, 0.0, UNKNOWN).block()
        intervals: dict[str, list[float]] = {metric: block[metric] for metric in METRICS if metric in block}
        found.append(
            {
                "engine": engine,
                "coverage": block["coverage"],
                "intervals": intervals,
                "runs": block["n"],
                "source": block["source"],
            }
        )
    return found
