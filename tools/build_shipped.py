"""Reproduce the calibrations in catalogs/data/calibrations from the public operator tables.

    python tools/build_shipped.py --tables DIR [--hw NAME]... [--family NAME]... [--out DIR] [--docs FILE]

DIR holds the tables that `calibrate import --tables` reads: aiconfigurator/, llmservingsim/perf/, nccl_tests/, vidur/.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
from error_table import error_table
from shipped_power import write_power

from calibration.bundles.bundle import shipped_folder
from calibration.bundles.files import FittedFamily, Release, read_bundle, write_bundle
from calibration.bundles.releases import RELEASES_FOLDER
from calibration.families.registry import FAMILIES
from calibration.fitting.fit import fit_bundle, fit_family
from calibration.importers.public import SHIPPED, import_public, import_releases
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Accelerator
from catalogs.io.output_files import write_atomically


def build(
    tables: Path,
    folder: Path,
    hardware: Sequence[str] = SHIPPED,
    docs: Path | None = None,
    families: Sequence[str] = (),
) -> None:
    """Write the power model and a bundle of each hardware name to `folder`, and the page of held-out errors to `docs`.

    If `families` are named, only these are fitted again, in the bundles that are there.

    Raises:
        InputError: A hardware name is unknown, or a table is missing or cannot be read.
    """
    if not families:
        print(write_power(tables, folder), file=sys.stderr)
    for name in hardware:
        accelerator = parse_hardware(name).accelerator
        public = import_public(tables, accelerator.name)
        own = folder / accelerator.name
        fitted = [(own, public.fit), *_releases(tables, own)]
        for path, rows in fitted:
            if families:
                refit(path, {f: r for f, r in rows.items() if f in families}, accelerator)
            else:
                fit_bundle(rows, accelerator, path, public.check if path == own else None)
            print(path, file=sys.stderr)
    if docs is not None:
        write_atomically(docs, [error_table(folder)])


def _releases(tables: Path, own: Path) -> Iterator[tuple[Path, dict[str, pd.DataFrame]]]:
    """Yield the folder and the rows of each release of the accelerator with the folder `own`."""
    for release, rows in import_releases(tables, own.name):
        yield own / RELEASES_FOLDER / release.folder, rows


def refit(folder: Path, tables: dict[str, pd.DataFrame], accelerator: Accelerator) -> None:
    """Fit the families of `tables` in a bundle, again or for the first time, and leave its other families as they are.

    Notes on rows of other sources, which only check a fit, stay those of the fit before.

    Raises:
        InputError: The bundle is missing, or no row of a family respects the peaks of the accelerator.
    """
    if not tables:
        return
    facts, arrays = read_bundle(folder)
    fitted = {}
    for family, record in facts.families.items():
        own = {n.split("/", 1)[1]: a for n, a in arrays.items() if n.startswith(f"{family}/")}
        model = FAMILIES[family].from_parts(record.facts, own)
        errors = [e.model_dump() for e in record.held_out]
        fitted[family] = FittedFamily(model, record.rows, record.rows_sha256, errors, record.notes)
    for family, rows in tables.items():
        fit = fit_family(family, rows, accelerator)
        fitted[family] = replace(fit, notes=fitted[family].notes) if family in fitted else fit
    release, sources = Release(facts.engine, facts.engine_version), [s.model_dump() for s in facts.sources]
    write_bundle(folder, facts.hardware, release, sources, fitted)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build what the command line names; return 2 and print one line where the input is wrong."""
    parser = argparse.ArgumentParser(description="Reproduce the shipped calibrations from the public operator tables.")
    parser.add_argument("--tables", type=Path, required=True, metavar="DIR", help="folder of public operator tables")
    parser.add_argument("--hw", action="append", metavar="NAME", help="build only this hardware; repeatable")
    parser.add_argument("--family", action="append", metavar="NAME", help="fit only this family again; repeatable")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write here instead of the package's own folder")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="write the page of held-out errors to FILE")
    given = parser.parse_args(arguments)
    try:
        build(given.tables, given.out or shipped_folder(), given.hw or SHIPPED, given.docs, given.family or ())
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
