"""Import the operator tables inside an installed aiconfigurator-core (0.12) or aisimulate (0.13).

Both keep `systems/data/SYSTEM/FOLDER/ENGINE/VERSION/NAME.parquet`, as their repository does. The package is located but
not imported: its code never runs.
"""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pandas as pd

from calibration.importers import aiconfigurator
from catalogs.errors import InputError

#: Module -> (distribution, project that its rows are from), in the order of preference.
PACKAGES: Final = {
    "aiconfigurator_core": ("aiconfigurator-core", "aiconfigurator"),
    "aisimulate_core": ("aisimulate", "aisimulate"),
    "aiconfigurator": ("aiconfigurator", "aiconfigurator"),
    "aisimulate": ("aisimulate", "aisimulate"),
}


def package_tables() -> tuple[Path, str]:
    """Return the folder of the tables and PROJECT@VERSION of the first package that has them.

    Raises:
        InputError: No such package is installed.
    """
    seen: list[str] = []
    for module, (distribution, project) in PACKAGES.items():
        for root in _roots(module):
            seen.append(distribution)
            folder = root / "systems" / "data"
            if any(folder.glob("*/gemm/*/*/gemm_perf.parquet")):
                return folder, f"{project}@{_version(distribution)}"
    if seen:
        rule = "installed without operator tables in the known layout"
        raise InputError(rule, ", ".join(dict.fromkeys(seen)), hint="pip install aiconfigurator-core")
    raise InputError("neither aiconfigurator-core nor aisimulate is installed", hint="pip install aiconfigurator-core")


def import_package(hardware: str) -> dict[str, pd.DataFrame]:
    """Return the rows of one accelerator by family from the installed package.

    Raises:
        InputError: No such package is installed, or it has no tables of this hardware.
    """
    tables, name = package_tables()
    found = aiconfigurator.import_tables(tables, hardware)
    for rows in found.values():
        rows["source"] = rows["source"].str.replace(f"aiconfigurator@{aiconfigurator.COMMIT}", name, regex=False)
    return found


def _roots(module: str) -> list[Path]:
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return []
    return [Path(p) for p in (spec.submodule_search_locations or ())] if spec else []


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "unknown"
