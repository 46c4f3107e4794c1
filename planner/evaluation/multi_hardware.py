"""The evaluator of a request, made of one evaluator for each hardware of the choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Final

from calibration.accuracy.stated_error import StatedError
from calibration.bundles.bundle import calibration_source
from calibration.operators.cost import ROOFLINE
from catalogs.deployments.resolve import CatalogLookup
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Hardware
from catalogs.workloads.workload import Workload
from planner.evaluation.closed_forms.bounds import Discard, RentalBound
from planner.evaluation.closed_forms.estimates import Estimates, GuessedLimits
from planner.evaluation.closed_forms.queueing import Utilisation
from planner.evaluation.facts import CandidateFacts
from planner.evaluation.observation import Load, Observation, RunDetail
from planner.evaluation.run_sizes import condition_shares
from planner.evaluation.simulated_evaluator import SimulatedEvaluator
from planner.problem.candidate import Candidate
from planner.problem.hardware_choice import choose_hardware, is_any, is_one, uncalibrated_notice
from planner.problem.price_list import PriceList
from planner.problem.request import PlanRequest
from planner.problem.tariff import least_or_given_price, require_price
from simulator.cluster.compiled import SAMPLE_STEP
from simulator.layers.shard import Shard
from simulator.layers.step import step_calls


@dataclass(eq=False)
class HardwareChoiceEvaluator:
    """Passes each candidate to the evaluator whose space holds the candidate's hardware; implements Evaluator.

    Attributes:
        evaluators: One evaluator for each hardware.
        notices: Sentences about hardware that is not compared.
        named: The hardware that the request names; None if it leaves a choice.
        rental: Rules out candidates by their price; None if the request has no rule about it.
    """

    evaluators: Mapping[Hardware, SimulatedEvaluator]
    notices: tuple[str, ...] = ()
    named: Hardware | None = None
    rental: RentalBound | None = None
    _owners: dict[Hardware, SimulatedEvaluator] = field(default_factory=dict, init=False, repr=False)

    @property
    def _first(self) -> SimulatedEvaluator:
        return next(iter(self.evaluators.values()))

    @cached_property
    def _space(self) -> list[Candidate]:
        found = [(candidate, evaluator) for evaluator in self.evaluators.values() for candidate in evaluator.space()]
        for candidate, evaluator in found:
            self._owners.setdefault(candidate.hardware, evaluator)
        return list(dict.fromkeys(candidate for candidate, _ in found))

    def space(self) -> list[Candidate]:
        """Return the candidates of all evaluators, each once."""
        return self._space

    def of(self, candidate: Candidate) -> SimulatedEvaluator:
        """Return the evaluator that simulates this candidate."""
        if len(self.evaluators) == 1:
            return self._first
        self.space()  # finds the owners
        return self._owners[candidate.hardware]

    def elsewhere(self, hardware: Hardware) -> SimulatedEvaluator:
        """Return the evaluator of the same request on other hardware.

        Raises:
            InputError: The model or the engine does not support the hardware.
        """
        return self._first.elsewhere(hardware)

    def with_(
        self, workload: Workload | None = None, host_factor: float = 1.0, step_factor: float = 1.0
    ) -> HardwareChoiceEvaluator:
        """Return a copy in which each evaluator has the same changed inputs; see SimulatedEvaluator.with_."""
        changed = {h: e.with_(workload, host_factor, step_factor=step_factor) for h, e in self.evaluators.items()}
        return HardwareChoiceEvaluator(changed, self.notices, self.named, self.rental)

    @property
    def workload(self) -> Workload:
        """Return the workload of the request."""
        return self._first.workload

    @property
    def names(self) -> CatalogLookup:
        """Return the model, the engine and the first hardware."""
        return self._first.names

    def names_of(self, candidate: Candidate) -> CatalogLookup:
        """Return the names for the hardware that a candidate uses."""
        return self.of(candidate).names

    @property
    def fingerprint(self) -> str:
        """Return text that identifies the calibrations of all hardware."""
        return " + ".join(evaluator.fingerprint for evaluator in self.evaluators.values())

    @property
    def mean_output_tokens(self) -> float:
        """Return the mean output tokens of a request."""
        return self._first.mean_output_tokens

    @property
    def n_requests_simulated(self) -> int:
        """Return the requests simulated so far on all hardware."""
        return sum(evaluator.n_requests_simulated for evaluator in self.evaluators.values())

    def discard(self, candidate: Candidate) -> Discard | None:
        """Return why a candidate can never meet the objectives, or why it cannot be rented as requested, or None."""
        found = self.of(candidate).discard(candidate)
        return self.rental.discard(candidate) if found is None and self.rental is not None else found

    def facts(self, candidate: Candidate) -> CandidateFacts:
        """Return facts about the candidate, without simulation."""
        return self.of(candidate).facts(candidate)

    def fluid_requests_per_s(self, candidate: Candidate) -> float:
        """Return the estimated saturation rate of the whole deployment."""
        return self.of(candidate).fluid_requests_per_s(candidate)

    def light_requests_per_s(self, candidate: Candidate) -> float:
        """Return a rate of the whole deployment at which requests rarely overlap."""
        return self.of(candidate).light_requests_per_s(candidate)

    def stated_error(self, candidate: Candidate) -> StatedError:
        """Return the stated error of the candidate's simulated latencies, without simulation."""
        return self.of(candidate).stated_error(candidate)

    def guess_w(self, candidate: Candidate, requests_per_s: float) -> float:
        """Return the estimated power of the whole deployment at a rate, watts, at the servers."""
        return self.of(candidate).guess_w(candidate, requests_per_s)

    def guess_s(self, candidate: Candidate, requests_per_s: float, metric: str, quantile: float | None = None) -> float:
        """Return the estimated latency metric at a rate, seconds; see Evaluator."""
        return self.of(candidate).guess_s(candidate, requests_per_s, metric, quantile)

    def guess_capacity_per_s(self, candidate: Candidate, limits: GuessedLimits) -> float:
        """Return the estimated highest rate within limits on latencies; see Evaluator."""
        return self.of(candidate).guess_capacity_per_s(candidate, limits)

    def utilisation(self, candidate: Candidate, requests_per_s: float, quantile: float | None = None) -> Utilisation:
        """Return the estimated utilisation of each resource at a rate; see Evaluator."""
        return self.of(candidate).utilisation(candidate, requests_per_s, quantile)

    def run_requests(self, candidate: Candidate, load: Load) -> int:
        """Return the requests that a run under a load has; see Evaluator."""
        return self.of(candidate).run_requests(candidate, load)

    def observe(self, candidate: Candidate, load: Load) -> Observation:
        """Return the steady part of a run under a load, from the cache or from a new simulation."""
        return self.of(candidate).observe(candidate, load)

    def detail(self, candidate: Candidate, load: Load) -> RunDetail:
        """Return all results of a run under a load, from the cache or from a new simulation."""
        return self.of(candidate).detail(candidate, load)

    def knows(self, candidate: Candidate, load: Load) -> bool:
        """Return whether `observe` needs no simulation for this load."""
        return self.of(candidate).knows(candidate, load)

    def keep(self, candidate: Candidate, seen: Observation) -> None:
        """Keep an observation that another process made with a copy of this evaluator, so that `observe` returns it."""
        self.of(candidate).keep(candidate, seen)


