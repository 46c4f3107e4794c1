"""Attention over a window and compressed entries, and residual streams (DeepSeek-V4), in worlds counted by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from calibration.operators.flops_and_bytes import bytes_moved, flops
from calibration.operators.operators import DecodeAttention, Elementwise, Gemm
from catalogs.deployments.layout import Layout
from catalogs.hardware.catalog import parse_hardware
from catalogs.models.catalog import load_model
from catalogs.models.compressed_attention import CompressedAttention
from catalogs.models.layers import LayerGroup, Mlp
from catalogs.models.spec import ModelSpec
from simulator.layers.compressed_attention import LEAST_HEADS, ShardedCompressedAttention
from simulator.layers.operator_call import OperatorCall, norm_calls
from simulator.layers.operator_flow import flow
from simulator.layers.shard import Shard
from simulator.layers.step import fused_rows
from tests.simulator.plants import resolved

#: Window of 4 tokens, entries of 2 tokens of which 3 are selected.
SELECTING = CompressedAttention(
    n_heads=128,
    head_dim=16,
    rope_head_dim=4,
    q_lora_rank=8,
    o_lora_rank=5,
    o_groups=2,
    window_tokens=4,
    compress_ratio=2,
    index_n_heads=3,
    index_head_dim=6,
    index_topk_entries=3,
)

ALL_ENTRIES = dataclasses.replace(SELECTING, index_n_heads=0, index_head_dim=0, index_topk_entries=None)

WINDOW = dataclasses.replace(ALL_ENTRIES, compress_ratio=None)


def block(
    part: CompressedAttention, tp: int = 1, streams: int = 1, kv_dtype: str = "bf16"
) -> ShardedCompressedAttention:
    model = ModelSpec("toy", "", "", 32, 10, (LayerGroup(1, part, Mlp(64)),), residual_streams=streams)
    return ShardedCompressedAttention(Shard(model, Layout(tp), "bf16", kv_dtype), 1, part)


def never_joins(_head_dim: int, _kv_dtype: str) -> bool:
    return False


def vectors_of(part: CompressedAttention, position: int) -> float:
    """The cached vectors that the token at a position reads: its window, and entries of the tokens up to it."""
    entries = 0.0 if part.compress_ratio is None else position / part.compress_ratio
    return min(position, part.window_tokens) + min(entries, part.index_topk_entries or np.inf)


def core(calls: list[OperatorCall]) -> DecodeAttention:
    (op,) = [call.op for call in calls if call.name.startswith("compressed_")]
    assert isinstance(op, DecodeAttention)
    return op


# ---- counts of the model


def test_weights_counted_by_hand() -> None:
    down = 32 * (8 + 16)  # to the compressed query and to the key that is also the value
    query, outputs = 8 * 128 * 16, 128 * 16 * 5 + 2 * 5 * 32
    assert WINDOW.linear_params(32) == down + query + outputs
    compressor = 32 * 2 * 16  # numbers and their weights
    assert ALL_ENTRIES.linear_params(32) == WINDOW.linear_params(32) + compressor
    indexer = 8 * 3 * 6 + 32 * 3
    overlapping = 32 * 2 * 2 * (16 + 6)  # each token is part of two entries, of which the indexer has its own
    assert SELECTING.linear_params(32) == WINDOW.linear_params(32) + overlapping + indexer


@pytest.mark.parametrize("part", [WINDOW, ALL_ENTRIES, SELECTING])
def test_ranks_divide_heads_and_groups_and_keep_the_rest(part: CompressedAttention) -> None:
    whole, half = block(part).linear_params(), block(part, tp=2).linear_params()
    divided = 8 * 128 * 16 + 128 * 16 * 5 + 2 * 5 * 32
    assert whole == part.linear_params(32)
    assert half == whole - divided / 2
    assert part.indivisible_sizes(2) == []
    assert part.indivisible_sizes(4) == ["the 2 groups of the output projection"]


@pytest.mark.parametrize(("alias", "billions"), [("deepseek-v4-flash", 284.3), ("deepseek-v4-pro", 1572.9)])
def test_published_models(alias: str, billions: float) -> None:
    model = load_model(alias)
    assert model.n_params / 1e9 == pytest.approx(billions, abs=0.05)
    assert model.residual_streams == 4


# ---- the cache


def test_a_sequence_keeps_its_window_and_its_entries() -> None:
    """A vector has 16 numbers of 2 bytes; the indexer's key 6 numbers in 8 bit with their share of a scale."""
    key = 6 * (1 + 4 / 128)
    assert block(WINDOW).cache_bytes(100) == 4 * 32
    assert block(WINDOW).cache_bytes(3) == 3 * 32
    assert block(ALL_ENTRIES).cache_bytes(100) == 4 * 32 + 50 * 32
    assert block(SELECTING).cache_bytes(100) == pytest.approx(4 * 32 + 50 * (32 + key))
    assert not SELECTING.uniform_cache


def test_rotary_numbers_stay_in_16_bit() -> None:
    assert SELECTING.entry_bytes(2.0) == 32
    assert SELECTING.entry_bytes(1.0) == 12 + 4 * 2 + 8  # and 8 bytes of scales


def test_an_entry_of_the_published_model_has_the_bytes_of_flashmla() -> None:
    mixer = load_model("deepseek-v4-flash").groups[0].mixer
    assert mixer.entry_bytes(1.0) == 584  # type: ignore[union-attr]


# ---- operators


