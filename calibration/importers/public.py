"""All public tables of one accelerator: rows to fit, and rows of other projects that check the fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from calibration.importers import aiconfigurator, aiconfigurator_moe, llmservingsim, nccl, vidur
from catalogs.errors import InputError
from catalogs.io.yaml_files import read_yaml

if TYPE_CHECKING:
    import pandas as pd


T = TypeVar("T")

#: Project name -> SPDX identifier, as the project's own repository states it.
LICENCES_FILE: Final = Path(__file__).with_name("licences.yaml")

#: Families fitted to the first source that has them (rows of two sources would disagree on one grid); the others only
#: check.
ONE_SOURCE: Final = ("gemm", "prefill_attention", "decode_attention", "moe", "mla")

#: Hardware with a shipped calibration.
SHIPPED: Final = ("a100-80gb", "b200", "h100", "h200", "l40s", "rtx4090", "rtxpro6000")


@dataclass(frozen=True, slots=True)
class PublicRows:
    """Rows of all public sources.

    Attributes:
        fit: Rows by family.
        check: Rows by (family, source text), which are never fitted.
    """

    fit: dict[str, pd.DataFrame] = field(default_factory=dict)
    check: dict[tuple[str, str], pd.DataFrame] = field(default_factory=dict)


def import_public(tables: Path, hardware: str) -> PublicRows:
    """Return the rows of every project under `tables`: aiconfigurator/, llmservingsim/perf/, nccl_tests/, vidur/.

    The projects are read in that order.

    Raises:
        InputError: No project measured the hardware, or a table is damaged.
    """
    import pandas as pd

    out = PublicRows()
    for found in _sources(tables, hardware):
        for family, rows in found.items():
            if family not in out.fit and family != "mixed_attention":
                out.fit[family] = rows
            elif family in ONE_SOURCE or family == "mixed_attention":
                out.check[family, str(rows["source"].iloc[0])] = rows
            elif family == "collective":  # NCCL's all-reduce must not be averaged with the engine's own
                known = rows.kind.isin(out.fit[family].kind.unique())
                out.check[family, str(rows["source"].iloc[0])] = rows[known].reset_index(drop=True)
                out.fit[family] = pd.concat([out.fit[family], rows[~known]], ignore_index=True)
            else:
                out.fit[family] = pd.concat([out.fit[family], rows], ignore_index=True)
    if not out.fit and hardware in SHIPPED:
        raise InputError("no operator tables of this hardware in this folder", str(tables))
    if not out.fit:
        raise InputError("no public operator tables for this hardware", hardware, ", ".join(SHIPPED))
    return out


@cache
def _licences() -> dict[str, str]:
    return {str(project): str(licence) for project, licence in read_yaml(LICENCES_FILE).items()}


def licence_of(source: str) -> str:
    """Return the licence of the project that a row's `source` text names, empty where it names none of them."""
    return next((licence for project, licence in _licences().items() if project.lower() in source.lower()), "")


def _sources(tables: Path, hardware: str) -> list[dict[str, pd.DataFrame]]:
    """Return the tables of every project that has a folder and measured this hardware."""
    own, llm, nccl_tests = tables / "aiconfigurator", tables / "llmservingsim" / "perf", tables / "nccl_tests"
    found: list[dict[str, pd.DataFrame]] = []
    if hardware in aiconfigurator.SYSTEM_OF and own.is_dir():
        found.append(_read(aiconfigurator.import_tables, own, hardware))
        found.append(_read(aiconfigurator_moe.import_tables, own, hardware))
    if hardware in llmservingsim.FOLDER_OF and llm.is_dir():
        found.append(_read(llmservingsim.import_profiles, llm, hardware))
    if hardware in nccl.NCCL_TESTS_FOLDER and nccl_tests.is_dir():
        found.append({"collective": _read(nccl.import_nccl_tests, nccl_tests, hardware)})
    if hardware == vidur.HARDWARE and (tables / "vidur").is_dir():
        found.append(_read(vidur.import_profiles, tables / "vidur", hardware))
    return found


def _read(importer: Callable[[Path, str], T], folder: Path, hardware: str) -> T:
    """Call an importer; a file that is missing, cut short or without a column becomes a one-line error."""
    try:
        return importer(folder, hardware)
    except InputError:
        raise
    except (OSError, KeyError, AttributeError, ValueError) as error:
        raise InputError(f"tables cannot be read ({type(error).__name__}: {error})", str(folder)) from None
