"""Limits of prefill and decode pools, as the recipes of the public runs set them.

The public table of prefill and decode pools has layouts but no limits: seats, tokens of a step, memory and type of the
KV cache. The recipes of these runs (NVIDIA/srt-slurm, folder `recipes`) have them. `disaggregated_points.py` reads a
checkout, of which nothing is kept here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from launch_facts import Row

ROLES = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class Recipe:
    """What one file states about a run."""

    run: tuple[str, str, str, int, int]  # engine, GPU, precision, prompt and output tokens
    clients: frozenset[int]
    layout: tuple[tuple[int, int, int, bool], ...]  # by role: servers, tensor ranks, attention ranks, expert parallel
    limits: Mapping[str, Mapping[str, Any]]  # by role: keys of a pool in a deployment file


def recipes(folder: Path) -> list[Recipe]:
    """Return the recipes of a checkout whose runs have prefill and decode servers and no draft model.

    A file that holds several recipes as differences from a common base is left out.
    """
    found = (_recipe(yaml.safe_load(file.read_text(encoding="utf-8"))) for file in sorted(folder.rglob("*.yaml")))
    return [recipe for recipe in found if recipe is not None]


def limits_of(row: Row, known: list[Recipe]) -> Mapping[str, Mapping[str, Any]] | None:
    """Return the limits of a run of the public table; None without a recipe, or if its recipes differ."""
    system, tokens = row["system"].split("_")[0], (int(row["input_tokens_max"]), int(row["output_tokens_max"]))
    run = (row["engine"], system, row["precision"], *tokens)
    layout = tuple(_layout(row, role) for role in ROLES)
    clients = int(row["client_concurrency"])
    found = [each.limits for each in known if (each.run, each.layout) == (run, layout) and clients in each.clients]
    return found[0] if found and len({json.dumps(limits, sort_keys=True) for limits in found}) == 1 else None


def _layout(row: Row, role: str) -> tuple[int, int, int, bool]:
    servers, tensor, ranks, experts = (
        int(float(row[f"{role}_{key}"] or 1)) for key in ("num_workers", "tp_size", "attention_dp_size", "moe_ep_size")
    )
    return servers, tensor, ranks, experts > 1


def _recipe(content: Any) -> Recipe | None:
    if not isinstance(content, dict):
        return None
    backend = content.get("backend", {})
    engine = backend.get("type", "sglang")
    pools = backend.get(f"{engine}_config", {}) if engine in ("sglang", "trtllm") else {}
    resources, load = content.get("resources", {}), content.get("benchmark", {}) if pools else {}
    if not all(role in pools and f"{role}_workers" in resources for role in ROLES) or "concurrencies" not in load:
        return None
    own = [{key.replace("-", "_"): value for key, value in pools[role].items()} for role in ROLES]
    if any("speculative_config" in pool or "speculative_algorithm" in pool for pool in own):
        return None
    read = _trtllm if engine == "trtllm" else _sglang
    clients = load["concurrencies"]
    clients = clients if isinstance(clients, list) else str(clients).split("x")
    sides = [read(pool) for pool in own]
    return Recipe(
        (engine, str(resources["gpu_type"]), str(content["model"]["precision"]), int(load["isl"]), int(load["osl"])),
        frozenset(int(each) for each in clients),
        tuple((int(resources[f"{role}_workers"]), *side[0]) for role, side in zip(ROLES, sides, strict=True)),
        {role: side[1] for role, side in zip(ROLES, sides, strict=True)},
    )


def _trtllm(pool: dict[str, Any]) -> tuple[tuple[int, int, bool], dict[str, Any]]:
    """Return the layout and the limits of a server of TensorRT-LLM, whose limits are those of each rank."""
    ranks = pool["tensor_parallel_size"] if pool.get("enable_attention_dp") else 1
    limits = {
        "max_num_seqs": pool["max_batch_size"],
        "max_num_batched_tokens": max(pool["max_num_tokens"], pool["max_batch_size"]),
        "kv_dtype": pool["kv_cache_config"].get("dtype"),
        "gpu_memory_utilization": pool["kv_cache_config"].get("free_gpu_memory_fraction"),
    }
    layout = pool["tensor_parallel_size"] // ranks, ranks, pool.get("moe_expert_parallel_size", 1) > 1
    return layout, _stated(limits)


def _sglang(pool: dict[str, Any]) -> tuple[tuple[int, int, bool], dict[str, Any]]:
    """Return the layout and the limits of a server of SGLang, whose attention ranks share its limits."""
    tensor, ranks, experts = (
        int(pool.get(f"{name}_parallel_size") or pool.get(f"{short}_size") or 1)
        for name, short in (("tensor", "tp"), ("data", "dp"), ("expert", "ep"))
    )
    seats, chunk = pool.get("max_running_requests"), pool.get("chunked_prefill_size")
    limits = {
        "max_num_seqs": max(1, seats // ranks) if seats else None,
        "max_num_batched_tokens": min(chunk // ranks, pool.get("max_prefill_tokens", chunk)) if chunk else None,
        "kv_dtype": {"fp8_e4m3": "fp8"}.get(pool.get("kv_cache_dtype", "")),
        "gpu_memory_utilization": pool.get("mem_fraction_static"),
        "rank_dispatch": pool.get("load_balance_method") if ranks > 1 else None,
    }
    return (tensor // ranks, ranks, experts > 1), _stated(limits)


def _stated(limits: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in limits.items() if value not in (None, "auto")}
