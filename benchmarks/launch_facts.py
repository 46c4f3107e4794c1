"""What public launch scripts say of InferenceX points of SGLang and TensorRT-LLM that the table of points does not.

The table names few engine settings. The launch scripts of the day name more (SemiAnalysisAI/InferenceX, benchmarks/ and
.github/configs/nvidia-master.yaml, read at the date of each point): `flags` are those that deployment.yaml has a key
for. Nothing here is fitted.

Two kinds of points say nothing about a warm server without drafts, whatever flags are stated (`why_left_out`):

- drafts: the table does not say which runs speculated. TensorRT-LLM's DeepSeek-R1 of 2026-01-14 (dsr1-*-trt-mtp, added
  that day) and in images 1.2.0rc6.post3 (the updates of 2026-02-05 and -06) did, and so did Qwen3.5 fp8 on B200 in
  SGLang over four GPUs without expert parallelism (only qwen3.5-fp8-b200-sglang-mtp has that layout). DeepSeek-V3 in
  the same layouts, which are other runs of the same network, takes 1.4 times as long for a token.
- cold: until 2026-01-21 the benchmark sent no requests to warm the server. SGLang compiles and tunes kernels when a
  shape first occurs, so mean times to first token of 5 to 12 s are those of a server that compiles. TensorRT-LLM and
  vLLM do this before they accept requests.
"""

from __future__ import annotations

import re
from typing import Any

Row = dict[str, str]

#: The day from which requests warm the server, and from which TensorRT-LLM's script for DeepSeek keeps `max_num_tokens`
#: at 8192 or more.
WARMED_FROM = "2026-01-21"

#: The day from which a table of the search space, and not the scripts of TensorRT-LLM for DeepSeek, chooses the layout.
LAYOUT_STATED_FROM = "2025-11-03"

#: Most clients without attention data parallelism in those scripts, by (system, precision), for 1k/1k, 1k/8k and 8k/1k.
TENSOR_ATTENTION = {
    ("b200_sxm", "fp8"): (32, 64, 64),
    ("h200_sxm", "fp8"): (64, 64, 32),
    ("b200_sxm", "fp4"): (255, 255, 32),
}

#: Most clients with experts that are cut over the ranks, in the script for fp4, by tensor_parallel. With fp8, none are.
CUT_EXPERTS = {"4": (32, 32, 32), "8": (8, 16, 32)}


def measured_on(row: Row) -> str:
    """Return the day of a run in a form that sorts by date, such as 2026-01-21; "" if the table does not state it."""
    found = re.search(r"measured=(\d{4}-\d\d-\d\d)", row["source"])
    return found[1] if found else ""


def why_left_out(row: Row) -> str:
    """Return "drafts" or "cold" for a point that is known to have drafted or to be of a cold server, otherwise ""."""
    engine, day, model = row["backend"], measured_on(row), row["model"].rpartition("/")[2]
    whole = row["tensor_parallel"] == "4" and row["expert_parallel"] == "false"
    drafting = day == "2026-01-14" or row["backend_version"] == "1.2.0rc6.post3"
    if engine == "trtllm" and model == "DeepSeek-R1" and drafting:
        return "drafts"
    fp8_on_b200 = (row["system"], row["precision"]) == ("b200_sxm", "fp8")
    if engine == "sglang" and model.startswith("Qwen3.5") and fp8_on_b200 and whole:
        return "drafts"
    if engine == "sglang" and "" < day < WARMED_FROM:
        return "cold"
    return ""


def flags(row: Row) -> dict[str, Any]:
    """Return the keys of deployment.yaml that the launch script sets on the day of the point."""
    return (trtllm_flags if row["backend"] == "trtllm" else sglang_flags)(row)


