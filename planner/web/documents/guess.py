"""A first guess of a plan while one types: does it fit, what binds, a lone request, and about how many accelerators.

The guess uses the closed forms that order the candidates of a search, at the engine's default limits, for the few
layouts that need the fewest accelerators. Nothing is simulated. What it costs to price a layout is kept for the next
guess, so that changes of objectives and rates are answered at once.

The number of replicas follows from the most requests per second that one replica carries within all objectives, with
the same allowance for the simulator's error as a plan. The stated range takes the error at the ends of its interval;
the error of the queueing formulas themselves is not known and not part of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np

from calibration.accuracy.stated_error import COVERAGE, StatedError
from calibration.bundles.bundle import calibration_source
from catalogs.deployments.resolve import CatalogLookup
from catalogs.economics.prices import Price
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Hardware
from catalogs.workloads.workload import load_workload, with_constant_lengths
from planner.evaluation.closed_forms import ClosedForms
from planner.evaluation.confidence import SPEED, allowance_for
from planner.evaluation.deployments import CandidateDeployments
from planner.evaluation.workload_statistics import WorkloadStatistics, open_loop
from planner.problem.candidate import Candidate
from planner.problem.demand import users_rate_per_s
from planner.problem.hardware_choice import choose_hardware, is_one
from planner.problem.latency_metrics import E2E, TPOT, TTFT
from planner.problem.load_curve import steady
from planner.problem.price_list import PriceList
from planner.problem.request import PlanRequest
from planner.problem.slo import Slo
from planner.problem.tariff import least_price
from planner.space.bounds import memory_discard
from planner.space.candidates import distance_from_defaults, kv_dtypes, limits, weight_dtypes, widest_limits
from planner.space.layouts import layouts, replicas_of
from planner.web.documents.shapes import Guess
from planner.web.questions import calibration_digest
from simulator.memory.plan import MemoryPlan

#: Layouts that are priced for one hardware, and for all hardware together; each takes some 20 ms the first time.
MOST_LAYOUTS: Final = 3

_ALL_LAYOUTS: Final = 4

#: Kinds of hardware that are compared.
MOST_HARDWARE: Final = 3

#: Most replicas that are considered.
_MOST_REPLICAS: Final = 4096

#: Probability levels of the stated error at the ends of the range.
_LOW, _HIGH = (1 - COVERAGE) / 2, (1 + COVERAGE) / 2

#: A rate at which requests never meet, relative to the saturation rate.
_LONE: Final = 1e-6

_HALVINGS: Final = 24


@dataclass(frozen=True, slots=True)
class _Choice:
    """One replica of a layout and data types on one hardware, with its closed forms."""

    candidate: Candidate
    names: CatalogLookup
    forms: ClosedForms
    memory: MemoryPlan

    def capacity_per_s(self, request: PlanRequest, errors: _Errors) -> float:
        """Return the most requests per second of one replica within all objectives; 0 if even a lone one misses."""
        high = self.forms.saturation_per_s(self.candidate)
        low = high * _LONE
        if not self._meets(request, errors, low):
            return 0.0
        if self._meets(request, errors, high):
            return high
        for _ in range(_HALVINGS):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self._meets(request, errors, middle) else (low, middle)
        return low

    def _meets(self, request: PlanRequest, errors: _Errors, rate: float) -> bool:
        return all(ratio <= 1 for _, ratio in self.ratios(request, errors, rate))

    def ratios(self, request: PlanRequest, errors: _Errors, rate: float) -> Iterator[tuple[Slo, float]]:
        """Yield each objective with the ratio of its value to its limit, at a rate of one replica."""
        model = self.forms.queueing(self.candidate)
        lone = self.forms.saturation_per_s(self.candidate) * _LONE
        for slo in request.slos:
            metric = slo.latency.name
            value_s = model.latency_s(rate * errors.speed, metric, slo.quantile)
            waiting = 1.0
            if math.isfinite(value_s) and value_s > 0:
                waiting = max(1.0 - model.latency_s(lone, metric, slo.quantile) / value_s, 0.0)
            yield slo, value_s * errors.latency(slo, waiting) / slo.limit_s

    def latency_s(self, rate: float, metric: str) -> float:
        """Return a mean latency at a rate of one replica, seconds."""
        return self.forms.queueing(self.candidate).latency_s(rate, metric)

    @property
    def error(self) -> StatedError:
        """The stated error of simulated latencies."""
        return StatedError.of(self.forms.deployments.engine, self.forms.operator_error(self.candidate))


@dataclass(frozen=True, slots=True)
class _Errors:
    """Factors on estimated times: on the time of a step, and on an objective's value by the share that is waiting."""

    speed: float
    latency: Callable[[Slo, float], float]

    @classmethod
    def allowed(cls, request: PlanRequest, error: StatedError) -> _Errors:
        """Return the factors that allow for the error at the confidence of the request."""
        allowance = allowance_for(request.confidence, error)
        return cls(allowance.speed, allowance.latency)

    @classmethod
    def at(cls, level: float, error: StatedError) -> _Errors:
        """Return the factors at one probability level of the error."""
        levels = np.array([level])
        speed = float(error.factors(SPEED, levels)[0])
        return cls(speed, lambda slo, waiting: float(error.factors(slo.latency.stated_error, levels, waiting)[0]))


