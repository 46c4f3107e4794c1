"""Prompts of models with sparse attention: expanded up to the tokens that an indexer selects, absorbed beyond them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import pytest

from calibration.operators.operators import Elementwise, MlaModule
from catalogs.arrays import FloatArray
from catalogs.deployments.layout import Layout
from catalogs.deployments.schema import Deployment
from catalogs.models.catalog import load_model
from catalogs.models.layers import LayerGroup
from catalogs.models.mixers import MlaAttention
from catalogs.models.spec import ModelSpec
from simulator.analysis.operators import operator_rows
from simulator.cluster.compiled import compile_deployment
from simulator.costs.pricing import N_CLASSES, Pricer
from simulator.layers.operator_call import OperatorCall
from simulator.layers.shard import Shard
from simulator.layers.step import StepCalls, step_launches
from simulator.memory.plan import weight_bytes
from tests.simulator.plants import ToySource, resolved

SELECTED: Final = 2048  # tokens for each query of GLM-5


def calls(each: object, prior: object = 0.0, chunks: object = 1.0, model: str = "glm-5") -> list[OperatorCall]:
    """The attention blocks of prompts on one of eight tensor ranks."""
    step = StepCalls(Shard(load_model(model), Layout(8), "bf16", "bf16"))
    found = step.prefill(chunks, each, prior)  # type: ignore[arg-type]
    return [call for call in found if call.name == "mla_prefill"]


def block(each: float, prior: float = 0.0, chunks: float = 1.0) -> MlaModule:
    """The block of one of GLM-5's layers; its groups of layers run the same."""
    first, *others = [call.op for call in calls(each, prior, chunks)]
    assert isinstance(first, MlaModule)
    assert all(op == first for op in others)
    return first


def pricer() -> Pricer:
    hardware = resolved("glm-5", "h200x8", tensor_parallel=8, weight_dtype="fp8").hardware
    return Pricer(ToySource(hardware.accelerator), hardware)


def seconds(found: list[OperatorCall], shape: tuple[int, ...]) -> FloatArray:
    total: FloatArray = pricer().price(found, shape)[..., :N_CLASSES].sum(axis=-1)
    return total


def test_a_prompt_beyond_the_selection_runs_as_sequences_that_decode() -> None:
    """The first 2,048 tokens read half of them on average, the next one 2,048; so do six in 3 chunks after 4,000."""
    whole, later = block(SELECTED + 1), block(2, 4000, chunks=3)
    assert (whole.stage, float(whole.sequences)) == ("decode", SELECTED + 1)
    assert float(whole.context_tokens) == SELECTED**2 / 2 + SELECTED
    assert (later.stage, float(later.sequences), float(later.context_tokens)) == ("decode", 6, 6 * SELECTED)


@pytest.mark.parametrize(("each", "prior"), [(SELECTED, 0), (48, 2000), (1, 0)])
def test_a_prompt_within_the_selection_keeps_the_dense_form(each: float, prior: float) -> None:
    assert block(each, prior).stage == "prefill"


def test_a_model_without_an_indexer_is_dense_at_any_length() -> None:
    assert {call.op.stage for call in calls(100_000.0, model="deepseek-v3") if isinstance(call.op, MlaModule)} == {
        "prefill"
    }


def test_every_entry_of_an_array_takes_the_time_that_it_takes_alone() -> None:
    each, prior = np.array([[1.0], [2000.0], [SELECTED + 1.0]]), np.array([[0.0, 48.0, 49.0, 9000.0]])
    found = seconds(calls(each, prior), (3, 4))
    alone = [[float(seconds(calls(q, x), ())) for x in prior[0]] for q in each[:, 0]]
    assert found == pytest.approx(np.array(alone))


def test_analyses_count_the_work_of_the_form_that_runs() -> None:
    each = np.array([1000.0, 4000.0])
    both = operator_rows(calls(each), pricer(), np.ones(2))
    alone = [row for q in each for row in operator_rows(calls(q), pricer())]
    for name in ("flops", "bytes", "seconds", "roofline_s", "count"):
        assert sum(getattr(r, name) for r in both) == pytest.approx(sum(getattr(r, name) for r in alone))


def test_decodes_launch_the_selection_beside_the_blocks_of_short_prompts() -> None:
    """78 blocks of the same kernels as DeepSeek's; decodes select in each, prompts within the selection do not."""
    shard = Shard(load_model("glm-5"), Layout(8), "bf16", "bf16")
    blocks = [group for group in shard.model.groups if isinstance(group, LayerGroup)]
    assert all(isinstance(group.mixer, MlaAttention) for group in blocks)
    assert step_launches(shard, encodes=False) == step_launches(shard) + 78


@pytest.mark.parametrize(("hardware", "multiplied"), [("h200x8", "bf16"), ("b200x8", "fp8")])
def test_kernels_before_blackwell_convert_an_8_bit_cache(hardware: str, multiplied: str) -> None:
    deployment = resolved("glm-5", hardware, tensor_parallel=8, weight_dtype="fp8", kv_dtype="fp8")
    found = StepCalls(Shard.of(deployment)).prefill(1.0, 4000.0, 0.0)
    blocks = [call.op for call in found if isinstance(call.op, MlaModule)]
    assert {block.kv_dtype for block in blocks} == {multiplied}


