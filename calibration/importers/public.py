"""The public tables of one accelerator: the rows that a fit uses, and rows of other projects that check it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pandas as pd

from calibration.bundles.files import Release
from calibration.importers import aiconfigurator, aiter, llmservingsim, nccl, vidur
from catalogs.errors import InputError
from catalogs.io.yaml_files import read_yaml

#: Project name -> SPDX identifier, as the project's own repository states it.
LICENCES_FILE: Final = Path(__file__).with_name("licences.yaml")

#: Families fitted to the first source that has them (rows of two sources would disagree on one grid); the others only
#: check.
ONE_SOURCE: Final = (
    *("gemm", "prefill_attention", "decode_attention", "noncausal_attention", "moe", "mla", "linear_attention"),
)

#: The oldest release of vLLM of which the rows of experts are read (`import_releases`), and the dtypes read of them.
#: Its rows in mxfp4 and int4 take the same time over one rank and over eight, so they were not split as in an engine.
OLDER_EXPERTS: Final = "0.19.0"
OLDER_EXPERT_DTYPES: Final = ("bf16", "fp8", "fp8_block", "fp4")

#: Hardware with a shipped calibration.
SHIPPED: Final = (
    *("a100-80gb", "b200", "b300", "b60", "gb200", "gb300", "h100", "h200", "l40s"),
    *("mi300x", "mi308x", "mi355x", "rtx4090", "rtxpro6000"),
)

Importer = Callable[[Path, str], dict[str, pd.DataFrame]]

#: Projects in the order in which they are read: the folder of each, the hardware that it measured, and its importer.
PROJECTS: Final[tuple[tuple[str, Collection[str], Importer], ...]] = (
    ("aiconfigurator", aiconfigurator.SYSTEM_OF, aiconfigurator.import_tables),
    ("llmservingsim/perf", llmservingsim.FOLDER_OF, llmservingsim.import_profiles),
    ("nccl_tests", nccl.FOLDER_OF, nccl.import_tables),
    ("vidur", (vidur.HARDWARE,), vidur.import_profiles),
    ("aiter", aiter.GPU_OF, aiter.import_tables),
)


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
    """Return the rows of every project that has a folder under `tables` and measured this hardware.

    Raises:
        InputError: No project measured the hardware, or a table is damaged.
    """
    out = PublicRows()
    for family, rows in _tables(tables, hardware):
        if family not in out.fit and family != "mixed_attention":
            out.fit[family] = rows
            continue
        source = str(rows["source"].iloc[0])
        if family in (*ONE_SOURCE, "mixed_attention"):
            out.check[family, source] = rows
        elif family == "collective":  # NCCL's all-reduce must not be averaged with the engine's own
            known = rows.kind.isin(out.fit[family].kind.unique())
            out.check[family, source] = rows[known].reset_index(drop=True)
            out.fit[family] = pd.concat([out.fit[family], rows[~known]], ignore_index=True)
        else:
            out.fit[family] = pd.concat([out.fit[family], rows], ignore_index=True)
    if not out.fit and hardware in SHIPPED:
        raise InputError("no operator tables of this hardware in this folder", str(tables))
    if not out.fit:
        raise InputError("no public operator tables for this hardware", hardware, ", ".join(SHIPPED))
    return out


def import_releases(tables: Path, hardware: str) -> Iterator[tuple[Release, dict[str, pd.DataFrame]]]:
    """Yield the rows by family of the releases that price other engines and older versions on this hardware.

    For other engines, every release and family counts, except for releases that are read for their products alone
    (`aiconfigurator.older_products`). From older releases of vLLM, only the experts of one count: they
    time Triton's kernel, which vLLM ran before it chose between backends. On B200 that kernel takes twice as long for
    block-scaled experts from 128 tokens on as FlashInfer's, which 0.24 times. Before 0.19 the collectors timed launches
    that CUDA graphs hide (a product of one row by 8,192 by 10,240 in fp8 on H100: 42 us in 0.14, 33 us in 0.19 and
    0.24), and those of 0.19 timed products and attention with a warm cache.

    Raises:
        InputError: A table is damaged.
    """
    folder = tables / "aiconfigurator"
    if hardware not in aiconfigurator.SYSTEM_OF or not folder.is_dir():
        return
    for engine, version in aiconfigurator.releases(folder, hardware):
        if not aiconfigurator.reads_all_tables(engine, version):
            if products := aiconfigurator.older_products(folder, hardware, engine, version):
                yield Release(engine, version), products
        elif engine != "vllm":
            yield Release(engine, version), aiconfigurator.import_tables(folder, hardware, engine, version)
        elif version == OLDER_EXPERTS:
            experts = aiconfigurator.read_experts(folder, hardware, engine, version)
            if experts is not None:
                kept = experts[experts.dtype.isin(OLDER_EXPERT_DTYPES)].reset_index(drop=True)
                yield Release(engine, version), {"moe": kept}


def licence_of(source: str) -> str:
    """Return the licence of the project that a row's `source` text names, empty where it names none of them."""
    return next(
        (str(name) for project, name in read_yaml(LICENCES_FILE).items() if project.lower() in source.lower()), ""
    )


def _tables(tables: Path, hardware: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield (family, rows) of every project; a file that is missing, cut short or without a column is an InputError."""
    for folder, measured, importer in PROJECTS:
        if hardware in measured and (tables / folder).is_dir():
            try:
                yield from importer(tables / folder, hardware).items()
            except InputError:
                raise
            except (OSError, KeyError, AttributeError, ValueError) as error:
                rule = f"tables cannot be read ({type(error).__name__}: {error})"
                raise InputError(rule, str(tables / folder)) from None
