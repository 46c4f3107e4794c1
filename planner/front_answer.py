"""`plan front`: the deployments and loads that nothing beats, found by simulating few of them."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from catalogs.errors import InputError
from catalogs.hardware import parse_hardware
from planner.answer import finite
from planner.assess import RunSizes
from planner.axes import Axis
from planner.cost import SECONDS_PER_HOUR
from planner.front import RESOLVED, Look
from planner.front_search import FrontResult, FrontTell, search_front
from planner.reproduction import digest
from planner.request import PlanRequest
from planner.slo import Slo
from planner.study import SearchSettings
from planner.trade import Trade, TradePoint, trade_points
from planner.world import World

SCHEMA_VERSION: Final = 1
#: Of a statistic that is only looked at: no system is so late.
NO_LIMIT_S: Final = 1e6
_REASONS: Final = 3  # of what was ruled out, that are told


def asked_slos(axes: Sequence[Axis], limits: Sequence[Slo]) -> tuple[Slo, ...]:
    """What a run must be read for: the limits, and the axes that have none."""
    named = {slo.name for slo in limits}
    extra = (axis.slo for axis in axes if axis.slo is not None and axis.slo.name not in named)
    return (*limits, *(Slo(s.metric, s.stat, NO_LIMIT_S) for s in extra))


@dataclass(frozen=True, slots=True)
class FrontAnswer:
    """limits: what every point of the front holds. fingerprint: of the calibration."""

    request: PlanRequest
    limits: tuple[Slo, ...]
    trade: Trade
    result: FrontResult
    n_space: int
    n_bounded_out: int
    seconds: float
    fingerprint: str
    notices: tuple[str, ...]

    @property
    def axes(self) -> tuple[Axis, ...]:
        return self.trade.axes

    @property
    def members(self) -> list[tuple[TradePoint, Look]]:
        """In order of the first objective."""
        return [(self.trade.points[i], self.result.looks[i]) for i in self.result.members]

    def document(self) -> dict[str, Any]:
        """What `plan front --json` writes. Numbers that are not finite are null."""
        on_front = set(self.result.members)
        facts = self.trade.world.facts
        front = [self._row(p, look) | {"deployment": facts(p.candidate).deployment} for p, look in self.members]
        looks = [
            self._row(self.trade.points[i], look)
            | {"holds": look.holds, "stopped_early": look.pruned, "on_front": i in on_front}
            for i, look in self.result.looks.items()
        ]
        found = {
            "schema_version": SCHEMA_VERSION,
            "request": self._asked(),
            "axes": [{"name": a.name, "words": a.words, "unit": a.unit} for a in self.axes],
            "resolution": RESOLVED,
            "front": front,
            "simulated": looks,
            "search": self.search,
            "calibration": self.fingerprint,
            "notices": list(self.notices),
        }
        clean: dict[str, Any] = finite(found)
        return clean

    def _asked(self) -> dict[str, Any]:
        r = self.request
        return {
            "model": r.model,
            "hardware": r.hardware,
            "workload": r.workload,
            "rate": r.requests_per_s,
            "slo": [slo.text for slo in self.limits],
            "engine": r.engine,
            "tariff": asdict(r.tariff),
            "seed": r.seed,
            "trials": r.trials,
        }

    def _row(self, point: TradePoint, look: Look) -> dict[str, Any]:
        price = self.trade.world.price(point.candidate)
        return {
            "words": point.candidate.words,
            "hardware": point.candidate.hardware,
            "requests_per_s": point.requests_per_s,
            "usd_per_hour": None if price is None else point.usd_per_s * SECONDS_PER_HOUR,
            "values": dict(zip((a.name for a in self.axes), look.values, strict=True)),
            "n_requests": look.n_requests,
        }

    @property
    def search(self) -> dict[str, Any]:
        """How it was found; n_requests: simulated, of resumed runs too."""
        r = self.result
        return {
            "n_candidates": self.n_space,
            "n_bounded_out": self.n_bounded_out,
            "n_points": len(self.trade.points),
            "n_simulated": len(r.looks),
            "n_pruned": r.n_pruned,
            "n_requests": r.n_requests,
            "n_resumed": r.n_resumed,
            "exhausted": r.exhausted,
            "interrupted": r.interrupted,
            "seconds": self.seconds,
            "seed": self.request.seed,
        }


def make_front(
    request: PlanRequest, world: World, axes: tuple[Axis, ...], limits: tuple[Slo, ...], tell: FrontTell | None = None
) -> FrontAnswer:
    """Raises InputError where cost has no price; KeyboardInterrupt before anything was simulated."""
    started = time.perf_counter()
    space = world.space()
    ruled_out = {c: d for c in space if (d := world.discard(c)) is not None}
    left = [c for c in space if c not in ruled_out]
    unpriced = sorted({parse_hardware(c.hardware).accelerator.name for c in left if world.price(c) is None})
    if unpriced and any(axis.name == "cost" for axis in axes):
        rule = "no price is known of this hardware, so a front of cost has no dollars"
        raise InputError(rule, ", ".join(unpriced), "--price USD, or --axes energy,...")
    points = trade_points(world, left, request.requests_per_s)
    sizes = RunSizes.for_slos(asked_slos(axes, limits))
    trade = Trade(world, points, axes, limits, request.seed, sizes)
    settings = SearchSettings(
        request.trials, request.seed, _name(request, trade), request.study, request.storage, digest(world.fingerprint)
    )
    result = search_front(trade, settings, tell) if points else FrontResult(exhausted=True)
    if result.interrupted and not result.looks:
        raise KeyboardInterrupt
    counts = (len(space), len(ruled_out), time.perf_counter() - started)
    reasons = Counter(d.reason for d in ruled_out.values()).most_common(_REASONS)
    notices = (*world.notices, *(f"ruled out, {n} candidates: {reason}" for reason, n in reasons))
    return FrontAnswer(request, limits, trade, result, *counts, digest(world.fingerprint), notices)


def _name(request: PlanRequest, trade: Trade) -> str:
    """Names the question, so that a study is only resumed for the same."""
    asked = [request.as_dict(), [a.name for a in trade.axes], [s.text for s in trade.slos], asdict(request.tariff)]
    text = json.dumps([asked, trade.params], sort_keys=True, default=str)
    return f"front-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
