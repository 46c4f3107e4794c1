"""The context that the replicas of a pool share, and the interface of a replica to its step loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from simulator.cache.offload import OffloadTierPair
from simulator.core.batch import Batch
from simulator.core.clock import Clock
from simulator.core.outcomes import RequestOutcomes
from simulator.core.request import Request
from simulator.core.step_timer import StepTimer
from simulator.engine.api_server import TokenStream
from simulator.engine.event_log import EventLog, ReplicaState
from simulator.schedulers.base import Scheduler
from simulator.schedulers.rules import EngineRules


class ReplicaHandle(ReplicaState, Protocol):
    """The interface of a replica that its step loops and the schedule checks use."""

    rules: EngineRules
    outlet: TokenStream
    outstanding: int
    fruitless: int  # tokens computed since the last output token

    def held_requests(self) -> list[Request]:
        """Return the requests that run or wait on this replica."""

    def fetch(self, requests: Sequence[Request]) -> None:
        """Start to fetch the blocks of these requests from host memory."""

    def hand_over(self, request: Request) -> bool:
        """Return whether the request, whose last output here is processed, continues on another replica."""

    def finish(self, request: Request) -> None:
        """Account for a request that is finished on this replica and holds no resources."""

    def enter_pipeline(self, now: float, cycle_s: float, output_s: float) -> float:
        """Return when a batch enters the first stage.

        Args:
            now: The time at which the batch is ready.
            cycle_s: Its seconds in the whole pipeline.
            output_s: The part of these seconds that follows the layers, in the last stage.
        """

    def wake_idle(self) -> None:
        """Wake an idle loop if a request is waiting."""

    def check_progress(self) -> None:
        """Raise RuntimeError if a request is waiting and can never be scheduled."""

    def check_growth(self, tokens: int) -> None:
        """Raise RuntimeError if steps continue without producing output."""


class SharedLinks(Protocol):
    """The links that the collectives of steps share with transfers (simulator/cluster/shared_links.py)."""

    def is_delayed_or_shared(self, replica: int) -> bool:
        """Return whether transfers use the links of a replica, or have delayed it since its last step began."""

    def delay_s(self, replica: int, batch: Batch, step_s: float) -> float:
        """Return the seconds by which transfers delay a replica when a step of step_s seconds begins.

        The replica is one that `is_delayed_or_shared`.
        """

    def idle(self, replica: int) -> None:
        """Note that a replica runs no step from now on."""


#: Checks the invariants of a batch that one of a replica's schedulers has scheduled.
Check: TypeAlias = Callable[[ReplicaHandle, Scheduler, Batch], None]


@dataclass(frozen=True, slots=True)
class EngineContext:
    """The context that all replicas of a pool share."""

    clock: Clock
    rules: EngineRules
    timer: StepTimer
    results: RequestOutcomes
    output_tokens: list[int]  # true output lengths by request index; one token each on prefill replicas
    on_finish: Callable[[int, Request], None]  # called when a request is finished on the replica of that index
    hand_over: Callable[[int, Request], bool] | None = None  # returns whether the request continues elsewhere
    fast_forward: bool = True
    check: Check | None = None  # called after every schedule
    event_log: EventLog | None = None
    shared_links: SharedLinks | None = None  # None: no collective of the pool's steps uses the links of transfers
    kv_pool: OffloadTierPair | None = None  # host and disk tiers that replicas share; None: each has its own, if any
