"""The spare replicas of a plan: brings `spares` and the simulator together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from calibration.stated_error import StatedError
from catalogs.errors import InputError
from planner.answer import finite
from planner.answer_file import AnswerFile, Plan
from planner.closed_loop import LEVELS
from planner.failing_fleet import FailingFleet
from planner.outages import Failing
from planner.progress import Tell
from planner.readable import chosen
from planner.rerun import Rerun
from planner.spares import MOST_SPARES, Spares, Ward, block_of, needed_replicas

#: Uptime over restart, at least: with less, outages have no end and no beginning.
_LONGER: Final = 20


@dataclass(frozen=True, slots=True)
class Terms:
    """How replicas fail, and what must hold: in a share `held` of windows of window_s."""

    mtbf_s: float
    restart_s: float
    window_s: float
    held: float

    def __post_init__(self) -> None:
        if not 0 < self.held < 1:
            raise InputError("the share of windows that must hold lies between 0 and 1", self.held, "0.9")
        if self.mtbf_s < _LONGER * self.restart_s:
            rule = f"a replica that fails works at least {_LONGER} times as long as its restart takes"
            raise InputError(rule, f"{self.mtbf_s:g} s", f"--mtbf {_LONGER * self.restart_s / 3600:g}h")
        if self.window_s < 10 * self.restart_s:
            rule = "a window is at least ten times as long as a restart"
            raise InputError(rule, f"{self.window_s:g} s", f"--window {10 * self.restart_s / 3600:g}h")


def spares_block(answer: AnswerFile, alternative: int, terms: Terms, tell: Tell) -> dict[str, Any]:
    """The document of `plan spares`. Raises InputError for a plan that cannot be looked at so."""
    plan = chosen("spares", answer, alternative)
    rerun = Rerun.of(answer, "spares")
    fleet, candidate = FailingFleet.of(rerun, plan, alternative), rerun.candidates[alternative]
    rate = fleet.requests_per_s
    carries = max(plan.capacity_requests_per_s or 0.0, rate) / candidate.replicas
    failing = Failing(terms.mtbf_s, terms.restart_s, settle_s=terms.restart_s)
    needed = min(candidate.replicas, needed_replicas(rate, carries))
    request = rerun.request
    ward = Ward(fleet.observe, request.slos, failing, rate, needed, terms.window_s, terms.held, request.seed)
    found = Spares(ward)
    fewest = found.find(tell)
    slower = None
    if fewest is not None:
        tell("steps as slow as may be expected")
        slower = ward.tried(fewest, _slow(answer, plan))
    return finite(block_of(found, fewest, slower) | _costs(plan, candidate.replicas, fewest) | {"most": MOST_SPARES})  # type: ignore[no-any-return]


def _slow(answer: AnswerFile, plan: Plan) -> float:
    """By which factor steps take longer at the upper level of the stated error."""
    operators = plan.calibration.of_operators if plan.calibration else 0.0
    error = StatedError.of(answer.request.engine, operators)
    return float(error.factors("e2e", np.array([LEVELS[-1]]))[0])


def _costs(plan: Plan, replicas: int, fewest: int | None) -> dict[str, Any]:
    each = None if plan.usd_per_hour is None else plan.usd_per_hour / replicas
    return {
        "planned_replicas": replicas,
        "usd_per_hour_planned": plan.usd_per_hour,
        "usd_per_hour": None if each is None or fewest is None else each * fewest,
    }
