"""The registry of batchers, by engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from catalogs.deployments.network_deployment import NetworkEngine
from simulator.jobs.batchers.base import Batcher, BatchRules
from simulator.jobs.batchers.equal_shapes import EqualShapes
from simulator.jobs.batchers.fifo import Fifo
from simulator.jobs.batchers.triton import Triton

BATCHERS: Final[Mapping[NetworkEngine, type[Batcher]]] = {
    "torch": Fifo,
    "triton": Triton,
    "sglang-diffusion": EqualShapes,
    "vllm": Fifo,  # the pooling runner: requests end with the step in which their prompt is computed
}


def make_batcher(engine: NetworkEngine, rules: BatchRules) -> Batcher:
    """Return an empty queue of an engine."""
    return BATCHERS[engine](rules)
