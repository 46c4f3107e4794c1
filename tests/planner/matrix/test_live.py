"""Cells measured with real engines: 24 cells of the preset `local`, where vLLM and llama.cpp are installed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from calibration.accuracy.measured_run import MeasuredRun
from calibration.serve.probe import Probe
from planner.matrix.cell_workers import LocalPool
from planner.matrix.cells import cells_of
from planner.matrix.comparison import compare_rows
from planner.matrix.live import LiveSettings, measure, requests_of
from planner.matrix.live_rows import drift_notice, measured_row
from planner.matrix.matrix_file import read_preset
from planner.matrix.matrix_run import MatrixRun, run_matrix
from planner.matrix.measurement_records import MeasuredReplay
from planner.matrix.records import FILE_NAME, RowRecords
from planner.matrix.row import NO_FIGURE, CellVersions, Verdict

VLLM = os.environ.get("CAPACITY_PLANNER_VLLM_PYTHON")
LLAMA = os.environ.get("CAPACITY_PLANNER_LLAMA_SERVER")
CELL = cells_of(read_preset("local"))[0]


def test_requests_of_a_cell_fit_in_the_engine() -> None:
    found = requests_of(replace(CELL, workload="sharegpt", batch=2, requests=50), 256)
    assert found.concurrency == 2
    assert int((found.input_tokens + found.output_tokens).max()) < 256


def test_a_measured_row_has_the_statistics_of_its_requests() -> None:
    ones, lengths = np.ones(4), np.full(4, 3.0)
    run = MeasuredRun("client", "x", np.arange(4.0), lengths, lengths, ones, ones / 2, 2 * ones, ones[:0], 5.0, 0)
    row = measured_row(CELL, [MeasuredReplay(1, run, 0.0)], CellVersions(product="x", engine="vllm"))
    assert row.statistic("e2e_s", "mean") == 2.0
    assert row.metrics is not None
    assert row.metrics["duration_s"] == 5.0
    assert row.metrics["output_tokens_per_s"] == pytest.approx(12 / 5)
    found = compare_rows([(row, row)])
    assert [value.error for value in found.values] == [0.0, 0.0, 0.0]


def test_engines_that_are_not_installed_say_so(tmp_path: Path) -> None:
    cells = [replace(CELL, engine="sglang", system="sglang"), replace(CELL, model="no-such-folder")]
    missing = LiveSettings(tmp_path, 1, python=tmp_path / "python")
    rows = [row for _, *pair in measure(cells, missing, lambda _: None) for row in pair]
    assert {row.verdict for row in rows} == {"unsupported"}
    assert all(row.rule for row in rows)
    assert [row.origin for row in rows] == ["simulated", "measured"] * 2


def slower(probe: Probe, factor: float) -> Probe:
    return replace(probe, single=replace(probe.single, itl_s=probe.single.itl_s * factor))


def test_a_row_states_that_the_machine_changed_between_probes() -> None:
    n = 12
    inputs, outputs, each = np.full(n, 20.0), np.full(n, 5.0), np.full(n, 0.1)
    run = MeasuredRun(
        "client", "x", np.arange(n) * 1.0, inputs, outputs, each, each, each, np.full(4 * n, 2e-3), 5.0, 0
    )
    probe = Probe(replace(run, n_gaps=(4,) * n), run, ())
    assert drift_notice([probe]) == []
    assert drift_notice([probe, slower(probe, 1.09), probe]) == []
    [notice] = drift_notice([probe, slower(probe, 1.2), probe])
    assert "2 to 2.4 ms" in notice


def test_every_verdict_without_figures_has_words() -> None:
    assert {"ok", *NO_FIGURE} == set(get_args(Verdict))


@pytest.mark.slow
@pytest.mark.skipif(not VLLM, reason="CAPACITY_PLANNER_VLLM_PYTHON does not name the Python of vLLM")
def test_simulated_means_are_those_of_real_engines(tmp_path: Path) -> None:
    """Measure the 24 cells, which takes eight minutes on two quiet cores.

    CAPACITY_PLANNER_MATRIX_FOLDER names a folder that keeps what was measured: a run that was interrupted, at any
    moment, is continued from it, and a whole one is only compared.
    """
    matrix = read_preset("local")
    folder = Path(os.environ.get("CAPACITY_PLANNER_MATRIX_FOLDER") or tmp_path)
    records = RowRecords(folder / FILE_NAME)
    cells = [cell for cell in cells_of(matrix) if LLAMA or cell.engine != "llama.cpp"]
    live = LiveSettings(folder / "runs", 1, Path(VLLM or ""), Path(LLAMA) if LLAMA else None)
    result = run_matrix(matrix, cells, (), MatrixRun(LocalPool(1), records, resume=True), live)
    assert {row.origin for row in result.rows} == {"simulated", "measured"}
    assert not [(row.cell, row.rule) for row in result.rows if row.verdict != "ok"]
    assert result.comparison is not None
    errors = {group.metric: abs(group.bias) for group in result.comparison.together}
    assert errors["e2e_s.mean"] <= 0.15
    assert errors["tpot_s.mean"] <= 0.15
