"""Steps in piecewise CUDA graphs, and steps whose host work waits for the device: chunked attention (Llama 4)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from catalogs.deployments.resolve import resolve
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.schema import Deployment
from simulator.core.batch import BatchShape
from simulator.core.step_log import StepLog
from simulator.costs.compile import compile_step_cost
from simulator.costs.step_cost import StepCost
from simulator.costs.tables import graph_limit
from tests.simulator.plants import ToySource, resolved

DECODES = BatchShape(decodes=8, decode_context_sum=8 * 500, decode_context_max=500, logits=8)
MIXED = BatchShape(100, 100 * 50, 1, 8, 8 * 500, 500, 9)


def compiled(deployment: ResolvedDeployment) -> StepCost:
    return compile_step_cost(deployment, ToySource(deployment.hardware.accelerator))


def whole(deployment: ResolvedDeployment) -> ResolvedDeployment:
    """The same deployment on an engine whose whole graphs hold every attention and whose host never waits."""
    return replace(deployment, engine=replace(deployment.engine, graphs_in_pieces=False, overlaps_host=True))


@pytest.mark.parametrize("shape", [DECODES, MIXED])
def test_each_layer_of_a_piecewise_step_adds_its_launch(shape: BatchShape) -> None:
    """Llama 2 7B has 32 layers of attention."""
    pieces = resolved(cudagraph_mode="piecewise")
    added_s = compiled(pieces).cycle_s(shape) - compiled(resolved()).cycle_s(shape)
    assert pieces.engine.host.piece_s > 0
    assert added_s == pytest.approx(32 * pieces.engine.host.piece_s)


def test_a_whole_graph_and_no_graph_have_no_pieces() -> None:
    for keys in ({}, {"cudagraph_mode": "none"}, {"cudagraph_mode": "full"}, {"enforce_eager": True}):
        assert compiled(resolved(**keys)).tables.pieces_s == 0.0


@pytest.mark.parametrize(("engine", "waits"), [("vllm-0.11-async", True), ("vllm-0.17", True), ("vllm", False)])
def test_chunked_attention_runs_in_pieces_and_waits_for_the_device(engine: str, waits: bool) -> None:
    """48 layers. Where the host waits, the step takes its whole host time longer, and else only what exceeds it."""
    here = resolved("llama4-scout", "h100x4", engine=engine, tensor_parallel=4)
    there = whole(here)
    host = here.engine.host
    host_s = host.step_s + 8 * host.step_s_per_sequence
    assert here.engine.async_scheduling
    assert compiled(there).cycle_s(DECODES) > host_s  # the device hides the host
    added_s = compiled(here).cycle_s(DECODES) - compiled(there).cycle_s(DECODES)
    assert added_s == pytest.approx(48 * host.piece_s + host_s * waits)


@pytest.mark.parametrize("engine", ["sglang", "trtllm"])
def test_other_engines_capture_chunked_attention(engine: str) -> None:
    here = resolved("llama4-scout", "h100x4", engine=engine, tensor_parallel=4)
    assert compiled(here).cycle_s(DECODES) == compiled(whole(here)).cycle_s(DECODES)


def test_sliding_windows_are_not_chunks() -> None:
    here = resolved("gpt-oss-120b", engine="vllm-0.11-async", weight_dtype="fp4")
    assert not here.engine.graphs_in_pieces
    assert here.engine.overlaps_host


def test_the_device_idles_between_the_pieces() -> None:
    """The same joules of kernels, and the power of a gap for the time between them."""
    plain, pieces = compiled(resolved()), compiled(resolved(cudagraph_mode="piecewise"))
    totals = []
    for cost in (plain, pieces):
        log, seconds = StepLog(), cost.cycle_s(DECODES)
        log.add(0.0, 1, DECODES, seconds, 0.0, seconds)
        totals.append(cost.totals(log))
    more_s = totals[1].seconds["host"] - totals[0].seconds["host"]
    more_j = totals[1].joules_per_accelerator - totals[0].joules_per_accelerator
    assert more_s == pytest.approx(pieces.tables.pieces_s)
    assert totals[0].idle_w < more_j / more_s < 0.25 * 700


@pytest.mark.parametrize(
    ("keys", "most"),
    [
        ({"max_num_seqs": 16}, 32),
        ({"max_num_seqs": 512}, 512),
        ({"max_num_seqs": 16, "max_cudagraph_capture_size": 256}, 256),
        ({"max_num_seqs": 16, "max_cudagraph_capture_size": 4096, "max_num_batched_tokens": 2048}, 2048),
        ({"max_num_seqs": 16, "cudagraph_mode": "none"}, 0),
    ],
)
def test_seats_limit_graphs_unless_a_launch_states_the_largest(keys: dict[str, object], most: int) -> None:
    written = {"model": "llama3.1-8b", "hardware": "h100", "engine": "vllm"} | keys
    assert graph_limit(resolve(Deployment.model_validate(written))) == most
