"""A fleet whose capacity is known by hand: steps of a second, four seats a replica, five tokens a request: 0.8 requests
a second each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from catalogs.engines.profile import HostTimes
from catalogs.workloads.request_set import RequestSet
from planner.sections.fleet_day import FleetSize
from simulator.cluster.cluster import RunOptions
from simulator.cluster.controllers.autoscaler import Autoscaler
from simulator.cluster.run import Run
from simulator.cluster.simulate import run_rules
from simulator.core.batch import BatchShape
from simulator.schedulers.rules import EngineRules

TOKENS = 5
SEATS = 4
COLD_S = 60.0
FREE = {name: 0.0 for name in HostTimes.__dataclass_fields__ if name != "source"}


@dataclass(frozen=True)
class Step:
    """Every step takes as long."""

    step_s: float = 1.0

    def cycle_s(self, shape: BatchShape) -> float:  # noqa: ARG002
        return self.step_s

    def decode_segment(self, decodes: int, context_sum: int, context_max: int) -> tuple[float, float, int]:  # noqa: ARG002
        return self.step_s, 0.0, 1 << 40


def seats_rules(seats: int = SEATS) -> EngineRules:
    host = HostTimes(**FREE)  # type: ignore[arg-type]
    return EngineRules(
        max_num_seqs=seats,
        max_num_batched_tokens=64,
        max_model_len=10**6,
        kv_blocks=10**6,
        host=host,
        block_size=4,
        lag=0,
    )


def seats_requests(arrival_s: np.ndarray) -> RequestSet:
    n = len(arrival_s)
    return RequestSet(np.sort(arrival_s), np.ones(n, dtype=np.int64), np.full(n, TOKENS, dtype=np.int64))


def seats_serve(size: FleetSize, requests: RequestSet, speed: float) -> Run:
    """See planner.day.Serve."""
    controllers = () if size.scaling is None else (Autoscaler(0, size.scaling, COLD_S / speed),)
    return run_rules(seats_rules(), Step(), requests, size.replicas, RunOptions(controllers=controllers))
