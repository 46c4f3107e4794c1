"""Select the page for a folder or name, and write it."""

from __future__ import annotations

from pathlib import Path

from calibration.profile.session.manifest import MANIFEST_NAME
from calibration.profile.session.session import ROWS_NAME
from calibration.whole_models.table import PARQUET_NAME, read_rows
from catalogs.errors import InputError
from catalogs.io.output_files import write_atomically
from catalogs.ui.html_page import Page, need_plotly, render


def write_report(source: str, out: Path, rows: Path | None = None) -> Path:
    """Write the page of a profile's folder, of a bundle (folder or hardware name), or of whole-model rows.

    Raises:
        InputError: plotly is missing, `source` is none of these, or the file cannot be written.
    """
    need_plotly()
    write_atomically(out, [render(page_of(source, rows))])
    return out


def page_of(source: str, rows: Path | None = None) -> Page:
    """Return the page that `write_report` writes.

    Raises:
        InputError: `source` is none of these, or `rows` are given to a source that has its own.
    """
    from calibration.bundles.bundle import bundle_folder
    from calibration.report.from_bundle import read_bundle_material
    from calibration.report.from_profile import read_profile
    from calibration.report.model_page import page_of_study
    from calibration.report.operator_page import operator_page
    from calibration.whole_models.study import study

    folder = Path(source)
    whole_models = _is_models(folder)
    if not whole_models and not ((folder / MANIFEST_NAME).is_file() and (folder / ROWS_NAME).is_file()):
        return operator_page(read_bundle_material(bundle_folder(source), rows))
    if rows is not None:
        rule = "--rows applies to a calibration bundle only, not to measured rows or a profile"
        raise InputError(rule, str(rows), hint="leave out --rows")
    return page_of_study(study(read_rows(folder))) if whole_models else operator_page(read_profile(folder))


def _is_models(folder: Path) -> bool:
    """Return whether the rows are of whole models, not of operators."""
    if (folder / PARQUET_NAME).is_file():
        return True
    try:
        with open(folder / ROWS_NAME, encoding="utf-8") as file:
            return '"family": "whole_model"' in file.readline()
    except (OSError, UnicodeDecodeError):
        return False
