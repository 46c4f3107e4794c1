"""Operator tables inside an installed package: found without importing it, gated like any others."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from calibration.cli.main import app, main
from calibration.importers.aiconfigurator import newest_version
from calibration.importers.aiconfigurator_package import PACKAGES, package_tables
from calibration.rows.dataset import read_rows
from catalogs.errors import InputError

RUN = CliRunner()


def table(rows: list[tuple[int, int, int, float]]) -> pd.DataFrame:
    """As aiconfigurator's gemm_perf: latency in ms."""
    frame = pd.DataFrame(rows, columns=["m", "n", "k", "latency"])
    return frame.assign(gemm_dtype="bfloat16", kernel_source="torch_flow", framework="VLLM")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed aiconfigurator-core with one table of H100; importing its code is an error."""
    root = tmp_path / "site" / "aiconfigurator_core"
    folder = root / "systems" / "data" / "h100_sxm" / "gemm" / "vllm"
    sizes = [(2**i, 4096, 4096, 0.05 * 2 ** max(0, i - 6)) for i in range(12)]
    for version, rows in {"0.9.0": sizes[:1], "0.24.0": [*sizes, (8192, 8192, 8192, 1e-4)]}.items():
        (folder / version).mkdir(parents=True)
        table(rows).to_parquet(folder / version / "gemm_perf.parquet")
    (folder / "0.25.dev3").mkdir()  # a version without the table
    (root / "__init__.py").write_text("raise RuntimeError('imported')\n")
    info = tmp_path / "site" / "aiconfigurator_core-0.12.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: aiconfigurator-core\nVersion: 0.12.0\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return root


def test_tables_come_from_the_package_and_rows_over_the_peak_go(package: Path, tmp_path: Path) -> None:
    args = ["import", "--from-package", "--hw", "h100", "--out", str(tmp_path / "rows"), "--json", "-"]
    result = RUN.invoke(app, args)
    assert result.exit_code == 0, result.output
    family = json.loads(result.stdout)["families"]["gemm"]
    assert (family["rows_in"], family["rows"], family["rejected_over_peak_flops"]) == (13, 12, 1)
    rows = read_rows(tmp_path / "rows")["gemm"]
    assert set(rows.source) == {"aiconfigurator@0.12.0 h100_sxm vllm 0.24.0"}
    assert rows.seconds.min() == pytest.approx(50e-6)
    assert "aiconfigurator_core" not in sys.modules
    assert package_tables()[0] == package / "systems" / "data"


def test_rows_from_a_package_equal_those_from_its_folder(package: Path, tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "aiconfigurator").symlink_to(package / "systems" / "data")
    for how in (["--from-package"], ["--tables", str(tmp_path / "tables")]):
        out = ["--hw", "h100", "--out", str(tmp_path / how[0].strip("-"))]
        assert RUN.invoke(app, ["import", *how, *out]).exit_code == 0
    a, b = (read_rows(tmp_path / name)["gemm"].drop(columns="source") for name in ("from-package", "tables"))
    pd.testing.assert_frame_equal(a, b)


def test_the_newest_release_with_the_table_is_taken(package: Path) -> None:
    tables = package / "systems" / "data"
    assert newest_version(tables, "h100_sxm", "gemm", "gemm_perf") == "0.24.0"
    assert newest_version(tables, "h100_sxm", "gemm", "other_perf") is None


@pytest.mark.parametrize("latency_ms", [1e-9, np.nextafter(0.0, 1.0)])
def test_a_table_in_the_wrong_unit_is_refused_whole(package: Path, latency_ms: float, tmp_path: Path) -> None:
    file = package / "systems/data/h100_sxm/gemm/vllm/0.24.0/gemm_perf.parquet"
    table([(4096, 4096, 4096, latency_ms)]).to_parquet(file)
    out = tmp_path / "rows"
    result = RUN.invoke(app, ["import", "--from-package", "--hw", "h100", "--out", str(out)])
    assert isinstance(result.exception, InputError)
    assert "no row obeys the peaks" in str(result.exception)
    assert not out.exists()


def test_no_package_no_hardware_and_no_tables_are_one_line(
    package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def refused(hardware: str) -> str:
        with pytest.raises(SystemExit) as stopped:
            main(["import", "--from-package", "--hw", hardware, "--out", str(tmp_path / "x")])
        assert stopped.value.code == 2
        return capsys.readouterr().err

    assert "no public operator tables for this hardware" in refused("l4")
    assert "no operator tables in this folder" in refused("h200")
    for file in package.rglob("gemm_perf.parquet"):
        file.unlink()
    assert "without operator tables" in refused("h100")
    for module in PACKAGES:
        monkeypatch.setitem(sys.modules, module, None)  # find_spec then finds nothing
    assert "neither aiconfigurator-core nor aisimulate is installed" in refused("h100")
