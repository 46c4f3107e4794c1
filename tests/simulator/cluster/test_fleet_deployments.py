"""deployment.yaml with several pools: hardware, models and roles behind one router, end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from catalogs.deployments.resolve import resolve, resolve_pools
from catalogs.deployments.schema import Deployment, load_deployment
from catalogs.errors import InputError
from simulator.cli.main import main

SMALL = "max_model_len: 4096\nmax_num_seqs: 32\nmax_num_batched_tokens: 512\n"
TWO_KINDS = SMALL + (
    "model: qwen2.5-0.5b\nrouter: least_outstanding\npools:\n- {hardware: h100x2, replicas: 2}\n- {hardware: l40s}\n"
)
TWO_MODELS = SMALL + (
    "hardware: h100x4\npools:\n- {model: llama3.1-8b, replicas: 2}\n- {model: qwen2.5-0.5b}\n"
    "- {model: qwen2.5-0.5b, hardware: l40s}\n"
)
WORK = (
    "arrivals: {poisson: {requests_per_s: 20}}\nrequests: 150\n"
    "input_tokens: {constant: 200}\noutput_tokens: {constant: 30}\n"
)


def simulated(folder: Path, deployment: str, work: str = WORK, *more: str) -> dict[str, Any]:
    paths = folder / "d.yaml", folder / "w.yaml", folder / "out.json"
    paths[0].write_text(deployment)
    paths[1].write_text(work)
    with pytest.raises(SystemExit) as end:
        main([str(paths[0]), "--workload", str(paths[1]), "--json", str(paths[2]), *more])
    assert end.value.code == 0
    found: dict[str, Any] = json.loads(paths[2].read_text())
    return found


def test_two_kinds_of_hardware_behind_one_router(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = simulated(tmp_path, TWO_KINDS)
    pools, shown = found["deployment"]["pools"], found["metrics"]["pools"]
    assert [(p["role"], p["hardware"], p["replicas"]) for p in pools] == [("both", "h100x2", 2), ("both", "l40sx1", 1)]
    assert pools[0]["kv_blocks"] > pools[1]["kv_blocks"]
    assert sum(p["n_completed"] for p in shown) == found["metrics"]["n_completed"] == 150
    assert shown[0]["n_completed"] > shown[1]["n_completed"]
    assert found["deployment"]["router"] == "least_outstanding"
    screen = capsys.readouterr().out
    assert "pool 0 (both)" in screen
    assert "pool 1: " in screen


def test_two_models_and_who_asks_for_which(tmp_path: Path) -> None:
    found = simulated(tmp_path, TWO_MODELS, WORK + "models: {llama3.1-8b: 1, Qwen/Qwen2.5-0.5B: 2}\n")
    shown = found["metrics"]["pools"]
    assert shown[0]["n_completed"] == pytest.approx(50, abs=15)
    assert shown[0]["n_completed"] + shown[1]["n_completed"] + shown[2]["n_completed"] == 150
    assert shown[0]["tpot_s"]["mean"] > shown[1]["tpot_s"]["mean"]  # the larger model


def test_prefill_and_decode_on_other_hardware_as_pools(tmp_path: Path) -> None:
    pools = "pools:\n- {hardware: h100x2, role: prefill, replicas: 2}\n- {hardware: h200, role: decode}\n"
    found = simulated(tmp_path, SMALL + "model: llama3.1-8b\n" + pools)
    assert found["metrics"]["n_completed"] == 150
    assert found["metrics"]["kv_transfer_s"]["mean"] > 0.0
    assert [p["n_completed"] for p in found["metrics"]["pools"]] == [0, 150]


def test_options_win_over_the_file_and_cores_change_nothing(tmp_path: Path) -> None:
    one = simulated(tmp_path, TWO_KINDS, WORK, "--router", "{random: {seed: 3}}", "--processes", "1")
    two = simulated(tmp_path, TWO_KINDS, WORK, "--router", "{random: {seed: 3}}", "--processes", "2")
    assert one == two
    assert one["deployment"]["router"] == {"random": {"seed": 3}}
    stale = simulated(tmp_path, TWO_KINDS, WORK, "--router-staleness", "0.5")
    assert stale["deployment"]["router_staleness_s"] == 0.5
    assert stale["metrics"]["ttft_s"] != simulated(tmp_path, TWO_KINDS)["metrics"]["ttft_s"]


def test_a_run_with_scaling_faults_and_retries_says_what_happened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = SMALL + (
        "model: llama3.1-8b\nhardware: h100x4\nreplicas: 2\n"
        "autoscaling: {metric: outstanding, target: 3, max_replicas: 4, interval_s: 2, cold_start: {image_gb: 0, "
        "engine_s: 1, graph_capture_s: 1, weights_gb_per_s: 100}}\n"
        "faults: [{kind: crash, at_s: 1.0, replica: 0, lasts_s: 3}]\nretries: {limit: 0}\n"
    )
    found = simulated(tmp_path, text)
    shown = found["metrics"]
    assert shown["n_failed"] > 0
    assert shown["n_completed"] + shown["n_failed"] == 150
    assert shown["n_retries"] == 0
    assert shown["replicas"]["max"] > shown["replicas"]["min"]
    assert found["deployment"]["autoscaling"]["tolerance"] == 0.1
    out = capsys.readouterr()
    assert "failed permanently" in out.out
    assert "failed: its replicas failed more often" in out.err


def refusal(text: str, tmp_path: Path) -> str:
    path = tmp_path / "d.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        resolve_pools(load_deployment(path))
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model: llama3.1-8b\nhardware: h100\npools: []\n", "at least one"),
        ("model: llama3.1-8b\npools: [{hardware: h100, rol: both}]\n", "unknown key 'rol'"),
        ("model: llama3.1-8b\npools: [{hardware: h100, role: prefil}]\n", "nearest valid choice: prefill"),
        ("model: llama3.1-8b\npools: [{hardware: h100, router: random}]\n", "a pool cannot set router"),
        (
            "model: llama3.1-8b\nhardware: h100x2\npools: [{}]\ndisaggregation: {prefill_replicas: 1, "
            "decode_replicas: 1}\n",
            "cannot be combined",
        ),
        ("model: llama3.1-8b\nhardware: h100x2\npools: [{replicas: 2}, {}]\n", "must fit in the 2"),
        (
            "model: llama3.1-8b\nhardware: h100x2\npools: [{role: prefill}, {role: decode, kv_dtype: fp8}]\n",
            "same kv_dtype",
        ),
    ],
)
def test_fleets_that_make_no_sense_are_refused(text: str, said: str, tmp_path: Path) -> None:
    assert said in refusal(text, tmp_path)


def test_requests_must_say_which_model_they_want(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for work, said in (
        (WORK, "models: {llama3.1-8b: 1, qwen2.5-0.5b: 1}"),
        (WORK + "models: {llama3.1-70b: 1}\n", "a model that is not served"),
    ):
        (tmp_path / "d.yaml").write_text(TWO_MODELS)
        (tmp_path / "w.yaml").write_text(work)
        with pytest.raises(SystemExit) as end:
            main([str(tmp_path / "d.yaml"), "--workload", str(tmp_path / "w.yaml")])
        assert end.value.code == 2
        assert said in capsys.readouterr().err


def test_one_kind_of_replica_where_one_is_looked_at() -> None:
    with pytest.raises(InputError, match="pools: null"):
        resolve(Deployment(model="llama3.1-8b", hardware="h100", pools=[{}]))
