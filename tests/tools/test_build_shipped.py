"""Importing the public tables and reproducing what is shipped from them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from build_shipped import main
from error_table import error_table
from shipped_power import write_power

from calibration.bundles.bundle import shipped_folder
from calibration.power.model import load_power

ROOT = Path(__file__).resolve().parents[2]


def _rebuilt(public_data: Path, tmp_path: Path, name: str) -> tuple[dict[str, object], dict[str, object]]:
    assert main(["--tables", str(public_data / "profiles"), "--hw", name, "--out", str(tmp_path)]) == 0
    new, old = (json.loads((f / name / "bundle.json").read_text()) for f in (tmp_path, shipped_folder()))
    return new, old


def _same(new: dict[str, object], old: dict[str, object], tmp_path: Path, name: str) -> None:
    hashes = ("arrays_sha256", "facts_sha256")  # a fit differs in the last digits between machines
    assert {k: v for k, v in new.items() if k not in hashes} == {k: v for k, v in old.items() if k not in hashes}
    a, b = (np.load(f / name / "arrays.npz") for f in (tmp_path, shipped_folder()))
    assert sorted(a.files) == sorted(b.files)
    assert all(np.allclose(a[x], b[x], rtol=2e-3, atol=1e-6) for x in a.files)


def test_the_smallest_shipped_bundle_is_reproducible(public_data: Path, tmp_path: Path) -> None:
    _same(*_rebuilt(public_data, tmp_path, "rtx4090"), tmp_path, "rtx4090")


def test_the_power_model_is_reproducible(public_data: Path, tmp_path: Path) -> None:
    new = json.loads(write_power(public_data / "profiles", tmp_path).read_text())
    old = load_power().to_json()
    assert new["provenance"] == old["provenance"]
    for group, curve in new["curves"].items():
        assert curve == pytest.approx(old["curves"][group], rel=0.02, abs=0.01)


@pytest.mark.slow
def test_a_large_shipped_bundle_is_reproducible(public_data: Path, tmp_path: Path) -> None:
    _same(*_rebuilt(public_data, tmp_path, "a100-80gb"), tmp_path, "a100-80gb")


def test_shipped_bundles_are_small_and_complete() -> None:
    from calibration.importers.public import SHIPPED

    files = [f for f in shipped_folder().rglob("*") if f.is_file()]
    assert sum(f.stat().st_size for f in files) < 10e6
    bundles = [f.parent for f in files if f.name == "bundle.json"]
    assert {f.name for f in bundles if f.parent == shipped_folder()} == set(SHIPPED)
    assert {f.parent.name for f in bundles if f.parent != shipped_folder()} == {"releases"}


def test_an_unknown_name_is_one_line(public_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--tables", str(public_data / "profiles"), "--hw", "h1000", "--out", str(tmp_path)]) == 2
    assert "unknown hardware" in capsys.readouterr().err.splitlines()[-1]


def test_the_page_of_errors_is_of_the_shipped_bundles() -> None:
    assert (ROOT / "docs" / "calibration.md").read_text(encoding="utf-8") == error_table(shipped_folder())


def test_one_family_is_fitted_again_and_the_others_stay(public_data: Path, tmp_path: Path) -> None:
    shutil.copytree(shipped_folder() / "b60", tmp_path / "b60")
    command = ["--tables", str(public_data / "profiles"), "--hw", "b60", "--family", "moe", "--out", str(tmp_path)]
    assert main(command) == 0
    new, old = (json.loads((f / "b60" / "bundle.json").read_text()) for f in (tmp_path, shipped_folder()))
    _same(new, old, tmp_path, "b60")
    assert not (tmp_path / "power.json").exists()
