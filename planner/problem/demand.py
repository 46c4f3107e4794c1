"""The demand of a request: a rate or a number of users, and the failures that must be tolerated under it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from catalogs.errors import InputError
from catalogs.workloads.limits import LEAST_REQUESTS_PER_S, MOST_PLANNED_PER_S, check_rate
from planner.problem.candidate import Candidate
from planner.problem.key_definition import refuse_if

NODE: Final = "node"

#: Most halvings of the search for the rate of users. It ends before at 0.1 %, after some 14; the limit is against
#: rounding.
_USER_STEPS: Final = 30

#: Mean seconds a request spends in the system at a rate (requests/s of the whole deployment).
EndToEndS = Callable[[Candidate, float], float]


@dataclass(frozen=True, slots=True)
class FailureTolerance:
    """The loss that a deployment must tolerate: a number of `replicas`, or all replicas of a number of `nodes`."""

    replicas: int = 0
    nodes: int = 0

    @classmethod
    def parse(cls, text: str) -> FailureTolerance:
        """Parse a tolerance such as "1" (replica), "node", "2nodes" or "1 node lost".

        Raises:
            InputError: The text is none of these.
        """
        found = re.fullmatch(r"(\d*)\s*(nodes?|replicas?)?(?:\s+lost)?", text.strip().lower())
        if found is None or not (found[1] or found[2]):
            raise InputError("--survive takes a number of replicas or nodes", text, "1")
        count = int(found[1] or 1)
        return cls(nodes=count) if (found[2] or "").startswith(NODE) else cls(replicas=count)

    def __bool__(self) -> bool:
        return bool(self.replicas or self.nodes)

    @property
    def words(self) -> str:
        """Return the tolerance in words, for example "1 replica lost"."""
        count, noun = (self.nodes, NODE) if self.nodes else (self.replicas, "replica")
        return f"{count} {noun}{'s' if count != 1 else ''} lost"

    @property
    def text(self) -> str:
        """Return the tolerance as text that `parse` reads."""
        return f"{self.nodes}{NODE}" if self.nodes else str(self.replicas)

    def lost(self, candidate: Candidate) -> int:
        """Return the number of `candidate.replicas` that are lost.

        Replicas fill nodes evenly, so the fullest node has the rounded-up share. A replica that spans nodes is lost
        with any of them.
        """
        if not self.nodes:
            return self.replicas
        n_nodes = candidate.hardware.n_nodes
        return min(candidate.replicas, self.nodes * math.ceil(candidate.replicas / n_nodes))

    def factor(self, candidate: Candidate) -> float:
        """Return the load of each remaining replica relative to its normal load; infinite if no replica remains."""
        left = candidate.replicas - self.lost(candidate)
        return candidate.replicas / left if left > 0 else math.inf


NOTHING: Final = FailureTolerance()


@dataclass(frozen=True, slots=True)
class Demand:
    """The required load: requests per second, or users with a think time of `think_s` seconds.

    A user waits for the think time between an answer and the next request. `spare` is the loss to be tolerated.
    """

    requests_per_s: float | None = None
    users: int | None = None
    think_s: float = 0.0
    spare: FailureTolerance = NOTHING

    def __post_init__(self) -> None:
        rate, users, think_s = self.requests_per_s, self.users, self.think_s
        if rate is not None:
            check_rate(rate, most_per_s=MOST_PLANNED_PER_S)
        if users is not None:
            refuse_if(users < 1, "users must be a whole number of at least 1", users, "1")
            rule = "the load is a rate or a number of users, not both"
            given = "" if rate is None else f"--rate {rate:g}"
            refuse_if(rate is not None, rule, f"{given} and --users {users}", f"--users {users} or {given}")
        rule = "a think time is a number of seconds, not below zero"
        refuse_if(not 0 <= think_s < math.inf, rule, think_s, "30")
        if users is not None:  # half, since users also wait for answers
            most_s = users / LEAST_REQUESTS_PER_S / 2
            rule = f"{users:,} users with a think time of more than {most_s:,.0f} s send too few requests to simulate"
            refuse_if(think_s > most_s, rule, think_s, f"{most_s:.0f}")
        refuse_if(bool(think_s) and users is None, "a think time needs --users", think_s, "--users N --set think_s=S")
        refuse_if(bool(self.spare) and not self.given, "--survive needs a load", None, "--rate or --users")

    @property
    def given(self) -> bool:
        """Return whether there is a rate or a number of users."""
        return self.requests_per_s is not None or self.users is not None


def users_rate_per_s(users: int, think_s: float, e2e_s: Callable[[float], float]) -> float:
    """Return the rate X that solves X (e2e_s(X) + think_s) = users, in requests per second.

    `e2e_s` must rise with X; the solution is found by bisection on a logarithmic scale. This is the interactive
    response time law: Little's law applied to serving and thinking.
    """
    high = users / (e2e_s(1e-9) + think_s)
    low = high * 1e-4
    while low * (e2e_s(low) + think_s) >= users:  # even this rate is beyond the capacity
        low *= 1e-4
    for _ in range(_USER_STEPS):
        middle = math.sqrt(low * high)
        if middle * (e2e_s(middle) + think_s) < users:
            low = middle
        else:
            high = middle
        if high < low * 1.001:
            break
    return low


@dataclass(frozen=True, slots=True)
class RequiredRates:
    """The rate that each candidate must serve, computed once per candidate.

    For a number of users, a short run (`run_e2e_s`) corrects the end-to-end time of the fluid estimate (`e2e_s`).
    """

    demand: Demand
    e2e_s: EndToEndS
    run_e2e_s: EndToEndS
    known: dict[Candidate, float] = field(default_factory=dict)

    def nominal_per_s(self, candidate: Candidate) -> float | None:
        """Return the required requests per second with every replica running."""
        users, think_s = self.demand.users, self.demand.think_s
        if users is None:
            return self.demand.requests_per_s
        if candidate not in self.known:
            fluid = partial(self.e2e_s, candidate)
            first = users_rate_per_s(users, think_s, fluid)
            factor = self.run_e2e_s(candidate, first) / fluid(first)
            self.known[candidate] = users_rate_per_s(users, think_s, lambda rate: fluid(rate) * factor)
        return self.known[candidate]

    def held_per_s(self, candidate: Candidate) -> float | None:
        """Return the rate that loads all replicas as the remaining replicas are loaded after the tolerated loss.

        The rate of users would fall as their answers become slower; this method keeps it constant.
        """
        nominal = self.nominal_per_s(candidate)
        return None if nominal is None else nominal * self.demand.spare.factor(candidate)
