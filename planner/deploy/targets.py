"""What files can be written for, and which plans each can start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from catalogs.errors import InputError, nearest_name
from planner.deploy import compose, kserve, kubernetes, leaderworkerset, llm_d, ray_serve, shell, triton
from planner.deploy.serving import Serving
from planner.deploy.written import Written


@dataclass(frozen=True, slots=True)
class Target:
    """one_machine: it starts everything on the machine it is called on. spans: a replica may take several nodes.

    makers: of the devices it can ask for. checked: what its files were held against, in words.
    """

    write: Callable[[Serving], Written]
    engines: tuple[str, ...]
    checked: str
    one_machine: bool = False
    spans: bool = False
    slices: bool = True
    makers: tuple[str, ...] = ("nvidia", "amd", "cpu")
    most_replicas: int | None = None


_SCHEMAS: Final = "the JSON schemas of Kubernetes"
TARGETS: Final[dict[str, Target]] = {
    "vllm": Target(shell.write, ("vllm",), "vLLM's argument parser", one_machine=True, slices=False),
    "compose": Target(
        compose.write,
        ("vllm", "sglang", "llama.cpp"),
        "the schema of the Compose specification",
        one_machine=True,
        slices=False,
    ),
    "kubernetes": Target(kubernetes.write, ("vllm", "sglang", "llama.cpp"), _SCHEMAS),
    "leaderworkerset": Target(
        leaderworkerset.write, ("vllm", "sglang"), f"{_SCHEMAS} (its pods; the rest by its shape)", spans=True
    ),
    "kserve": Target(kserve.write, ("vllm", "sglang"), f"{_SCHEMAS} (its pod; the rest by its shape)"),
    "llm-d": Target(llm_d.write, ("vllm",), f"{_SCHEMAS} (the values of the chart by their shape)"),
    "ray-serve": Target(ray_serve.write, ("vllm",), "its shape, and vLLM's arguments", slices=False),
    "triton": Target(
        triton.write,
        ("vllm",),
        "its shape, and vLLM's arguments",
        one_machine=True,
        slices=False,
        makers=("nvidia",),
        most_replicas=1,
    ),
    "sglang": Target(shell.write, ("sglang",), "SGLang's list of arguments", one_machine=True, slices=False),
    "llama.cpp": Target(shell.write, ("llama.cpp",), "llama.cpp's list of arguments", one_machine=True, slices=False),
}


def find_target(name: str) -> Target:
    """Raises InputError for an unknown name."""
    folded = name.strip().lower()
    if folded not in TARGETS:
        near = nearest_name(folded, TARGETS) or "kubernetes"
        raise InputError(f"a target is one of {', '.join(TARGETS)}", name, near)
    return TARGETS[folded]


def write_target(name: str, s: Serving) -> Written:
    """The target's files for a plan it can start. Raises InputError with the nearest target that can."""
    target = find_target(name)
    why = _refusal(name, target, s)
    if why is not None:
        others = [other for other, t in TARGETS.items() if _refusal(other, t, s) is None]
        raise InputError(why, name, ", ".join(others[:4]) or "another plan")
    return target.write(s)


def _refusal(name: str, target: Target, s: Serving) -> str | None:
    """Why a target cannot start a plan; None where it can."""
    nodes, rank = s.resolved.hardware.n_nodes, s.nodes_per_replica
    if s.family not in target.engines:
        return f"{name} does not serve with {s.family}, the engine of this plan"
    if s.device.maker not in target.makers:
        return f"{name} has no image for {s.resolved.hardware.accelerator.full_name}"
    if s.resolved.hardware.accelerator.is_slice and not target.slices:
        return f"{name} cannot ask for MIG slices by size"
    if rank > 1 and not target.spans:
        return f"one replica of this plan takes {rank} nodes, and {name} keeps a replica on one"
    if nodes > 1 and target.one_machine:
        return f"this plan takes {nodes} machines, and {name} starts one"
    if target.most_replicas is not None and s.replicas > target.most_replicas:
        return f"this plan has {s.replicas} replicas, and {name} starts {target.most_replicas} on accelerators it knows"
    return None
