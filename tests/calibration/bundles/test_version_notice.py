"""Tables of an older release than the engine simulated: said in one sentence, without noise where that is usual."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from calibration.bundles.bundle import USUAL_LAG, Bundle, load_bundle, shipped_folder
from catalogs.deployments.schema import Deployment
from catalogs.hardware.catalog import parse_hardware
from simulator.cluster.compiled import compile_deployment


def bundle(version: str, shipped: bool = False, engine: str = "vllm") -> Bundle:
    found = load_bundle(parse_hardware("h100").accelerator, shipped_folder() / "h100")
    return replace(found, shipped=shipped, provenance={"engine": engine, "engine_version": version})


@pytest.mark.parametrize(
    ("version", "said"),
    [("0.33.0", False), ("0.33.2", False), ("0.34.0", False), ("1.0", False), ("0.32.0", True), ("0.9.1", True)],
)
def test_any_older_release_of_the_users_own_tables_is_said(version: str, said: bool) -> None:
    line = bundle(version).version_notice("vllm", "0.33")
    assert (line is not None) == said
    if line:
        assert line == f"operator tables are from vllm {version}; the engine simulated is 0.33"


def test_shipped_tables_may_lag_as_published_tables_do() -> None:
    assert bundle(f"0.{33 - USUAL_LAG}.0", shipped=True).version_notice("vllm", "0.33") is None
    assert bundle(f"0.{32 - USUAL_LAG}.0", shipped=True).version_notice("vllm", "0.33") is not None


def test_other_engines_and_unknown_versions_are_not_compared() -> None:
    assert bundle("0.1").version_notice("sglang", "0.5") is None
    assert bundle("2.13", engine="torch").version_notice("vllm", "0.33") is None
    assert bundle("").version_notice("vllm", "0.33") is None
    assert bundle("nightly").version_notice("vllm", "0.33") is None


def test_a_plant_says_it_once_and_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    old = compile_deployment(Deployment(model="llama3.1-8b", engine="vllm", hardware="a100-80gb"))
    assert old.bundle.shipped
    assert old.notices[-1] == "operator tables are from vllm 0.14.0; the engine simulated is 0.33"
    usual = compile_deployment(Deployment(model="llama3.1-8b", engine="vllm", hardware="h100"))
    assert not any("the engine simulated" in n for n in usual.notices)
