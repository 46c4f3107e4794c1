"""The question as an answer repeats it, and how to ask it again."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from catalogs.economics.prices import ON_DEMAND
from catalogs.io.json_block import JsonBlock


class Asked(JsonBlock):
    """The request block."""

    model: str
    hardware: str
    slo: list[str]
    slo_words: list[str]
    workload: str
    rate: float | None
    objective: str
    precisions: list[str] | None
    engine: str
    seed: int
    max_usd_per_hour: float | None = None
    users: int | None = None
    think_s: float = 0.0
    survive: str | None = None
    also: list[str] = Field(default_factory=list)
    fixed: dict[str, Any] = Field(default_factory=dict)
    over_time: bool = False
    speculative: str | None = None

    @property
    def given(self) -> bool:
        """Whether a load was asked for, not all that the hardware can carry."""
        return self.rate is not None or self.users is not None


class Tariff(JsonBlock):
    usd_per_hour: float | None
    reading: str
    cloud: str | None
    region: str | None
    grid: str | None
    commitment: str = ON_DEMAND
    discount: float | None = None


class Reproduce(JsonBlock):
    command: str
    seed: int
    trials: int
    tariff: Tariff
    calibration: str
    versions: dict[str, str]
