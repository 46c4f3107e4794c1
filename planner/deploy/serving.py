"""A plan as something to start: the command of one replica, how many, on what, behind which router."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from catalogs.deployments.resolve import resolve_pools
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.io.yaml_files import validate_as
from catalogs.launch.arguments import Arguments, weights_at
from catalogs.launch.command import engine_family, serve_arguments
from planner.answer.plan_schema import Plan
from planner.deploy.images import ContainerDevice, image_of

#: Where a replica listens, and the router in front of several.
PORT: Final = 8000

#: Deployment keys that no target's files say; None, False or the default there.
_UNSAID: Final = ("kv_offload", "preemption", "lora", "autoscaling", "faults", "retries", "pools")

#: And of `disaggregation`: no router of prefill and decode servers has them.
_UNSAID_APART: Final = ("transfer_gb_per_s", "transfer", "max_local_prefill_tokens", "max_prefill_queue")


@dataclass(frozen=True, slots=True)
class Serving:
    """name: a DNS label. arguments: of one replica, without its address."""

    name: str
    family: str
    resolved: ResolvedDeployment
    arguments: Arguments
    image: str
    device: ContainerDevice
    kv_bytes: float | None  # of one accelerator, as planned

    @classmethod
    def of(cls, plan: Plan) -> tuple[Serving, ...]:
        """One for each kind of replica: one, or those that prefill and those that decode.

        Raises InputError for a deployment the files could not say in full, or of an engine without a command.
        """
        said = plan.deployment
        _refuse(said, _UNSAID)
        _refuse(said.get("disaggregation") or {}, _UNSAID_APART)
        written = validate_as(Deployment, {**said, "kv_blocks": None}, "the plan's deployment")
        kv_bytes = plan.memory.kv_bytes if plan.memory else None
        return tuple(cls._of_pool(pool, kv_bytes) for pool in resolve_pools(written))

    @classmethod
    def _of_pool(cls, resolved: ResolvedDeployment, kv_bytes: float | None) -> Serving:
        kind = engine_family(resolved.engine.name)
        device = ContainerDevice.of(resolved.hardware.accelerator)
        made = serve_arguments(resolved)
        if kind == "vllm" and device.maker == "cpu" and kv_bytes:
            made = replace(made, environment={"VLLM_CPU_KVCACHE_SPACE": f"{max(int(kv_bytes / 2**30), 1)}"})
        image = image_of(kind, resolved.engine.version, device.maker)
        return cls(_label(resolved), kind, resolved, made, image, device, kv_bytes)

    @property
    def model(self) -> str:
        """The name clients ask for, and the repository the weights come from."""
        return weights_at(self.resolved.model)

    @property
    def replicas(self) -> int:
        return self.resolved.replicas

    @property
    def accelerators(self) -> int:
        """Of one replica."""
        return self.resolved.accelerators_per_replica

    @property
    def nodes_per_replica(self) -> int:
        return -(-self.accelerators // self.resolved.hardware.accelerators_per_node)

    @property
    def accelerators_per_pod(self) -> int:
        return self.accelerators // self.nodes_per_replica

    @property
    def health(self) -> str:
        """Answers 200 when the model is loaded."""
        return "/health"

    def listening(self, port: int = PORT) -> Arguments:
        """The command with its address; SGLang and llama.cpp listen on 127.0.0.1 otherwise."""
        address: tuple[tuple[str, str | None], ...] = (("--host", "0.0.0.0"), ("--port", str(port)))
        return replace(self.arguments, flags=(*self.arguments.flags, *address))


def _refuse(said: dict[str, Any], keys: Iterable[str]) -> None:
    for key in keys:
        if said.get(key):
            raise InputError("deployment files cannot say this key", key, f"{key}: null")


def _label(resolved: ResolvedDeployment) -> str:
    """A name every target takes: lower case, digits and dashes, at most 40 characters, a letter first."""
    stem = weights_at(resolved.model).rpartition("/")[2].lower()
    label = re.sub(r"[^a-z0-9]+", "-", stem).strip("-")[:40].strip("-")
    return label if label[:1].isalpha() else f"m-{label}"
