"""ResolvedDeployment: a model on an engine on hardware, with every default filled in."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from catalogs.deployments.autoscaling import Autoscaling
from catalogs.deployments.engine_settings import DEFAULTS, EngineSettings
from catalogs.deployments.layout import Layout, Limits, Role
from catalogs.deployments.queueing import FCFS, Queueing
from catalogs.deployments.schema import Deployment, KvRetention, Lora, Multimodal
from catalogs.deployments.speculation import Speculation
from catalogs.engines.profile import EngineProfile, RankDispatch
from catalogs.hardware.specs import Hardware
from catalogs.models.media_items import MediaLayout, Modality
from catalogs.models.spec import ModelSpec
from catalogs.models.state_pages import state_pages
from catalogs.models.towers import Tower
from catalogs.units import DTYPE_BYTES, GIB


@dataclass(frozen=True, slots=True)
class OffloadTiers:
    """The host and disk tiers of KV offload with every rate known, in bytes and bytes per second."""

    host_bytes: float
    disk_bytes: float
    host_bytes_per_s: float  # per accelerator, from the host
    disk_bytes_per_s: float  # per replica, one direction
    to_host_bytes_per_s: float | None = None  # per accelerator; None: as host_bytes_per_s
    shared: bool = False  # the tiers of all replicas are one pool
    pool_bytes_per_s: float = 0.0  # per accelerator, one direction, to the part of the pool on other nodes; 0: no pool
    expire_s: float | None = None  # from when a block was stored; None: without an end

    @property
    def as_written(self) -> dict[str, float]:
        """Return the tiers under the keys of deployment.yaml."""
        back = self.to_host_bytes_per_s
        own = {
            "host_gib": self.host_bytes / GIB,
            "disk_gib": self.disk_bytes / GIB,
            "host_gib_per_s": self.host_bytes_per_s / GIB,
            **({} if back is None else {"to_host_gib_per_s": back / GIB}),
            "disk_gib_per_s": self.disk_bytes_per_s / GIB,
        }
        if not self.shared:
            return own
        own |= {"shared": True, "pool_gib_per_s": self.pool_bytes_per_s / GIB}
        return own if self.expire_s is None else own | {"expire_s": self.expire_s}


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
    kv_retention: KvRetention | None = None
    lora: Lora | None = None
    swap_bytes: float = 0.0  # per accelerator, for preempted requests; 0: they are recomputed
    multimodal: Multimodal | None = None  # None: the towers of the model are not run
    encodes_elsewhere: bool = False  # the replicas of an encoder pool run the towers; this one gets their embeddings
    speculation: Speculation | None = None
    rank_dispatch: RankDispatch | None = None  # None: a replica has one rank
    api_server_count: int = 1  # API server processes of each replica
    stage_layers: tuple[int, ...] = ()  # layers of each pipeline stage; empty: one stage
    settings: EngineSettings = DEFAULTS  # what the deployment sets instead of the engine's defaults
    role: Role = "both"
    site: str = ""  # pools of one site share its hardware
    notices: tuple[str, ...] = ()  # one sentence each, shown with every result

    @property
    def batches_in_flight(self) -> int:
        """Return the batches that the pipeline stages of a replica compute at the same time."""
        return 1 if self.engine.stages_in_turn else self.layout.pipeline_parallel

    @property
    def queries(self) -> int:
        """Return the tokens that each decode brings into a step."""
        return self.speculation.queries if self.speculation else 1

    @property
    def state_blocks(self) -> int:
        """Return the blocks that a sequence's recurrent states take in the cache; 0: none, or not in blocks."""
        if self.engine.policy != "vllm-v1":
            return 0
        pages = state_pages(self.model, self.layout.tensor_parallel, self.kv_dtype, self.limits.block_size)
        return pages.state_blocks if pages else 0

    @property
    def side_tokens(self) -> int:
        """Return the most prompt tokens, and the most output tokens, of a request; 0 where only their sum is limited.

        An encoder that reads the prompt has positions of its own.
        """
        return self.model.max_position_tokens if self.model.encodes_prompt else 0

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """Return the kinds of items that the deployment accepts besides text."""
        if self.multimodal is None:
            return ()
        return self.model.modalities if self.multimodal.modalities is None else self.multimodal.modalities

    @property
    def towers(self) -> tuple[Tower, ...]:
        """Return the encoders that the deployment runs; none if it serves text only."""
        return tuple(tower for tower in self.model.towers if set(tower.rules.modalities) & set(self.modalities))

    def largest_item(self, tower: Tower) -> MediaLayout:
        """Return the item of a tower with the most embeddings for which an engine reserves budgets and memory."""
        length = self.limits.max_model_len
        found = (tower.rules.largest(modality, length) for modality in self.modalities)
        return max((item for item in found if item is not None), key=lambda item: item.embeddings)

    @property
    def encoder_budget(self) -> int:
        """Return the most embeddings that the towers compute in a step; 0 if none runs.

        vLLM V1 (compute_mm_encoder_budget): the token budget of a step, and at least the largest item. SGLang encodes
        all items of a prompt at once.
        """
        if self.towers and self.engine.embedding_cache_bytes is not None:
            return self.limits.max_model_len
        return max(self._largest, self.limits.max_num_batched_tokens) if self.towers else 0

    @property
    def encoder_cache_tokens(self) -> int:
        """Return the embeddings that the encoder cache holds; in vLLM at least those of the largest item."""
        if not self.towers or self.multimodal is None:
            return 0
        if self.engine.embedding_cache_bytes is not None:
            each = max(tower.embedding_values for tower in self.towers) * DTYPE_BYTES["bf16"]
            return self.multimodal.encoder_cache_tokens or int(self.engine.embedding_cache_bytes / each)
        return max(self.multimodal.encoder_cache_tokens or self.encoder_budget, self._largest)

    @property
    def runs_towers(self) -> bool:
        """Return whether the replicas of the deployment encode items themselves."""
        return bool(self.towers) and not self.encodes_elsewhere

    @property
    def runs_language_model(self) -> bool:
        """Return whether the replicas of the deployment hold the language model; those of an encoder pool do not."""
        return self.role != "encode"

    @property
    def _largest(self) -> int:
        return max(self.largest_item(tower).embeddings for tower in self.towers)

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
        if self.state_blocks:  # the block size follows from the sizes of the states
            values |= {"block_size": written.block_size or self.engine.block_size_tokens}
        values |= {"queue": self.queueing.model_dump(mode="json")}
        if self.swap_bytes:
            values |= {"preemption": "swap", "swap_space_gib": self.swap_bytes / GIB}
        values |= {"multimodal": self.multimodal.model_dump(mode="json") if self.multimodal else None}
        values |= {"lora": self.lora.model_dump() if self.lora else None}
        values |= {"speculative": self.speculation.as_written if self.speculation else None}
        values |= {"kv_offload": self.offload.as_written if self.offload else None}
        values |= {"kv_retention": self.kv_retention.model_dump() if self.kv_retention else None}
        return values | {"autoscaling": self.scaling.model_dump() if self.scaling else None}
