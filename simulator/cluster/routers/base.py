"""The interface of routers, and the replica signals that they may use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from simulator.core.request import Request
from simulator.engine.replica import Replica


class ReplicaSignals(Protocol):
    """The signals of a replica: current ones from a Replica, or earlier ones from a StaleView."""

    @property
    def outstanding(self) -> int:
        """Number of unfinished requests sent to the replica."""

    @property
    def outstanding_tokens(self) -> int:
        """Prompt tokens of the unfinished requests."""

    @property
    def n_waiting(self) -> int:
        """Number of unfinished requests that are waiting."""

    @property
    def kv_used_fraction(self) -> float:
        """Fraction of the KV cache that requests hold."""


@dataclass(frozen=True, slots=True)
class StaleView:
    """The signals of a replica at the last collection; all zero for a replica created since."""

    outstanding: int = 0
    outstanding_tokens: int = 0
    n_waiting: int = 0
    kv_used_fraction: float = 0.0

    @classmethod
    def of(cls, replica: Replica) -> StaleView:
        """Return the current signals of a replica."""
        return cls(replica.outstanding, replica.outstanding_tokens, replica.n_waiting, replica.kv_used_fraction)


NOTHING_YET = StaleView()


class ReplicaView:
    """A router's view of replicas: their current signals, or those of the last periodic collection.

    Real gateways collect metrics periodically: llm-d's endpoint picker reads every server's metrics each 50 ms,
    Prometheus every 15 s.
    """

    def __init__(self, stale: bool = False, sessions: Sequence[int] | None = None) -> None:
        self.sessions = sessions  # session of each request; None: the workload has no sessions
        self._reports: dict[int, StaleView] | None = {} if stale else None

    def collect(self, replicas: Sequence[Replica]) -> None:
        """Store the current signals of these replicas."""
        self._reports = {replica.index: StaleView.of(replica) for replica in replicas}

    def of(self, replicas: Sequence[Replica]) -> Sequence[ReplicaSignals]:
        """Return the visible signals of each replica, in the same order."""
        reports = self._reports
        if reports is None:
            return replicas
        return [reports.get(replica.index, NOTHING_YET) for replica in replicas]

    def one(self, replica: Replica) -> ReplicaSignals:
        """Return the visible signals of one replica."""
        return replica if self._reports is None else self._reports.get(replica.index, NOTHING_YET)


class Router(ABC):
    """A routing policy, which sees requests without their output length and replicas through `sight`.

    Each routing stage has a separate router. The set of replicas changes over time, and is always given in order of
    creation.
    """

    blind: ClassVar[bool] = False  # whether it uses no signals, so that all choices can be made before a run

    def __init__(self, sight: ReplicaView) -> None:
        self.sight = sight

    @abstractmethod
    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:
        """Return the index in `replicas` (not empty) of the replica that receives the request."""


def place_of(index: int, replicas: Sequence[Replica]) -> int:
    """Return the position of the replica with an index in `replicas`, given in order of creation; -1 if absent."""
    at = bisect_left(replicas, index, key=lambda replica: replica.index)
    return at if at < len(replicas) and replicas[at].index == index else -1


def least(values: Sequence[float]) -> int:
    """Return the index of the first smallest value."""
    return values.index(min(values))
