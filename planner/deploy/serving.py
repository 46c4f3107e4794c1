"""The parts of a plan that a deployment needs: command, number, image and device of its replicas."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from catalogs.deployments.resolve import resolve_pools
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.io.yaml_files import validate_as
from catalogs.launch.arguments import Arguments, weights_at
from catalogs.launch.command import engine_family, serve_arguments
from catalogs.launch.images import ContainerDevice, image_of
from planner.answer.plan_schema import Plan
from planner.problem.latency_metrics import E2E, TTFT

#: Port of a replica, and of the router in front of several replicas.
PORT: Final = 8000

#: Path that answers with status 200 once the model is loaded, for every engine.
HEALTH: Final = "/health"

#: Deployment keys that no target can express; they must be unset.
_INEXPRESSIBLE: Final = (
    "kv_offload",
    "kv_retention",
    "preemption",
    "lora",
    "autoscaling",
    "faults",
    "retries",
    "pools",
)

#: Keys of `disaggregation` that no router of prefill and decode servers supports.
_INEXPRESSIBLE_DISAGGREGATION: Final = (
    "transfer_gb_per_s",
    "transfer",
    "max_local_prefill_tokens",
    "max_prefill_queue",
)


@dataclass(frozen=True, slots=True)
class Serving:
    """One kind of replica to start.

    `name` is a DNS label, and `arguments` start one replica, without its address.
    """

    name: str
    family: str
    resolved: ResolvedDeployment
    arguments: Arguments
    image: str
    device: ContainerDevice
    requests_held: float | None = None  # by one replica under the planned load, on average

    @classmethod
    def of(cls, plan: Plan) -> tuple[Serving, ...]:
        """Return the kinds of replica of a plan: one, or prefill and decode replicas.

        Raises:
            InputError: Files cannot express the deployment, or the engine has no command.
        """
        block = plan.deployment
        for keys, names in (
            (block, _INEXPRESSIBLE),
            (block.get("disaggregation") or {}, _INEXPRESSIBLE_DISAGGREGATION),
        ):
            for key in names:
                if keys.get(key):
                    raise InputError("deployment files cannot express this key", key, f"{key}: null")
        written = validate_as(Deployment, {**block, "kv_blocks": None}, "the plan's deployment")
        pools = []
        for resolved in resolve_pools(written):
            family, device = engine_family(resolved.engine.name), ContainerDevice.of(resolved.hardware.accelerator)
            arguments = serve_arguments(resolved)
            if family == "vllm" and device.maker == "cpu" and plan.memory and plan.memory.kv_bytes:
                gib = max(int(plan.memory.kv_bytes / 2**30), 1)
                arguments = replace(arguments, environment={"VLLM_CPU_KVCACHE_SPACE": str(gib)})
            image = image_of(family, resolved.engine.version, device.maker)
            held = _requests_held(plan, resolved)
            pools.append(cls(_label(resolved), family, resolved, arguments, image, device, held))
        return tuple(pools)

    @property
    def model(self) -> str:
        """Return the model name for clients, which is also the repository of the weights."""
        return self.arguments.model

    @property
    def replicas(self) -> int:
        """Return the number of replicas."""
        return self.resolved.replicas

    @property
    def accelerators(self) -> int:
        """Return the accelerators of a replica."""
        return self.resolved.accelerators_per_replica

    @property
    def nodes_per_replica(self) -> int:
        """Return the nodes that a replica spans."""
        return -(-self.accelerators // self.resolved.hardware.accelerators_per_node)

    @property
    def accelerators_per_pod(self) -> int:
        """Return the accelerators of a replica on each of its nodes."""
        return self.accelerators // self.nodes_per_replica

    def listening(self, port: int = PORT) -> Arguments:
        """Return the arguments with an address; SGLang and llama.cpp would otherwise listen on 127.0.0.1."""
        address: tuple[tuple[str, str | None], ...] = (("--host", "0.0.0.0"), ("--port", str(port)))
        return replace(self.arguments, flags=(*self.arguments.flags, *address))


def _requests_held(plan: Plan, resolved: ResolvedDeployment) -> float | None:
    """Return the mean number of requests in a replica by Little's law: their rate and the time that they stay."""
    e2e_s, ttft_s = (plan.latency_s(metric.name, "mean") for metric in (E2E, TTFT))
    if not plan.requests_per_s or e2e_s is None or ttft_s is None:
        return None
    stay_s = {"prefill": ttft_s, "decode": e2e_s - ttft_s}.get(resolved.role, e2e_s)
    return plan.requests_per_s * stay_s / resolved.replicas


def _label(resolved: ResolvedDeployment) -> str:
    """Return a name valid for every target: lower case, digits and dashes, at most 40 characters, a letter first."""
    stem = weights_at(resolved.model).rpartition("/")[2].lower()
    label = re.sub(r"[^a-z0-9]+", "-", stem).strip("-")[:40].strip("-")
    return label if label[:1].isalpha() else f"m-{label}"
