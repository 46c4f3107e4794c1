"""The command that starts a plan: `vllm serve` with every choice the planner made written out. Flags are the engine's
own, from its catalog file."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Final

from catalogs.deployment import Resolved

#: Dtypes `--quantization` applies while loading a 16-bit checkpoint; the others need a checkpoint made for them.
_ON_THE_FLY: Final = {"fp8": "fp8"}
_KV_NAMES: Final = {"bf16": "bfloat16", "fp16": "float16", "fp8": "fp8"}


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """The command of one replica, and what a reader must do besides running it."""

    command: str
    notes: tuple[str, ...]


def serve_command(resolved: Resolved) -> ServeCommand:
    """`vllm serve` for one replica. Flags are left out only where the engine does the same without them."""
    r, flags = resolved, resolved.engine.flags
    parts = ["vllm", "serve", r.model.hf_id or r.model.name]
    for key in ("tensor_parallel", "pipeline_parallel", "data_parallel"):
        size = getattr(r.layout, key)
        parts += [flags[key], str(size)] if size > 1 else []
    parts += [flags["expert_parallel"]] if r.layout.expert_parallel else []
    notes = []
    if r.weight_dtype != r.model.weight_dtype and r.weight_dtype in _ON_THE_FLY:
        parts += [flags["weight_dtype"], _ON_THE_FLY[r.weight_dtype]]
    elif r.weight_dtype != r.model.weight_dtype:
        notes.append(f"needs a {r.weight_dtype} checkpoint of {r.model.hf_id}: put its name in place of the model")
    if r.kv_dtype == "fp8":
        parts += [flags["kv_dtype"], "fp8"]
    elif r.kv_dtype not in ("bf16", "fp16"):
        notes.append(f"KV cache in {_KV_NAMES.get(r.kv_dtype, r.kv_dtype)}")
    for key in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"):
        parts += [flags[key], str(getattr(r.limits, key))]
    parts += [flags["gpu_memory_utilization"], f"{r.gpu_memory_utilization:.12g}"]
    if r.limits.prefix_caching != r.engine.prefix_caching:
        flag = flags["prefix_caching"]
        parts += [flag if r.limits.prefix_caching else flag.replace("--enable", "--no-enable")]
    if r.limits.block_size != r.engine.block_size_tokens:
        parts += [flags["block_size"], str(r.limits.block_size)]
    if r.replicas > 1:
        per = r.accelerators_per_replica
        which = "accelerator" if per == 1 else f"group of {per} accelerators"
        notes.append(f"start {r.replicas} of these, each on its own {which} and port, behind a router")
    return ServeCommand(shlex.join(parts), tuple(notes))
