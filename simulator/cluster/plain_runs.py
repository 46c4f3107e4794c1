"""The runs that the fast path serves: those of one replica without features besides batching.

Nothing may observe a plain run or act in it while it is simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from catalogs.workloads.request_set import RequestSet
from simulator.engine.context import EngineContext
from simulator.engine.fast_path import FAST_RANKS
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
