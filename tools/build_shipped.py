"""Reproduce the calibrations in catalogs/data/calibrations from the public operator tables.

    python tools/build_shipped.py --tables DIR [--hw NAME]... [--out DIR] [--docs docs/calibration.md]

DIR holds the tables that `calibrate import --tables` reads: aiconfigurator/, llmservingsim/perf/, nccl_tests/, vidur/.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from error_table import error_table
from shipped_power import write_power

from calibration.bundles.bundle import shipped_folder
from calibration.bundles.releases import RELEASES_FOLDER
from calibration.fitting.fit import fit_bundle
from calibration.importers.public import SHIPPED, import_public, import_releases
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.io.output_files import write_atomically


def build(tables: Path, folder: Path, hardware: Sequence[str] = SHIPPED, docs: Path | None = None) -> None:
    """Write the power model and a bundle of each hardware name to `folder`, and the page of held-out errors to `docs`.

    Raises:
        InputError: A hardware name is unknown, or a table is missing or cannot be read.
    """
    print(write_power(tables, folder), file=sys.stderr)
    for name in hardware:
        accelerator = parse_hardware(name).accelerator
        public = import_public(tables, accelerator.name)
        own = folder / accelerator.name
        print(fit_bundle(public.fit, accelerator, own, public.check), file=sys.stderr)
        for release, rows in import_releases(tables, accelerator.name):
            print(fit_bundle(rows, accelerator, own / RELEASES_FOLDER / release.folder), file=sys.stderr)
    if docs is not None:
        write_atomically(docs, [error_table(folder)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Build what the command line names; return 2 and print one line where the input is wrong."""
    parser = argparse.ArgumentParser(description="Reproduce the shipped calibrations from the public operator tables.")
    parser.add_argument("--tables", type=Path, required=True, metavar="DIR", help="folder of public operator tables")
    parser.add_argument("--hw", action="append", metavar="NAME", help="build only this hardware; repeatable")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write here instead of the package's own folder")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="write the page of held-out errors to FILE")
    given = parser.parse_args(arguments)
    try:
        build(given.tables, given.out or shipped_folder(), given.hw or SHIPPED, given.docs)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
