"""What the replicas of a pool share, and what a step loop needs of the replica that it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from simulator.core.batch import Batch
from simulator.core.clock import Clock
from simulator.core.outcomes import RequestOutcomes
from simulator.core.request import Request
from simulator.core.step_timer import StepTimer
from simulator.engine.api_server import TokenStream
from simulator.engine.event_log import EventLog
from simulator.schedulers.base import Scheduler
from simulator.schedulers.rules import EngineRules


class ReplicaHandle(Protocol):
    """The replica of a step loop, as far as the loop and the checks of its schedules need it."""

    index: int
    rules: EngineRules
    outlet: TokenStream
    outstanding: int
    fruitless: int  # tokens computed since the last one came out

    @property
    def now(self) -> float:
        """Seconds since the run began."""

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler of the first batch in flight."""

    @property
    def schedulers(self) -> Sequence[Scheduler]:
        """One for each batch in flight; all share a queue and a cache."""

    def held_requests(self) -> list[Request]:
        """Return the requests that run or wait here."""

    def fetch(self, requests: Sequence[Request]) -> None:
        """Blocks of these requests start to come from host memory."""

    def hand_over(self, request: Request) -> bool:
        """Return whether the request, whose last output here is processed, goes on at another replica."""

    def finish(self, request: Request) -> None:
        """The request is done here, and holds nothing any more."""

    def enter_pipeline(self, now: float, cycle_s: float) -> float:
        """Return when a batch that takes the whole pipeline `cycle_s` enters its first stage."""

    def wake_idle(self) -> None:
        """Wake an idle loop, if a request waits."""

    def check_progress(self) -> None:
        """Raise RuntimeError where a request waits and nothing will ever happen."""

    def check_growth(self, tokens: int) -> None:
        """Raise RuntimeError where steps go on and no output comes of them."""


#: Holds the schedule of a batch, by one of the schedulers of a replica, to the invariants.
Check: TypeAlias = Callable[[ReplicaHandle, Scheduler, Batch], None]


@dataclass(frozen=True, slots=True)
class EngineContext:
    """What all replicas of a pool share."""

    clock: Clock
    rules: EngineRules
    timer: StepTimer
    results: RequestOutcomes
    output_tokens: list[int]  # true output lengths, by request index; where prompts are handed over: one token each
    on_finish: Callable[[int, Request], None]  # a request is done on the replica of that index
    hand_over: Callable[[int, Request], bool] | None = None  # its last token there: True if it goes on elsewhere
    fast_forward: bool = True
    check: Check | None = None  # after every schedule
    journal: EventLog | None = None
