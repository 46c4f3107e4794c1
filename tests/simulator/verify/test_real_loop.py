"""The loop against a real engine: profile this CPU, serve, replay, simulate; three architectures, both precisions.

The engine is vLLM where `CAPACITY_PLANNER_VLLM_PYTHON` names the Python of its environment, else transformers in this
process. Without either of them the tests are skipped. Each case takes two to three minutes.
"""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest

from catalogs.ui.entry_point import run_command
from simulator.verify.command import app
from simulator.verify.comparison import BOTTOM_UP

VLLM = os.environ.get("CAPACITY_PLANNER_VLLM_PYTHON")

#: Largest relative error of a mean on a machine that other processes use as well; the bars hold on a quiet one.
CONTENDED = 1.0


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("architecture", ["llama", "qwen3", "mixtral"])
def test_simulated_means_are_those_of_a_real_engine(
    architecture: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not importlib.util.find_spec("torch") or not importlib.util.find_spec("transformers"):
        pytest.skip("torch and transformers are not installed")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    model = str(tmp_path / architecture)
    assert run_command("calibrate", app, ["tiny-model", "--out", model, "--architecture", architecture]) == 0
    shared = ["--model", model, "--threads", "1", "--dtype", dtype]
    profile = ["run", "--hw", "local", "--budget", "40s", "--out", str(tmp_path / "profile"), *shared]
    profile += ["--allow-contended"]  # tests share their machine
    assert run_command("calibrate", app, profile) == 0
    engine = ["--python", VLLM] if VLLM else ["--engine", "transformers"]
    size = ["--requests", "40", "--repeats", "2", "--rate", "2", "--out", str(tmp_path / "verify"), "--json", "-"]
    capsys.readouterr()
    status = run_command("calibrate", app, ["verify", *engine, *size, *shared])
    out, err = capsys.readouterr()
    assert status in (0, 1), err
    found = json.loads(out)
    means = {
        (line["trial"], line["metric"]): (line["simulated"][BOTTOM_UP]["error"], line["noise_fraction"])
        for line in found["lines"]
        if line["stat"] == "mean" and line["metric"] in ("ttft", "tpot", "e2e")
    }
    print(f"{architecture} {dtype} contended={found['contended']}", means)
    assert len(means) == 6  # two trials
    bars = {"ttft": 0.15, "tpot": 0.08, "e2e": 0.10}
    for (trial, metric), (error, noise) in means.items():
        assert abs(error) - noise <= (CONTENDED if found["contended"] else bars[metric]), (trial, metric)
