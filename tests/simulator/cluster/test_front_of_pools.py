"""API servers stand before the engines of each model, and are those of its engine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from catalogs.engines.files import load_engine
from catalogs.engines.profile import HostTimes
from simulator.cluster.clients import Frontend
from simulator.cluster.compiled import Pool
from simulator.engine.api_server import RequestIntake
from simulator.schedulers.rules import EngineRules

HOST = load_engine("vllm").host


class Timer:
    def cycle_s(self, shape: object) -> float:  # noqa: ARG002
        return 1.0

    def decode_segment(self, decodes: int, context_sum: int, context_max: int) -> tuple[float, float, int]:  # noqa: ARG002
        return 1.0, 0.0, 1


def host(request_s: float, output_s: float) -> HostTimes:
    return replace(HOST, api_request_s=1.0, request_s=request_s, request_s_per_input_token=0.0, output_s=output_s)


def pool(of: HostTimes, model: int, replicas: int = 1) -> Pool:
    return Pool(EngineRules(4, 64, 128, kv_blocks=100, host=of), Timer(), replicas, model=model)


def test_each_model_has_the_servers_of_its_own_engine() -> None:
    """Two requests for the first model queue for its one server; one for the second waits for nobody."""
    front = Frontend([pool(host(0.5, 0.25), 0), pool(host(2.0, 4.0), 1)], [0, 1, 0])
    assert front.router_arrivals_s([0.0, 0.0, 0.0], [8, 8, 8]).tolist() == [0.5, 2.0, 1.5]
    assert [front.output_s(i) for i in range(3)] == [0.25, 4.0, 0.25]


def test_one_model_is_read_in_as_by_its_intake() -> None:
    sent = np.cumsum(np.random.default_rng(0).exponential(1e-4, 200)).tolist()
    tokens = list(range(1, 201))
    alone = RequestIntake(HOST, 3)
    front = Frontend([pool(HOST, 0, 3)], None)
    assert front.router_arrivals_s(sent, tokens).tolist() == [
        alone.admit(at, n) for at, n in zip(sent, tokens, strict=True)
    ]
