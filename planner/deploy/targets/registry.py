"""What files can be written for, and which plans each can start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from catalogs.errors import InputError, nearest_name
from planner.deploy.disaggregated import DisaggregatedServing
from planner.deploy.files import DeploymentFiles
from planner.deploy.serving import Serving
from planner.deploy.targets import compose, kserve, kubernetes, leaderworkerset, llm_d, ray_serve, shell, triton


@dataclass(frozen=True, slots=True)
class DeployTarget:
    """one_machine: it starts everything on the machine it is called on. spans: a replica may take several nodes.

    makers: of the devices it can ask for. checked: what its files were held against, in words. write_apart: files of
    prefill and decode servers; None where they are not written.
    """

    write: Callable[[Serving], DeploymentFiles]
    engines: tuple[str, ...]
    checked: str
    one_machine: bool = False
    spans: bool = False
    slices: bool = True
    makers: tuple[str, ...] = ("nvidia", "amd", "cpu")
    most_replicas: int | None = None
    write_apart: Callable[[DisaggregatedServing], DeploymentFiles] | None = None


_SCHEMAS: Final = "the JSON schemas of Kubernetes"

TARGETS: Final[dict[str, DeployTarget]] = {
    "vllm": DeployTarget(
        shell.write,
        ("vllm",),
        "vLLM's argument parser",
        one_machine=True,
        slices=False,
        write_apart=shell.write_apart,
    ),
    "compose": DeployTarget(
        compose.write,
        ("vllm", "sglang", "llama.cpp"),
        "the schema of the Compose specification",
        one_machine=True,
        slices=False,
    ),
    "kubernetes": DeployTarget(kubernetes.write, ("vllm", "sglang", "llama.cpp"), _SCHEMAS),
    "leaderworkerset": DeployTarget(
        leaderworkerset.write, ("vllm", "sglang"), f"{_SCHEMAS} (its pods; the rest by its shape)", spans=True
    ),
    "kserve": DeployTarget(kserve.write, ("vllm", "sglang"), f"{_SCHEMAS} (its pod; the rest by its shape)"),
    "llm-d": DeployTarget(
        llm_d.write,
        ("vllm",),
        f"{_SCHEMAS} (the values of the chart by their shape)",
        write_apart=llm_d.write_apart,
    ),
    "ray-serve": DeployTarget(ray_serve.write, ("vllm",), "its shape, and vLLM's arguments", slices=False),
    "triton": DeployTarget(
        triton.write,
        ("vllm",),
        "its shape, and vLLM's arguments",
        one_machine=True,
        slices=False,
        makers=("nvidia",),
        most_replicas=1,
    ),
    "sglang": DeployTarget(
        shell.write,
        ("sglang",),
        "SGLang's list of arguments",
        one_machine=True,
        slices=False,
        write_apart=shell.write_apart,
    ),
    "llama.cpp": DeployTarget(
        shell.write, ("llama.cpp",), "llama.cpp's list of arguments", one_machine=True, slices=False
    ),
}


def find_target(name: str) -> DeployTarget:
    """Raises InputError for an unknown name."""
    folded = name.strip().lower()
    if folded not in TARGETS:
        near = nearest_name(folded, TARGETS) or "kubernetes"
        raise InputError(f"a target is one of {', '.join(TARGETS)}", name, near)
    return TARGETS[folded]


def write_target(name: str, pools: Sequence[Serving]) -> DeploymentFiles:
    """The target's files for a plan it can start: one kind of replica, or (prefill, decode).

    Raises InputError with the nearest target that can.
    """
    target = find_target(name)
    why = _refusals(name, target, pools)
    if why is not None:
        others = [other for other, t in TARGETS.items() if _refusals(other, t, pools) is None]
        raise InputError(why, name, ", ".join(others[:4]) or "another plan")
    if target.write_apart is not None and len(pools) > 1:
        return target.write_apart(DisaggregatedServing(*pools))
    return target.write(pools[0])


def _refusals(name: str, target: DeployTarget, pools: Sequence[Serving]) -> str | None:
    """Why a target cannot start a plan; None where it can."""
    found = next((why for s in pools if (why := _refusal(name, target, s)) is not None), None)
    if found is not None or len(pools) == 1:
        return found
    if target.write_apart is None:
        return f"files for {name} do not pair prefill and decode servers"
    return DisaggregatedServing(*pools).refusal


def _refusal(name: str, target: DeployTarget, s: Serving) -> str | None:
    """Why a target cannot start one kind of replica of a plan; None where it can."""
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
