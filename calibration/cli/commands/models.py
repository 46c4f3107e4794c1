"""The command `calibrate models`: whole models measured on this machine, and the error on held-out rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibration.cli.options import Budget, Device, Out, Seed, Threads
from catalogs.errors import InputError
from catalogs.io.output_files import check_targets, write_atomically, write_json
from catalogs.ui.shared_options import JsonFile

if TYPE_CHECKING:
    from calibration.whole_models.study import WholeModelStudy


def models(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME|DIR",
            help="Catalog models, or folders of a config.json; default: opt-350m bloom-560m t5-small bart-base.",
        ),
    ] = None,
    budget: Budget = "10m",
    batches: Annotated[str, typer.Option(metavar="N,N", help="Batch sizes.")] = "1,8,32,128",
    max_input: Annotated[int, typer.Option(metavar="N", help="Longest input in tokens.")] = 512,
    max_output: Annotated[
        int | None, typer.Option(metavar="N", help="Longest output in tokens; default: 128, on a CPU both 8 and 128.")
    ] = None,
    out: Out = None,
    json_file: JsonFile = None,
    device: Device = None,
    threads: Threads = None,
    seed: Seed = 0,
    predict_only: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Measure nothing: study the rows of this folder again.")
    ] = None,
) -> None:
    """Run whole models with random weights over workloads and batches, and report the error on held-out rows."""
    check_targets(json_file)
    if predict_only is not None:
        if names:
            raise InputError("--predict-only takes the models from its rows; leave the names out", names[0])
        _report(predict_only, json_file, must=True)
        return
    from calibration.profile.local_run import budget_s
    from calibration.whole_models.collect import CollectOptions, collect_models
    from calibration.whole_models.subjects import DEFAULTS

    try:
        sizes = tuple(int(part) for part in batches.split(","))
    except ValueError:
        raise InputError("batches must be whole numbers separated by commas", batches, "1,8,32,128") from None
    chosen, seconds = tuple(names or DEFAULTS), budget_s(budget)
    done = collect_models(CollectOptions(chosen, seconds, sizes, max_input, out, device, threads, max_output, seed))
    typer.echo(f"{done.folder}: " + ", ".join(f"{n} {s}" for s, n in done.facts["counts"].items() if n), err=True)
    _report(done.folder, json_file, must=False)


def _report(folder: Path, json_file: str | None, must: bool) -> None:
    """Study the rows of a folder, save the predictor there, and show both.

    With `must`, too few rows are an error.
    """
    from calibration.whole_models import predictor, screen, table
    from calibration.whole_models.study import study
    from catalogs.ui.progress import status_line

    rows = table.read_rows(folder)
    found: WholeModelStudy | None = None
    try:
        with status_line("comparing the estimators"):
            found = study(rows)
        notes = [f"predictor: {predictor.save(found, folder)}", f"report: {_page(found, folder)}"]
    except InputError as error:
        if must:
            raise
        notes = [f"no predictor: {error}"]
    if json_file != "-":
        screen.show(rows, found, notes)
    if json_file is not None:
        n = {str(s): int(c) for s, c in rows["status"].value_counts().items()}
        bare = {"schema_version": predictor.SCHEMA_VERSION, "rows": n, "notes": notes, "targets": {}}
        write_json({"folder": str(folder), **(predictor.document(found) if found else bare)}, json_file)


def _page(found: WholeModelStudy, folder: Path) -> str:
    """Write the page into the folder and return its path; without plotly, return how to install it."""
    from catalogs.ui.html_page import need_plotly, render

    try:
        need_plotly()
    except InputError as error:
        return f"none, {error}"
    from calibration.report.model_page import page_of_study

    page = folder / "report.html"
    write_atomically(page, [render(page_of_study(found))])
    return str(page)
