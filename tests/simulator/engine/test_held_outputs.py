"""Outputs that wait until the next prompt is launched: laws of a run, and the engines that have them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogs.deployments.schema import Deployment
from simulator.analysis.metrics import latency_metrics
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import compile_deployment
from simulator.cluster.run import Run
from simulator.cluster.simulate import engine_rules, run_rules
from tests.simulator.worlds import Linear, requests, rules

LAUNCH_S = 0.75
TIMER = Linear(base_s=1.0, prompt_token_s=0.125)  # a step of prompts takes longer than its launch


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.25, 2.0, 9.0]), st.integers(1, 12), st.integers(2, 9)),
        min_size=1,
        max_size=12,
    )
)
@settings(max_examples=60, deadline=None)
def test_waiting_delays_what_clients_see_and_no_step(work: list[tuple[float, int, int]]) -> None:
    """In an open loop. A client sees no token later than the launch of the next prompt takes, and none before."""
    gaps, inputs, outputs = zip(*work, strict=True)
    load = requests(np.cumsum(gaps).tolist(), list(inputs), list(outputs))
    engine = rules(policy="sglang", lag=1, max_num_batched_tokens=16)

    def simulated(launch_s: float) -> Run:
        chosen = RunOptions(check_invariants=True)
        return run_rules(replace(engine, held_launch_s=launch_s), TIMER, load, 1, chosen)

    free, held = simulated(0.0), simulated(LAUNCH_S)
    for name in ("started_s", "prefilled_s", "decoded_s"):
        np.testing.assert_array_equal(getattr(held, name), getattr(free, name))
    for name in ("first_token_s", "last_token_s"):
        late_s = getattr(held, name) - getattr(free, name)
        assert (late_s >= 0.0).all()
        assert (late_s <= LAUNCH_S).all()
    for run in (free, held):  # gaps between tokens add up to what clients see
        seen_s = (run.last_token_s - run.first_token_s).sum()
        mean_s = latency_metrics(run)["itl_s"]["mean"]
        np.testing.assert_allclose(mean_s, seen_s / (np.array(outputs) - 1).sum(), rtol=1e-9)


def test_a_single_request_waits_for_no_launch() -> None:
    engine = rules(policy="sglang", lag=1, held_launch_s=LAUNCH_S)
    run = run_rules(engine, TIMER, requests([0.0], [8], [3]), 1, RunOptions(check_invariants=True))
    assert (run.first_token_s.tolist(), run.last_token_s.tolist()) == ([2.0], [4.0])


def test_overlap_schedules_launch_first() -> None:
    """Those of SGLang and TensorRT-LLM. Stages of a pipeline run without them, and vLLM launches in other processes."""

    def of(engine: str, **keys: object) -> float:
        known: dict[str, object] = {"model": "llama3.1-70b", "hardware": "h100x8", "tensor_parallel": 8}
        deployment = Deployment(**known | {"engine": engine} | keys)  # type: ignore[arg-type]
        return engine_rules(compile_deployment(deployment)).held_launch_s

    eight = Deployment(model="llama3.1-70b", hardware="h100x8", tensor_parallel=8, engine="sglang")
    tables = compile_deployment(eight).cost.tables
    assert of("sglang") == of("sglang-0.5") == of("sglang-bare") == tables.launch_s > 0.0
    assert of("sglang", async_scheduling=False) == 0.0
    assert of("sglang", tensor_parallel=4, pipeline_parallel=2) == 0.0
    assert of("trtllm") > 0.0
    assert of("vllm") == of("trtllm-tensorrt") == 0.0
