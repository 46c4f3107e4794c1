"""All public tables of one accelerator: rows to fit from, and rows of other projects to check the fit with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from calibration.importers import aiconfigurator, aiconfigurator_moe, llmservingsim, nccl, vidur
from catalogs.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


T = TypeVar("T")

#: Families fitted from the first source that has them (their rows would disagree on one grid); the others only check.
ONE_SOURCE: Final = ("gemm", "prefill_attention", "decode_attention", "moe", "mla")

#: Hardware with a shipped calibration.
SHIPPED: Final = ("a100-80gb", "b200", "h100", "h200", "l40s", "rtx4090", "rtxpro6000")


@dataclass(frozen=True, slots=True)
class PublicRows:
    """fit: rows by family; check: rows by (family, source text), never fitted."""

    fit: dict[str, pd.DataFrame] = field(default_factory=dict)
    check: dict[tuple[str, str], pd.DataFrame] = field(default_factory=dict)


def import_public(tables: Path, hardware: str) -> PublicRows:
    """Rows of every project under `tables` (aiconfigurator/, llmservingsim/perf/, nccl_tests/, vidur/) in that order.

    Raises InputError where no project measured the hardware, or a table is damaged.
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


def _sources(tables: Path, hardware: str) -> list[dict[str, pd.DataFrame]]:
    """Tables of every project whose folder is there and that measured this hardware."""
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
    """A file that is missing, cut short or without a column becomes one line."""
    try:
        return importer(folder, hardware)
    except InputError:
        raise
    except (OSError, KeyError, AttributeError, ValueError) as error:
        raise InputError(f"tables cannot be read ({type(error).__name__}: {error})", str(folder)) from None
