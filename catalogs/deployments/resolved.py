"""ResolvedDeployment: a model on an engine on hardware, with every default filled in."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from catalogs.deployments.autoscaling import Autoscaling
from catalogs.deployments.engine_settings import DEFAULTS, EngineSettings
from catalogs.deployments.layout import Layout, Limits, Role
from catalogs.deployments.queueing import FCFS, Queueing
from catalogs.deployments.schema import Deployment, Lora, Multimodal
from catalogs.deployments.speculation import Speculation
from catalogs.engines.profile import EngineProfile, RankDispatch
from catalogs.hardware.specs import Hardware
from catalogs.models.spec import ModelSpec
from catalogs.models.vision import VisionTower
from catalogs.units import GIB


@dataclass(frozen=True, slots=True)
class OffloadTiers:
    """The host and disk tiers of KV offload with every rate known, in bytes and bytes per second."""

    host_bytes: float
    disk_bytes: float
    host_bytes_per_s: float  # per accelerator, one direction
    disk_bytes_per_s: float  # per replica, one direction

    @property
    def as_written(self) -> dict[str, float]:
        """Return the tiers under the keys of deployment.yaml."""
        return {
            "host_gib": self.host_bytes / GIB,
            "disk_gib": self.disk_bytes / GIB,
            "host_gib_per_s": self.host_bytes_per_s / GIB,
            "disk_gib_per_s": self.disk_bytes_per_s / GIB,
        }


@dataclass(frozen=True, slots=True)
class ResolvedDeployment:
    """A deployment with every default filled in and every name looked up.

    `limits.kv_blocks` is 0 until memory is sized.
    """

    model: ModelSpec
    engine: EngineProfile
    hardware: Hardware
    replicas: int
    layout: Layout
    limits: Limits  # per data-parallel rank
    weight_dtype: str
    kv_dtype: str
    gpu_memory_utilization: float
    sampling: str = "random"
    queueing: Queueing = FCFS
    scaling: Autoscaling | None = None  # None: the number of replicas is fixed
    offload: OffloadTiers | None = None
    lora: Lora | None = None
    swap_bytes: float = 0.0  # per accelerator, for preempted requests; 0: they are recomputed
    multimodal: Multimodal | None = None  # None: the vision tower of the model is not run
    speculation: Speculation | None = None
    rank_dispatch: RankDispatch | None = None  # None: a replica has one rank
    api_server_count: int = 1  # API server processes of each replica
    settings: EngineSettings = DEFAULTS  # what the deployment sets instead of the engine's defaults
    role: Role = "both"
    site: str = ""  # pools of one site share its hardware
    notices: tuple[str, ...] = ()  # one sentence each, shown with every result

    @property
    def queries(self) -> int:
        """Return the tokens that each decode brings into a step."""
        return self.speculation.queries if self.speculation else 1

    @property
    def side_tokens(self) -> int:
        """Return the most prompt tokens, and the most output tokens, of a request; 0 where only their sum is limited.

        An encoder that reads the prompt has positions of its own.
        """
        return self.model.max_position_tokens if self.model.encodes_prompt else 0

    @property
    def tower(self) -> VisionTower | None:
        """Return the vision tower that the deployment runs; None if it serves text only."""
        return self.model.vision if self.multimodal is not None else None

    @property
    def encoder_budget(self) -> int:
        """Return the most embeddings that the tower computes in a step; 0 if it does not run.

        vLLM V1 (compute_mm_encoder_budget): the token budget of a step, and at least the largest image.
        """
        return 0 if self.tower is None else max(self.limits.max_num_batched_tokens, self.tower.largest.embeddings)

    @property
    def encoder_cache_tokens(self) -> int:
        """Return the embeddings that the encoder cache holds, at least those of the largest image."""
        if self.tower is None or self.multimodal is None:
            return 0
        return max(self.multimodal.encoder_cache_tokens or self.encoder_budget, self.tower.largest.embeddings)

    @property
    def most_replicas(self) -> int:
        """Return the most replicas that exist at any time."""
        return max(self.replicas, self.scaling.max_replicas if self.scaling else 0)

    @property
    def accelerators_per_replica(self) -> int:
        """Return the number of accelerators that one replica occupies."""
        return self.layout.accelerators

    def filled_in(self, written: Deployment) -> dict[str, Any]:
        """Return the keys of deployment.yaml with every null filled in; kv_blocks stays null until memory is sized."""
        values = written.model_dump()
        values |= {key: getattr(self, key) for key in values if hasattr(self, key)}
        values |= asdict(self.layout) | asdict(self.limits) | {"kv_blocks": self.limits.kv_blocks or None}
        values |= {"model": self.model.name, "engine": self.engine.name, "hardware": self.hardware.text}
        values |= {"queue": self.queueing.model_dump(mode="json")}
        if self.swap_bytes:
            values |= {"preemption": "swap", "swap_space_gib": self.swap_bytes / GIB}
        values |= {"multimodal": self.multimodal.model_dump() if self.multimodal else None}
        values |= {"lora": self.lora.model_dump() if self.lora else None}
        values |= {"speculative": self.speculation.as_written if self.speculation else None}
        values |= {"kv_offload": self.offload.as_written if self.offload else None}
        return values | {"autoscaling": self.scaling.model_dump() if self.scaling else None}
