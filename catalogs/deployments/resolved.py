"""One deployment: a model on an engine on hardware. `Deployment` is what a user writes, `Resolved` what runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from catalogs.deployments.autoscaling import Autoscaling
from catalogs.deployments.layout import Layout, Limits, Role
from catalogs.deployments.options import Lora
from catalogs.deployments.queueing import FCFS, Queueing
from catalogs.deployments.schema import Deployment
from catalogs.deployments.speculation import Speculation
from catalogs.engines.profile import EngineProfile, RankDispatch
from catalogs.hardware.specs import Hardware
from catalogs.models.spec import ModelSpec
from catalogs.units import GIB


@dataclass(frozen=True, slots=True)
class OffloadTiers:
    """The same, every rate known. Bytes and bytes per second."""

    host_bytes: float
    disk_bytes: float
    host_bytes_per_s: float  # of each accelerator, one direction
    disk_bytes_per_s: float  # of the replica, one direction

    @property
    def as_written(self) -> dict[str, float]:
        """In the keys of deployment.yaml."""
        return {
            "host_gib": self.host_bytes / GIB,
            "disk_gib": self.disk_bytes / GIB,
            "host_gib_per_s": self.host_bytes_per_s / GIB,
            "disk_gib_per_s": self.disk_bytes_per_s / GIB,
        }


@dataclass(frozen=True, slots=True)
class ResolvedDeployment:
    """A deployment with every default filled in, every name looked up. limits.kv_blocks is 0 until memory is sized."""

    model: ModelSpec
    engine: EngineProfile
    hardware: Hardware
    replicas: int
    layout: Layout
    limits: Limits  # of one data-parallel rank
    weight_dtype: str
    kv_dtype: str
    gpu_memory_utilization: float
    sampling: str = "random"
    queueing: Queueing = FCFS
    scaling: Autoscaling | None = None  # None: the number of replicas stays
    offload: OffloadTiers | None = None
    lora: Lora | None = None
    swap_bytes: float = 0.0  # of each accelerator, for preempted requests; 0: they are computed again
    speculation: Speculation | None = None
    rank_dispatch: RankDispatch | None = None  # None: no ranks schedule beside each other
    role: Role = "both"
    site: str = ""  # pools of one site share its hardware
    notices: tuple[str, ...] = ()  # what the reader should know: one sentence each

    @property
    def queries(self) -> int:
        """Tokens that each decode brings into a step."""
        return self.speculation.queries if self.speculation else 1

    @property
    def most_replicas(self) -> int:
        """That there will ever be at once."""
        return max(self.replicas, self.scaling.max_replicas if self.scaling else 0)

    @property
    def accelerators_per_replica(self) -> int:
        return self.layout.accelerators

    def filled_in(self, written: Deployment) -> dict[str, Any]:
        """deployment.yaml as it was written, every null filled in. kv_blocks stays null until memory is sized."""
        values = written.model_dump()
        values |= {key: getattr(self, key) for key in values if hasattr(self, key)}
        values |= asdict(self.layout) | asdict(self.limits) | {"kv_blocks": self.limits.kv_blocks or None}
        values |= {"model": self.model.name, "engine": self.engine.name, "hardware": self.hardware.text}
        values |= {"queue": self.queueing.model_dump(mode="json")}
        if self.swap_bytes:
            values |= {"preemption": "swap", "swap_space_gib": self.swap_bytes / GIB}
        values |= {"lora": self.lora.model_dump() if self.lora else None}
        values |= {"speculative": self.speculation.as_written if self.speculation else None}
        values |= {"kv_offload": self.offload.as_written if self.offload else None}
        return values | {"autoscaling": self.scaling.model_dump() if self.scaling else None}
