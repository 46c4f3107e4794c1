"""`calibrate endpoint` against real servers: its figures are those of another client, and a text comes back.

The servers are vLLM, if `CAPACITY_PLANNER_VLLM_PYTHON` names the Python of its environment, and llama.cpp, if
`CAPACITY_PLANNER_LLAMA_SERVER` names its server. The other client is vLLM's own, so it needs the first variable.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibration.accuracy.measured_run import MeasuredRun
from calibration.serve import engines
from calibration.serve.clients import TRIES, Endpoint, IncompleteReplay, VllmBench
from calibration.serve.engines import SERVED_NAME
from calibration.serve.gguf_file import write_gguf
from calibration.serve.server import EngineServer, Launch, free_port
from calibration.serve.tiny_model import write_tiny_model
from catalogs.workloads.request_set import RequestSet
from simulator.endpoint.measurement import MeasuringPlan, lengths, measure
from simulator.endpoint.target import EndpointChoice, connect
from simulator.verify.engines import SHORT_LIMITS

VLLM = os.environ.get("CAPACITY_PLANNER_VLLM_PYTHON")

LLAMA = os.environ.get("CAPACITY_PLANNER_LLAMA_SERVER")

#: Two clients of one server agree this well on means on a machine that other processes use as well.
FACTOR = 1.5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if VLLM is None or not importlib.util.find_spec("torch"):
        pytest.skip("no vLLM for the other client")
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


def launch_of(name: str, model: Path) -> Launch:
    limits = replace(SHORT_LIMITS, max_model_len=2048)
    if name == "vllm":
        return engines.vllm(Path(VLLM or ""), model, free_port(), limits, on_cpu=True)
    if LLAMA is None:
        pytest.skip("no server of llama.cpp")
    return engines.llama_cpp(Path(LLAMA), write_gguf(model, model / "m.gguf"), free_port(), limits)


@pytest.fixture(params=["vllm", "llama.cpp"])
def url(request: pytest.FixtureRequest, model: Path, tmp_path: Path) -> Iterator[str]:
    launch = launch_of(request.param, model)
    with EngineServer(launch, tmp_path / "server.log") as server:
        server.start()
        yield launch.url


def replayed(requests: RequestSet, target: Endpoint, out: Path) -> MeasuredRun:
    """Return the run of the other client, which some servers disconnect from time to time."""
    with closing(VllmBench(Path(VLLM or ""), new_connections=True)) as client:
        for attempt in range(TRIES):
            try:
                return client.replay(requests, target, out / str(attempt))
            except IncompleteReplay:
                if attempt == TRIES - 1:
                    raise
    raise AssertionError("unreachable")


@pytest.mark.slow
def test_figures_are_those_of_another_client(url: str, model: Path, tmp_path: Path) -> None:
    target = connect(EndpointChoice(url, extra={"ignore_eos": True}), 10.0)
    assert target.settings.model == SERVED_NAME
    found = measure(target, MeasuringPlan(concurrency=(1, 4), requests=15), lambda *_: None)
    assert found.failures == {}
    for level in found.levels:
        pairs = np.array([(i, o) for i, o, _ in lengths(level)], dtype=np.int64)
        same = RequestSet(np.zeros(len(pairs)), pairs[:, 0], pairs[:, 1], concurrency=level.concurrency)
        other = replayed(same, Endpoint(url, SERVED_NAME, str(model)), tmp_path / f"{level.concurrency}")
        replies = level.load.replies
        mine = {name: float(np.mean([getattr(r, f"{name}_s") for r in replies])) for name in ("ttft", "tpot", "e2e")}
        print(level.concurrency, {name: (s, other.stat(name, "mean")) for name, s in mine.items()})  # type: ignore[arg-type]
        for name, mean_s in mine.items():
            ratio = mean_s / other.stat(name, "mean")  # type: ignore[arg-type]
            assert 1 / FACTOR < ratio < FACTOR, (level.concurrency, name)
        assert sum(r.output_tokens for r in replies) == other.output_tokens.sum()
