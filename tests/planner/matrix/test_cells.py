"""Laws of the cells of a matrix, evaluated on small matrices."""

from __future__ import annotations

import csv
import io
import json
import shlex
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from catalogs.errors import InputError
from planner.matrix import matrix_run
from planner.matrix.cell_workers import LocalPool
from planner.matrix.cells import Cell, cells_of
from planner.matrix.evaluation import evaluate
from planner.matrix.layouts import check_names
from planner.matrix.matrix_file import MatrixFile, layout_keys, preset_names, read_matrix, read_preset
from planner.matrix.matrix_run import MatrixRun, chosen_cells, run_matrix
from planner.matrix.outputs import table_text, write_folder
from planner.matrix.page import matrix_page
from planner.matrix.records import RowRecords
from planner.matrix.row import MatrixRow
from simulator.cli.main import app

SMALL = MatrixFile(
    models=["llama3.1-8b", "opt-175b"],
    engines=["vllm", "llama.cpp", "pytorch"],
    hardware=["h100x2"],
    workloads=["alpaca"],
    batches=[1, 4],
    requests=24,
    max_model_len=1024,
)

CELL = replace(cells_of(SMALL)[0], requests=16)


@lru_cache
def row(cell: Cell) -> MatrixRow:
    return evaluate(cell)


def mean_s(cell: Cell) -> float:
    found = row(cell)
    assert found.verdict == "ok", found.rule
    value = found.statistic("e2e_s", "mean")
    assert value is not None
    return value


def test_cells_are_every_combination_once() -> None:
    cells = cells_of(SMALL)
    assert len(cells) == len({cell.name for cell in cells}) == 2 * 3 * 2
    assert len(cells_of(read_preset("systems"))) == 6 * 4 * 2 * 7
    assert preset_names() == ["local", "systems"]


def test_every_row_has_a_verdict_and_a_rule_where_it_has_no_figures() -> None:
    rows = [evaluate(cell) for cell in cells_of(SMALL)]
    assert {found.verdict for found in rows} == {"ok", "does not fit", "unsupported"}
    for found in rows:
        assert (found.verdict == "ok") == (found.metrics is not None) == (not found.rule)
        if found.verdict == "ok":
            assert found.command
            assert found.metrics is not None
            assert found.metrics["n_completed"] == 24


@pytest.mark.parametrize("engine", ["transformers-static", "triton"])
def test_a_padded_batch_is_never_faster_when_it_is_larger(engine: str) -> None:
    base = replace(CELL, engine=engine, system=engine, requests=32, layout="tp1" if engine == "triton" else "pp1")
    times = [mean_s(replace(base, batch=batch)) for batch in (1, 2, 4, 8)]
    assert times == sorted(times)


def test_padded_batches_are_full() -> None:
    """All clients of a closed loop send again when their batch ends, and the next batch waits for all of them."""
    found = row(replace(CELL, engine="triton", system="triton", batch=4, requests=32))
    alone = row(replace(CELL, engine="triton", system="triton", batch=1, requests=32))
    assert found.metrics is not None
    assert alone.metrics is not None
    assert found.metrics["requests_per_s"] > 1.5 * alone.metrics["requests_per_s"]


@pytest.mark.parametrize("engine", ["vllm", "llama.cpp"])
def test_a_larger_model_is_never_faster_on_the_same_layout(engine: str) -> None:
    layout = "tp8" if engine == "vllm" else "pp8"
    base = replace(CELL, engine=engine, system=engine, hardware="h200x8", layout=layout, batch=2, requests=8)
    times = [mean_s(replace(base, model=f"llama3.1-{size}b")) for size in (8, 70, 405)]
    assert times == sorted(times)


def test_the_automatic_layout_takes_the_fewest_accelerators() -> None:
    wide = replace(CELL, hardware="h100x8", requests=8)
    assert row(replace(wide, model="llama3.1-8b")).used == "h100x1"
    large = row(replace(wide, model="llama3.1-70b"))
    assert (large.used, large.resolved_layout) == ("h100x2", "TP2")
    assert evaluate(replace(wide, model="llama3.1-70b", layout="tp1", hardware="h100x1")).verdict == "does not fit"
    stages = row(replace(wide, model="llama3.1-70b", engine="llama.cpp", system="llama.cpp"))
    assert stages.resolved_layout == "TP1 x PP2"


def test_an_engine_that_reserves_its_batch_needs_space_for_all_of_it() -> None:
    found = evaluate(replace(CELL, model="opt-13b", engine="triton", system="triton", hardware="h100x1", batch=512))
    assert found.verdict == "does not fit"
    assert "reserves" in found.rule


def test_open_loads_take_their_share_of_the_closed_loop() -> None:
    closed, open_ = row(replace(CELL, batch=4)), evaluate(replace(CELL, batch=4, open_share=0.5))
    assert closed.metrics is not None
    assert open_.requests_per_s == pytest.approx(0.5 * closed.metrics["requests_per_s"])
    assert "--rate" in open_.command