#: Returns the closed forms of the candidates on each hardware, None for those to be computed when they are needed.
EstimatesAhead = Callable[[Sequence[Hardware]], Sequence[Estimates | None]]


def open_evaluator(request: PlanRequest, ahead: EstimatesAhead | None = None) -> HardwareChoiceEvaluator:
    """Return the evaluator of a request; each hardware text in the request is parsed once.

    Args:
        request: The request.
        ahead: Computes the closed forms of several kinds of hardware; by default this process does, one by one.

    Raises:
        InputError: A name is unknown, no hardware of the choice is left, or no request fulfils the condition of an
            objective.
    """
    condition_shares(request)
    if not is_one(request.hardware):
        return _open_choice(request, None, ahead)
    named = parse_hardware(request.hardware)
    require_price(named, request.tariff)
    if request.max_usd_per_hour is not None:
        return _open_choice(request, named.without_notices(), ahead)
    only = SimulatedEvaluator.of(request, named)
    PriceList(request.tariff, named).check()
    return HardwareChoiceEvaluator({named: only}, only.notices, named, rental=rental_bound(request, named))


def _open_choice(request: PlanRequest, named: Hardware | None, ahead: EstimatesAhead | None) -> HardwareChoiceEvaluator:
    """Return the evaluator of several pieces of hardware, or of one within a budget.

    Hardware without calibration is compared only if the request names it.
    """
    tariff, anything = request.tariff, is_any(request.hardware)

    needs_price, budget = request.objective == "cost", request.max_usd_per_hour
    found = choose_hardware(
        request.hardware, partial(least_or_given_price, tariff=tariff), needs_price, budget, named, request.engine
    )
    notices, evaluators = list(found.notices), dict[Hardware, SimulatedEvaluator]()
    bare = [hardware for hardware in found.hardware if calibration_source(hardware.accelerator) is None]
    left_out = bare if anything and len(bare) < len(found.hardware) else []
    refusal: InputError | None = None
    compared = [hardware for hardware in found.hardware if hardware not in left_out]
    known = [None] * len(compared) if ahead is None or len(compared) < 2 else ahead(compared)
    for hardware, estimates in zip(compared, known, strict=True):
        try:
            workload = next((evaluator.workload for evaluator in evaluators.values()), None)
            own = request.replace(hardware=hardware.text)
            evaluator = SimulatedEvaluator.of(own, hardware, workload, estimates=estimates)
            PriceList(tariff, hardware).check()
            evaluator.space()
            evaluators[hardware] = evaluator
        except InputError as error:
            if not anything:
                raise
            refusal = error
            notices.append(f"not compared, {hardware.text}: {error}")
    if refusal is not None and not evaluators:
        raise refusal
    if bare and len(bare) < len(found.hardware):  # roofline estimates alone are too optimistic
        if anything:
            notices.append(uncalibrated_notice(bare))
        else:
            texts = ", ".join(hardware.text for hardware in bare)
            notices.append(f"no calibration: roofline estimates that are too optimistic by an unknown amount: {texts}")
    partly: dict[str, list[str]] = {}
    for hardware, evaluator in evaluators.items():
        if hardware not in bare and not evaluator.deployments.bundle.times_attention:
            partly.setdefault(measured_words(evaluator), []).append(hardware.text)
    notices += [f"{words}: {', '.join(texts)}" for words, texts in partly.items()]
    notices += dict.fromkeys(line for evaluator in evaluators.values() for line in evaluator.notices)
    first = next(iter(evaluators)) if named is None else named
    return HardwareChoiceEvaluator(evaluators, tuple(notices), named, rental_bound(request, first))


