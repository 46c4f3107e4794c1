"""What a cluster asks of a router, and what a router may know."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from simulator.core.request import Request
from simulator.engine.replica import Replica


class ReplicaSignals(Protocol):
    """What a replica shows. A Replica shows what is; a Report what was."""

    @property
    def outstanding(self) -> int:
        """Requests sent there and not finished."""

    @property
    def outstanding_tokens(self) -> int:
        """Prompt tokens of these."""

    @property
    def n_waiting(self) -> int:
        """Those of them without a seat."""

    @property
    def kv_used_fraction(self) -> float:
        """Share of the KV cache that requests hold."""


@dataclass(frozen=True, slots=True)
class StaleView:
    """The signals of a replica when they were last collected; of one born since: nothing runs there."""

    outstanding: int = 0
    outstanding_tokens: int = 0
    n_waiting: int = 0
    kv_used_fraction: float = 0.0

    @classmethod
    def of(cls, replica: Replica) -> StaleView:
        return cls(replica.outstanding, replica.outstanding_tokens, replica.n_waiting, replica.kv_used_fraction)


NOTHING_YET = StaleView()


class ReplicaView:
    """How a router sees replicas: as they are, or as a collection every so often found them.

    Real gateways collect: llm-d's endpoint picker reads every server's metrics each 50 ms, Prometheus every 15 s.
    """

    def __init__(self, stale: bool = False, sessions: Sequence[int] | None = None) -> None:
        self.sessions = sessions  # by request; None: the workload has none
        self._reports: dict[int, StaleView] | None = {} if stale else None

    def collect(self, replicas: Sequence[Replica]) -> None:
        """Remember how they are now."""
        self._reports = {replica.index: StaleView.of(replica) for replica in replicas}

    def of(self, replicas: Sequence[Replica]) -> Sequence[ReplicaSignals]:
        """Of each, in the same order."""
        reports = self._reports
        if reports is None:
            return replicas
        return [reports.get(replica.index, NOTHING_YET) for replica in replicas]

    def one(self, replica: Replica) -> ReplicaSignals:
        return replica if self._reports is None else self._reports.get(replica.index, NOTHING_YET)


class Router(ABC):
    """Sees requests without their output length, and replicas through `sight`. Each stage has a router of its own;
    replicas come and go, and are always given in order of birth."""

    blind: ClassVar[bool] = False  # chooses without looking at any signal: all choices can be made before a run

    def __init__(self, sight: ReplicaView) -> None:
        self.sight = sight

    @abstractmethod
    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:
        """Index, in `replicas` (not empty), of the one that gets the request."""


def place_of(index: int, replicas: Sequence[Replica]) -> int:
    """Where the replica of that index is among those given in order of birth; -1: nowhere."""
    at = bisect_left(replicas, index, key=lambda replica: replica.index)
    return at if at < len(replicas) and replicas[at].index == index else -1


def least(values: Sequence[float]) -> int:
    """The first of the smallest."""
    return values.index(min(values))