@dataclass(frozen=True, slots=True)
class _Sized:
    """A choice with the number of replicas that the demand needs, and their price."""

    choice: _Choice
    capacity_per_s: float
    replicas: int | None
    price: Price | None

    @property
    def gpus(self) -> int | None:
        """The accelerators of all replicas."""
        return None if self.replicas is None else self.replicas * self.choice.candidate.layout.accelerators

    @property
    def enough(self) -> bool:
        """Whether the hardware of the question holds the replicas."""
        most = replicas_of(self.choice.names, self.choice.candidate.layout)
        return self.replicas is not None and self.replicas <= most


def guess_document(request: PlanRequest) -> Guess:
    """Return the first guess of a plan for a request.

    Raises:
        InputError: A name is unknown, or the values that the request fixes leave no layout.
    """
    statistics = _statistics(
        request.workload, request.input_tokens, request.output_tokens, request.over_time, request.seed
    )
    kinds, notes = _hardware(request)
    choices: list[_Choice] = []
    unfit: list[_Choice] = []
    for hardware in kinds:
        found, missed = _choices(request, hardware, statistics)
        choices += found[: min(MOST_LAYOUTS, max(_ALL_LAYOUTS // len(kinds), 1))]
        unfit += missed
    if not choices:
        return _does_not_fit(unfit, notes)
    sized = [_sized(request, choice, _Errors.allowed(request, choice.error)) for choice in choices]
    best = min(sized, key=lambda s: _order(request, s))
    return _guess(request, best, [*notes, *_notes(request, best)])


def _hardware(request: PlanRequest) -> tuple[list[Hardware], list[str]]:
    """Return the kinds of hardware that the guess compares, and what it leaves out."""
    if is_one(request.hardware):
        return [parse_hardware(request.hardware).without_notices()], []

    def price_of(hardware: Hardware) -> Price | None:
        return least_price(hardware, request.tariff)

    found = choose_hardware(request.hardware, price_of, request.objective == "cost", request.max_usd_per_hour)
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


def _choices(
    request: PlanRequest, hardware: Hardware, statistics: WorkloadStatistics
) -> tuple[list[_Choice], list[_Choice]]:
    """Return the choices that fit in memory, fewest accelerators first, and the widest that does not fit."""
    names = CatalogLookup.on(hardware, request.model, request.engine)
    fixed = tuple(sorted((key, repr(value)) for key, value in request.fixed.values.items()))
    widest = widest_limits(names, request.fixed)
    deployments = _deployments(request.model, request.engine, hardware.text, fixed, widest, calibration_digest())
    forms = ClosedForms(deployments, statistics, request.slos)
    seqs, tokens = limits(names, request.fixed)[0]
    kv_dtype = kv_dtypes(names, request.fixed)[0]
    every = [
        Candidate(
            hardware=hardware,
            replicas=1,
            layout=layout,
            weight_dtype=weights,
            kv_dtype=kv_dtype,
            max_num_seqs=seqs,
            max_num_batched_tokens=tokens,
            rest=request.fixed.rest,
        )
        for layout in layouts(request, names)
        for weights in weight_dtypes(request, names)
    ]
    every.sort(key=lambda c: (c.layout.accelerators, c.layout.expert_parallel, distance_from_defaults(c, names), c))
    found: list[_Choice] = []
    unfit: list[_Choice] = []
    for candidate in every:
        choice = _Choice(candidate, names, forms, deployments.memory(candidate))
        fits = memory_discard(choice.memory, statistics.longest) is None
        (found if fits else unfit).append(choice)
    return found, unfit[-1:]


@lru_cache(maxsize=64)
def _deployments(
    model: str,
    engine: str,
    hardware: str,
    fixed: tuple[tuple[str, str], ...],  # noqa: ARG001 (the cache's key: values that change a deployment)
    widest: tuple[int, int],
    calibration: str,  # noqa: ARG001 (the cache's key: a profile of this machine changes what a layout costs)
) -> CandidateDeployments:
    """Return the priced layouts of a model on a hardware, which later guesses share."""
    return CandidateDeployments(CatalogLookup.on(parse_hardware(hardware), model, engine), model, engine, widest)


@lru_cache(maxsize=64)
def _statistics(
    workload: str, input_tokens: int | None, output_tokens: int | None, over_time: bool, seed: int
) -> WorkloadStatistics:
    """Return the statistics of a workload."""
    found = open_loop(with_constant_lengths(load_workload(workload), input_tokens, output_tokens))
    return WorkloadStatistics.of(steady(found) if over_time else found, seed)


def _sized(request: PlanRequest, choice: _Choice, errors: _Errors) -> _Sized:
    capacity = choice.capacity_per_s(request, errors)
    replicas = _replicas(request, choice, capacity)
    return _Sized(choice, capacity, replicas, None if replicas is None else _price(request, choice, replicas))


def _replicas(request: PlanRequest, choice: _Choice, capacity: float) -> int | None:
    """Return the fewest replicas that carry the demand; without a demand, those that the hardware holds."""
    if capacity <= 0:
        return None
    if not request.demand.given:
        return max(replicas_of(choice.names, choice.candidate.layout), 1)

    def carries(n: int) -> bool:
        factor = request.spare.factor(replace(choice.candidate, replicas=n))
        return math.isfinite(factor) and _required_per_s(request, choice, n) * factor <= n * capacity

    high = 1
    while not carries(high):
        high *= 2
        if high > _MOST_REPLICAS:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if carries(middle) else (middle, high)
    return high


def _required_per_s(request: PlanRequest, choice: _Choice, replicas: int) -> float:
    """Return the requests per second of the demand, which for a number of users depends on the answers' speed."""
    demand = request.demand
    if demand.users is None:
        assert demand.requests_per_s is not None
        return demand.requests_per_s

    def e2e_s(rate: float) -> float:
        return choice.latency_s(rate / replicas, E2E.name)

    return users_rate_per_s(demand.users, demand.think_s, e2e_s)


def _price(request: PlanRequest, choice: _Choice, replicas: int) -> Price | None:
    """Return the price of the replicas; the user's own price is in proportion to the accelerators."""
    whole, accelerators = choice.names.hardware, replicas * choice.candidate.layout.accelerators
    if request.tariff.usd_per_hour is not None:
        return Price.user(request.tariff.usd_per_hour * accelerators / whole.n_accelerators)
    return PriceList(request.tariff, whole).price(replace(choice.candidate, replicas=replicas))


def _order(request: PlanRequest, sized: _Sized) -> tuple[Any, ...]:
    """Return the key by which choices are compared: those that suffice first, then by the objective."""
    gpus = math.inf if sized.gpus is None else sized.gpus
    usd = math.inf if sized.price is None else sized.price.usd_per_hour
    carried = 0.0 if sized.replicas is None else sized.replicas * sized.capacity_per_s
    lone_s = sized.choice.latency_s(_LONE, E2E.name)
    missing = sized.replicas is None, not sized.enough
    if request.objective == "latency":
        return *missing, lone_s, usd, gpus
    if not request.demand.given:
        unit = usd if request.objective == "cost" and math.isfinite(usd) else gpus
        return *missing, -carried / unit if carried else 0.0, lone_s
    return *missing, usd, gpus, -carried


def _guess(request: PlanRequest, best: _Sized, notes: list[str]) -> Guess:
    choice, candidate = best.choice, best.choice.candidate
    carried = None if best.replicas is None else best.replicas * best.capacity_per_s
    return {
        "fits": True,
        "memory": _memory(choice),
        "binds": _binds(request, best),
        "lone_ttft_s": choice.latency_s(_LONE, TTFT.name),
        "lone_tpot_s": choice.latency_s(_LONE, TPOT.name),
        "gpus": best.gpus,
        "usd_per_hour": None if best.price is None else best.price.usd_per_hour,
        "requests_per_s": carried,
        "enough": best.enough,
        "deployment": None if best.replicas is None else f"{best.replicas} x {candidate.layout.words}",
        "hardware": candidate.hardware.text,
        "uncertainty": _uncertainty(request, best),
        "notes": notes,
    }


def _memory(choice: _Choice) -> dict[str, Any]:
    """Return the memory of one accelerator, as an answer states it."""
    held = asdict(choice.memory)
    keys = ("budget_bytes", "weights_bytes", "activation_bytes", "non_torch_bytes", "kv_bytes", "kv_blocks")
    return {key: held[key] for key in keys} | {
        "device_bytes": choice.candidate.hardware.accelerator.memory_bytes,
        "longest_sequence_tokens": held["longest_sequence_tokens"],
        "weight_dtype": choice.candidate.weight_dtype,
        "kv_dtype": choice.candidate.kv_dtype,
    }


def _binds(request: PlanRequest, best: _Sized) -> str:
    """Return what keeps one replica from carrying more: an objective, the KV cache, or the engine's throughput."""
    choice = best.choice
    errors = _Errors.allowed(request, choice.error)
    full = choice.forms.saturation_per_s(choice.candidate)
    if best.capacity_per_s < full:
        rate = max(best.capacity_per_s * 1.01, full * _LONE)
        worst, ratio = max(choice.ratios(request, errors, rate), key=lambda found: found[1])
        if math.isfinite(ratio):
            return worst.text
    lengths = choice.forms.statistics
    held = choice.memory.max_concurrency_tokens / max(lengths.input_mean + lengths.output_mean, 1.0)
    by_memory = held < choice.candidate.max_num_seqs * choice.candidate.layout.data_parallel
    return "KV cache memory" if by_memory else "throughput of the engine"


def _uncertainty(request: PlanRequest, best: _Sized) -> dict[str, Any]:
    """Return the range of the guess: the same formulas with the stated error at both ends of its interval."""
    error, choice = best.choice.error, best.choice
    low, high = ends = [_sized(request, choice, _Errors.at(level, error)) for level in (_LOW, _HIGH)]
    carried = [None if best.replicas is None else best.replicas * end.capacity_per_s for end in (high, low)]
    measured = error.group(SPEED) is not None
    source = "measured whole runs of this engine" if measured else "the operators' errors alone: no whole run compared"
    return {
        "coverage": COVERAGE,
        "gpus": [low.gpus, high.gpus],
        "usd_per_hour": [None if end.price is None else end.price.usd_per_hour for end in ends],
        "requests_per_s": carried,
        **{m.name: [float(f) for f in error.factors(m.stated_error, np.array([_LOW, _HIGH]))] for m in (TTFT, TPOT)},
        "words": f"closed-form estimate, not simulated; the range is the simulator's stated error ({source}), "
        "without the error of the queueing formulas",
    }


def _notes(request: PlanRequest, best: _Sized) -> Iterator[str]:
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


def _does_not_fit(unfit: list[_Choice], notes: list[str]) -> Guess:
    """Return the guess where no layout fits in memory: the widest layout, and what is missing."""
    widest = max(unfit, key=lambda choice: choice.candidate.layout.accelerators, default=None)
    if widest is not None:
        found = memory_discard(widest.memory, widest.forms.statistics.longest)
        notes = [*notes, f"{widest.candidate.layout.words}: {'' if found is None else found.reason}"]
    return {
        "fits": False,
        "memory": None if widest is None else _memory(widest),
        "binds": "memory",
        "lone_ttft_s": None,
        "lone_tpot_s": None,
        "gpus": None,
        "usd_per_hour": None,
        "requests_per_s": None,
        "enough": False,
        "deployment": None,
        "hardware": None if widest is None else widest.candidate.hardware.text,
        "uncertainty": None,
        "notes": notes,
    }
