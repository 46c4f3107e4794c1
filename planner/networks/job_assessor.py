"""Assess a candidate of a request: the fewest replicas that serve the required rate, or the highest rate it serves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Self

from catalogs.economics.prices import Price
from planner.economics.rack_power import unused_w
from planner.evaluation.capacity import TOLERANCE, find_capacity
from planner.networks.candidate import JobCandidate, Setup, price_of
from planner.networks.evaluation import ROUNDS, JobEvaluator, JobVerdict
from planner.networks.merit import Merit
from planner.networks.request import NetworkRequest
from planner.search.candidate_tester import HALF_TIE, UNSTABLE

#: Distance of the two numbers of users between which the capacity lies, relative to the lower one. A judgement: the
#: `TOLERANCE` of a rate.
USERS_TOLERANCE: Final = 0.02

#: Percentile from which on a limit lies above the mean of latencies. A judgement: a mean above the 90th percentile
#: would need a tail ten times as long as the rest.
HIGH_QUANTILE: Final = 0.9

#: Share of its time in which a replica is busy at a light load: a job waits for another once in 200 times.
LIGHT: Final = 0.005


@dataclass(frozen=True, slots=True)
class NetworkOutcome:
    """The result of measuring a candidate.

    Attributes:
        candidate: The candidate, with the replicas that are needed.
        requests_per_s: The rate that meets the objectives; 0 where none does.
        ratio: Value over limit of the objective nearest to its limit, in the last run.
        binding: Name of this objective.
        score: The score by the objective of the request, lower is better; None where the request is not met.
        n_jobs: Jobs simulated for it.
        confirmed: Whether it holds with several seeds.
        load: The most jobs per second, or users, that are known to hold, where this decides between plans of equal
            cost (`JobAssessor.compares_loads`); otherwise 0.
    """

    candidate: JobCandidate
    requests_per_s: float
    ratio: float
    binding: str
    score: float | None
    n_jobs: int = 0
    confirmed: bool = False
    load: float = 0.0

    @property
    def merit(self) -> Merit:
        """Return what decides between this outcome and another.

        Raises:
            ValueError: The outcome does not meet the request.
        """
        if self.score is None:
            raise ValueError(f"{self.candidate.words} does not meet the request")
        return Merit(self.score, self.load, self.candidate.distance)

    def as_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON types, without the candidate except for its replicas."""
        found = {name: value for name, value in asdict(self).items() if name != "candidate"}
        return found | {"replicas": self.candidate.replicas}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any], candidate: JobCandidate) -> Self:
        """Return a stored outcome of a candidate."""
        values = {name: value for name, value in found.items() if name != "replicas"}
        return cls(candidate=candidate.with_replicas(int(found["replicas"])), **values)


