"""One deployment: a model on an engine on hardware. `Deployment` is what a user writes, `Resolved` what runs."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from catalogs.engines import EngineProfile
from catalogs.hardware import Hardware
from catalogs.models import ModelSpec


class Deployment(BaseModel):
    """deployment.yaml as written; null means "the engine's default"."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    engine: str = "vllm"
    hardware: str
    replicas: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: bool = False
    disaggregation: dict[str, object] | None = None
    weight_dtype: str | None = None
    kv_dtype: str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    block_size: int = 16
    kv_blocks: int | None = None
    prefix_caching: bool | None = None
    gpu_memory_utilization: float | None = None


@dataclass(frozen=True, slots=True)
class Resolved:
    """A deployment with every default filled in and every name looked up. kv_blocks is None until memory is sized."""

    model: ModelSpec
    engine: EngineProfile
    hardware: Hardware
    replicas: int
    tensor_parallel: int
    pipeline_parallel: int
    data_parallel: int
    expert_parallel: bool
    weight_dtype: str
    kv_dtype: str
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    kv_blocks: int | None
    prefix_caching: bool
    gpu_memory_utilization: float

    @property
    def accelerators_per_replica(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel
