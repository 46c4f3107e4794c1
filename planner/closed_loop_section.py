"""The users of a plan, simulated as they wait and think: brings `closed_loop` and the simulator together."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from calibration.stated_error import StatedError
from planner.answer import Answer
from planner.assess import RunSizes
from planner.closed_loop import Desk, Users, closed_loop_block
from planner.final import MOST_REPLICAS
from planner.simulated import SimulatedWorld
from simulator.simulate import run

#: Users simulated at most; more are looked at on an even share of the replicas.
MOST_USERS: Final = 20_000


def users_block(answer: Answer, world: SimulatedWorld) -> dict[str, Any]:
    """Of the best plan, on all its replicas, or an even share of them where they or the users are many. world: of its
    hardware."""
    request, best = answer.request, answer.entries[0]
    users, replicas = request.users or 1, world.parts(best.candidate)
    share = max(-(-replicas // MOST_REPLICAS), -(-users // MOST_USERS))
    share = next(n for n in range(min(share, replicas), replicas + 1) if replicas % n == 0)
    serve = partial(run, world.serves(best.candidate, share))
    desk = Desk(serve, world.workload, request.slos, RunSizes.for_slos(request.slos).full, request.seed)
    error = StatedError.of(request.engine, float(best.block["calibration"]["operator_error"]))  # type: ignore[index]
    block = closed_loop_block(desk, Users(max(1, round(users / share)), request.think_s), best.requests_per_s, error)
    scaled = {key: block[key] * share for key in ("requests_per_s", "ci_low_per_s", "ci_high_per_s")}
    return block | scaled | {"users": users, "share": share}
