"""The analysis of what bound a run: sampled operators stand for all steps, whatever a deployment runs in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.schema import Deployment
from catalogs.deployments.speculation import Speculative
from catalogs.io.yaml_files import validate_as
from catalogs.workloads.workload import load_workload
from simulator.analysis.bottleneck import DEVICE_BOUNDS, STEP_BOUNDS, bottleneck, pool_bottlenecks, sampled_operators
from simulator.analysis.operators import COMPUTE, FIXED, LINK, MEMORY, OperatorRow, operator_rows
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import CompiledDeployment, compile_deployment
from simulator.cluster.run import Run
from simulator.cluster.simulate import simulate
from simulator.core.batch import BatchShape
from simulator.core.step_log import StepLog
from simulator.costs.pricing import Pricer
from simulator.engine.event_log import EventLog
from simulator.layers.shard import Shard
from simulator.layers.step import step_calls
from tests.simulator.plants import ToySource, resolved

DRAFTS = validate_as(
    Speculative,
    {"method": "draft_model", "model": "llama3.2-1b", "num_speculative_tokens": 3, "acceptance": 0.7},
    "speculative",
)
DEPLOYMENTS: dict[str, dict[str, Any]] = {
    "tensor ranks": {"model": "llama3.1-8b", "hardware": "l40sx2", "tensor_parallel": 2},
    "data ranks": {"model": "qwen3-30b-a3b", "hardware": "h100x4", "data_parallel": 4, "expert_parallel": True},
    "sglang": {
        "model": "qwen3-30b-a3b",
        "hardware": "h100x4",
        "data_parallel": 4,
        "expert_parallel": True,
        "engine": "sglang",
    },
    "stages": {"model": "llama3.1-8b", "hardware": "l40sx2", "pipeline_parallel": 2},
    "context ranks": {"model": "llama3.1-8b", "hardware": "l40sx2", "context_parallel": 2},
    "drafts": {"model": "llama3.1-8b", "hardware": "h100x1", "speculative": DRAFTS},
    "passes": {"model": "llama3.1-8b", "hardware": "h100x1", "engine": "llama.cpp"},
}


def served(name: str) -> tuple[CompiledDeployment, Run]:
    plant = compile_deployment(Deployment(**DEPLOYMENTS[name]))
    requests = load_workload("lmsys-turns").materialise(0, 300, 10.0)
    return plant, simulate(plant, requests, RunOptions(event_log=EventLog()))


def seconds_by_class(operators: list[OperatorRow]) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in operators:
        found[row.kind] = found.get(row.kind, 0.0) + row.seconds
    return found


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_sampled_operators_take_the_time_of_all_steps(name: str) -> None:
    plant, done = served(name)
    log = StepLog.merged(done.logs)
    totals = plant.cost.totals(log)
    stages = plant.resolved.layout.pipeline_parallel  # totals are of one stage's accelerator
    ours = seconds_by_class(sampled_operators(plant.cost.tables, log))
    device_s = sum(ours.values())
    assert device_s == pytest.approx(sum(v for k, v in totals.seconds.items() if k != "host") * stages, rel=0.03)
    for kind, seconds in totals.seconds.items():
        if kind != "host" and seconds * stages > 0.02 * device_s:
            assert ours[kind] == pytest.approx(seconds * stages, rel=0.05), kind


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_the_operators_of_a_pool_add_up_to_its_bounds(name: str) -> None:
    plant, done = served(name)
    (pool,) = pool_bottlenecks(done)
    shares = pool.shares
    assert shares == bottleneck(done)
    assert sum(shares.steps.values()) == pytest.approx(1.0)
    totals = plant.cost.totals(StepLog.merged(done.logs)).seconds
    assert pool.steps_s["host"] == pytest.approx(totals["host"])
    for bound in DEVICE_BOUNDS.values():
        assert sum(r.seconds for r in pool.operators_of(bound)) == pytest.approx(
            pool.steps_s[bound], rel=1e-6, abs=1e-9
        )
    samples = pool.samples
    assert 1 <= samples.mean_decodes <= samples.most_decodes
    assert 0 < samples.prefill_step_fraction <= 1
    assert set(pool.steps_s) == set(STEP_BOUNDS)


def test_each_execution_has_one_bound() -> None:
    """By hand: a kernel is bound by its roofline's limit up to four times its time, a collective by links always."""

    def row(limit: str, seconds: float) -> OperatorRow:
        return OperatorRow("x", "gemm", 1, limit, 1.0, 1.0, 1.0, 1.0, seconds, 0.0, 0.0, 0.0)

    assert [row(limit, 4.0).bound for limit in (COMPUTE, MEMORY, LINK)] == [COMPUTE, MEMORY, LINK]
    assert [row(limit, 4.1).bound for limit in (COMPUTE, MEMORY, LINK)] == [FIXED, FIXED, LINK]
    assert row(MEMORY, 4.0).scaled(3.0).bound == MEMORY
    assert row(MEMORY, 4.1).scaled(0.3).bound == FIXED


def test_a_class_that_no_sample_met_is_a_fixed_cost() -> None:
    _, done = served("tensor ranks")
    (pool,) = pool_bottlenecks(done, samples=1)
    shares = pool.samples.shares_of_class
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)


def roofline(deployment: ResolvedDeployment, shape: BatchShape) -> dict[str, OperatorRow]:
    pricer = Pricer(ToySource(deployment.hardware.accelerator), deployment.hardware)
    return {row.name: row for row in operator_rows(step_calls(Shard.of(deployment), shape), pricer)}


def test_the_real_model_counts_the_output_projection_twice_and_no_scores_in_memory() -> None:
    shape = BatchShape(decodes=1, decode_context_sum=1024, decode_context_max=1024, logits=1)
    rows = roofline(resolved(), shape)
    assert rows["lm_head"].flops == 2 * 4096 * 32000
    assert rows["decode_attention"].bytes == 32 * (1024 * 2 * 4096 * 2 + 2 * 4096 * 2)
    assert {row.limit for row in rows.values()} == {MEMORY}
    assert rows["qkv_proj"].intensity == pytest.approx(1.0, rel=0.01)


def test_a_long_prompt_is_bound_by_compute() -> None:
    rows = roofline(resolved("llama-2-70b", "h100x4", tensor_parallel=4), BatchShape(1024, 1024 * 512.0, 1, logits=1))
    assert (rows["gate_up_proj"].limit, rows["gate_up_proj"].bound) == (COMPUTE, COMPUTE)
    assert rows["ffn_all_reduce"].bound == LINK
    assert rows["post_norm"].limit == MEMORY
