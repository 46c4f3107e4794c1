"""The requests of an open loop, which reach the router at times that are known before the run.

A plain loop is served by the fast path: one replica without features besides batching, and nobody that watches the run
or acts in it (`is_plain`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import numpy as np

from catalogs.arrays import FloatArray
from catalogs.workloads.request_set import RequestSet
from simulator.core.clock import ARRIVAL, Clock, Process
from simulator.engine.context import EngineContext
from simulator.engine.fast_path import FAST_RANKS, FastPath
from simulator.schedulers.registry import scheduler_class
from simulator.schedulers.rules import EngineRules
from simulator.schedulers.vllm.v1 import VllmV1

#: The fields of `EngineRules` that the fast path does not follow, besides those that require a class of their own
#: (`scheduler_class`), with the value that stands for none.
_WITHOUT: Final[dict[str, object]] = {
    "pipeline_stages": 1,
    "receiving": None,
    "chunked_prefill": True,
    "retention": None,
}


class LoopOptions(Protocol):
    """The part of `RunOptions` that decides whether a run takes the fast path."""

    @property
    def fast_path(self) -> bool:
        """Return whether the fast path may be used."""

    @property
    def controllers(self) -> Sequence[object]:
        """Return the controllers, which act during the run."""

    @property
    def router_staleness_s(self) -> float:
        """Return the seconds between two collections of the replicas' signals."""

    @property
    def horizon_s(self) -> float | None:
        """Return the time at which the run stops, if it does before all requests are answered."""


def is_plain(context: EngineContext, keys: object, requests: RequestSet, options: LoopOptions) -> bool:
    """Return whether the fast path can serve an open loop on one replica.

    Args:
        context: The context of the replica.
        keys: The content that the requests share; empty if they share none.
        requests: The requests.
        options: The options of the run.
    """
    watched = options.controllers or options.router_staleness_s or options.horizon_s is not None
    special = (requests.adapters, requests.requested_models, requests.media)
    if keys or watched or not options.fast_path or any(each is not None for each in special):
        return False
    if context.check is not None or context.event_log is not None or context.hand_over is not None:
        return False
    return context.fast_forward and _has_no_feature(context.rules)


def _has_no_feature(rules: EngineRules) -> bool:
    queueing = rules.queueing
    # Without shared content, the order by cached prefixes is that of the arrivals.
    first_come = queueing.order in ("fcfs", "prefix") and queueing.max_waiting is None and not queueing.max_delay_s
    plain = all(getattr(rules, name) == value for name, value in _WITHOUT.items())
    if rules.balance_steps and rules.attention_ranks > 1:
        return False
    made = scheduler_class(rules)
    return first_come and plain and (made is VllmV1 if rules.in_lockstep else made in FAST_RANKS)


def serve_open_loop(
    clock: Clock, arrival_s: FloatArray, admit: Callable[[int], None], plain: FastPath | None = None
) -> None:
    """Schedule the arrivals of an open loop.

    The fast path serves the requests that arrive before the first step that needs the general loop.

    Args:
        clock: The clock of the run.
        arrival_s: When each request reaches the router, in seconds. Shape (n,).
        admit: Routes the request of an index, or rejects it.
        plain: The fast path of a plain loop.
    """
    rows = np.argsort(arrival_s, kind="stable")
    order, times_s = rows.tolist(), arrival_s[rows].tolist()
    n_served = 0 if plain is None else plain.serve(order, times_s)
    if n_served < len(order):
        clock.process(_arrivals(clock, order[n_served:], times_s[n_served:], admit))


def _arrivals(clock: Clock, order: Sequence[int], times_s: Sequence[float], admit: Callable[[int], None]) -> Process:
    """Deliver requests to the router at known times, in their order."""
    arrival = clock.at(times_s[0], ARRIVAL)
    for index, next_s in zip(order, [*times_s[1:], None], strict=True):
        yield arrival
        if next_s is not None:  # scheduled before this request is routed, to come first among events of its time
            clock.repeat(arrival, next_s, ARRIVAL, [])
        admit(index)
