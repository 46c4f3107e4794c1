"""What is looked at once a plan is chosen, beside it in the answer: the blocks, by name, and when there is one."""

from __future__ import annotations

from typing import Any

from planner.accounts import Planned, accounts_block
from planner.answer import Answer
from planner.closed_loop_section import users_block
from planner.over_time_section import over_time_block
from planner.power_caps import Subject, power_caps_block
from planner.quality import quality_block
from planner.simulated import SimulatedWorld
from planner.world import World
from planner.worlds import Worlds


def sections(answer: Answer, world: World) -> dict[str, Any]:
    """Of the best plan; none for a refused request, or a world without plants."""
    if not answer.feasible or answer.interrupted or not isinstance(world, SimulatedWorld | Worlds):
        return {}
    request, best = answer.request, answer.entries[0]
    owner, block = world.of(best.candidate), best.block
    price, grid = world.price(best.candidate), world.grid()
    planned = Planned.of(block, request.hardware, price, grid, request.users, request.tariff.committed)
    found: dict[str, Any] = {
        "accounts": accounts_block(request.accounts, planned),
        "quality": quality_block(owner.names.model, planned.deployment),
    }
    if request.accounts.power_caps_w:
        subject = Subject(best.candidate, best.requests_per_s, best.capacity_requests_per_s)
        found["power_caps"] = power_caps_block(owner, subject, request.accounts.power_caps_w)
    if request.users is not None:
        found["closed_loop"] = users_block(answer, owner)
    if request.over_time:
        found["over_time"] = over_time_block(answer, owner)
    return found
