"""A first guess of a plan: does it fit, what binds, a single request, and about how many accelerators.

The guess uses the closed forms that order the candidates of a search, at the engine's default limits, for the few
layouts that need the fewest accelerators. Nothing is simulated. What it costs to price a layout is kept for the next
guess, so that changes of objectives and rates are answered at once.

The stated range takes the simulator's error at the ends of its interval; the error of the queueing formulas themselves
is not known and not part of it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from calibration.accuracy.stated_error import COVERAGE
from calibration.bundles.bundle import Bundle, calibration_source, load_bundle
from catalogs.deployments.resolve import CatalogLookup
from catalogs.economics.prices import Price
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Hardware
from catalogs.models.catalog import load_model
from catalogs.workloads.workload import load_workload, with_constant_lengths
from planner.answer.replica_counts import NEGLIGIBLE_LOAD, ErrorFactors, ReplicaChoice, SizedReplicas
from planner.evaluation.closed_forms.bounds import memory_discard
from planner.evaluation.closed_forms.candidate_forms import ClosedForms
from planner.evaluation.confidence import SPEED
from planner.evaluation.deployments import CandidateDeployments
from planner.evaluation.workload_statistics import WorkloadStatistics, in_pieces, open_loop
from planner.problem.candidate import Candidate
from planner.problem.hardware_choice import choose_hardware, is_one
from planner.problem.latency_metrics import E2E, TPOT, TTFT
from planner.problem.load_curve import steady
from planner.problem.request import PlanRequest
from planner.problem.tariff import least_price
from planner.space.candidates import single_replicas, widest_limits
from simulator.memory.plan import MemoryPlan

#: Layouts that are priced where one kind of hardware is given. A judgement of cost: each takes some 20 ms the first
#: time, and the guess is to appear while a page is filled in.
MOST_LAYOUTS: Final = 3

#: Layouts that are priced for all kinds of hardware together, at least one for each. A judgement of cost, as for
#: `MOST_LAYOUTS`.
_ALL_LAYOUTS: Final = 4

#: Kinds of hardware that are compared, those with the most bandwidth per dollar. A judgement of cost, as for
#: `MOST_LAYOUTS`.
MOST_HARDWARE: Final = 3

#: Probability levels of the stated error at the ends of the range.
_ENDS: Final = ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2)


@dataclass(frozen=True, slots=True)
class GuessRange:
    """The range of a guess: the same formulas with the stated error at both ends of its interval.

    Attributes:
        gpus: Accelerators needed if all times are at the (lower, upper) end of the error interval; None where no number
            of them suffices.
        usd_per_hour: Their prices; None without one.
        requests_per_s: What the guessed replicas carry if all times are at the (upper, lower) end, so the smaller rate
            comes first.
        factors: Ratios of true to estimated values at both ends, by latency metric.
        measured: Whether the error is that of whole runs of this engine, not that of the operators alone.
    """

    gpus: tuple[int | None, int | None]
    usd_per_hour: tuple[float | None, float | None]
    requests_per_s: tuple[float | None, float | None]
    factors: dict[str, tuple[float, float]]
    measured: bool


@dataclass(frozen=True, slots=True)
class Guess:
    """A first guess of a plan.

    Attributes:
        binds: What keeps one replica from carrying more: memory, an objective, or the engine's throughput.
        notes: What a reader must know about it.
        candidate: One replica: of the guess, or of the widest layout where none fits; None without a layout.
        memory: The memory plan of one of its accelerators.
        sized: The replicas of the guess; None where no layout fits in memory.
        single_ttft_s: Mean time to first token of a single request.
        single_tpot_s: Mean time per output token of a single request.
        range: The range of the guess.
    """

    binds: str
    notes: tuple[str, ...]
    candidate: Candidate | None
    memory: MemoryPlan | None
    sized: SizedReplicas | None = None
    single_ttft_s: float | None = None
    single_tpot_s: float | None = None
    range: GuessRange | None = None

    @property
    def fits(self) -> bool:
        """Whether a layout fits in memory."""
        return self.sized is not None


def guess_plan(request: PlanRequest) -> Guess:
    """Return the first guess of a plan for a request.

    Raises:
        InputError: A name is unknown, or the values that the request fixes leave no layout.
    """
    kinds, notes = _hardware(request)
    choices: list[ReplicaChoice] = []
    unfit: list[ReplicaChoice] = []
    for hardware in kinds:
        found, missed = _choices(request, hardware)
        choices += found[: min(MOST_LAYOUTS, max(_ALL_LAYOUTS // len(kinds), 1))]
        unfit += missed
    if not choices:
        return _does_not_fit(unfit, notes)
    sized = [SizedReplicas.of(request, choice, ErrorFactors.allowed(request, choice.error)) for choice in choices]
    best = min(sized, key=lambda s: _order(request, s))
    return Guess(
        binds=_binds(request, best),
        notes=(*notes, *_notes(request, best)),
        candidate=best.choice.candidate,
        memory=best.choice.memory,
        sized=best,
        single_ttft_s=best.choice.single_s(TTFT.name),
        single_tpot_s=best.choice.single_s(TPOT.name),
        range=_range(request, best),
    )


def _hardware(request: PlanRequest) -> tuple[list[Hardware], list[str]]:
    """Return the kinds of hardware that the guess compares, and what it leaves out."""
    if is_one(request.hardware):
        return [parse_hardware(request.hardware).without_notices()], []

    def price_of(hardware: Hardware) -> Price | None:
        return least_price(hardware, request.tariff)

    budget, engine = request.max_usd_per_hour, request.engine
    found = choose_hardware(request.hardware, price_of, request.objective == "cost", budget, engine=engine)
    known = [h for h in found.hardware if calibration_source(h.accelerator)] or list(found.hardware)
    if len(known) <= MOST_HARDWARE:
        return known, []

    def usd_per_bandwidth(hardware: Hardware) -> float:
        price = price_of(hardware)
        bandwidth = hardware.n_accelerators * hardware.accelerator.memory_bandwidth_bytes_per_s
        return math.inf if price is None else price.usd_per_hour / bandwidth

    kept = sorted(known, key=usd_per_bandwidth)[:MOST_HARDWARE]
    names = ", ".join(hardware.text for hardware in kept)
    return kept, [f"compares {names} only, of {len(found.hardware)} kinds of hardware: the most bandwidth per dollar"]


# ---- what later guesses share


@dataclass(frozen=True, slots=True, eq=False)
class _Priced:
    """A model on an engine and hardware, equal to another while the catalog's entries and the calibration are equal.

    Attributes:
        request: Names of the model and the engine.
        names: Their entries in the catalog, and the hardware.
        widest: The largest limits of the candidates.
        bundle: The calibration of the hardware.
    """

    request: tuple[str, str]
    names: CatalogLookup
    widest: tuple[int, int]
    bundle: Bundle

    def __hash__(self) -> int:
        return hash((self.request, self.names.hardware.text, self.widest))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Priced):
            return NotImplemented
        own, others = ((p.request, p.names, p.widest) for p in (self, other))
        return self.bundle.same_tables(other.bundle) and own == others


class _Lengths(NamedTuple):
    """The part of a request that determines the lengths of its requests.

    `changed` is the size and the time of change of a workload's file; None for one of the catalog.
    """

    workload: str
    input_tokens: int | None
    output_tokens: int | None
    over_time: bool
    seed: int
    changed: tuple[int, int] | None
    reader: str | None  # the model, where it reads images, videos or audio

    @classmethod
    def of(cls, request: PlanRequest) -> _Lengths:
        changed = None
        if os.path.isfile(request.workload):
            found = os.stat(request.workload)
            changed = found.st_size, found.st_mtime_ns
        lengths = request.input_tokens, request.output_tokens
        reader = request.model if request.modalities else None
        return cls(request.workload, *lengths, bool(request.over_time), request.seed, changed, reader)


@lru_cache(maxsize=64)
def _statistics(lengths: _Lengths) -> WorkloadStatistics:
    """Return the statistics of a workload."""
    found = load_workload(lengths.workload)
    found = open_loop(with_constant_lengths(found, lengths.input_tokens, lengths.output_tokens))
    found = found if lengths.reader is None else found.for_model(load_model(lengths.reader))
    found = in_pieces(found)
    return WorkloadStatistics.of(steady(found) if lengths.over_time else found, lengths.seed)


@lru_cache(maxsize=64)
def _deployments(priced: _Priced) -> CandidateDeployments:
    """Return the priced layouts of a model on hardware."""
    return CandidateDeployments(priced.names, *priced.request, priced.widest)


@lru_cache(maxsize=128)
def _forms(priced: _Priced, lengths: _Lengths) -> ClosedForms:
    """Return the closed forms of layouts under a workload, whatever the objectives and the rate are."""
    return ClosedForms(_deployments(priced), _statistics(lengths), ())


def _choices(request: PlanRequest, hardware: Hardware) -> tuple[list[ReplicaChoice], list[ReplicaChoice]]:
    """Return the choices that fit in memory, fewest accelerators first, and the widest that does not fit."""
    names = CatalogLookup.on(hardware, request.model, request.engine)
    own = request.model, request.engine
    priced = _Priced(
        own, names, widest_limits(names, request.fixed), load_bundle(hardware.accelerator, engine=names.engine)
    )
    forms = _forms(priced, _Lengths.of(request))
    found: list[ReplicaChoice] = []
    unfit: list[ReplicaChoice] = []
    for candidate in single_replicas(request, names):
        choice = ReplicaChoice(candidate, names, forms, forms.deployments.memory(candidate))
        fits = memory_discard(choice.memory, forms.statistics.longest, candidate.states_length) is None
        (found if fits else unfit).append(choice)
    return found, unfit[-1:]


# ---- the best of the choices


def _order(request: PlanRequest, sized: SizedReplicas) -> tuple[Any, ...]:
    """Return the key by which choices are compared: those that suffice first, then by the objective."""
    gpus = math.inf if sized.gpus is None else sized.gpus
    usd = math.inf if sized.usd_per_hour is None else sized.usd_per_hour
    carried = sized.requests_per_s or 0.0
    single_s = sized.choice.single_s(E2E.name)
    missing = sized.replicas is None, not sized.enough
    if request.objective == "latency":
        return *missing, single_s, usd, gpus
    if not request.demand.given:
        unit = usd if request.objective == "cost" and math.isfinite(usd) else gpus
        return *missing, -carried / unit if carried else 0.0, single_s
    return *missing, usd, gpus, -carried


def _binds(request: PlanRequest, best: SizedReplicas) -> str:
    """Return what keeps one replica from carrying more: an objective, the KV cache, or the engine's throughput."""
    choice = best.choice
    full = choice.saturation_per_s
    if best.capacity_per_s < full:
        rate = max(best.capacity_per_s * 1.01, full * NEGLIGIBLE_LOAD)
        errors = ErrorFactors.allowed(request, choice.error)
        worst, ratio = max(choice.ratios(request, errors, rate), key=lambda found: found[1])
        if math.isfinite(ratio):
            return worst.text
    lengths = choice.forms.statistics
    held = choice.memory.max_concurrency_tokens / max(lengths.input_mean + lengths.output_mean, 1.0)
    by_memory = held < choice.candidate.max_num_seqs * choice.candidate.layout.data_parallel
    return "KV cache memory" if by_memory else "throughput of the engine"


