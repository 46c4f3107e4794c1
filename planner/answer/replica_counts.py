"""How many replicas a demand needs, in closed form: the most requests of one replica, their number, and their price.

The most requests per second that one replica carries within all objectives follow from the closed forms that order the
candidates of a search, with the same allowance for the simulator's error as a plan. Nothing is simulated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import numpy as np

from calibration.accuracy.regime import Regime
from calibration.accuracy.stated_error import StatedError
from catalogs.deployments.resolve import CatalogLookup
from catalogs.economics.prices import Price
from planner.evaluation.closed_forms.candidate_forms import CandidateQueueing, ClosedForms
from planner.evaluation.confidence import SPEED, allowance_for
from planner.problem.candidate import Candidate
from planner.problem.demand import users_rate_per_s
from planner.problem.latency_metrics import E2E
from planner.problem.price_list import PriceList
from planner.problem.request import PlanRequest
from planner.problem.slo import Slo
from planner.space.layouts import replicas_of
from simulator.memory.plan import MemoryPlan

#: A rate at which requests never meet, relative to the saturation rate. A judgement: so low that the waits of the
#: formulas vanish.
NEGLIGIBLE_LOAD: Final = 1e-6

#: Most replicas that are considered. A judgement: more than any deployment has.
_MOST_REPLICAS: Final = 4096

#: The most requests of a replica are found to this share of themselves, far below the error of the formulas.
_TOLERANCE: Final = 1e-3


@dataclass(frozen=True, slots=True)
class ErrorFactors:
    """Factors on estimated times: on the time of a step, and on an objective's value by the share that is waiting."""

    speed: float
    latency: Callable[[Slo, float], float]

    @classmethod
    def allowed(cls, request: PlanRequest, error: StatedError) -> ErrorFactors:
        """Return the factors that allow for the error at the confidence of the request."""
        allowance = allowance_for(request.confidence, error)
        return cls(allowance.speed, allowance.latency)

    @classmethod
    def at(cls, level: float, error: StatedError) -> ErrorFactors:
        """Return the factors at one probability level of the error."""
        levels = np.array([level])
        speed = float(error.factors(SPEED, levels)[0])
        return cls(speed, lambda slo, waiting: float(error.factors(slo.latency.stated_error, levels, waiting)[0]))


@dataclass(frozen=True, eq=False)
class ReplicaChoice:
    """One replica of a layout and data types on one hardware, with its closed forms.

    Attributes:
        candidate: The replica.
        names: The model, the engine and all of the requested hardware.
        forms: The closed forms of the candidates of this hardware.
        memory: The memory plan of one of its accelerators.
    """

    candidate: Candidate
    names: CatalogLookup
    forms: ClosedForms
    memory: MemoryPlan
    _single_s: dict[tuple[str, float | None], float] = field(default_factory=dict, repr=False)

    @cached_property
    def error(self) -> StatedError:
        """The stated error of simulated latencies."""
        regime = Regime.of(self.names.model, self.candidate.hardware.accelerator)
        return StatedError.of(self.forms.deployments.engine, self.forms.operator_error(self.candidate), regime)

    @cached_property
    def _queueing(self) -> CandidateQueueing:
        return self.forms.queueing(self.candidate)

    @property
    def saturation_per_s(self) -> float:
        """The requests per second with a full batch."""
        return self.forms.saturation_per_s(self.candidate)

    @property
    def most_replicas(self) -> int:
        """The replicas that the requested hardware holds."""
        return replicas_of(self.names, self.candidate.layout)

    def capacity_per_s(self, request: PlanRequest, errors: ErrorFactors) -> float:
        """Return the most requests per second of one replica within all objectives; 0 if even a single one misses."""
        low = high = self.saturation_per_s
        if self._meets(request, errors, high):
            return high
        if not self._meets(request, errors, high * NEGLIGIBLE_LOAD):
            return 0.0
        while not self._meets(request, errors, low):
            low, high = max(low / 2, self.saturation_per_s * NEGLIGIBLE_LOAD), low
        while high > low * (1 + _TOLERANCE):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self._meets(request, errors, middle) else (low, middle)
        return low

    def _meets(self, request: PlanRequest, errors: ErrorFactors, requests_per_s: float) -> bool:
        return all(ratio <= 1 for _, ratio in self.ratios(request, errors, requests_per_s))

    def ratios(self, request: PlanRequest, errors: ErrorFactors, requests_per_s: float) -> Iterator[tuple[Slo, float]]:
        """Yield each objective with the ratio of its value to its limit, at a rate of one replica."""
        for slo in request.slos:
            value_s = self.latency_s(requests_per_s * errors.speed, slo.latency.name, slo.quantile)
            waiting = 1.0
            if math.isfinite(value_s) and value_s > 0:
                waiting = max(1.0 - self.single_s(slo.latency.name, slo.quantile) / value_s, 0.0)
            yield slo, value_s * errors.latency(slo, waiting) / slo.limit_s

    def latency_s(self, requests_per_s: float, metric: str, quantile: float | None = None) -> float:
        """Return a latency at a rate of one replica, seconds: a mean, or the value at a quantile."""
        return self._queueing.latency_s(requests_per_s, metric, quantile)

    def single_s(self, metric: str, quantile: float | None = None) -> float:
        """Return a latency where requests never meet, seconds; the result is cached."""
        key = metric, quantile
        if key not in self._single_s:
            self._single_s[key] = self.latency_s(self.saturation_per_s * NEGLIGIBLE_LOAD, metric, quantile)
        return self._single_s[key]


