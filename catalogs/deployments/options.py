"""A second place for KV blocks: host memory, and a disk behind it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, PositiveFloat, PositiveInt


class KvOffload(BaseModel):
    """`kv_offload` of deployment.yaml. Sizes are of one replica, as `--kv-offloading-size`; null rates: the node's."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    host_gib: PositiveFloat
    disk_gib: NonNegativeFloat = 0.0
    host_gib_per_s: PositiveFloat | None = None  # of each accelerator, one direction
    disk_gib_per_s: PositiveFloat | None = None  # of the replica, one direction


class Lora(BaseModel):
    """`lora` of deployment.yaml, named as vLLM's flags. adapters: how many the deployment serves, numbered from 0."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    adapters: PositiveInt
    max_loras: PositiveInt = 1  # in one batch, and in device memory
    max_rank: PositiveInt = 16  # every slot has room for it, and every adapter is taken to have it
    max_cpu_loras: PositiveInt | None = None  # kept in host memory; null: as many as max_loras

    @property
    def in_host(self) -> int:
        return self.max_cpu_loras or self.max_loras
