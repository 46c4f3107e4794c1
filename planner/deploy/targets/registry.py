"""The targets of `plan deploy`, and the plans that each can start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from catalogs.errors import InputError, nearest_name
from planner.deploy.files import DeploymentFiles
from planner.deploy.local_servers import device_refusal
from planner.deploy.serving import Serving
from planner.deploy.targets import compose, kserve, kubernetes, leaderworkerset, llm_d, ray_serve, shell, triton


@dataclass(frozen=True, slots=True)
class DeployTarget:
    """A target of `plan deploy`.

    Attributes:
        write: Returns the files of one kind of replica, or of a prefill and a decode pool if `disaggregates`.
        engines: Families of engines that it can start.
        checked: What its files are tested with, in words.
        one_machine: True if it starts everything on one machine.
        spans: True if a replica may span several nodes.
        slices: True if it supports MIG slices.
        makers: Makers of the supported devices.
        most_replicas: Maximum number of replicas; None for no limit.
        disaggregates: True if it supports prefill and decode servers.
        api_servers: True if it starts vLLM's own API server processes; False if it calls the engine itself.
    """

    write: Callable[..., DeploymentFiles]
    engines: tuple[str, ...]
    checked: str
    one_machine: bool = False
    spans: bool = False
    slices: bool = True
    makers: tuple[str, ...] = ("nvidia", "amd", "cpu")
    most_replicas: int | None = None
    disaggregates: bool = False
    api_servers: bool = True


def _script(engine: str, checked: str, disaggregates: bool = True) -> DeployTarget:
    """Return the target that starts an engine by a script on one machine."""
    return DeployTarget(shell.write, (engine,), checked, one_machine=True, slices=False, disaggregates=disaggregates)


_SCHEMAS: Final = "the JSON schemas of Kubernetes"

_KEYWORDS: Final = "its shape, and vLLM's arguments"

_ALL: Final = ("vllm", "sglang", "llama.cpp")

TARGETS: Final[dict[str, DeployTarget]] = {
    "vllm": _script("vllm", "vLLM's argument parser"),
    "compose": DeployTarget(
        compose.write,
        _ALL,
        "the schema of the Compose specification",
        one_machine=True,
        slices=False,
        disaggregates=True,
    ),
    "kubernetes": DeployTarget(kubernetes.write, _ALL, f"{_SCHEMAS} (autoscaling by its shape)", disaggregates=True),
    "leaderworkerset": DeployTarget(
        leaderworkerset.write,
        ("vllm", "sglang"),
        f"{_SCHEMAS} (its pods; the rest by its shape)",
        spans=True,
        disaggregates=True,
    ),
    "kserve": DeployTarget(
        kserve.write, ("vllm", "sglang"), f"{_SCHEMAS} (its pod; the rest by its shape)", disaggregates=True
    ),
    "llm-d": DeployTarget(
        llm_d.write, ("vllm",), f"{_SCHEMAS} (the values of the chart by their shape)", disaggregates=True
    ),
    "ray-serve": DeployTarget(
        ray_serve.write, ("vllm",), _KEYWORDS, slices=False, disaggregates=True, api_servers=False
    ),
    "triton": DeployTarget(
        triton.write,
        ("vllm",),
        _KEYWORDS,
        one_machine=True,
        slices=False,
        makers=("nvidia",),
        most_replicas=1,
        api_servers=False,
    ),
    "sglang": _script("sglang", "SGLang's list of arguments"),
    "llama.cpp": _script("llama.cpp", "llama.cpp's list of arguments", disaggregates=False),
}


#: A target of answers for networks only (planner/networks/targets).
TEXT_EMBEDDINGS: Final = "text-embeddings-inference"


def find_target(name: str) -> DeployTarget:
    """Return the target of a name.

    Raises:
        InputError: The name is unknown, or the target does not serve language models.
    """
    folded = name.strip().lower()
    if folded == TEXT_EMBEDDINGS:
        rule = "this target serves embedding and reranking networks, and this answer is for a language model"
        raise InputError(rule, name, "kubernetes")
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
    why = next(_refusals(name, target, pools), None)
    if why is not None:
        others = [other for other, t in TARGETS.items() if next(_refusals(other, t, pools), None) is None]
        raise InputError(why, name, ", ".join(others[:4]) or "another plan")
    return target.write(*pools)


def _refusals(name: str, target: DeployTarget, pools: Sequence[Serving]) -> Iterator[str]:
    """Yield the reasons why a target cannot start a plan."""
    encodes, split = pools[0].resolved.role == "encode", any(s.resolved.role == "prefill" for s in pools)
    if encodes and target.write is not shell.write:
        yield f"{name} does not start encoder servers"
    elif encodes and split and pools[0].family == "vllm":
        yield "vLLM's proxy pairs encoder servers with servers that prefill and decode, not with prefill servers"
    for s in pools:
        unit, nodes, span = s.resolved.hardware.accelerator, s.resolved.hardware.n_nodes, s.nodes_per_replica
        if s.family not in target.engines:
            yield f"{name} does not serve with {s.family}, the engine of this plan"
        if s.device.maker not in target.makers:
            yield f"{name} has no image for {unit.full_name}"
        if unit.is_slice and not target.slices:
            yield f"{name} cannot request MIG slices by size"
        if span > 1 and not target.spans:
            yield f"one replica of this plan spans {span} nodes, but {name} supports one node per replica"
        if nodes > 1 and target.one_machine:
            yield f"this plan needs {nodes} machines, but {name} starts one"
        if s.resolved.api_server_count > s.resolved.layout.data_parallel and not target.api_servers:
            processes = f"{s.resolved.api_server_count} API server processes for each replica"
            yield f"this plan has {processes}, but {name} calls the engine without them"
        if target.most_replicas is not None and s.replicas > target.most_replicas:
            starts = f"{name} starts {target.most_replicas} with fixed accelerators"
            yield f"this plan has {s.replicas} replicas, but {starts}"
    if not split:
        return
    pools = pools[-2:]
    if not target.disaggregates:
        yield f"{name} does not support prefill and decode servers"
    elif name == "kserve" and pools[0].family != "vllm":
        yield "KServe's scheduler pairs prefill and decode servers of vLLM only"
    elif why := device_refusal(pools[1]):
        yield why
