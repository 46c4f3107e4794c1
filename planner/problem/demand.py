"""What must be carried, and what may break meanwhile: a rate or a number of users, with replicas to spare."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from catalogs.errors import InputError
from catalogs.workloads.workload import LEAST_REQUESTS_PER_S
from planner.problem.candidate import Candidate

NODE: Final = "node"

_USER_STEPS: Final = 30

#: Mean seconds a request spends in the system at a rate (requests/s of the whole deployment).
EndToEndS = Callable[[Candidate, float], float]


@dataclass(frozen=True, slots=True)
class FailureTolerance:
    """What may be lost: `replicas` of them, or (`nodes`) all replicas of that many nodes."""

    replicas: int = 0
    nodes: int = 0

    @classmethod
    def parse(cls, text: str) -> FailureTolerance:
        """ "1" replica, "node", "2nodes", "1 node lost". Raises InputError."""
        found = re.fullmatch(r"(\d*)\s*(nodes?|replicas?)?(?:\s+lost)?", text.strip().lower())
        if found is None or not (found[1] or found[2]):
            raise InputError("what must be survived is a number of replicas or nodes", text, "1")
        count = int(found[1] or 1)
        return cls(nodes=count) if (found[2] or "").startswith(NODE) else cls(replicas=count)

    def __bool__(self) -> bool:
        return bool(self.replicas or self.nodes)

    @property
    def words(self) -> str:
        """ "one replica lost"."""
        count, noun = (self.nodes, NODE) if self.nodes else (self.replicas, "replica")
        return f"{count} {noun}{'s' if count != 1 else ''} lost"

    @property
    def text(self) -> str:
        """As `parse` takes it."""
        return f"{self.nodes}{NODE}" if self.nodes else str(self.replicas)

    def lost(self, candidate: Candidate) -> int:
        """Replicas gone, of `candidate.replicas`. Replicas fill nodes evenly, so the fullest has the rounded-up share;
        a replica across nodes goes with any of them."""
        if not self.nodes:
            return self.replicas
        n_nodes = candidate.hardware.n_nodes
        return min(candidate.replicas, self.nodes * math.ceil(candidate.replicas / n_nodes))

    def factor(self, candidate: Candidate) -> float:
        """Load of each replica left over the load with all of them; infinite where none is left."""
        left = candidate.replicas - self.lost(candidate)
        return candidate.replicas / left if left > 0 else math.inf


NOTHING: Final = FailureTolerance()


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests per second, or users who each wait `think_s` between an answer and their next request."""

    requests_per_s: float | None = None
    users: int | None = None
    think_s: float = 0.0
    spare: FailureTolerance = NOTHING

    def __post_init__(self) -> None:
        rate = self.requests_per_s
        if rate is not None and not LEAST_REQUESTS_PER_S <= rate < math.inf:
            least = "" if rate <= 0 else f", at least {LEAST_REQUESTS_PER_S:g}"
            raise InputError(f"a rate is a number of requests per second above zero{least}", rate, "1")
        if self.users is not None and self.users < 1:
            raise InputError("users are a whole number of at least 1", self.users, "1")
        if self.users is not None and self.requests_per_s is not None:
            raise InputError("the load is a rate or a number of users, not both", self.users, "--rate or --users")
        if not 0 <= self.think_s < float("inf"):
            raise InputError("a think time is a number of seconds, not below zero", self.think_s, "30")
        if self.think_s and self.users is None:
            raise InputError("a think time is of users", self.think_s, "--users N --set think_s=S")
        if self.spare and not self.given:
            raise InputError("what is survived is the loss of replicas under a load", None, "--rate or --users")

    @property
    def given(self) -> bool:
        return self.requests_per_s is not None or self.users is not None


def users_rate_per_s(users: int, think_s: float, e2e_s: Callable[[float], float]) -> float:
    """X that solves X (e2e_s(X) + think_s) = users, where e2e_s rises with X: bisection on a logarithmic scale.

    The interactive response time law: Little's law over serving and thinking.
    """
    high = users / (e2e_s(1e-9) + think_s)
    low = high * 1e-4
    while low * (e2e_s(low) + think_s) >= users:  # so many users that even this is beyond what can be carried
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
    """The rate each candidate must carry, computed once. For users: a short run corrects the fluid's answer time."""

    demand: Demand
    e2e_s: EndToEndS
    run_e2e_s: EndToEndS
    known: dict[Candidate, float] = field(default_factory=dict)

    def nominal_per_s(self, candidate: Candidate) -> float | None:
        """With every replica alive."""
        if self.demand.users is None:
            return self.demand.requests_per_s
        if candidate not in self.known:
            self.known[candidate] = self._of_users(candidate, self.demand.users)
        return self.known[candidate]

    def held_per_s(self, candidate: Candidate) -> float | None:
        """What survivors carry, as if all replicas were loaded as they are. Users' own rate would fall; it is kept."""
        nominal = self.nominal_per_s(candidate)
        return None if nominal is None else nominal * self.demand.spare.factor(candidate)

    def _of_users(self, candidate: Candidate, users: int) -> float:
        def fluid(rate: float) -> float:
            return self.e2e_s(candidate, rate)

        first = users_rate_per_s(users, self.demand.think_s, fluid)
        factor = self.run_e2e_s(candidate, first) / fluid(first)
        return users_rate_per_s(users, self.demand.think_s, lambda rate: fluid(rate) * factor)
