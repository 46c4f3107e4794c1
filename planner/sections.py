"""What is simulated once a plan is chosen, beside it in the answer: its users in a closed loop, its load over time."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from calibration.stated_error import StatedError
from planner.answer import Answer
from planner.assess import RunSizes
from planner.candidate import Candidate
from planner.closed_loop import Desk, Users, closed_loop_block
from planner.final import MOST_REPLICAS
from planner.money_sections import money_sections
from planner.over_time_section import over_time_block
from planner.request import PlanRequest
from planner.simulated import SimulatedWorld
from planner.world import World
from planner.worlds import Worlds
from simulator.simulate import run

#: Users simulated at most; more are looked at on an even share of the replicas.
MOST_USERS: Final = 20_000


def sections(answer: Answer, world: World) -> dict[str, Any]:
    """Blocks by name; none for a refused request, one that asks for nothing of the kind, or a world without plants."""
    if not answer.feasible or answer.interrupted or not isinstance(world, SimulatedWorld | Worlds):
        return {}
    found: dict[str, Any] = money_sections(answer, world)
    if answer.request.users is not None:
        found["closed_loop"] = _users(answer, answer.request, world)
    if answer.request.over_time:
        found["over_time"] = over_time_block(answer, owner_of(world, answer.entries[0].candidate))
    return found


def owner_of(world: SimulatedWorld | Worlds, candidate: Candidate) -> SimulatedWorld:
    """The world that simulates this candidate."""
    return world.of(candidate) if isinstance(world, Worlds) else world


def _users(answer: Answer, request: PlanRequest, world: SimulatedWorld | Worlds) -> dict[str, Any]:
    """Of the best plan, on all its replicas, or an even share of them where they or the users are many."""
    best, users = answer.entries[0], request.users or 1
    owner = owner_of(world, best.candidate)
    replicas = owner.parts(best.candidate)
    share = max(-(-replicas // MOST_REPLICAS), -(-users // MOST_USERS))
    share = next(n for n in range(min(share, replicas), replicas + 1) if replicas % n == 0)
    sizes = RunSizes.for_slos(request.slos)
    serve = partial(run, owner.serves(best.candidate, share))
    desk = Desk(serve, owner.workload, request.slos, sizes.full, request.seed)
    error = StatedError.of(request.engine, float(best.block["calibration"]["operator_error"]))  # type: ignore[index]
    block = closed_loop_block(desk, Users(max(1, round(users / share)), request.think_s), best.requests_per_s, error)
    scaled = {key: block[key] * share for key in ("requests_per_s", "ci_low_per_s", "ci_high_per_s")}
    return block | scaled | {"users": users, "share": share}
