"""LoRA adapters: small matrices that a request asks for beside the model's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, ConfigDict, PositiveInt

from catalogs.errors import InputError

if TYPE_CHECKING:
    from catalogs.deployment import Deployment

#: vLLM's MaxLoRARanks (vllm/config/lora.py).
RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)


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


def lora_of(deployment: Deployment) -> Lora | None:
    """What a deployment asks for. InputError for a rank or a number that cannot be."""
    asked = deployment.lora
    if asked is None:
        return None
    if asked.max_rank not in RANKS:
        nearest = min(RANKS, key=lambda rank: abs(rank - asked.max_rank))
        raise InputError("lora.max_rank must be one of vLLM's ranks", asked.max_rank, str(nearest))
    if asked.in_host < asked.max_loras:
        raise InputError("lora.max_cpu_loras must be at least max_loras", asked.in_host, str(asked.max_loras))
    return asked
