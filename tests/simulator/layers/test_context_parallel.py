"""Context and expert parallelism: shares of tokens, pairs and cache by hand, exchanges, refusals, laws of steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calibration.operators.operators import Collective, DecodeAttention, MlaModule, PrefillAttention
from catalogs.deployments.layout import Layout
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.errors import InputError
from catalogs.models.catalog import load_model
from simulator.core.batch import BatchShape
from simulator.core.step_log import StepLog
from simulator.costs.compile import compile_step_cost
from simulator.costs.partition import BatchRows
from simulator.costs.pricing import N_CLASSES
from simulator.costs.step_cost import StepCost
from simulator.costs.totals import step_channels
from simulator.layers.operator_call import OperatorCall
from simulator.layers.shard import Shard
from simulator.layers.step import StepCalls
from simulator.memory.plan import sequence_bytes, size_memory
from tests.simulator.plants import ToySource, resolved


def shard(model: str, **keys: object) -> Shard:
    return Shard(load_model(model), Layout(**keys), "bf16", "bf16")  # type: ignore[arg-type]


def named(lines: list[OperatorCall], name: str) -> OperatorCall:
    (found,) = [line for line in lines if line.name == name]
    return found


def cost(**keys: object) -> tuple[ResolvedDeployment, StepCost]:
    """Without the host's launches, which hide what the device does."""
    r = resolved(**keys)  # type: ignore[arg-type]
    r = replace(r, engine=replace(r.engine, host=replace(r.engine.host, kernel_launch_s=0.0)))
    return r, compile_step_cost(r, ToySource(r.hardware.accelerator))


def test_ranks_that_share_prompts_take_even_parts_of_tokens_and_pairs() -> None:
    """Llama-2-7B, 32 heads of 128: 1,000 tokens after 500, over four ranks."""
    one, four = (StepCalls(shard("llama-2-7b", context_parallel=n)).prefill(1, 1000, 500) for n in (1, 4))
    whole, part = (named(lines, "prefill_attention").op for lines in (one, four))
    assert isinstance(whole, PrefillAttention)
    assert isinstance(part, PrefillAttention)
    assert float(np.asarray(whole.pairs)) == 1000 * (500 + 500)
    assert (4 * part.pairs, 4 * part.tokens) == (whole.pairs, whole.tokens)
    gather = named(four, "kv_gather")
    assert isinstance(gather.op, Collective)
    # keys and values of the new tokens, 2 x 32 heads x 128 x 2 bytes, gathered in every layer from neighbours tp apart
    assert (gather.op.kind, gather.op.ranks, gather.count, gather.stride) == ("all_gather", 4, 32, 1)
    assert float(np.asarray(gather.op.message_bytes)) == 1000 * 2 * 32 * 128 * 2
    assert "kv_gather" not in [line.name for line in one]


def test_ranks_that_share_a_cache_read_their_part_with_the_heads_of_all() -> None:
    """Mistral-7B has 8 KV heads: over 16 tensor ranks each is held twice, so two ranks share its tokens."""
    plain, shared = (shard("mistral-7b", tensor_parallel=16, decode_context_parallel=n) for n in (1, 2))
    whole, part = (named(StepCalls(s).decode(10, 2000, 3000), "decode_attention").op for s in (plain, shared))
    assert isinstance(whole, DecodeAttention)
    assert isinstance(part, DecodeAttention)
    assert (2 * part.context_tokens, 2 * part.max_context_tokens) == (whole.context_tokens, whole.max_context_tokens)
    assert (part.n_heads, part.n_kv_heads) == (2 * whole.n_heads, whole.n_kv_heads)
    lines = StepCalls(shared).decode(10, 2000, 3000)
    queries, outputs = named(lines, "query_gather").op, named(lines, "output_merge").op
    assert isinstance(queries, Collective)
    assert isinstance(outputs, Collective)
    assert float(np.asarray(queries.message_bytes)) == float(np.asarray(outputs.message_bytes)) == 10 * 4 * 128 * 2
    assert sequence_bytes(plain, 1000) == 2 * sequence_bytes(shared, 1000)


