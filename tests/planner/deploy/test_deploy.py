"""The command that starts a plan says what was chosen, in the engine's own flags."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from catalogs.deployments.layout import Layout
from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.launch.command import engine_family, serve_command
from planner.problem.request import PlanRequest
from planner.problem.slo import parse_slos

PLAIN = resolve(Deployment(model="llama3.1-8b", hardware="h100x8"))


def test_a_plain_deployment_states_its_limits_and_nothing_it_need_not() -> None:
    made = serve_command(PLAIN)
    assert made.command == (
        "vllm serve meta-llama/Llama-3.1-8B --max-num-seqs 1024 --max-num-batched-tokens 8192 "
        "--max-model-len 131072 --gpu-memory-utilization 0.92"
    )
    assert made.notes == ()


def test_every_choice_has_its_flag() -> None:
    chosen = replace(
        PLAIN,
        replicas=2,
        layout=Layout(tensor_parallel=4),
        limits=replace(PLAIN.limits, prefix_caching=False, block_size=32, max_model_len=1_048_576),
        weight_dtype="fp8",
        kv_dtype="fp8",
    )
    made = serve_command(chosen)
    for part in (
        "--tensor-parallel-size 4",
        "vllm serve nvidia/Llama-3.1-8B-Instruct-FP8 ",
        "--kv-cache-dtype fp8",
        "--no-enable-prefix-caching",
        "--block-size 32",
        "--max-model-len 1048576",
    ):
        assert part in made.command
    assert "pipeline" not in made.command
    assert "--quantization" not in made.command
    *checkpoint, start = made.notes
    assert start == "start 2 of these, each on its own group of 4 accelerators and port, behind a router"
    assert all("checkpoint" in note for note in checkpoint)


def test_a_checkpoint_that_cannot_be_made_on_the_fly_is_asked_for() -> None:
    made = serve_command(replace(PLAIN, weight_dtype="int4"))
    assert "--quantization" not in made.command
    assert made.notes == ("needs a int4 checkpoint of meta-llama/Llama-3.1-8B: use its name in place of the model",)


@pytest.mark.parametrize(
    ("engine", "kind"),
    [
        ("vllm", "vllm"),
        ("vllm-0.15", "vllm"),
        ("sglang-bare", "sglang"),
        ("llama.cpp", "llama.cpp"),
        ("trtllm", "trtllm"),
    ],
)
def test_what_can_be_started_can_be_planned(engine: str, kind: str) -> None:
    assert engine_family(engine) == kind
    assert (
        PlanRequest(model="llama3.1-8b", hardware="h100", slos=parse_slos(["p99=2s"]), engine=engine).engine == engine
    )


@pytest.mark.parametrize("engine", ["vllm-v0", "trtllm-tensorrt", "triton-trtllm", "transformers", "triton", "vlm"])
def test_what_cannot_be_started_is_not_planned(engine: str) -> None:
    with pytest.raises(InputError, match="no start command"):
        PlanRequest(model="llama3.1-8b", hardware="h100", slos=parse_slos(["p99=2s"]), engine=engine)


@pytest.mark.parametrize("named", ["", "config.json"])
def test_a_model_of_ones_own_is_started_from_its_folder(named: str, tmp_path: Path) -> None:
    """An engine takes a folder, not the config.json in it; and scripts start in folders of their own."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 1000, **sizes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    made = serve_command(resolve(Deployment(model=str(tmp_path / named), hardware="h100")))
    assert made.command.startswith(f"vllm serve {tmp_path.resolve()} --")
    note = f"the weights are a local folder: the engine, or its container, must find them at {tmp_path}"
    assert made.notes == (note,)
