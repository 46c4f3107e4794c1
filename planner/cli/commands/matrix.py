"""The command `plan matrix`: models, engines, workloads and batches, one row for each combination."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from catalogs.ui.shared_options import options_of
from planner.cli.options import OUTPUT, JsonBeside, write_result

if TYPE_CHECKING:
    from planner.matrix.matrix_file import MatrixFile

_FILE = "Axes and settings of the matrix; docs/matrix.md describes the keys."

_PRESET = "Shipped matrix instead of a file: local or systems."

_HARDWARE = "Hardware of all cells instead of the matrix's; comma-separated."

_CSV = "Write rows.csv, the deployment of every cell, and rows.log for --resume into this folder."

_JOBS = "Processes that evaluate cells; default: one per core."

_CLUSTER = "Evaluate cells on a Ray cluster: ray://local, auto or ray://HOST:PORT."

_MEASURED = "Measurements to compare with predictions: a table, or RESULTS.json=deployment.yaml; repeatable."

_PYTHON = "With --run: Python interpreter of vLLM's environment."

_SERVER = "With --run: the llama-server program of llama.cpp."

_MACHINE = "With --run: write what the machine did, with a page, into a folder below this one per model and engine."

_RUN = "Also measure the cells whose engine is installed on this machine (hardware: local)."

_cells, _measurement = options_of("Cells"), options_of("Measurement")
_work, _output = options_of("Work"), options_of(OUTPUT)


def matrix(
    file: Annotated[Path | None, typer.Argument(metavar="matrix.yaml", help=_FILE)] = None,
    preset: Annotated[str | None, _cells("NAME", _PRESET)] = None,
    hw: Annotated[str | None, _cells("HARDWARE", _HARDWARE)] = None,
    only: Annotated[str | None, _cells("TEXT", "Only cells whose name contains this text.")] = None,
    measured: Annotated[list[Path] | None, _measurement("FILE", _MEASURED)] = None,
    run: Annotated[bool, _measurement(None, _RUN, "--run")] = False,
    python: Annotated[Path | None, _measurement("PATH", _PYTHON)] = None,
    server: Annotated[Path | None, _measurement("PATH", _SERVER)] = None,
    threads: Annotated[int, _measurement("N", "With --run: threads of an engine on a CPU.", min=1)] = 1,
    machine: Annotated[Path | None, _measurement("DIR", _MACHINE)] = None,
    jobs: Annotated[int | None, _work("N", _JOBS, min=1)] = None,
    distributed: Annotated[str | None, _work("ADDRESS", _CLUSTER)] = None,
    resume: Annotated[bool, _work(None, "Keep the rows that rows.log in --csv DIR holds.", "--resume")] = False,
    html: Annotated[Path | None, _output("FILE", "Write an HTML page with charts.")] = None,
    csv: Annotated[Path | None, _output("DIR", _CSV)] = None,
    json_file: JsonBeside = None,
) -> None:
    """Simulate every combination of models, engines, hardware, workloads and batches; exit status 1 if no cell is ok.

    matrix.yaml needs the lists models, engines, hardware, workloads and batches.
    Further lists: precision, layouts, loads.
    Further keys: name, requests, seed, max_model_len, deployment.

    plan matrix --preset systems --hw h100x8 --csv rows --html matrix.html
    """
    from catalogs.errors import InputError
    from catalogs.io.output_files import check_targets, make_folder
    from catalogs.ui.progress import counted_progress
    from planner.cli.screens.matrix import show_matrix
    from planner.matrix.cell_workers import cell_pool
    from planner.matrix.client_results import read_points
    from planner.matrix.layouts import check_names
    from planner.matrix.live import LiveSettings, is_live, results_folder
    from planner.matrix.matrix_run import MatrixRun, chosen_cells, run_matrix
    from planner.matrix.outputs import check_folder, write_folder
    from planner.matrix.records import FILE_NAME, RowRecords

    check_targets(json_file, html=html)
    if html is not None:
        from catalogs.ui.html_page import need_plotly

        need_plotly()
    if resume and csv is None:
        raise InputError("--resume reads the rows of an earlier run", hint="give its --csv DIR")
    if csv is not None and not resume:
        check_folder(csv)
    wanted = chosen_matrix(file, preset, hw, bool(measured))
    points = [point for path in measured or () for point in read_points(path)]
    cells = [] if wanted is None else chosen_cells(wanted, only)
    check_names(cells)
    if run and not any(map(is_live, cells)):
        raise InputError("--run measures cells on this machine, and no cell has hardware: local", nearest="--hw local")
    if machine is not None and not run:
        raise InputError("--machine records the measurement of --run", str(machine), hint="give --run")
    records = None if csv is None else RowRecords(make_folder(csv) / FILE_NAME)
    with cell_pool(jobs, distributed) as pool, counted_progress("matrix") as progress, results_folder(csv) as out:
        live = LiveSettings(out, threads, python, server, machine) if run else None
        result = run_matrix(wanted, cells, points, MatrixRun(pool, records, resume, progress), live)
    if csv is not None:
        write_folder(result, csv)
    if html is not None:
        from catalogs.io.output_files import write_atomically
        from catalogs.ui.html_page import render
        from planner.matrix.page import matrix_page

        write_atomically(html, [render(matrix_page(result))])
    write_result(result.document(), json_file, lambda: show_matrix(result))
    raise typer.Exit(1 if cells and not result.n_ok else 0)


def chosen_matrix(file: Path | None, preset: str | None, hw: str | None, measured: bool) -> MatrixFile | None:
    """Return the matrix of a command line; None if only measurements are compared.

    Raises:
        InputError: Neither or both of a file and a preset are given.
    """
    from catalogs.errors import InputError
    from planner.matrix.matrix_file import preset_names, read_matrix, read_preset

    if file is not None and preset is not None:
        raise InputError("a matrix file and --preset exclude each other", preset, hint="give one of them")
    if file is None and preset is None:
        if measured:
            return None
        near = " or ".join(f"--preset {name}" for name in preset_names())
        raise InputError("no matrix is given", nearest=near, hint="docs/matrix.md shows the keys of a matrix.yaml")
    wanted = read_preset(preset) if preset is not None else read_matrix(file or Path())
    return wanted if hw is None else wanted.on_hardware(hw)
