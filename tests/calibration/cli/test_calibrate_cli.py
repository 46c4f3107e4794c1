"""The `calibrate` command: rows to bundle to verdict, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from calibration.cli.main import app, main
from calibration.rows.dataset import write_rows
from catalogs.hardware.catalog import parse_hardware
from tests.calibration.invented_accelerator import gemm_rows

RUN = CliRunner()


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    write_rows(tmp_path / "rows", {"gemm": gemm_rows(parse_hardware("h100").accelerator)})
    return tmp_path / "rows"


def test_fit_then_validate_then_show(rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    fitted = RUN.invoke(app, ["fit", str(rows), "--hw", "h100", "--out", str(out)])
    assert fitted.exit_code == 0, fitted.output
    assert "gemm" in fitted.output
    good = RUN.invoke(app, ["validate", str(out), "--rows", str(rows), "--json", "-"])
    document = json.loads(good.stdout)
    assert good.exit_code == 0
    assert document["met"]
    assert {e["region"] for e in document["errors"]} == {"inside", "rows"}
    shown = RUN.invoke(app, ["show", str(out), "--json", "-"])
    provenance = json.loads(shown.stdout)["provenance"]
    assert provenance["engine_version"] == "1.2.3"
    assert provenance["rows"]["gemm"]["rows_in"] == 96


def test_a_missed_validation_is_exit_1(rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    RUN.invoke(app, ["fit", str(rows), "--hw", "h100", "--out", str(out)])
    missed = RUN.invoke(app, ["validate", str(out), "--max-error", "0.0001"])
    assert missed.exit_code == 1
    assert "over" in missed.output


@pytest.mark.parametrize(
    ("args", "rule"),
    [
        (["show", "h1000"], "unknown hardware"),
        (["validate", "/nowhere"], "no calibration bundle"),
        (["fit", "/nowhere", "--hw", "h100", "--out", "/tmp/x"], "no rows"),
        (["import", "--tables", "/nowhere", "--hw", "l4", "--out", "/tmp/x"], "no public operator tables"),
        (["compare", "--tables", "/nowhere", "--hw", "h100", "--family", "gem"], "nearest valid choice: gemm"),
        (["run", "--json", "/nowhere/out.json"], "cannot write there"),  # before it measures, not after
        (["profile", "--device", "tpu", "--dry-run"], "a device is cpu or cuda"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(args: list[str], rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(args)
    assert stopped.value.code == 2
    err = capsys.readouterr().err
    assert rule in err
    assert err.count("\n") == 1


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom calibration.cli.main import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n   "
        " pass\n"
        "print([m for m in ('pandas', 'sklearn', 'scipy', 'numpy', 'pyarrow', 'torch') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip().endswith("[]")
