"""The evaluator of a request: one for each piece of hardware that there is to choose from, by hardware."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from catalogs.deployments.resolve import CatalogLookup
from catalogs.economics.prices import Price
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Hardware
from catalogs.workloads.workload import Workload
from planner.evaluation.evaluator import CandidateFacts, Load, Observation, RunDetail
from planner.evaluation.queueing import Utilisation
from planner.evaluation.simulated import SimulatedEvaluator
from planner.problem.candidate import Candidate
from planner.problem.hardware_choice import ANY, choose_hardware, is_one
from planner.problem.price_list import PriceList
from planner.problem.request import PlanRequest
from planner.problem.tariff import require_price, table_price
from planner.space.bounds import Discard


class HardwareChoiceEvaluator:
    """Evaluators by the hardware they are for, one or several. Every question about a candidate goes to the one whose
    space holds its hardware. See Evaluator.

    named: the hardware that the request names, None where it leaves a choice; notices: what the choice left out.
    """

    def __init__(
        self,
        evaluators: Mapping[Hardware, SimulatedEvaluator],
        notices: tuple[str, ...] = (),
        named: Hardware | None = None,
    ) -> None:
        self._evaluators = dict(evaluators)
        self._owners: dict[Hardware, SimulatedEvaluator] = {}
        self.notices = notices
        self.named = named

    @property
    def _first(self) -> SimulatedEvaluator:
        return next(iter(self._evaluators.values()))

    @cached_property
    def _space(self) -> list[Candidate]:
        found: dict[Candidate, None] = {}
        for evaluator in self._evaluators.values():
            for candidate in evaluator.space():
                self._owners.setdefault(candidate.hardware, evaluator)
                found.setdefault(candidate)
        return list(found)

    def space(self) -> list[Candidate]:
        """Of all of them, each candidate once."""
        return self._space

    def of(self, candidate: Candidate) -> SimulatedEvaluator:
        """The evaluator that simulates this candidate."""
        if len(self._evaluators) == 1:
            return self._first
        if candidate.hardware not in self._owners:
            self.space()
        return self._owners[candidate.hardware]

    def elsewhere(self, hardware: Hardware) -> SimulatedEvaluator:
        """The same request on other hardware. Raises InputError where its names do not go together."""
        return self._first.elsewhere(hardware)

    def with_(
        self, workload: Workload | None = None, host_factor: float = 1.0, step_factor: float = 1.0
    ) -> HardwareChoiceEvaluator:
        """Each of them with the same inputs changed; see SimulatedEvaluator.with_."""
        changed = {
            hardware: evaluator.with_(workload, host_factor, step_factor=step_factor)
            for hardware, evaluator in self._evaluators.items()
        }
        return HardwareChoiceEvaluator(changed, self.notices, self.named)

    @property
    def names(self) -> CatalogLookup:
        return self._first.names

    def names_of(self, candidate: Candidate) -> CatalogLookup:
        return self.of(candidate).names

    @property
    def fingerprint(self) -> str:
        return " + ".join(evaluator.fingerprint for evaluator in self._evaluators.values())

    @property
    def mean_output_tokens(self) -> float:
        return self._first.mean_output_tokens

    @property
    def n_requests_simulated(self) -> int:
        return sum(evaluator.n_requests_simulated for evaluator in self._evaluators.values())

    def discard(self, candidate: Candidate) -> Discard | None:
        return self.of(candidate).discard(candidate)

    def facts(self, candidate: Candidate) -> CandidateFacts:
        return self.of(candidate).facts(candidate)

    def fluid_requests_per_s(self, candidate: Candidate) -> float:
        return self.of(candidate).fluid_requests_per_s(candidate)

    def light_requests_per_s(self, candidate: Candidate) -> float:
        return self.of(candidate).light_requests_per_s(candidate)

    def guess_s(self, candidate: Candidate, requests_per_s: float, metric: str, quantile: float | None = None) -> float:
        return self.of(candidate).guess_s(candidate, requests_per_s, metric, quantile)

    def utilisation(self, candidate: Candidate, requests_per_s: float, quantile: float | None = None) -> Utilisation:
        return self.of(candidate).utilisation(candidate, requests_per_s, quantile)

    def observe(self, candidate: Candidate, load: Load) -> Observation:
        return self.of(candidate).observe(candidate, load)

    def detail(self, candidate: Candidate, load: Load) -> RunDetail:
        return self.of(candidate).detail(candidate, load)


def open_evaluator(request: PlanRequest) -> HardwareChoiceEvaluator:
    """The evaluator of a request, every hardware text in it parsed once.

    Raises InputError for names that are not known, and for a choice of hardware with nothing left to choose.
    """
    if not is_one(request.hardware):
        return _open_choice(request, None)
    named = parse_hardware(request.hardware)
    require_price(named, request.tariff)
    if request.max_usd_per_hour is not None:
        return _open_choice(request, named.without_notices())
    only = SimulatedEvaluator.of(request, named)
    PriceList(request.tariff, named).check()
    return HardwareChoiceEvaluator({named: only}, named=named)


def _open_choice(request: PlanRequest, named: Hardware | None) -> HardwareChoiceEvaluator:
    """Of several pieces of hardware, or of one within a budget."""
    tariff, anything = request.tariff, request.hardware.strip().lower() == ANY

    def price_of(hardware: Hardware) -> Price | None:
        return table_price(hardware, tariff) if tariff.usd_per_hour is None else Price.user(tariff.usd_per_hour)

    needs_price = request.objective == "cost"
    found = choose_hardware(request.hardware, price_of, needs_price, request.max_usd_per_hour, named)
    notices, evaluators = list(found.notices), dict[Hardware, SimulatedEvaluator]()
    for hardware in found.hardware:
        try:
            workload = next((evaluator.workload for evaluator in evaluators.values()), None)
            evaluator = SimulatedEvaluator.of(request.replace(hardware=hardware.text), hardware, workload)
            PriceList(tariff, hardware).check()
            evaluator.space()
            evaluators[hardware] = evaluator
        except InputError as error:
            if len(found.hardware) - len(notices) == 1 or not anything:
                raise
            notices.append(f"left out, {hardware.text}: {error}")
    kept, left_out = _comparable(evaluators, anything)
    return HardwareChoiceEvaluator(kept, (*notices, *left_out), named)


def _comparable(
    evaluators: Mapping[Hardware, SimulatedEvaluator], anything: bool
) -> tuple[Mapping[Hardware, SimulatedEvaluator], tuple[str, ...]]:
    """Physics alone flatters: `any` leaves out hardware without measurements; where it was named, a notice says so."""
    bare = [hardware for hardware, evaluator in evaluators.items() if not evaluator.calibrated]
    if not bare or len(bare) == len(evaluators):
        return evaluators, ()
    texts = ", ".join(hardware.text for hardware in bare)
    if not anything:
        return evaluators, (f"not measured, so too fast by an unknown amount beside the others: {texts}",)
    said = f"left out, not measured (name them to see what physics alone allows): {texts}"
    return {hardware: evaluator for hardware, evaluator in evaluators.items() if hardware not in bare}, (said,)
