"""The `simulate` command on deployments of networks."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from simulator.cli.main import main

DEPLOYMENT = "model: bert-base\nengine: triton\nhardware: l40sx2\nreplicas: 2\nmax_batch: 8\nqueue_delay_s: 0.002\n"

WORKLOAD = """
arrivals: {poisson: {requests_per_s: 2000}}
requests: 150
jobs:
  - {share: 1, sizes: {tokens: 64}}
  - {share: 1, sizes: {tokens: 512}}
"""

METRICS = {
    *("n_arrived", "n_completed", "n_rejected", "n_timed_out", "n_unfinished", "duration_s"),
    *("e2e_s", "queue_s", "service_s", "jobs_per_s", "items_per_s"),
    *("batches", "jobs_per_batch", "items_per_batch", "busy_fraction", "serving_fraction", "power", "energy"),
}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "d.yaml").write_text(DEPLOYMENT, encoding="utf-8")
    (tmp_path / "w.yaml").write_text(WORKLOAD, encoding="utf-8")
    return {name: tmp_path / name for name in ("d.yaml", "w.yaml", "o.json", "o.csv")}


def simulate(*words: object) -> int:
    """Return the exit status of the command, run in this process."""
    with pytest.raises(SystemExit) as exit_:
        main([str(word) for word in words])
    return int(exit_.value.code or 0)


def test_the_outputs_agree_with_each_other(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--json", files["o.json"], "--requests-out", files["o.csv"], "--seed", 5]
    assert simulate(files["d.yaml"], "--workload", files["w.yaml"], *out) == 0
    found = json.loads(files["o.json"].read_text(encoding="utf-8"))
    assert set(found) == {"schema_version", "deployment", "workload", "seed", "notices", "metrics", "calibration"}
    assert set(found["metrics"]) == METRICS
    assert found["seed"] == 5
    rows = list(csv.DictReader(files["o.csv"].open(encoding="utf-8")))
    assert len(rows) == 150 == found["metrics"]["n_completed"]
    assert {row["tokens"] for row in rows} == {"64", "512"}
    mean_s = sum(float(row["e2e_s"]) for row in rows) / 150
    assert mean_s == pytest.approx(found["metrics"]["e2e_s"]["mean"])
    for row in rows:
        assert float(row["e2e_s"]) == pytest.approx(float(row["queue_s"]) + float(row["service_s"]))
    screen = capsys.readouterr().out
    assert "bert-base (bf16, compiled) on l40sx2, triton, 2 replicas of 1 accelerator" in screen.replace("\n", " ")
    assert "J per job" in screen


def test_json_alone_goes_to_stdout(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(files["d.yaml"], "--rate", 50, "--requests", 20, "--json", "-") == 0
    out = capsys.readouterr()
    assert json.loads(out.out)["workload"]["jobs"] == 20
    assert "simulate: the p99 of 20 jobs is close to their maximum" in out.err


def test_a_run_is_reproduced_by_its_seed(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for seed in (1, 1, 2):
        simulate(files["d.yaml"], "--workload", files["w.yaml"], "--seed", seed, "--json", "-")
        found.append(capsys.readouterr().out)
    assert found[0] == found[1] != found[2]


def test_the_router_can_be_replaced(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--workload", files["w.yaml"], "--router", "least_outstanding", "--json", "-"]
    assert simulate(files["d.yaml"], *words) == 0
    assert json.loads(capsys.readouterr().out)["deployment"]["router"] == "least_outstanding"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--explain"], "needs a language model"),
        (["--input-tokens", "5"], "--input-tokens"),
        (["--time-series", "t.csv"], "--time-series"),
        (["--processes", "2"], "--processes"),
        (["--workload", "chat"], "YAML file, a CSV trace or keys in braces"),
        (["--workload", "{arrivals: {poisson: {}}, jobs: [{sizes: {token: 8}}]}"], "tokens"),
        (["--workload", "{arrivals: {poisson: {}}, jobs: [{model: resnet50}]}"], "not served"),
        (["--router", "prefix_aware"], "least_outstanding"),
        (["--rate", "-1"], "--rate"),
        (["--requests", "0"], "requests"),
    ],
)
def test_bad_input_ends_with_one_line(
    words: list[str], text: str, files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(files["d.yaml"], *words) == 2
    error = capsys.readouterr().err
    assert text in error
    assert "Traceback" not in error
