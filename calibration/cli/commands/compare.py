"""The command `calibrate compare`: estimators compared on held-out rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibration.cli.options import Tables
from catalogs.errors import InputError, nearest_name
from catalogs.io.output_files import check_targets, write_atomically, write_json
from catalogs.ui.shared_options import JsonFile
from catalogs.ui.words import percent

if TYPE_CHECKING:
    from calibration.estimators.score import HeldOutScore


#: Default number of rows on which learned estimators train: `MOST_ROWS` of calibration/estimators/estimator.py, which
#: only the command itself imports.
MOST_ROWS = 20_000


def compare(
    rows: Annotated[Path | None, typer.Argument(metavar="ROWS", help="Folder of FAMILY.parquet files.")] = None,
    hw: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Hardware of the rows; repeatable with --tables.")
    ] = None,
    tables: Tables = None,
    family: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this family; repeatable.")] = None,
    most_rows: Annotated[
        int, typer.Option("--rows", metavar="N", min=100, help="Maximum training rows of learned estimators.")
    ] = MOST_ROWS,
    docs: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the page of all tables here.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Compare estimators per operator family on held-out shapes: physics, forest, boosting, linear, residual."""
    if (rows is None) == (tables is None):
        raise InputError("give either rows or public tables", "both" if rows else "neither", hint="give --tables DIR")
    if rows is not None and (hw is None or len(hw) != 1):
        raise InputError("rows need exactly one hardware name", ", ".join(hw or []) or None, "--hw h100")
    check_targets(json_file, docs)
    from calibration.importers.public import SHIPPED

    found = {name: _scores(name, rows, tables, family or [], most_rows) for name in hw or SHIPPED}
    if json_file != "-":
        _print(found)
    if docs is not None:
        from calibration.estimators.page import page

        options = "".join(f" --hw {name}" for name in hw or ()) + "".join(f" --family {f}" for f in family or ())
        source = "--tables DIR" if tables is not None else "ROWS"
        write_atomically(docs, [page(found, f"calibrate compare {source}{options} --docs {docs}", most_rows)])
    if json_file is not None:
        scores = [{"hardware": name, **s.to_dict()} for name, of in found.items() for s in of]
        write_json({"schema_version": 1, "most_rows": most_rows, "scores": scores}, json_file)


def _scores(
    name: str, rows: Path | None, tables: Path | None, families: list[str], most_rows: int
) -> list[HeldOutScore]:
    from calibration.estimators.compare import compare
    from calibration.families.registry import FAMILIES
    from calibration.importers.public import import_public
    from calibration.rows.dataset import read_rows
    from catalogs.hardware.catalog import parse_hardware

    for family in families:
        if family not in FAMILIES:
            raise InputError("unknown operator family", family, nearest_name(family, FAMILIES) or ", ".join(FAMILIES))
    accelerator = parse_hardware(name).accelerator
    read = read_rows(rows) if rows is not None else import_public(tables or Path(), accelerator.name).fit
    kept = [f for f in families if f in read] if tables is not None else families  # no table has every family
    if families and not kept:
        typer.echo(f"{name}: no rows of {', '.join(families)}", err=True)
        return []
    return compare(read, accelerator, kept, most_rows, lambda text: typer.echo(text, err=True))


def _print(found: dict[str, list[HeldOutScore]]) -> None:
    from calibration.estimators.page import microseconds, worst_text

    for name, scores in found.items():
        for s in scores:
            errors = (
                f"median {percent(s.median_abs, 1):>7}  p90 {percent(s.p90_abs, 1):>7} "
                f" MAPE {percent(s.mape, 1):>7}  R2 {s.r2:6.3f}"
            )
            sizes = f"MAE {microseconds(s.mae_s):>8}  RMSE {microseconds(s.rmse_s):>8}"
            typer.echo(f"{name} {s.family:17} {s.region:6} n {s.n:>6,}  {s.estimator:18} {errors}  {sizes}")
            if s.region == "inside":
                typer.echo(f"    worst: {worst_text(s.worst[0])}")