@dataclass(slots=True)
class JobAssessor:
    """Measures candidates of one request; lower scores are better.

    Attributes:
        request: The request.
        evaluator: Simulates candidates.
    """

    request: NetworkRequest
    evaluator: JobEvaluator
    _prices: dict[tuple[Setup, int], Price | None] = field(default_factory=dict, repr=False)
    _users: dict[JobCandidate, int] = field(default_factory=dict, repr=False)  # the results of `users`

    def _price(self, candidate: JobCandidate) -> Price | None:
        """Return the price of the replicas of a candidate, which does not depend on its batching; None if unknown."""
        key = candidate.setup, candidate.replicas
        if key not in self._prices:
            self._prices[key] = price_of(candidate, self.request.tariff)
        return self._prices[key]

    def usd_per_hour(self, candidate: JobCandidate) -> float | None:
        """Return the price of the replicas of a candidate; None if no price is known."""
        price = self._price(candidate)
        return None if price is None else price.usd_per_hour

    def unused_w(self, candidate: JobCandidate) -> float:
        """Return the power of the accelerators that are rented with a candidate and idle, watts, at the servers.

        It is 0 where the price is not that of instances, such as the user's own.
        """
        price = self._price(candidate)
        return 0.0 if price is None else unused_w(candidate.hardware, price.idle_accelerators)

    def most_replicas(self, candidate: JobCandidate) -> int:
        """Return the replicas that the hardware and the budget allow."""
        budget, most = self.request.max_usd_per_hour, candidate.setup.most_replicas
        return most if budget is None else self._most_within(candidate, budget, most)

    def _most_within(self, candidate: JobCandidate, usd_per_hour: float, most: int) -> int:
        """Return the most replicas, up to a number, whose price is known and not above another; 0 if there are none."""
        prices = ((n, self.usd_per_hour(candidate.with_replicas(n))) for n in range(most, 0, -1))
        return next((n for n, usd in prices if usd is not None and usd <= usd_per_hour), 0)

    @property
    def compares_loads(self) -> bool:
        """Return whether the highest load decides between plans of equal cost: where a load is required at least cost.

        Every other score already compares loads, latencies or energies.
        """
        return self.request.objective == "cost" and self.request.is_required

    def with_paid_replicas(self, candidate: JobCandidate) -> JobCandidate:
        """Return a candidate with the replicas that its price covers, where loads decide between equal costs."""
        usd = self.usd_per_hour(candidate) if self.compares_loads else None
        if usd is None:
            return candidate
        return candidate.with_replicas(self._most_within(candidate, usd, self.most_replicas(candidate)))

    def load_bound(self, candidate: JobCandidate, score: float) -> float:
        """Return the most load that a candidate may hold at a cost, without simulation; 0 where loads do not decide.

        Users who think Z seconds and wait R seconds send N / (Z + R) jobs per second, of which full batches serve no
        more than the jobs per second of the bound. Of a candidate that meets its limits, R is taken to be below the
        largest of those on a mean or a high percentile, below which the mean lies. Without such a limit, and at most,
        the bound is the most users that are simulated: of plans that hold those, none holds more.
        """
        if not self.compares_loads:
            return 0.0
        most = self.most_replicas(candidate)
        if self.usd_per_hour(candidate.with_replicas(1)) is None:
            replicas = min(most, math.floor(score / candidate.setup.ranks))
        else:
            replicas = self._most_within(candidate, score, most)
        per_s = replicas * self.evaluator.fluid_per_s(candidate.with_replicas(1)) / self.evaluator.slowdown(candidate)
        if self.request.users is None:
            return per_s
        above_mean_s = [s.limit_s for s in self.request.objectives if s.quantile is None or s.quantile >= HIGH_QUANTILE]
        users = per_s * (self.request.think_s + max(above_mean_s, default=math.inf))
        return min(users, float(self.most_users))

    def _holds(self, candidate: JobCandidate, load: float) -> bool:
        """Return whether a candidate meets the objectives at a rate, or under this number of users."""
        if self.request.users is None:
            return self.evaluator.verdict(candidate, load).met
        return self.evaluator.of_users(math.ceil(load)).verdict(candidate, 0.0).met

    def _known_load(self, found: NetworkOutcome, best: NetworkOutcome | None) -> float:
        """Return a load that an outcome holds: one that may beat the best of equal cost, or that of the request."""
        required = float(self.request.users or self.request.requests_per_s or 0.0)
        if best is None or not found.merit.ties_in_score(best.merit):
            return required
        goal = found.merit.goal_against(best.merit)
        return goal if goal > required and self._holds(found.candidate, goal) else required

    def least_replicas(self, candidate: JobCandidate) -> int:
        """Return the replicas whose full batches serve the required rate at the confidence; fewer cannot hold it."""
        rate = self.request.requests_per_s or 0.0
        one = self.evaluator.fluid_per_s(candidate.with_replicas(1)) / self.evaluator.slowdown(candidate)
        return max(math.floor(rate / one) + 1, 1)

    def bound(self, candidate: JobCandidate) -> float:
        """Return a score that the candidate cannot fall below, without simulation; infinite if it cannot hold."""
        rate, most = self.request.requests_per_s, self.most_replicas(candidate)
        if most < 1:
            return math.inf
        if self.request.users is not None:
            return self._users_bound(candidate, most)
        if rate is None:
            full = candidate.with_replicas(most)
            return self.score(full, self.evaluator.fluid_per_s(full) / self.evaluator.slowdown(full), None)
        least = self.least_replicas(candidate)
        if least > most:
            return math.inf
        if self._saves_energy:
            return min(self.score(candidate.with_replicas(n), rate, None) for n in range(least, most + 1))
        used = candidate.with_replicas(least if self._economises else most)
        highest = self.evaluator.fluid_per_s(used) / self.evaluator.slowdown(used)
        return self.score(used, highest if self.request.objective == "throughput" else rate, None)

    def _users_bound(self, candidate: JobCandidate, most: int) -> float:
        """Return a score under users that the candidate cannot fall below: of one replica, or of full batches."""
        counts = range(1, most + 1) if self._saves_energy else (1 if self._economises else most,)
        used = map(candidate.with_replicas, counts)
        return min(self.score(each, self.evaluator.fluid_per_s(each), None) for each in used)

    @property
    def _economises(self) -> bool:
        """Return whether as few replicas as hold the rate are wanted."""
        return self.request.objective == "cost" or self._saves_energy

    @property
    def _saves_energy(self) -> bool:
        """Return whether the score is energy or carbon, which need not grow with the replicas.

        More of them may leave fewer accelerators of an instance idle, or be cheapest on another grid.
        """
        return self.request.objective in ("energy", "carbon")

    def score(self, candidate: JobCandidate, jobs_per_s: float, verdict: JobVerdict | None) -> float:
        """Return the score of a candidate at a rate; without a verdict, a bound that it cannot fall below."""
        match self.request.objective:
            case "cost":
                weight = self._weight(candidate)
                return weight if self.request.is_required else weight / jobs_per_s
            case "throughput":
                return -jobs_per_s
            case "latency":
                return self._least_ratio(candidate) if verdict is None else verdict.ratio
        if verdict is None:
            joules = self._least_joules(candidate) + self.unused_w(candidate) / jobs_per_s
        else:  # at the predicted speed: slower batches would not change what a job needs
            plain = self.evaluator.verdict(candidate, jobs_per_s, 1.0)
            joules = plain.observations[0].joules_per_job + self.unused_w(candidate) / plain.requests_per_s
        return joules * (self.gco2e_per_kwh(candidate) if self.request.objective == "carbon" else 1.0)

    def _weight(self, candidate: JobCandidate) -> float:
        """Return the price of a candidate, or its number of accelerators where no price is known."""
        usd = self.usd_per_hour(candidate)
        return candidate.accelerators if usd is None else usd

    def gco2e_per_kwh(self, candidate: JobCandidate) -> float:
        """Return the carbon of a kWh where the candidate is rented."""
        from catalogs.economics.locations import locate_grid

        return locate_grid(self._price(candidate), self.request.tariff.grid).grid.gco2e_per_kwh

    def _least_ratio(self, candidate: JobCandidate) -> float:
        """Return the seconds of a single job over the tightest limit."""
        service, slow = self.evaluator.service, self.evaluator.slowdown(candidate)
        return max(slow * service.statistic_s(candidate.setup, 1, slo) / slo.limit_s for slo in self.request.objectives)

    def _least_joules(self, candidate: JobCandidate) -> float:
        """Return the joules per job of accelerators in full batches, without idle time and hosts."""
        service, most = self.evaluator.service, candidate.max_batch
        return min(service.joules(candidate.setup, n) / n for n in {1, most})

    def __call__(self, candidate: JobCandidate, best: NetworkOutcome | None = None) -> NetworkOutcome:
        """Return the outcome of a candidate; one that cannot beat the best is measured no further than shows it."""
        before = self.evaluator.n_simulated
        rate, most = self.request.requests_per_s, self.most_replicas(candidate)
        if self.request.users is not None:
            found = self._of_users(candidate, most)
        elif rate is None:
            found = self._at_capacity(candidate.with_replicas(most), best)
        elif self._economises:
            found = self._fewest(candidate, rate, most)
        else:
            found = self._all(candidate.with_replicas(most), rate)
        outcome = NetworkOutcome(*found)
        if self.compares_loads and outcome.score is not None:
            outcome = replace(outcome, load=self._known_load(outcome, best))
        return replace(outcome, n_jobs=self.evaluator.n_simulated - before)

    def _outcome(
        self, candidate: JobCandidate, rate: float, verdict: JobVerdict
    ) -> tuple[JobCandidate, float, float, str, float | None]:
        ratio = verdict.ratio if verdict.stable else UNSTABLE * verdict.load
        score = self.score(candidate, rate, verdict) if verdict.met else None
        return candidate, rate if verdict.met else 0.0, ratio, verdict.worst.name, score

    def _fewest(
        self, candidate: JobCandidate, rate: float, most: int
    ) -> tuple[JobCandidate, float, float, str, float | None]:
        """Return the outcome with the fewest replicas that hold a rate: they are stepped up, then bisected."""
        low, step = min(self.least_replicas(candidate), most), 1
        verdict = self.evaluator.verdict(candidate.with_replicas(low), rate)
        if verdict.met or low == most:
            return self._outcome(self.with_paid_replicas(candidate.with_replicas(low)), rate, verdict)
        high = low
        while not verdict.met and high < most:
            low, high = high, min(high + step, most)
            verdict, step = self.evaluator.verdict(candidate.with_replicas(high), rate), 2 * step
        while verdict.met and high - low > 1:
            middle = (low + high) // 2
            tried = self.evaluator.verdict(candidate.with_replicas(middle), rate)
            low, high, verdict = (low, middle, tried) if tried.met else (middle, high, verdict)
        return self._outcome(self.with_paid_replicas(candidate.with_replicas(high)), rate, verdict)

    def _of_users(self, candidate: JobCandidate, most: int) -> tuple[JobCandidate, float, float, str, float | None]:
        """Return the outcome under the users, with the fewest replicas that hold where they are wanted."""
        full = candidate.with_replicas(most)
        verdict = self.evaluator.verdict(full, 0.0)
        if not verdict.met or not self._economises:
            return self._outcome(full, verdict.requests_per_s, verdict)
        low, high = 0, most  # `low` misses an objective, or is no deployment
        while high - low > 1:
            middle = (low + high) // 2
            tried = self.evaluator.verdict(candidate.with_replicas(middle), 0.0)
            low, high, verdict = (low, middle, tried) if tried.met else (middle, high, verdict)
        return self._outcome(self.with_paid_replicas(candidate.with_replicas(high)), verdict.requests_per_s, verdict)

    def _all(self, candidate: JobCandidate, rate: float) -> tuple[JobCandidate, float, float, str, float | None]:
        """Return the outcome with all replicas at a required rate."""
        verdict = self.evaluator.verdict(candidate, rate)
        if not verdict.met or self.request.objective == "latency":
            return self._outcome(candidate, rate, verdict)
        found = self.capacity(candidate, verdict)
        return self._outcome(candidate, found.requests_per_s, found)

    def _at_capacity(
        self, candidate: JobCandidate, best: NetworkOutcome | None
    ) -> tuple[JobCandidate, float, float, str, float | None]:
        """Return the outcome at the highest rate that holds, or at a light load where latency is the objective."""
        light = self.light_per_s(candidate)
        verdict = self.evaluator.verdict(candidate, light)
        if not verdict.met or self.request.objective == "latency":
            return self._outcome(candidate, light, verdict)
        if best is not None and best.score is not None and self.request.objective in ("cost", "throughput"):
            even = -best.score if self.request.objective == "throughput" else self._weight(candidate) / best.score
            tried = self.evaluator.verdict(candidate, even)  # the rate at which it is as good as the best
            if not tried.met:
                return self._outcome(candidate, even, tried)
        found = self.capacity(candidate, verdict)
        return self._outcome(candidate, found.requests_per_s, found)

    def light_per_s(self, candidate: JobCandidate) -> float:
        """Return the rate of a light load, at which jobs are executed alone and rarely wait."""
        alone_s = self.evaluator.service.seconds(candidate.setup) * self.evaluator.slowdown(candidate)
        return LIGHT * candidate.replicas / alone_s

    def capacity(self, candidate: JobCandidate, floor: JobVerdict, tolerance: float = TOLERANCE) -> JobVerdict:
        """Return the verdict at the highest rate that meets the objectives, above one that does."""
        guess = 0.8 * self.evaluator.fluid_per_s(candidate) / self.evaluator.slowdown(candidate)
        found = find_capacity(lambda r: self.evaluator.verdict(candidate, r), guess, floor, tolerance)
        return found.at_capacity

    @property
    def most_users(self) -> int:
        """Return the most users that are simulated: those of the request, or more if all send several jobs in a run."""
        return max(self.request.users or 0, self.evaluator.most_jobs // ROUNDS)

    def users(self, candidate: JobCandidate) -> int:
        """Return the most users, up to `most_users`, under whom the objectives are met; 0 if there are none.

        The number of the request is doubled or halved until it brackets the result, which is then bisected.
        """
        if candidate not in self._users:
            self._users[candidate] = self._bisected_users(candidate)
        return self._users[candidate]

    def _bisected_users(self, candidate: JobCandidate) -> int:
        low, high = 0, self.most_users + 1  # the first holds, the second does not or is not simulated
        users = self.request.users or 1
        while low < users < high:
            low, high = (users, high) if self._holds(candidate, users) else (low, users)
            if high - low <= max(1, int(USERS_TOLERANCE * low)):
                break
            unbounded = high > self.most_users  # none is known that does not hold
            users = min(2 * low, self.most_users) if unbounded else (low + high) // 2
        return low

    def load(self, candidate: JobCandidate, jobs_per_s: float) -> float:
        """Return the most jobs per second, or users, that a candidate holds, if it holds those of the request."""
        if self.request.users is not None:
            return float(self.users(candidate))
        floor = self.evaluator.verdict(candidate, jobs_per_s)
        return self.capacity(candidate, floor, HALF_TIE).requests_per_s if floor.met else jobs_per_s