def _range(request: PlanRequest, best: SizedReplicas) -> GuessRange:
    """Return the range of the guess."""
    error, choice = best.choice.error, best.choice
    low, high = (SizedReplicas.of(request, choice, ErrorFactors.at(level, error)) for level in _ENDS)
    replicas = best.replicas
    carried = (None if replicas is None else replicas * end.capacity_per_s for end in (high, low))
    factors = {metric.name: error.factors(metric.stated_error, np.array(_ENDS)) for metric in (TTFT, TPOT)}
    slow, fast = carried
    return GuessRange(
        gpus=(low.gpus, high.gpus),
        usd_per_hour=(low.usd_per_hour, high.usd_per_hour),
        requests_per_s=(slow, fast),
        factors={name: (float(least), float(most)) for name, (least, most) in factors.items()},
        measured=error.group(SPEED) is not None,
    )


def _notes(request: PlanRequest, best: SizedReplicas) -> Iterator[str]:
    given = best.choice.names.hardware
    if best.replicas is None:
        yield "no layout that was tried meets the objectives, or the load needs thousands of replicas"
    elif not best.enough:
        yield f"needs about {best.gpus} accelerators, more than the {given.n_accelerators} of {given.text}"
    usd, most = best.price, request.max_usd_per_hour
    if usd is not None and most is not None and usd.usd_per_hour > most:
        yield f"above the budget of ${most:g} per hour"
    if usd is not None:
        yield f"price: {usd.source}, as of {usd.as_of}"
    if calibration_source(given.accelerator) is None:
        yield "no calibration of this hardware: the roofline alone is too optimistic by an unknown amount"
    left_out = [*request.extensions, *(["speculative decoding"] if request.speculative else [])]
    if left_out:
        yield f"the guess leaves out: {', '.join(left_out)}"


def _does_not_fit(unfit: list[ReplicaChoice], notes: list[str]) -> Guess:
    """Return the guess where no layout fits in memory: the widest layout, and what is missing."""
    widest = max(unfit, key=lambda choice: choice.candidate.layout.accelerators, default=None)
    if widest is None:
        return Guess("memory", tuple(notes), None, None)
    found = memory_discard(widest.memory, widest.forms.statistics.longest, widest.candidate.states_length)
    missing = f"{widest.candidate.layout.words}: {'' if found is None else found.reason}"
    return Guess("memory", (*notes, missing), widest.candidate, widest.memory)
