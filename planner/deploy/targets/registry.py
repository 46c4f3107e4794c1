"""The targets of `plan deploy`, and the plans that each can start."""

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
    """A target of `plan deploy`.

    Attributes:
        write: Returns the files of one kind of replica.
        engines: Families of engines that it can start.
        checked: What its files are tested with, in words.
        one_machine: True if it starts everything on one machine.
        spans: True if a replica may span several nodes.
        slices: True if it supports MIG slices.
        makers: Makers of the supported devices.
        most_replicas: Maximum number of replicas; None for no limit.
        write_apart: Returns the files of prefill and decode servers; None if unsupported.
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
    """Return the target of a name.

    Raises:
        InputError: The name is unknown.
    """
    folded = name.strip().lower()
    if folded not in TARGETS:
        near = nearest_name(folded, TARGETS) or "kubernetes"
        raise InputError(f"--target must be one of {', '.join(TARGETS)}", name, near)
    return TARGETS[folded]


def write_target(name: str, pools: Sequence[Serving]) -> DeploymentFiles:
    """Return the files of a target for one kind of replica, or for a prefill and a decode pool.

    Raises:
        InputError: The target cannot start the plan; the error names targets that can.
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
    """Return the reason why a target cannot start a plan, or None if it can."""
    found = next((why for s in pools if (why := _refusal(name, target, s)) is not None), None)
    if found is not None or len(pools) == 1:
        return found
    if target.write_apart is None:
        return f"{name} does not support prefill and decode servers"
    return DisaggregatedServing(*pools).refusal


def _refusal(name: str, target: DeployTarget, s: Serving) -> str | None:
    """Return the reason why a target cannot start one kind of replica, or None if it can."""
    nodes, rank = s.resolved.hardware.n_nodes, s.nodes_per_replica
    if s.family not in target.engines:
        return f"{name} does not serve with {s.family}, the engine of this plan"
    if s.device.maker not in target.makers:
        return f"{name} has no image for {s.resolved.hardware.accelerator.full_name}"
    if s.resolved.hardware.accelerator.is_slice and not target.slices:
        return f"{name} cannot request MIG slices by size"
    if rank > 1 and not target.spans:
        return f"one replica of this plan spans {rank} nodes, but {name} supports one node per replica"
    if nodes > 1 and target.one_machine:
        return f"this plan needs {nodes} machines, but {name} starts one"
    if target.most_replicas is not None and s.replicas > target.most_replicas:
        return f"this plan has {s.replicas} replicas, but {name} starts {target.most_replicas} with fixed accelerators"
    return None
