"""How to ask the question of an answer again."""

from __future__ import annotations

from catalogs.io.json_block import JsonBlock
from planner.problem.tariff import Tariff


class Reproduce(JsonBlock):
    command: str
    seed: int
    trials: int
    tariff: Tariff
    calibration: str
    versions: dict[str, str]