def rental_bound(request: PlanRequest, whole: Hardware) -> RentalBound | None:
    """Return the bound of a request with a budget, or with a tariff that names the offers that count, or None."""
    tariff, budget = request.tariff, request.max_usd_per_hour
    if budget is None and (tariff.usd_per_hour is not None or not tariff.chooses_offers):
        return None
    return RentalBound(PriceList(tariff, whole), budget)


#: The operator families that may be measured where others are not, in words.
_FAMILY_WORDS: Final = {"gemm": "matrix products", "moe": "experts"}

NOTHING_MEASURED: Final = (
    "nothing measured for the data types and sizes of this model, roofline estimates that are too optimistic by an "
    "unknown amount"
)


def measured_words(evaluator: SimulatedEvaluator) -> str:
    """Return which operators of the candidates have tables, measured or borrowed, where not all families have them.

    A family counts with the data types and sizes that the model has in some precision and layout, as in the evidence
    of a plan, and not because other models of the same hardware have measured rows of it.
    """
    kinds: dict[object, Candidate] = {}
    for candidate in evaluator.space():
        kinds.setdefault((candidate.weight_dtype, candidate.layout), candidate)
    found: dict[str, list[bool]] = {}
    for candidate in kinds.values():
        if evaluator.discard(candidate) is None:
            for family, known in _measured(evaluator, candidate):
                found.setdefault(family, []).append(known)
    names = [name for name in _FAMILY_WORDS if any(found.get(name, []))]
    if not names:
        return NOTHING_MEASURED
    everywhere = all(all(found[name]) for name in names)
    words = " and ".join(_FAMILY_WORDS[name] for name in names)
    where = "" if everywhere else " for some of the data types and layouts of this model"
    lender = evaluator.deployments.bundle.borrowed_from
    source = "measured" if lender is None else f"borrowed from {lender}"
    return f"{words} {source}{where}, all else roofline estimates"


def _measured(evaluator: SimulatedEvaluator, candidate: Candidate) -> Iterator[tuple[str, bool]]:
    """Yield the family of each operator of a candidate, and whether its time is from operator tables."""
    deployments = evaluator.deployments
    for call in step_calls(Shard.of(deployments.resolved(candidate)), SAMPLE_STEP):
        yield call.op.family, float(deployments.bundle.cost(call.op).origin.min()) < ROOFLINE