def test_mla_caches_are_shared_over_all_tensor_ranks() -> None:
    """DeepSeek-V3: the latent is on every rank, eight times; shared, a replica holds eight times the tokens."""
    keys: dict[str, object] = {"tensor_parallel": 8, "weight_dtype": "fp8", "max_model_len": 4096}
    one, eight = (resolved("deepseek-v3", "h200x8", decode_context_parallel=n, **keys) for n in (1, 8))
    held = [size_memory(r).kv_blocks for r in (one, eight)]
    assert held[1] == pytest.approx(8 * held[0], rel=1e-3)
    line = next(x for x in StepCalls(Shard.of(eight)).decode(4, 1600, 1600) if isinstance(x.op, MlaModule))
    assert isinstance(line.op, MlaModule)
    assert float(np.asarray(line.op.context_tokens)) == 4 * 200


def test_context_ranks_hold_the_whole_cache_unless_they_share_it() -> None:
    """vLLM: prefill context parallelism does not increase the number of cache shards."""
    base = shard("llama-2-7b")
    assert sequence_bytes(shard("llama-2-7b", context_parallel=4), 500) == sequence_bytes(base, 500)
    shared = shard("deepseek-v3", context_parallel=4, decode_context_parallel=4)
    assert 4 * sequence_bytes(shared, 500) == sequence_bytes(shard("deepseek-v3"), 500)


def test_long_prompts_are_quicker_over_more_ranks_and_never_by_more_than_their_number() -> None:
    prompt = BatchShape(8192, 8192 * 4096.0, 1, 0, 0, 0, 1)
    limits = {"max_num_batched_tokens": 8192, "max_num_seqs": 8, "max_model_len": 8192}
    times = [
        cost(model="llama3.1-8b", hardware="h100x8", context_parallel=n, **limits)[1].cycle_s(prompt) for n in (1, 2, 4)
    ]
    assert times[0] > times[1] > times[2]
    assert times[1] > times[0] / 2
    assert times[2] > times[0] / 4


@pytest.mark.parametrize(
    "keys",
    [
        {"model": "llama3.1-8b", "hardware": "h100x8", "context_parallel": 4},
        {"model": "llama3.1-8b", "hardware": "h100x8", "context_parallel": 2, "tensor_parallel": 2},
        {"model": "deepseek-v3", "hardware": "h200x8", "tensor_parallel": 8, "decode_context_parallel": 4},
        {
            "model": "deepseek-v3",
            "hardware": "2*h200x8",
            "context_parallel": 8,
            "decode_context_parallel": 8,
            "expert_parallel": True,
        },
        {
            "model": "deepseek-v3",
            "hardware": "2*h200x8",
            "data_parallel": 16,
            "expert_parallel": True,
            "all2all_backend": "deepep_auto",
        },
    ],
)
def test_a_run_adds_up_what_its_steps_took(keys: dict[str, object]) -> None:
    """Two readings of one set of tables: in the loop, and over the log."""
    r, cost_ = cost(**({"weight_dtype": "fp8"} | keys))
    log = StepLog()
    shapes = [
        BatchShape(0, 0.0, 0, 13, 9000, 1200, 13),
        BatchShape(500, 500 * 250.0, 1, 13, 9000, 1200, 14),
        BatchShape(900, 900 * 300.0, 3, 0, 0, 0, 3),
    ]
    for shape in shapes:
        log.add(0.0, 1, shape, 1.0, 0.0, 1.0)
    after = step_channels(cost_.tables, BatchRows.of_log(log.table()))[:, :N_CLASSES].sum(axis=1)
    for shape, seconds in zip(shapes, after, strict=True):
        assert cost_._batch_s(shape) == pytest.approx(seconds, rel=1e-9)
    assert r.accelerators_per_replica == r.layout.accelerators