@pytest.mark.parametrize("share", [None, 0.5])
def test_the_command_of_a_row_gives_the_same_figures(share: float | None, tmp_path: Path) -> None:
    found = evaluate(replace(CELL, batch=2, open_share=share))
    text, _, rest = found.command.partition(" | ")
    deployment = tmp_path / "deployment.json"
    deployment.write_text(shlex.split(text)[1], encoding="utf-8")
    arguments = [str(deployment) if word == "/dev/stdin" else word for word in shlex.split(rest)[1:]]
    printed = CliRunner().invoke(app, arguments)
    assert printed.exit_code == 0, printed.output
    again = json.loads(printed.stdout)
    assert again["metrics"] == found.metrics
    assert again["complexity"] == found.complexity


def run(tmp_path: Path, resume: bool = False, n: int | None = None) -> str:
    cells = cells_of(SMALL)[:n]
    made = MatrixRun(LocalPool(1), RowRecords(tmp_path / "rows.log"), resume)
    result = run_matrix(SMALL, cells, (), made)
    return json.dumps(result.document()) + table_text(result)


def test_the_same_matrix_gives_the_same_bytes(tmp_path: Path) -> None:
    assert run(tmp_path) == run(tmp_path)


def test_resume_repeats_no_finished_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(tmp_path)
    run(tmp_path, n=5)
    with open(tmp_path / "rows.log", "ab") as file:
        file.write(b'{"op_code":100,"cell":"cut')  # what a killed process left of a record
    repeated: list[str] = []

    def counting(cell: Cell) -> MatrixRow:
        repeated.append(cell.name)
        return evaluate(cell)

    monkeypatch.setattr(matrix_run, "evaluate", counting)
    assert run(tmp_path, resume=True) == whole
    assert repeated == [cell.name for cell in cells_of(SMALL)[5:]]
    repeated.clear()
    assert run(tmp_path, resume=True) == whole
    assert repeated == []


def test_files_of_a_matrix(tmp_path: Path) -> None:
    result = run_matrix(SMALL, cells_of(SMALL)[:3], (), MatrixRun(LocalPool(1)))
    write_folder(result, tmp_path)
    lines = list(csv.DictReader(io.StringIO((tmp_path / "rows.csv").read_text(encoding="utf-8"))))
    assert [line["verdict"] for line in lines] == [found.verdict for found in result.rows]
    assert float(lines[0]["metrics.e2e_s.mean"]) == result.rows[0].statistic("e2e_s", "mean")
    assert len(list((tmp_path / "deployments").glob("*.json"))) == 3
    summary, mean_s = (tmp_path / "summary.txt").read_text(encoding="utf-8"), result.rows[0].statistic("e2e_s", "mean")
    assert summary.count("Results Summary") == result.n_ok
    assert summary.count("Result is : VALID") == result.n_ok
    assert mean_s is not None
    assert f"E2E mean : {mean_s * 1e9:.0f}" in summary
    assert {"Cells", "Throughput", "Scaling with the batch"} <= {s.title for s in matrix_page(result).sections}


def test_wrong_matrices_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    good = SMALL.model_dump(mode="json")
    for change, words in (
        ({"model": ["x"]}, "unknown key"),
        ({"batches": [0]}, "greater than"),
        ({"batches": [1, 1]}, "listed twice"),
        ({"layouts": ["wide"]}, "a layout is auto"),
        ({"deployment": {"max_num_seqs": 4}}, "set by an axis"),
        ({"deployment": {"kv_block": 4}}, "nearest is kv_blocks"),
        ({"deployment": {"gpu_memory_utilization": 5}}, "gpu_memory_utilization: input should be less than or equal"),
        ({"engines": [{"name": "a", "engine": "vllm", "deployment": {"kv_block": 4}}]}, "nearest is kv_blocks"),
        ({"engines": [{"name": "a", "engine": "vllm", "deployment": {"block_size": -1}}]}, r"engines\.0\.deployment"),
        ({"precision": ["fp9"]}, "unknown weight_dtype: got 'fp9'; nearest valid choice: fp8$"),
        ({"precision": ["fp8/fp9"]}, "unknown kv_dtype"),
        ({"loads": [{"open": -1}]}, r"loads\.0\.open: input should be greater than 0"),
        ({"layouts": ["pp0"]}, "tp2pp2: got 'pp0'; nearest valid choice: tp4$"),
    ):
        path.write_text(json.dumps(good | change), encoding="utf-8")
        with pytest.raises(InputError, match=words):
            read_matrix(path)
    with pytest.raises(InputError, match="systems"):
        read_preset("system")
    with pytest.raises(InputError, match="no cell"):
        chosen_cells(SMALL, "mistral")
    assert layout_keys("tp2pp4") == {"tensor_parallel": 2, "pipeline_parallel": 4}


def test_networks_and_contradictory_keys_are_named() -> None:
    with pytest.raises(InputError, match="language models"):
        check_names([replace(CELL, model="bge-large")])
    for keys in ({"gpu_memory_utilization": 5}, {"replicas": 0}):
        refused = evaluate(replace(CELL, keys=keys))
        assert (refused.verdict, refused.metrics) == ("unsupported", None)
