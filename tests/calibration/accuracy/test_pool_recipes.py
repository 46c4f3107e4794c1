"""Limits of pools from recipe files (benchmarks/pool_recipes.py)."""

from pathlib import Path

import pytest

from benchmarks.pool_recipes import limits_of, recipes

ROW = {
    "engine": "trtllm",
    "system": "b200_sxm",
    "precision": "fp4",
    "input_tokens_max": "1024",
    "output_tokens_max": "1024",
    "client_concurrency": "180",
    "prefill_num_workers": "1",
    "prefill_tp_size": "1",
    "prefill_attention_dp_size": "4",
    "prefill_moe_ep_size": "4",
    "decode_num_workers": "5",
    "decode_tp_size": "8",
    "decode_attention_dp_size": "",
    "decode_moe_ep_size": "8.0",
}
TRTLLM = """
model: {precision: fp4}
resources: {gpu_type: b200, prefill_workers: 1, decode_workers: 5}
backend:
  type: trtllm
  trtllm_config:
    prefill:
      tensor_parallel_size: 4
      moe_expert_parallel_size: 4
      enable_attention_dp: true
      max_batch_size: 8
      max_num_tokens: 10240
      kv_cache_config: {dtype: fp8}
    decode:
      tensor_parallel_size: 8
      moe_expert_parallel_size: 8
      max_batch_size: SEATS
      max_num_tokens: 16
      kv_cache_config: {dtype: fp8, free_gpu_memory_fraction: 0.8}
benchmark: {isl: 1024, osl: 1024, concurrencies: [90, 180]}
"""
SGLANG = """
model: {precision: fp8}
resources: {gpu_type: h200, prefill_workers: 1, decode_workers: 1}
backend:
  sglang_config:
    prefill: {tp-size: 8, dp-size: 8, chunked-prefill-size: 65536, max-prefill-tokens: 4096, max-running-requests: 16}
    decode: {tensor-parallel-size: 8, max-running-requests: 256, kv-cache-dtype: fp8_e4m3, mem-fraction-static: 0.88}
benchmark: {isl: 8192, osl: 1024, concurrencies: 64x128}
"""


def test_limits_of_the_ranks_of_trtllm(tmp_path: Path) -> None:
    """TensorRT-LLM states the limits of each rank; its tokens of a step may be fewer than its seats."""
    (tmp_path / "a.yaml").write_text(TRTLLM.replace("SEATS", "32"))
    limits = limits_of(ROW, recipes(tmp_path))
    assert limits == {
        "prefill": {"max_num_seqs": 8, "max_num_batched_tokens": 10240, "kv_dtype": "fp8"},
        "decode": {"max_num_seqs": 32, "max_num_batched_tokens": 32, "kv_dtype": "fp8", "gpu_memory_utilization": 0.8},
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("client_concurrency", "64"),
        ("precision", "fp8"),
        ("system", "h200_sxm"),
        ("input_tokens_max", "8192"),
        ("prefill_attention_dp_size", "1"),
        ("decode_moe_ep_size", "1"),
        ("decode_num_workers", "4"),
    ],
)
def test_another_run_has_no_recipe(tmp_path: Path, key: str, value: str) -> None:
    """A run that differs from the recipe in one column has none."""
    (tmp_path / "a.yaml").write_text(TRTLLM.replace("SEATS", "32"))
    assert limits_of(ROW | {key: value}, recipes(tmp_path)) is None


def test_recipes_that_differ(tmp_path: Path) -> None:
    """If two recipes of a run state different limits, it is not known which one ran."""
    for name, seats in (("a", "32"), ("b", "64")):
        (tmp_path / f"{name}.yaml").write_text(TRTLLM.replace("SEATS", seats))
    assert limits_of(ROW, recipes(tmp_path)) is None


def test_ranks_of_sglang_share_its_limits(tmp_path: Path) -> None:
    """Attention ranks of SGLang have their share of seats and chunk, and the whole of max_prefill_tokens."""
    (tmp_path / "a.yaml").write_text(SGLANG)
    (recipe,) = recipes(tmp_path)
    assert recipe.clients == {64, 128}
    assert recipe.layout == ((1, 1, 8, False), (1, 8, 1, False))
    assert recipe.limits["prefill"] == {"max_num_seqs": 2, "max_num_batched_tokens": 4096}
    assert recipe.limits["decode"] == {"max_num_seqs": 256, "kv_dtype": "fp8", "gpu_memory_utilization": 0.88}


def test_files_without_pools_are_left_out(tmp_path: Path) -> None:
    """Drafts, single servers, files with several recipes and empty files are left out."""
    (tmp_path / "a.yaml").write_text(SGLANG.replace("tp-size: 8,", "tp-size: 8, speculative-algorithm: EAGLE,", 1))
    (tmp_path / "b.yaml").write_text("base: {}\nname: b\n")
    (tmp_path / "c.yaml").write_text(TRTLLM.replace("    decode:", "    other:"))
    (tmp_path / "d.yaml").write_text("")
    assert recipes(tmp_path) == []
