"""The command `plan matrix`: what it refuses before it runs, its exit status, and its help."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from catalogs.errors import InputError
from planner.cli.main import app
from planner.matrix.matrix_file import MatrixFile, preset_names

KEYS = {
    "models": ["llama3.1-8b"],
    "engines": ["vllm", "tgi"],
    "hardware": ["h100"],
    "workloads": ["alpaca"],
    "batches": [1, 2],
    "requests": 8,
}


def run(folder: Path, *arguments: str, **keys: object) -> int:
    """Run the command on a matrix; raise its InputError, and return its exit status."""
    file = folder / "m.yaml"
    file.write_text(yaml.safe_dump(KEYS | keys), encoding="utf-8")
    result = CliRunner().invoke(app, ["matrix", str(file), "--jobs", "1", *arguments])
    if isinstance(result.exception, InputError):
        raise result.exception
    return result.exit_code


def test_rows_of_an_earlier_run_are_never_discarded(tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    assert run(tmp_path, "--csv", str(rows)) == 0
    before = {path: path.read_bytes() for path in rows.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=r"already contains the rows of a matrix.*--resume.*another folder"):
        run(tmp_path, "--csv", str(rows), batches=[1])
    assert {path: path.read_bytes() for path in rows.rglob("*") if path.is_file()} == before
    assert len(list((rows / "deployments").iterdir())) == 2
    assert run(tmp_path, "--csv", str(rows), "--resume", batches=[1]) == 0
    assert [path.name for path in (rows / "deployments").iterdir()] == ["0001.json"]


@pytest.mark.parametrize(
    ("axis", "name", "nearest"),
    [
        ("models", "llama3.1-8c", "unknown model.*nearest valid choice: llama3.1-8b"),
        ("engines", "vlm", "unknown engine.*nearest valid choice: vllm"),
        ("hardware", "h1000", "unknown hardware.*nearest valid choice: h100"),
        ("workloads", "alpacca", "workload is neither.*nearest valid choice: alpaca"),
    ],
)
def test_unknown_names_are_refused_before_anything_runs(axis: str, name: str, nearest: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=nearest):
        run(tmp_path, "--csv", str(tmp_path / "rows"), **{axis: [name]})
    assert not (tmp_path / "rows").exists()


def test_the_status_is_1_if_no_cell_is_ok(tmp_path: Path) -> None:
    """An engine that is known but not simulated is a row, not an error."""
    assert run(tmp_path, batches=[1]) == 0
    assert run(tmp_path, batches=[1], engines=["tgi"]) == 1
    assert run(tmp_path, batches=[1], models=["llama3.1-405b"]) == 1


def test_the_help_names_every_preset_and_every_key() -> None:
    printed = CliRunner().invoke(app, ["matrix", "--help"]).output
    missing = [name for name in (*preset_names(), *MatrixFile.model_fields, "docs/matrix.md") if name not in printed]
    assert missing == []


def test_without_a_matrix_both_presets_are_offered() -> None:
    error = CliRunner().invoke(app, ["matrix"]).exception
    assert isinstance(error, InputError)
    assert "--preset local or --preset systems" in str(error)
    assert "docs/matrix.md" in str(error)
