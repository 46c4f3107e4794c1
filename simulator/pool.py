"""Replicas that are alike: the rules they run by, what their steps cost, how many there are and what they do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from catalogs.deployment import Role
from simulator.replica import StepTimer
from simulator.rules import EngineRules

if TYPE_CHECKING:
    from simulator.plant import Plant


@dataclass(frozen=True, slots=True)
class Pool:
    """Part of a run. `replicas` is how many there are when it begins; `model` which of the run's models they serve
    (RequestSet.wanted_models). plant: None where a bare timer runs, without energy and calibration."""

    rules: EngineRules
    timer: StepTimer
    replicas: int = 1
    role: Role = "both"
    model: int = 0
    plant: Plant | None = None