def selections(each: float, prior: float = 0.0, chunks: float = 1.0) -> list[OperatorCall]:
    found = StepCalls(Shard(load_model("glm-5"), Layout(8), "bf16", "bf16")).prefill(chunks, each, prior)
    return [call for call in found if call.name == "select_entries"]


def test_every_token_beyond_the_selection_chooses_among_the_scores_before_it() -> None:
    """A prompt of 4,000 tokens has 4,000 rows of 2,000 scores in the mean; six tokens after 4,000 see 4,001 each."""
    whole, later = selections(4000.0), selections(2.0, 4000.0, chunks=3.0)
    assert sum(call.count for call in whole) == 78
    for calls_, rows, scores in ((whole, 4000.0, 4000 * 2000.0), (later, 6.0, 6 * 4001.0)):
        for call in calls_:
            assert isinstance(call.op, Elementwise)
            assert float(call.op.tokens) == rows
            assert float(call.op.tokens * call.op.bytes_per_token) == pytest.approx(4 * scores)


@pytest.mark.parametrize("queries", [1, 3])
def test_decodes_stream_the_keys_of_the_indexer_once_and_select_for_every_query(queries: int) -> None:
    """64 sequences at 8,000 tokens: a key is 128 bytes and its scale 4, a score 4; every query is a row of its own."""
    shard = Shard(load_model("glm-5"), Layout(8), "bf16", "bf16", queries=queries)
    n, context = np.array([64.0]), np.array([8000.0])
    found = {call.name: call.op for call in StepCalls(shard).decode(n, context, context)}
    scored, chosen = found["indexer"], found["select_entries"]
    assert isinstance(scored, Elementwise)
    assert isinstance(chosen, Elementwise)
    assert float((scored.tokens * scored.bytes_per_token)[0]) == 64 * 8000 * (132 + 4 * queries)
    assert (float(chosen.tokens[0]), float(chosen.bytes_per_token[0])) == (64 * queries, 4 * 8000)


def shared_indexer() -> tuple[ModelSpec, ModelSpec]:
    """GLM-5, and GLM-5 whose last 75 layers attend to the tokens that the indexer of the first three selected."""
    own = load_model("glm-5")
    first, rest = own.groups
    assert isinstance(rest.mixer, MlaAttention)
    follows = replace(rest, mixer=replace(rest.mixer, index_n_heads=0, index_head_dim=0))
    return own, replace(own, groups=(first, follows))


def test_a_layer_with_the_selection_of_another_attends_to_as_many_tokens_and_runs_no_indexer() -> None:
    """Its blocks of attention are those of GLM-5; projections, scores and selections are left to 3 of 78 layers."""
    indexing = {"index_q", "index_k", "indexer", "select_entries"}
    steps = [StepCalls(Shard(model, Layout(8), "bf16", "bf16")) for model in shared_indexer()]
    n, context = np.array([64.0]), np.array([8000.0])
    for found in ([s.decode(n, context, context) for s in steps], [s.prefill(1.0, 4000.0, 100.0) for s in steps]):
        every, shared = ([(c.name, c.count, repr(c.op)) for c in listed if c.name not in indexing] for listed in found)
        assert every == shared
    for found in ([s.decode(n, context, context) for s in steps], [s.prefill(1.0, 4000.0, 100.0) for s in steps]):
        every, shared = (
            {name: sum(c.count for c in listed if c.name == name) for name in ("indexer", "select_entries")}
            for listed in found
        )
        assert set(every.values()) == {78}
        assert set(shared.values()) == {3}
    for step, layers in zip(steps, (78, 3), strict=True):
        assert sum(c.count for c in step.rank(64.0) if c.name == "index_k") == layers


def test_memory_holds_the_indexers_that_there_are() -> None:
    own, shared = shared_indexer()
    indexer = 2048 * 32 * 128 + 6144 * (128 + 32)
    bytes_of = [weight_bytes(Shard(model, Layout(8), "bf16", "bf16")) for model in (own, shared)]
    assert bytes_of[0] - bytes_of[1] == pytest.approx(2 * 75 * (indexer + 2 * 128))
    assert own.kv_bytes_per_token("fp8") - shared.kv_bytes_per_token("fp8") == 75 * 132


def test_no_table_of_decode_attention_prices_the_indexer() -> None:
    """Attention of 64 heads on one key-value head takes 40 times as long in TensorRT-LLM's tables as the indexer does.

    A layer of 64 decodes at 8,192 tokens was timed whole at 189 us on B200 (dsa_generation_module_perf).
    """
    deployment = Deployment(model="deepseek-v3.2", hardware="b200x8", engine="trtllm", tensor_parallel=8)
    tables = compile_deployment(deployment).cost.tables
    n, context = np.array([64.0]), np.array([8192.0])
    calls = [call for call in tables.lines.decode(n, context, context) if call.name in ("indexer", "select_entries")]
    each_s = float(tables.pricer.price(calls, (1,))[..., :N_CLASSES].sum()) / 61
    assert 15e-6 < each_s < 80e-6


def test_nothing_is_selected_within_the_selection() -> None:
    assert selections(float(SELECTED)) == []