def trtllm_flags(row: Row) -> dict[str, Any]:
    """Return the keys that the scripts dsr1_*_trt, gptoss_*_trt and 70b_*_trt set.

    For gpt-oss on H200, EP equals TP (nvidia-master.yaml, its comment).
    """
    model, clients = row["model"].rpartition("/")[2], int(float(row["concurrency"]))
    if model.startswith("DeepSeek"):
        tokens = (clients + int(row["input_tokens_max"]) + 127) // 64 * 64
        warm, share = measured_on(row) >= WARMED_FROM, 0.75 if row["system"] == "h200_sxm" else 0.8
        keys = {"kv_dtype": "fp8", "gpu_memory_utilization": share} | scripted_layout(row)
        return keys | {"max_num_batched_tokens": max(tokens, 8192) if warm else tokens}
    if model.startswith("gpt-oss") and row["system"] == "h200_sxm":
        experts = {"expert_parallel": True} if row["tensor_parallel"] != "1" else {}
        return {"max_num_batched_tokens": 20000, "max_num_seqs": clients, "gpu_memory_utilization": 0.85} | experts
    if model.startswith("gpt-oss"):
        return {
            "kv_dtype": "fp8",
            "max_num_batched_tokens": 20000,
            "max_num_seqs": 512,
            "gpu_memory_utilization": 0.85,
        }
    return {"kv_dtype": "fp8", "max_num_batched_tokens": 16384}


def scripted_layout(row: Row) -> dict[str, Any]:
    """Return the layout that TensorRT-LLM's scripts for DeepSeek chose by lengths and clients; {} if the table has it.

    The table has the width of these runs and neither of the other two settings (dsr1_fp4_b200_trt, dsr1_fp8_b200_trt
    and dsr1_fp8_h200_trt as of 2025-11-01).
    """
    if not "" < measured_on(row) < LAYOUT_STATED_FROM:
        return {}
    lengths = ("1024/1024", "1024/8192", "8192/1024").index(f"{row['input_tokens_max']}/{row['output_tokens_max']}")
    clients, width = int(float(row["concurrency"])), row["tensor_parallel"]
    if clients > TENSOR_ATTENTION[row["system"], row["precision"]][lengths]:
        return {"tensor_parallel": 1, "data_parallel": int(width), "expert_parallel": True}
    whole = row["precision"] == "fp8" or clients > CUT_EXPERTS[width][lengths]
    return {"expert_parallel": True} if whole else {}


def sglang_flags(row: Row) -> dict[str, Any]:
    """Return the keys that the scripts dsr1_*, qwen3.5_* and glm5_* set on B200 and H200."""
    model, on_b200 = row["model"].rpartition("/")[2], row["system"] == "b200_sxm"
    clients = int(float(row["concurrency"]))
    if model.startswith("DeepSeek"):
        if not on_b200:
            return {"max_num_batched_tokens": 32768, "max_num_seqs": 512, "gpu_memory_utilization": 0.82}
        if row["tensor_parallel"] == "4" and row["precision"] == "fp8":
            return {
                "kv_dtype": "fp8",
                "max_num_batched_tokens": 8192,
                "max_num_seqs": 32,
                "gpu_memory_utilization": 0.95,
            }
        tokens, seats, share = (16384, 256, 0.85) if row["precision"] == "fp4" else (32768, 128, 0.82)
        return {
            "kv_dtype": "fp8",
            "max_num_batched_tokens": tokens,
            "max_num_seqs": seats,
            "gpu_memory_utilization": share,
        }
    if model.startswith("Qwen3.5"):
        tokens, share = (32768, 0.85 if row["precision"] == "fp4" else 0.82) if on_b200 else (16384, 0.8)
        keys: dict[str, Any] = {"max_num_batched_tokens": tokens, "max_num_seqs": 128, "gpu_memory_utilization": share}
        # bf16 ran in the image nightly-dev-20260216, which is older than 0.5.9.
        return keys | ({"engine": "sglang-0.5"} if row["precision"] == "bf16" else {"kv_dtype": "fp8"})
    if model.startswith("GLM") and on_b200:  # the script of fp4 until 2026-04-08, the date of the points
        tokens, share = (32768, 0.85) if row["precision"] == "fp8" else (131072, 0.80)
        return {
            "kv_dtype": "fp8",
            "max_num_batched_tokens": tokens,
            "max_num_seqs": clients,
            "gpu_memory_utilization": share,
        }
    return {}
