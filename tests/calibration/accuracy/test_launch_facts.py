"""What the launch scripts of public points say, by date, layout and model."""

from __future__ import annotations

import pytest

from benchmarks.launch_facts import flags, why_left_out

ROW = {
    "backend": "trtllm",
    "backend_version": "",
    "system": "b200_sxm",
    "model": "deepseek-ai/DeepSeek-R1",
    "precision": "fp4",
    "tensor_parallel": "4",
    "expert_parallel": "false",
    "input_tokens_max": "1024",
    "concurrency": "128.0",
    "source": "measured=2025-12-15T00:00:00Z; wip=False",
}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"source": "measured=2026-01-14T00:00:00Z"}, "drafts"),
        ({"backend_version": "1.2.0rc6.post3"}, "drafts"),
        ({"backend_version": "1.2.0rc6.post3", "model": "deepseek-ai/DeepSeek-V3"}, ""),
        ({"backend": "sglang"}, "cold"),
        ({"backend": "sglang", "source": "measured=2026-01-21T00:00:00Z"}, ""),
        ({"backend": "sglang", "source": "a day that is not stated"}, ""),
        ({"backend": "sglang", "source": "", "model": "Qwen/Qwen3.5-397B-A17B", "precision": "fp8"}, "drafts"),
    ],
)
def test_what_is_known_against_a_point(changes: dict[str, str], why: str) -> None:
    assert why_left_out(ROW | changes) == why


def test_prompts_of_deepseek_started_one_a_step_until_the_script_raised_the_budget() -> None:
    """1024 tokens, 128 decodes and 64 more are 1216; rounded up to whole 64."""
    assert flags(ROW)["max_num_batched_tokens"] == 1216
    assert flags(ROW | {"source": "measured=2026-02-03T00:00:00Z"})["max_num_batched_tokens"] == 8192
    assert flags(ROW | {"input_tokens_max": "8192", "source": "measured=2026-02-03"})["max_num_batched_tokens"] == 8384


@pytest.mark.parametrize(
    ("changes", "layout"),
    [
        ({"concurrency": "32"}, (None, None, None)),
        ({"concurrency": "64"}, (None, None, True)),
        ({"concurrency": "256"}, (1, 4, True)),
        ({"tensor_parallel": "8", "concurrency": "16"}, (None, None, True)),
        ({"precision": "fp8", "tensor_parallel": "8", "concurrency": "4"}, (None, None, True)),
        ({"precision": "fp8", "tensor_parallel": "8", "concurrency": "64"}, (1, 8, True)),
        ({"precision": "fp8", "tensor_parallel": "8", "concurrency": "64", "system": "h200_sxm"}, (None, None, True)),
        ({"concurrency": "256", "source": "measured=2025-11-03"}, (None, None, None)),
        ({"concurrency": "256", "source": "a day that is not stated"}, (None, None, None)),
    ],
)
def test_scripts_of_deepseek_chose_the_layout_until_a_table_did(changes: dict[str, str], layout: object) -> None:
    found = flags(ROW | {"output_tokens_max": "1024", "source": "measured=2025-11-02"} | changes)
    assert tuple(found.get(key) for key in ("tensor_parallel", "data_parallel", "expert_parallel")) == layout


def test_gpt_oss_on_h200_has_experts_as_wide_as_its_tensor_ranks() -> None:
    row = ROW | {"model": "openai/gpt-oss-120b", "system": "h200_sxm"}
    assert flags(row)["expert_parallel"] is True
    assert "expert_parallel" not in flags(row | {"tensor_parallel": "1"})


def test_every_flag_is_a_key_of_deployments() -> None:
    from catalogs.deployments.schema import Deployment

    models = ("deepseek-ai/DeepSeek-R1", "openai/gpt-oss-120b", "meta-llama/Llama-3.1-70B", "zai-org/GLM-5")
    for model in (*models, "Qwen/Qwen3.5-397B-A17B"):
        for backend in ("sglang", "trtllm"):
            for system in ("b200_sxm", "h200_sxm"):
                for precision in ("fp4", "fp8", "bf16"):
                    row = ROW | {"model": model, "backend": backend, "system": system, "precision": precision}
                    assert flags(row).keys() <= Deployment.model_fields.keys()
