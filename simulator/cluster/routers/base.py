"""The interface of routers, and the replica signals that they may use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from simulator.core.request import Request
from simulator.engine.replica import Replica


@dataclass(frozen=True, slots=True)
class StaleView:
    """The signals of a replica at the last collection; all zero for a replica created since.

    Attributes:
        outstanding: Number of unfinished requests sent to the replica.
        outstanding_tokens: Prompt tokens of the unfinished requests.
        n_waiting: Number of unfinished requests that are waiting.
        kv_used_fraction: Fraction of the KV cache that requests hold.
    """

    outstanding: int = 0
    outstanding_tokens: int = 0
    n_waiting: int = 0
    kv_used_fraction: float = 0.0

    @classmethod
    def of(cls, replica: Replica) -> StaleView:
        """Return the current signals of a replica."""
        return cls(replica.outstanding, replica.outstanding_tokens, replica.n_waiting, replica.kv_used_fraction)


#: The signals of a replica that routers may use: current ones, or those of the last collection.
ReplicaSignals = Replica | StaleView

NOTHING_YET: Final = StaleView()


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
        if self._reports is None:
            return replicas
        return [self._reports.get(replica.index, NOTHING_YET) for replica in replicas]


class Router(ABC):
    """A routing policy, which sees requests without their output length and replicas through `view`.

    Each routing stage has a separate router. The set of replicas changes over time, and is always given in order of
    creation.
    """

    #: Whether it uses no signals of replicas, so that all choices can be made before a run.
    ignores_replicas: ClassVar[bool] = False

    def __init__(self, view: ReplicaView) -> None:
        self.view = view

    @abstractmethod
    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:
        """Return the index in `replicas` (not empty) of the replica that receives the request."""
