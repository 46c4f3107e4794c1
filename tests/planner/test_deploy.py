"""The command that starts a plan says what was chosen, in the engine's own flags."""

from __future__ import annotations

from dataclasses import replace

from catalogs.deployment import Deployment, Layout, resolve
from planner.deploy.serve_command import serve_command

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
        "--quantization fp8",
        "--kv-cache-dtype fp8",
        "--no-enable-prefix-caching",
        "--block-size 32",
        "--max-model-len 1048576",
    ):
        assert part in made.command
    assert "pipeline" not in made.command
    assert made.notes == ("start 2 of these, each on its own group of 4 accelerators and port, behind a router",)


def test_a_checkpoint_that_cannot_be_made_on_the_fly_is_asked_for() -> None:
    made = serve_command(replace(PLAIN, weight_dtype="int4"))
    assert "--quantization" not in made.command
    assert made.notes == ("needs a int4 checkpoint of meta-llama/Llama-3.1-8B: put its name in place of the model",)
