"""The search for the capacity of a plan: the highest rate that runs with several seeds confirm.

It begins at the capacity that one seed has found, and the latency curve tells which lower or higher rate to try next.
Plans of networks have no latency curve and lower the rate in fixed steps (`planner/networks/plan_builder.py`). The
capacity of agents is a whole number (`planner/agents/capacity.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from planner.answer.confirmed_rates import ConfirmedRates, PlanPoint, SeedBudget
from planner.answer.plan_schema import QUEUE
from planner.evaluation.capacity import TOLERANCE, WIDEN
from planner.evaluation.confidence import Confidence
from planner.evaluation.verdict import Verdict
from planner.problem.candidate import Candidate

#: Most reductions of the rate if the whole cluster, or the noise between seeds, makes it less certain than one replica.
#: A judgement of cost: each takes all seeds.
_MOST_REDUCTIONS: Final = 8

#: Largest factor between a capacity and a higher rate that is not confirmed, once there is one. A judgement: seeds
#: differ by as much, and each step takes all seeds.
_BETWEEN: Final = 1.05

#: Largest factor by which a confirmed rate is raised at a time. A judgement: a few such steps reach any rate that one
#: unlucky seed hid.
_RAISE: Final = 1.15


@dataclass(slots=True)
class ConfirmedCapacity:
    """The search for the highest confirmed rate of one candidate.

    Attributes:
        rates: Simulates the candidate at the rates.
        candidate: The candidate.
        budget: The numbers of seeds and of raises.
        is_capacity: Whether the start is the capacity of one seed. If the budget confirms rates, such a start is raised
            only if all seeds together confirm a rate that is higher by `_RAISE`.
        seen: The verdicts that form the latency curve; those at the rates that are tried are added.
    """

    rates: ConfirmedRates
    candidate: Candidate
    budget: SeedBudget
    is_capacity: bool
    seen: list[Verdict] = field(default_factory=list)

    def beside(
        self, start: float | None, at_required: tuple[PlanPoint, list[Verdict]], met: bool
    ) -> tuple[float | None, str | None]:
        """Return the capacity beside a required rate, and what limits it.

        It is found as without a required rate, but not on the other side of that rate: it is at least the rate if the
        plan meets it, and below it otherwise. It is None if no rate is confirmed.

        Args:
            start: The rate at which the search begins, requests per second; None: one seed meets no rate.
            at_required: The figures at the required rate, and the verdicts around it.
            met: Whether the required rate is confirmed.
        """
        at, around = at_required
        rate = at.requests_per_s
        if start is None and not met:
            return None, None
        start = start or rate
        begin = max(start, rate) if met else min(start, rate / (1 + TOLERANCE))
        if begin == rate:
            near, found = at, around
        else:
            near, found = self.rates.point_and_slower(self.candidate, begin, self.budget)
        self.seen += found
        near, limit, curve = self.highest(near)
        bars = self.rates.bars(near.verdict, curve, near.error)
        capacity = None
        if self.rates.meets_confidence(near.verdict, bars):
            capacity, limit = near.requests_per_s, self.rates.limit_above(limit, bars)
        if met:
            capacity = max(capacity or rate, rate)
        elif capacity is not None and capacity >= rate:
            capacity = self.rates.confident_rate(rate / (1 + TOLERANCE), at, around)[0]
        return capacity, limit

    def highest(self, start: PlanPoint) -> tuple[PlanPoint, str | None, list[Verdict]]:
        """Return the highest confirmed rate, what limits it, and the verdicts that confirm it.

        If the budget confirms rates, these are the verdicts around that rate alone, as in a request for that rate. The
        rate is the last one tried if none is confirmed.

        Args:
            start: The figures at the start. The verdicts at and above it have been seen.
        """
        at, limit = self._highest_by_curve(start)
        if not self.budget.confirms:
            self.seen += self._around(at)
            lower, missed = self._lowered(at)  # the lower rates may make the curve steeper
            return lower, missed or limit, self.seen
        for step in _reductions():
            slower = self.rates.slower(self.candidate, at.requests_per_s, self.budget.curve)
            self.seen += slower
            bars = self.rates.bars(at.verdict, slower, at.error)
            if self.rates.meets_confidence(at.verdict, bars):
                break
            limit = self.rates.missed(at.verdict, bars)
            if at.requests_per_s <= self._light_per_s:
                break
            lower_per_s = max(at.requests_per_s / step, self._light_per_s)
            found_per_s, _ = self._confident_rate(lower_per_s, at)
            at = self._point(max(found_per_s or lower_per_s, self._light_per_s))
        around = self._around(at)
        self.seen += around
        return at, limit, around

    @property
    def _light_per_s(self) -> float:
        """Return a rate at which requests rarely overlap: a lower rate does not raise the confidence."""
        return self.rates.evaluator.light_requests_per_s(self.candidate)

    def _around(self, at: PlanPoint) -> list[Verdict]:
        return self.rates.around(self.candidate, at.requests_per_s, self.budget.curve)

    def _point(self, rate: float) -> PlanPoint:
        """Return the figures at a rate, which becomes part of the latency curve."""
        found = self.rates.point(self.candidate, rate, self.budget)
        self.seen.append(self.rates.verdict(self.candidate, rate, self.budget.curve))
        return found

    def _highest_by_curve(self, start: PlanPoint) -> tuple[PlanPoint, str | None]:
        """Return the highest rate that all verdicts together confirm, and what limits it.

        It is the last rate tried if there is none. Rates come from the latency curve, and each is simulated with all
        seeds before it counts. A confirmed start is raised as often as the budget allows.
        """
        at, limit = self._lowered(start)
        if limit is None and not self.budget.confirms:
            return self._raised(at)
        if limit is None and self.is_capacity:
            _, limit = self._confident_rate(at.requests_per_s * _RAISE, at)  # one seed may meet less than the others
        if limit is not None:
            return at, limit
        speed, reached = self.rates.tester.allowance(self.candidate).speed, [at]
        for _ in range(self.budget.most_raises):
            highest = reached[-1].requests_per_s * _RAISE
            self.seen.append(self.rates.verdict(self.candidate, highest * speed, self.budget.curve))
            found_per_s, limit = self._confident_rate(highest, reached[-1])
            least_per_s = reached[-1].requests_per_s * (1 + TOLERANCE)
            if found_per_s is None or found_per_s <= least_per_s:
                break
            higher, missed = self._lowered(self._point(found_per_s), least_per_s)
            limit = missed or limit
            if higher.requests_per_s > least_per_s and self._is_confirmed(higher):
                reached.append(higher)
            if missed:
                break
        return reached[-1], limit

    def _raised(self, at: PlanPoint) -> tuple[PlanPoint, str | None]:
        """Return the highest confirmed rate from a confirmed point on, and what limits it (None: not known).

        The curve above the first point leads to a rate up to `_RAISE` above it. If the highest such rate is confirmed,
        larger steps follow, until one seed misses a rate.
        """
        found_per_s, limit = self._confident_rate(at.requests_per_s * _RAISE, at)
        if found_per_s is None or found_per_s <= at.requests_per_s * (1 + TOLERANCE):
            return at, limit
        step = _RAISE
        for _ in range(self.budget.most_raises):
            higher = self._point(found_per_s)
            bars = self._bars(higher)
            if not self.rates.meets_confidence(higher.verdict, bars):
                return self._raised_between(at, found_per_s, self.rates.missed(higher.verdict, bars))
            at = higher
            if limit is not None:
                break
            step = min(step * _RAISE, WIDEN)
            found_per_s = at.requests_per_s * step
            missed = self._missed_by_one_seed(found_per_s)
            if missed is not None:
                return self._raised_between(at, found_per_s, missed)
        return at, limit

    def _lowered(self, at: PlanPoint, least_per_s: float = 0.0) -> tuple[PlanPoint, str | None]:
        """Return the first confirmed rate from a start downwards, and what limits it.

        What limits it is None if the start is confirmed. If no rate above `least_per_s`, and not even a light load, is
        confirmed, the result is the last rate tried.
        """
        limit, unconfirmed_per_s = None, at.requests_per_s
        for step in _reductions():
            bars = self._bars(at)
            if self.rates.meets_confidence(at.verdict, bars):
                return (at, None) if limit is None else self._raised_between(at, unconfirmed_per_s, limit)
            limit, unconfirmed_per_s = self.rates.missed(at.verdict, bars), at.requests_per_s
            found_per_s, _ = self._confident_rate(at.requests_per_s, at)
            if found_per_s is None:  # the curve must show lower rates
                self.seen += self.rates.faster(self.candidate, at.requests_per_s, self.budget.curve)
                found_per_s, _ = self._confident_rate(at.requests_per_s, at)
            rate = min(at.requests_per_s / step, found_per_s or at.requests_per_s)
            if rate <= least_per_s or at.requests_per_s <= self._light_per_s:
                break
            at = self._point(max(rate, self._light_per_s))
        return at, limit

    def _raised_between(self, at: PlanPoint, unconfirmed_per_s: float, limit: str) -> tuple[PlanPoint, str]:
        """Return a confirmed point at most a factor of `_BETWEEN` below a rate that is not confirmed, and its limit.

        A latency curve that rises late may lead from such a rate to one that is far too low. `limit` is what limits the
        rate that is not confirmed; a lower one may miss something else.
        """
        while unconfirmed_per_s > at.requests_per_s * _BETWEEN:
            middle_per_s = math.sqrt(at.requests_per_s * unconfirmed_per_s)
            missed = None if self.budget.confirms else self._missed_by_one_seed(middle_per_s)
            if missed is None:
                middle = self._point(middle_per_s)
                bars = self._bars(middle)
                if self.rates.meets_confidence(middle.verdict, bars):
                    at = middle
                    continue
                missed = self.rates.missed(middle.verdict, bars)
            unconfirmed_per_s, limit = middle_per_s, missed
        return at, limit

    def _missed_by_one_seed(self, rate_per_s: float) -> str | None:
        """Return what one run with the allowance misses, or None; the run becomes part of the latency curve."""
        speed = self.rates.tester.allowance(self.candidate).speed
        self.seen.append(self.rates.verdict(self.candidate, rate_per_s * speed, self.budget.curve))
        found = self.rates.verdict(self.candidate, rate_per_s, 1, allow=True)
        return None if found.met else found.worst.name if found.stable else QUEUE

    # ---- by all verdicts so far

    def _bars(self, at: PlanPoint) -> list[Confidence]:
        return self.rates.bars(at.verdict, self.seen, at.error)

    def _is_confirmed(self, at: PlanPoint) -> bool:
        return self.rates.is_confirmed(at, self.seen)

    def _confident_rate(self, highest_per_s: float, at: PlanPoint) -> tuple[float | None, str | None]:
        return self.rates.confident_rate(highest_per_s, at, self.seen)


def _reductions() -> Iterator[float]:
    """Yield the factors by which a rate is at least divided: 1.02, 1.04, then `_BETWEEN`."""
    for i in range(_MOST_REDUCTIONS):
        yield min(1 + TOLERANCE * 2**i, _BETWEEN)
