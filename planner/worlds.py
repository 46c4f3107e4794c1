"""The world of one request: of one piece of hardware, or of several to choose between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from catalogs.errors import InputError
from catalogs.grid import Grid
from catalogs.hardware import parse_hardware
from catalogs.prices import Price
from catalogs.resolving import Names
from catalogs.workloads import Workload
from planner.bounds import Discard
from planner.candidate import Candidate
from planner.choices import ANY, choose_hardware, is_one
from planner.flow import Strain
from planner.observation import Load, Observation
from planner.request import DISAGGREGATED, PlanRequest
from planner.simulated import SimulatedWorld
from planner.tariff import require_price, table_price
from planner.world import Detail, Facts, World


def open_world(request: PlanRequest) -> SimulatedWorld | Worlds:
    """Raises InputError for names that are not known, and for a choice of hardware with nothing left to choose."""
    tariff = request.tariff
    if is_one(request.hardware):
        require_price(parse_hardware(request.hardware), tariff)
    if is_one(request.hardware) and request.max_usd_per_hour is None:
        return _of_one(request)

    def price_of(text: str) -> Price | None:
        if tariff.usd_per_hour is not None:
            return Price.user(tariff.usd_per_hour)
        return table_price(parse_hardware(text), tariff)

    needs_price = request.objective == "cost"
    found = choose_hardware(request.hardware, price_of, needs_price, request.max_usd_per_hour)
    notices, worlds = list(found.notices), dict[str, SimulatedWorld]()
    for text in found.texts:
        try:
            world = _of_one(replace(request, hardware=text), _shared_workload(worlds))
            world.space()
            worlds[text] = world
        except InputError as error:
            if len(found.texts) - len(notices) == 1 or request.hardware.strip().lower() != ANY:
                raise
            notices.append(f"left out, {text}: {error}")
    return Worlds(*_comparable(worlds, notices, request.hardware.strip().lower() == ANY))


def _of_one(request: PlanRequest, workload: Workload | None = None) -> SimulatedWorld:
    """Of one piece of hardware; with ratios of prefill and decode replicas where they are asked for."""
    if DISAGGREGATED not in request.also:
        return SimulatedWorld(request, workload)
    from planner.split_world import SplitWorld

    return SplitWorld(request, workload)


def _comparable(
    worlds: dict[str, SimulatedWorld], notices: list[str], anything: bool
) -> tuple[dict[str, SimulatedWorld], tuple[str, ...]]:
    """Physics alone flatters: `any` leaves out hardware that nobody measured; where it was named, it is said."""
    bare = [text for text, world in worlds.items() if not world.calibrated]
    if not bare or len(bare) == len(worlds):
        return worlds, tuple(notices)
    if not anything:
        said = f"not measured, so too fast by an unknown amount beside the others: {', '.join(bare)}"
        return worlds, (*notices, said)
    said = f"left out, not measured (name them to see what physics alone allows): {', '.join(bare)}"
    return {t: w for t, w in worlds.items() if t not in bare}, (*notices, said)


def _shared_workload(worlds: Mapping[str, SimulatedWorld]) -> Workload | None:
    return next(iter(worlds.values())).workload if worlds else None


class Worlds:
    """Several worlds behind one door: every question goes to the one a candidate's hardware belongs to."""

    def __init__(self, worlds: Mapping[str, SimulatedWorld], notices: tuple[str, ...] = ()) -> None:
        self.worlds = dict(worlds)
        self.notices = notices
        self._owner: dict[str, SimulatedWorld] = {}

    @property
    def names(self) -> Names:
        """Of the first hardware; the model and the engine are everybody's."""
        return next(iter(self.worlds.values())).names

    @cached_property
    def _space(self) -> list[Candidate]:
        found: dict[Candidate, None] = {}
        for world in self.worlds.values():
            for candidate in world.space():
                self._owner.setdefault(candidate.hardware, world)
                found.setdefault(candidate)
        return list(found)

    @property
    def mean_output_tokens(self) -> float:
        return next(iter(self.worlds.values())).mean_output_tokens

    def space(self) -> list[Candidate]:
        """Of all of them."""
        return self._space

    def of(self, candidate: Candidate) -> SimulatedWorld:
        """The world that simulates this candidate."""
        if candidate.hardware not in self._owner:
            self.space()
        return self._owner[candidate.hardware]

    def names_of(self, candidate: Candidate) -> Names:
        return self.of(candidate).names

    @property
    def fingerprint(self) -> str:
        return " + ".join(world.fingerprint for world in self.worlds.values())

    def elsewhere(self, hardware: str) -> World:
        """The same question about other hardware."""
        return next(iter(self.worlds.values())).elsewhere(hardware)

    def discard(self, candidate: Candidate) -> Discard | None:
        return self.of(candidate).discard(candidate)

    def facts(self, candidate: Candidate) -> Facts:
        return self.of(candidate).facts(candidate)

    def detail(self, candidate: Candidate, load: Load) -> Detail:
        return self.of(candidate).detail(candidate, load)

    def price(self, candidate: Candidate) -> Price | None:
        return self.of(candidate).price(candidate)

    def grid(self) -> Grid | None:
        return next(iter(self.worlds.values())).grid()

    def guess_s(self, candidate: Candidate, requests_per_s: float, metric: str, quantile: float | None = None) -> float:
        return self.of(candidate).guess_s(candidate, requests_per_s, metric, quantile)

    def strain(self, candidate: Candidate, requests_per_s: float, quantile: float | None = None) -> Strain:
        return self.of(candidate).strain(candidate, requests_per_s, quantile)

    @property
    def n_requests_simulated(self) -> int:
        return sum(world.n_requests_simulated for world in self.worlds.values())

    def fluid_requests_per_s(self, candidate: Candidate) -> float:
        return self.of(candidate).fluid_requests_per_s(candidate)

    def light_requests_per_s(self, candidate: Candidate) -> float:
        return self.of(candidate).light_requests_per_s(candidate)

    def observe(self, candidate: Candidate, load: Load) -> Observation:
        return self.of(candidate).observe(candidate, load)