def test_experts_get_a_share_of_the_group_and_tokens_their_experts() -> None:
    """DeepSeek-V3 over 16 attention ranks, 64 tokens: each rank sends four, in FP8 and scales, and gets 16 bit back."""
    keys: dict[str, object] = {"data_parallel": 16, "expert_parallel": True}
    sends = Shard(load_model("deepseek-v3"), Layout(**keys, all2all_backend="deepep_auto"), "fp8", "bf16")  # type: ignore[arg-type]
    lines = StepCalls(sends).group(64, graph=True)
    there, back = named(lines, "dispatch"), named(lines, "combine")
    assert isinstance(there.op, Collective)
    assert isinstance(back.op, Collective)
    assert there.op.message_bytes == 4 * 7168 * (1 + 4 / 128)
    assert back.op.message_bytes == 4 * 7168 * 2
    assert there.routing is not None
    assert (there.routing.experts_per_token, there.routing.low_latency, there.op.ranks) == (8, True, 16)
    (eager, _) = [line.routing for line in StepCalls(sends).group(64, graph=False) if line.routing]
    assert eager is not None
    assert not eager.low_latency
    gathers = Shard(load_model("deepseek-v3"), Layout(**keys), "fp8", "bf16")  # type: ignore[arg-type]
    assert named(StepCalls(gathers).group(64), "dispatch").op == Collective("all_gather", 64 * 7168 * 2.0, 16, True)


def test_sending_to_experts_is_quicker_than_to_everybody_over_many_ranks() -> None:
    """32 ranks in four nodes, decodes of 32 each: 8 copies of a token against 31."""
    keys: dict[str, object] = {
        "model": "deepseek-v3",
        "hardware": "4*h200x8",
        "data_parallel": 32,
        "expert_parallel": True,
        "weight_dtype": "fp8",
    }
    batch = BatchShape(0, 0.0, 0, 1024, 1024 * 1000, 1000, 1024)
    times = {
        name: cost(**keys, all2all_backend=name)[1].cycle_s(batch)
        for name in ("allgather_reducescatter", "deepep_low_latency", "deepep_high_throughput")
    }
    assert times["deepep_low_latency"] < times["allgather_reducescatter"]
    assert times["deepep_high_throughput"] < times["allgather_reducescatter"]


def test_tensor_ranks_that_sent_parts_gather_instead_of_adding() -> None:
    keys: dict[str, object] = {"tensor_parallel": 2, "data_parallel": 4, "expert_parallel": True}
    names = {
        backend: [x.name for x in StepCalls(shard("mixtral-8x7b", **keys, all2all_backend=backend)).rank(8)]
        for backend in ("allgather_reducescatter", "deepep_low_latency")
    }
    assert "ffn_all_reduce" in names["allgather_reducescatter"]
    assert "ffn_all_reduce" not in names["deepep_low_latency"]
    assert "ffn_all_gather" in names["deepep_low_latency"]


@pytest.mark.parametrize(
    ("keys", "rule", "nearest"),
    [
        ({"model": "llama3.1-8b", "expert_parallel": True}, "mixture-of-experts", "expert_parallel: false"),
        ({"model": "llama3.1-8b", "pipeline_parallel": 33}, "exceeds the layers", "32"),
        ({"model": "llama3.1-8b", "tensor_parallel": 8, "decode_context_parallel": 2}, "copies of each", "1"),
        ({"model": "llama3.1-8b", "tensor_parallel": 8, "decode_context_parallel": 3}, "does not divide", "2"),
        ({"model": "deepseek-v3", "tensor_parallel": 8, "decode_context_parallel": 6}, "does not divide", "4"),
        ({"model": "deepseek-v3", "context_parallel": 4, "decode_context_parallel": 2}, "must be 1 or equal", "4"),
        ({"model": "qwen3.5-27b", "context_parallel": 2}, "linear attention", "1"),
        ({"model": "llama3.1-8b", "context_parallel": 16}, "must fit", "context_parallel: 8"),
        (
            {"model": "mixtral-8x7b", "data_parallel": 2, "all2all_backend": "deepep_auto"},
            "needs expert_parallel",
            "tr",
        ),
        (
            {
                "model": "mixtral-8x7b",
                "tensor_parallel": 2,
                "expert_parallel": True,
                "all2all_backend": "deepep_low_latency",
            },
            "needs data_parallel",
            "allgather_reducescatter",
        ),
    ],
)
def test_impossible_cuts_are_refused_with_rule_value_and_choice(
    keys: dict[str, object], rule: str, nearest: str
) -> None:
    with pytest.raises(InputError, match=rule) as refused:
        resolved(**({"hardware": "h100x8"} | keys))  # type: ignore[arg-type]
    assert nearest in str(refused.value)
    assert "\n" not in str(refused.value)