@dataclass(frozen=True, slots=True)
class SizedReplicas:
    """A choice with the number of replicas that the demand needs, and their price.

    Attributes:
        choice: One replica.
        capacity_per_s: The most requests per second that it carries within all objectives.
        replicas: The replicas that carry the demand; None where no number of them does.
        price: Their price; None without one.
    """

    choice: ReplicaChoice
    capacity_per_s: float
    replicas: int | None
    price: Price | None

    @classmethod
    def of(cls, request: PlanRequest, choice: ReplicaChoice, errors: ErrorFactors) -> SizedReplicas:
        """Return the choice in the number that the demand of a request needs."""
        capacity = choice.capacity_per_s(request, errors)
        replicas = _replicas(request, choice, capacity)
        return cls(choice, capacity, replicas, None if replicas is None else _price(request, choice, replicas))

    @property
    def gpus(self) -> int | None:
        """The accelerators of all replicas."""
        return None if self.replicas is None else self.replicas * self.choice.candidate.layout.accelerators

    @property
    def usd_per_hour(self) -> float | None:
        """The price of all replicas, US dollars per hour."""
        return None if self.price is None else self.price.usd_per_hour

    @property
    def requests_per_s(self) -> float | None:
        """The most requests per second of all replicas within all objectives."""
        return None if self.replicas is None else self.replicas * self.capacity_per_s

    @property
    def enough(self) -> bool:
        """Whether the hardware of the question holds the replicas."""
        return self.replicas is not None and self.replicas <= self.choice.most_replicas


def _replicas(request: PlanRequest, choice: ReplicaChoice, capacity_per_s: float) -> int | None:
    """Return the fewest replicas that carry the demand; without a demand, those that the hardware holds."""
    if capacity_per_s <= 0:
        return None
    if not request.demand.given:
        return max(choice.most_replicas, 1)

    def carries(n: int) -> bool:
        factor = request.spare.factor(replace(choice.candidate, replicas=n))
        return math.isfinite(factor) and _required_per_s(request, choice, n) * factor <= n * capacity_per_s

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


def _required_per_s(request: PlanRequest, choice: ReplicaChoice, replicas: int) -> float:
    """Return the requests per second of the demand, which for a number of users depends on the answers' speed."""
    demand = request.demand
    if demand.users is None:
        assert demand.requests_per_s is not None
        return demand.requests_per_s

    def e2e_s(requests_per_s: float) -> float:
        return choice.latency_s(requests_per_s / replicas, E2E.name)

    return users_rate_per_s(demand.users, demand.think_s, e2e_s)


def _price(request: PlanRequest, choice: ReplicaChoice, replicas: int) -> Price | None:
    """Return the price of the replicas; the user's own price is in proportion to the accelerators."""
    whole, accelerators = choice.names.hardware, replicas * choice.candidate.layout.accelerators
    if request.tariff.usd_per_hour is not None:
        return Price.user(request.tariff.usd_per_hour * accelerators / whole.n_accelerators)
    return PriceList(request.tariff, whole).price(replace(choice.candidate, replicas=replicas))
