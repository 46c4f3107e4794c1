"""The script for a GPU machine, rehearsed on this CPU: every step runs, and what is collected can be used."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "benchmarks" / "gpu_in_one_go.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_in_one_go", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_a_rehearsal_measures_compares_verifies_and_collects(script: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed (pip install '.[calibration]')")
    pytest.importorskip(
        "transformers", "5.17", reason="transformers 5.17 is not installed (pip install '.[calibration]')"
    )
    import pandas as pd

    from calibration.bundles.files import read_bundle

    out = tmp_path / "out"
    command = [sys.executable, str(SCRIPT), "--out", str(out), "--rehearse", "--limit", "1800"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert [s["status"] for s in summary["steps"]] == ["done"] * 4
    assert "gemm" in {x["family"] for x in summary["comparison"]["families"]}
    rows = pd.read_parquet(out / "rows.parquet")
    assert (rows.status == "ok").sum() > 5
    assert "gemm" in read_bundle(out)[0].families
    assert json.loads((out / "manifest.json").read_text())["finished_at"] is not None
    (network,) = json.loads((out / "networks.json").read_text())["networks"]
    assert network["network"] == script.REHEARSED
    assert network["predicted_s"] > 0
    assert json.loads((out / "verify.json").read_text())["engine"] == "transformers"
    with tarfile.open(out / "details.tar.gz") as archive:
        assert {"run.log", "compare.log", "verify.log", "verify/steps.parquet"} <= set(archive.getnames())


def test_steps_that_fail_or_hang_are_said_and_the_rest_is_collected(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "GRACE_S", 0.5)  # a step that a shell in the background started ignores the interrupt
    plan = script.parse(["--out", str(tmp_path / "out"), "--rehearse"])[0]
    plan.out.mkdir()
    plan.work.mkdir()
    hangs = "echo before; exec sleep 600"
    outcomes = [
        script.run_step("verify", ["sh", "-c", hangs], 1.0, plan),
        script.run_step("compare", [sys.executable, "-c", "raise SystemExit(3)"], 120.0, plan),
    ]
    assert outcomes[0].status == "stopped after 1 s"
    assert outcomes[0].seconds < 300
    assert outcomes[1].status == "exit status 3"
    summary = script.collect(plan, outcomes)
    assert any("nothing was measured" in problem for problem in summary["problems"])
    with tarfile.open(plan.out / "details.tar.gz") as archive:
        log = archive.extractfile("verify.log")
        assert log is not None
        assert log.read().startswith(b"before")


def test_a_step_that_ignores_the_interrupt_is_killed(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = script.parse(["--out", str(tmp_path / "out"), "--rehearse"])[0]
    plan.work.mkdir()
    monkeypatch.setattr(script, "GRACE_S", 0.5)
    deaf = f"import signal, time; signal.signal({int(signal.SIGINT)}, signal.SIG_IGN); time.sleep(600)"
    assert script.run_step("run", [sys.executable, "-c", deaf], 1.0, plan).seconds < 300


def test_what_is_missing_is_said_in_one_line(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "CARRIED", ("no_such_package", "another_absent_one"))
    said = script.missing(True)
    assert "\n" not in said
    assert "no_such_package another_absent_one" in said
    assert "pip download" in said


def test_the_model_made_is_the_catalogs(script: ModuleType) -> None:
    from catalogs.models.catalog import load_model

    config = script.llama_config(load_model("llama3.1-8b"))
    assert (config["num_hidden_layers"], config["num_key_value_heads"], config["head_dim"]) == (32, 8, 128)
    with pytest.raises(SystemExit, match="plain Llama"):
        script.llama_config(load_model("mixtral-8x7b"))
