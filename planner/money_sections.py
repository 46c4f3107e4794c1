"""The blocks of an answer about money, power and quality, as data by name."""

from __future__ import annotations

from typing import Any

from planner.accounts import accounts_block, planned_of
from planner.answer import Answer
from planner.power_caps import Subject, power_caps_block
from planner.quality import quality_block
from planner.simulated import SimulatedWorld
from planner.world import World
from planner.worlds import Worlds


def money_sections(answer: Answer, world: World) -> dict[str, Any]:
    """Of the best plan of a feasible answer."""
    best, request = answer.entries[0], answer.request
    block: dict[str, Any] = best.block
    rest = world.price(best.candidate), world.grid(), request.users, request.tariff.committed
    found: dict[str, Any] = {
        "accounts": accounts_block(request.accounts, planned_of(block, request.hardware, rest)),
        "quality": quality_block(world.names_of(best.candidate).model, block["deployment"]),
    }
    if request.accounts.power_caps_w:
        owner = world.of(best.candidate) if isinstance(world, Worlds) else world
        assert isinstance(owner, SimulatedWorld)
        subject = Subject(best.candidate, best.requests_per_s, best.capacity_requests_per_s)
        found["power_caps"] = power_caps_block(owner, subject, request.accounts.power_caps_w)
    return found
