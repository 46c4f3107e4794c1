"""The blocks of an answer about money, power and quality, as data by name."""

from __future__ import annotations

from typing import Any

from planner.accounts import accounts_block, planned_of
from planner.answer import Answer
from planner.world import World


def money_sections(answer: Answer, world: World) -> dict[str, Any]:
    """Of the best plan of a feasible answer."""
    best, request = answer.entries[0], answer.request
    block: dict[str, Any] = best.block
    rest = world.price(best.candidate), world.grid(), request.users, request.tariff.committed
    return {"accounts": accounts_block(request.accounts, planned_of(block, request.hardware, rest))}