@pytest.mark.parametrize("part", [WINDOW, ALL_ENTRIES, SELECTING])
@pytest.mark.parametrize("context", [1, 4, 6, 100])
def test_a_decode_reads_its_window_and_its_entries(part: CompressedAttention, context: int) -> None:
    n, mean = np.array([5.0]), np.array([float(context)])
    op = core(list(block(part).decode_calls(n, mean, mean, never_joins)))
    assert float(op.context_tokens[0]) == 5 * vectors_of(part, context) / 2  # type: ignore[index]
    assert op.n_heads == 2 * 128


def test_a_vector_is_read_once_for_keys_and_values() -> None:
    n, mean = np.array([4096.0]), np.array([100.0])
    op = core(list(block(SELECTING).decode_calls(n, mean, mean, never_joins)))
    vectors = 4096 * 7  # 4 of the window, 3 entries
    plain = dataclasses.replace(op, context_tokens=np.zeros(1), max_context_tokens=np.zeros(1))
    unit = parse_hardware("h100").accelerator
    assert float((bytes_moved(op, unit) - bytes_moved(plain, unit))[0]) == pytest.approx(vectors * 16 * 2)
    assert float((flops(op) - flops(plain))[0]) == pytest.approx(vectors * 128 * 2 * 2 * 16)


def test_few_heads_of_a_rank_are_padded() -> None:
    few = dataclasses.replace(SELECTING, n_heads=16)
    op = core(list(block(few).decode_calls(np.ones(1), np.ones(1), np.ones(1), never_joins)))
    assert op.n_heads == 2 * LEAST_HEADS


@pytest.mark.parametrize("part", [WINDOW, ALL_ENTRIES, SELECTING])
@pytest.mark.parametrize(("each", "prior"), [(1, 0), (3, 0), (40, 0), (40, 3), (7, 500)])
def test_the_vectors_of_a_prompt_are_those_of_its_tokens(part: CompressedAttention, each: int, prior: int) -> None:
    """The operators integrate over positions; the sum over a thousand parts of each token comes close to that."""
    op = core(list(block(part).prefill_calls(np.array([2.0]), np.array([float(each)]), np.array([float(prior)]))))
    steps = 1000
    positions = prior + (np.arange(each * steps) + 0.5) / steps
    want = sum(vectors_of(part, p) for p in positions) / steps
    assert float(op.context_tokens[0]) == pytest.approx(2 * want / 2, rel=1e-3)  # type: ignore[index]
    assert float(op.sequences[0]) == 2 * each  # type: ignore[index]


def test_entries_are_selected_once_there_are_more_than_are_read() -> None:
    """Entries stand for 2 tokens and 3 are read, so that the seventh token selects."""

    def names(each: float) -> set[str]:
        calls = block(SELECTING).prefill_calls(np.ones(1), np.array([each]), np.zeros(1))
        return {call.name for call in calls if np.any(call.runs)}

    assert "select_entries" not in names(6.0)
    assert "select_entries" in names(7.0)
    assert "indexer" in names(6.0)


def test_the_output_is_projected_in_groups() -> None:
    found = {call.name: call.op for call in block(SELECTING, tp=2).projection_calls(7)}
    assert found["o_group_proj"] == Gemm(7, 1 * 5, 128 * 16 // 2, "bf16")
    assert found["o_proj"] == Gemm(7, 32, 1 * 5, "bf16")


@pytest.mark.parametrize("stage", ["decode", "prefill"])
def test_the_flow_of_a_layer(stage: str) -> None:
    found = block(SELECTING, streams=4)
    one = np.ones(1)
    calls = list(found.token_calls(one, graph=True))
    calls += (
        found.decode_calls(one, 9 * one, 9 * one, never_joins)
        if stage == "decode"
        else found.prefill_calls(one, 9 * one, one)
    )
    reads = flow(call.name for call in calls)
    assert reads["query_proj"] == {"latent_proj"}
    assert reads["qk_norm"] == {"query_proj"}
    assert reads[f"compressed_{stage}"] == {"kv_write", "select_entries", "compress"}
    assert reads["o_group_proj"] == {f"compressed_{stage}"}
    assert reads["o_proj"] == {"o_group_proj"}
    assert reads["input_norm"] == {"mixer_stream_weights"}
    assert reads["mixer_stream_update"] == {"o_proj"}


# ---- residual streams


def test_the_norm_of_one_stream_is_one_kernel() -> None:
    (call,) = norm_calls(block(WINDOW).shard, "mixer", "input_norm", 3, 7)
    assert call.op == Elementwise("norm", 7, 4 * 32 * 2.0)


def test_several_streams_are_weighed_read_and_written() -> None:
    weigh, norm, update = norm_calls(block(WINDOW, streams=4).shard, "mixer", "input_norm", 3, 7)
    assert weigh.op == Gemm(7, 4 * 4 + 2 * 4, 4 * 32, "bf16")
    assert norm.op == Elementwise("norm", 7, 5 * 32 * 2.0)  # four streams in, one norm out
    assert update.op == Elementwise("norm", 7, 9 * 32 * 2.0)  # four streams and the output in, four streams out


def test_no_all_reduce_normalises_several_streams() -> None:
    def rows(streams: int) -> int:
        found: Any = resolved("llama3.1-70b", "h100x8", engine="trtllm", tensor_parallel=8)
        return fused_rows(dataclasses.replace(found, model=dataclasses.replace(found.model, residual_streams=streams)))

    assert rows(1) > 0
    assert rows(4) == 0
