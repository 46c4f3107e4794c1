"""The requests of an open loop, which reach the router at times that are known before the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from catalogs.arrays import FloatArray
from simulator.core.clock import ARRIVAL, Clock, Process
from simulator.engine.fast_path import FastPath


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
