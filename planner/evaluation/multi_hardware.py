"""The world of one request: of one piece of hardware, or of several to choose between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from catalogs.deployments.resolve import CatalogLookup
from catalogs.economics.electricity import Grid
from catalogs.economics.prices import Price
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.workloads.workload import Workload
from planner.evaluation.evaluator import CandidateFacts, Evaluator, Observation, OfferedLoad, RunDetail
from planner.evaluation.queueing import Utilisation
from planner.evaluation.simulated import SimulatedEvaluator
from planner.problem.candidate import Candidate
from planner.problem.hardware_choice import ANY, choose_hardware, is_one
from planner.problem.request import DISAGGREGATED, PlanRequest
from planner.problem.tariff import require_price, table_price
from planner.space.bounds import Discard


def open_world(request: PlanRequest) -> SimulatedEvaluator | HardwareChoiceEvaluator:
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
    notices, worlds = list(found.notices), dict[str, SimulatedEvaluator]()
    for text in found.texts:
        try:
            world = _of_one(replace(request, hardware=text), _shared_workload(worlds))
            world.space()
            worlds[text] = world
        except InputError as error:
            if len(found.texts) - len(notices) == 1 or request.hardware.strip().lower() != ANY:
                raise
            notices.append(f"left out, {text}: {error}")
    return HardwareChoiceEvaluator(*_comparable(worlds, notices, request.hardware.strip().lower() == ANY))


def _of_one(request: PlanRequest, workload: Workload | None = None) -> SimulatedEvaluator:
    """Of one piece of hardware; with ratios of prefill and decode replicas where they are asked for."""
    if DISAGGREGATED not in request.also:
        return SimulatedEvaluator(request, workload)
    from planner.evaluation.disaggregated import DisaggregatedEvaluator

    return DisaggregatedEvaluator(request, workload)


def _comparable(
    worlds: dict[str, SimulatedEvaluator], notices: list[str], anything: bool
) -> tuple[dict[str, SimulatedEvaluator], tuple[str, ...]]:
    """Physics alone flatters: `any` leaves out hardware that nobody measured; where it was named, it is said."""
    bare = [text for text, world in worlds.items() if not world.calibrated]
    if not bare or len(bare) == len(worlds):
        return worlds, tuple(notices)
    if not anything:
        said = f"not measured, so too fast by an unknown amount beside the others: {', '.join(bare)}"
        return worlds, (*notices, said)
    said = f"left out, not measured (name them to see what physics alone allows): {', '.join(bare)}"
    return {t: w for t, w in worlds.items() if t not in bare}, (*notices, said)


def _shared_workload(worlds: Mapping[str, SimulatedEvaluator]) -> Workload | None:
    return next(iter(worlds.values())).workload if worlds else None


class HardwareChoiceEvaluator:
    """Several worlds behind one door: every question goes to the one a candidate's hardware belongs to."""

    def __init__(self, worlds: Mapping[str, SimulatedEvaluator], notices: tuple[str, ...] = ()) -> None:
        self.worlds = dict(worlds)
        self.notices = notices
        self._owner: dict[str, SimulatedEvaluator] = {}

    @property
    def names(self) -> CatalogLookup:
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

    def of(self, candidate: Candidate) -> SimulatedEvaluator:
        """The world that simulates this candidate."""
        if candidate.hardware not in self._owner:
            self.space()
        return self._owner[candidate.hardware]

    def names_of(self, candidate: Candidate) -> CatalogLookup:
        return self.of(candidate).names

    @property
    def fingerprint(self) -> str:
        return " + ".join(world.fingerprint for world in self.worlds.values())

    def elsewhere(self, hardware: str) -> Evaluator:
        """The same question about other hardware."""
        return next(iter(self.worlds.values())).elsewhere(hardware)

    def discard(self, candidate: Candidate) -> Discard | None:
        return self.of(candidate).discard(candidate)

    def facts(self, candidate: Candidate) -> CandidateFacts:
        return self.of(candidate).facts(candidate)

    def detail(self, candidate: Candidate, load: OfferedLoad) -> RunDetail:
        return self.of(candidate).detail(candidate, load)

    def price(self, candidate: Candidate) -> Price | None:
        return self.of(candidate).price(candidate)

    def grid(self) -> Grid | None:
        return next(iter(self.worlds.values())).grid()

    def guess_s(self, candidate: Candidate, requests_per_s: float, metric: str, quantile: float | None = None) -> float:
        return self.of(candidate).guess_s(candidate, requests_per_s, metric, quantile)

    def strain(self, candidate: Candidate, requests_per_s: float, quantile: float | None = None) -> Utilisation:
        return self.of(candidate).strain(candidate, requests_per_s, quantile)

    @property
    def n_requests_simulated(self) -> int:
        return sum(world.n_requests_simulated for world in self.worlds.values())

    def fluid_requests_per_s(self, candidate: Candidate) -> float:
        return self.of(candidate).fluid_requests_per_s(candidate)

    def light_requests_per_s(self, candidate: Candidate) -> float:
        return self.of(candidate).light_requests_per_s(candidate)

    def observe(self, candidate: Candidate, load: OfferedLoad) -> Observation:
        return self.of(candidate).observe(candidate, load)
