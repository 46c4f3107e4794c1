"""All public tables of one accelerator: rows to fit from, and rows of other projects to check the fit with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from calibration.importers import aiconfigurator, aiconfigurator_moe, llmservingsim, nccl, vidur
from catalogs.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

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

    Raises InputError where no project measured the hardware.
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
    if not out.fit:
        raise InputError("no public operator tables for this hardware", hardware, ", ".join(SHIPPED))
    return out


def _sources(tables: Path, hardware: str) -> list[dict[str, pd.DataFrame]]:
    found: list[dict[str, pd.DataFrame]] = []
    if hardware in aiconfigurator.SYSTEM_OF:
        found.append(aiconfigurator.import_tables(tables / "aiconfigurator", hardware))
        found.append(aiconfigurator_moe.import_tables(tables / "aiconfigurator", hardware))
    if hardware in llmservingsim.FOLDER_OF:
        found.append(llmservingsim.import_profiles(tables / "llmservingsim" / "perf", hardware))
    if hardware in nccl.NCCL_TESTS_FOLDER:
        found.append({"collective": nccl.import_nccl_tests(tables / "nccl_tests", hardware)})
    if hardware == vidur.HARDWARE:
        found.append(vidur.import_profiles(tables / "vidur", hardware))
    return found
