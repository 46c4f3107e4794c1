"""Attention without a mask: square problems as measured, other lengths and head dimensions by stated rules."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.bundles.bundle import Bundle, load_bundle
from calibration.families.noncausal_attention import NonCausalAttentionModel, padded_dim
from calibration.importers.aiconfigurator import read_family
from calibration.operators.cost import MEASURED, ROOFLINE
from calibration.operators.flops_and_bytes import bytes_moved, flops
from calibration.operators.operators import NonCausalAttention, PrefillAttention
from calibration.operators.roofline import roofline_s
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Accelerator

#: 1 PFLOP/s, 1 TB/s: 4 x 1024 x 1024 x 64 FLOPs of one head take 268 ns at the peak.
BOARD = Accelerator("board", "board", 80e9, 1e12, {"bf16": 1e15, "fp32": 1e14}, 700.0, 70.0)
PER_HEAD_S = 4 * 1024 * 1024 * 64 / 1e15


def rows(utilisation: float = 0.5, floor_s: float = 1e-6) -> pd.DataFrame:
    """Square problems at one utilisation, but at least `floor_s`."""
    shapes = [(s, n, h) for s in (1, 4, 16) for n in (128, 1024, 8192) for h in (2, 8)]
    frame = pd.DataFrame(shapes, columns=["sequences", "key_tokens", "n_heads"])
    seconds = 4.0 * frame.sequences * frame.key_tokens**2 * frame.n_heads * 64 / 1e15 / utilisation
    return frame.assign(
        query_tokens=frame.key_tokens,
        head_dim=64,
        kernel="fa2",
        dtype="bf16",
        seconds=np.maximum(seconds, floor_s),
        source="x",
    )


@pytest.fixture(scope="module")
def model() -> NonCausalAttentionModel:
    return NonCausalAttentionModel.fit(rows(), BOARD)


def seconds(model: NonCausalAttentionModel, sequences: float, q: float, k: float, dim: int = 64) -> float:
    return float(model.cost(NonCausalAttention(sequences, q, k, 8, dim, "fa2"), BOARD)[0])


def test_a_measured_square_is_reproduced(model: NonCausalAttentionModel) -> None:
    found, origin = model.cost(NonCausalAttention(4, 1024, 1024, 8, 64, "fa2"), BOARD)
    assert float(found) == pytest.approx(32 * PER_HEAD_S / 0.5, rel=1e-3)
    assert float(origin) == MEASURED


def test_flops_and_bytes_without_a_mask_by_hand() -> None:
    op = NonCausalAttention(2, 100, 30, 4, 64, "fa2")
    assert float(flops(op)) == 4 * 2 * 100 * 30 * 4 * 64
    assert float(bytes_moved(op, BOARD)) == 2 * 2 * (100 + 30) * 4 * 64 * 2  # queries, output, keys and values


def test_many_queries_run_as_more_streams_of_the_key_length(model: NonCausalAttentionModel) -> None:
    """8192 queries on 1024 keys are the 64 blocks of eight squares of 1024."""
    assert seconds(model, 1, 8192, 1024) == pytest.approx(seconds(model, 8, 1024, 1024))


def test_few_queries_walk_over_all_keys(model: NonCausalAttentionModel) -> None:
    """Their blocks are those of the square of 1024, each with eight times as many keys."""
    assert seconds(model, 4, 1024, 8192) == pytest.approx(8 * seconds(model, 4, 1024, 1024), rel=0.05)
    assert seconds(model, 1, 1, 8192) >= float(roofline_s(NonCausalAttention(1, 1, 8192, 8, 64, "fa2"), BOARD))


def test_a_padded_head_takes_the_time_of_the_padded_one(model: NonCausalAttentionModel) -> None:
    assert padded_dim(72, "fa2") == padded_dim(80, "fa2") == 96
    assert seconds(model, 4, 1024, 1024, 72) == pytest.approx(seconds(model, 4, 1024, 1024, 80))
    assert float(model.cost(NonCausalAttention(4, 1024, 1024, 8, 72, "fa2"), BOARD)[1]) == ROOFLINE
    assert float(model.cost(NonCausalAttention(4, 1024, 1024, 8, 64, "fa9"), BOARD)[1]) == ROOFLINE


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(1, 9000), st.integers(1, 9000), st.sampled_from([32, 64, 72, 128]))
def test_time_is_at_least_the_roofline_and_grows_with_sequences(sequences: int, q: int, k: int, dim: int) -> None:
    model = NonCausalAttentionModel.fit(rows(), BOARD)
    one, two = seconds(model, sequences, q, k, dim), seconds(model, 2 * sequences, q, k, dim)
    assert one >= float(roofline_s(NonCausalAttention(sequences, q, k, 8, dim, "fa2"), BOARD)) * (1 - 1e-12)
    assert two >= one * (1 - 1e-9)


def test_slower_matrix_units_alone_slow_attention_only_to_their_own_peak(model: NonCausalAttentionModel) -> None:
    """The measured utilisation is 0.5: half the matrix units suffice, until 90 % of them are used."""
    op, seconds_here = NonCausalAttention(4, 1024, 1024, 8, 64, "fa2"), 32 * PER_HEAD_S / 0.5
    for matrix, vector, expected in ((0.6e15, 1e14, 1.0), (0.6e15, 0.5e14, 2.0), (0.25e15, 1e14, 2.0 / 0.9)):
        other = Accelerator("other", "other", 80e9, 1e12, {"bf16": matrix, "fp32": vector}, 700.0, 70.0)
        found, origin = model.cost(op, other)
        assert float(found) == pytest.approx(seconds_here * expected, rel=1e-3)
        assert float(origin) == ROOFLINE


def test_parts_are_read_back(model: NonCausalAttentionModel) -> None:
    again = NonCausalAttentionModel.from_parts(*model.to_parts())
    assert again.kernels == ["fa2"]
    assert seconds(again, 4, 1024, 1024) == pytest.approx(seconds(model, 4, 1024, 1024), rel=1e-3)


def shipped(name: str) -> Bundle:
    return load_bundle(parse_hardware(name).accelerator)


@pytest.mark.parametrize("name", ["b200", "h100", "h200", "l40s", "rtxpro6000"])
def test_shipped_tables_hold_their_stated_errors(name: str) -> None:
    bundle = shipped(name)
    held_out = {e["region"]: e for e in bundle.provenance["held_out"]["noncausal_attention"]}
    assert held_out["inside"]["median_abs_rel_error"] < 0.05
    assert held_out["beyond"]["median_abs_rel_error"] < 0.10


def test_without_a_mask_attention_is_faster_per_pair_than_the_causal_model() -> None:
    """A causal kernel computes the halves of tiles above the diagonal too, so its utilisation is lower."""
    bundle = shipped("h100")
    causal = bundle.cost(PrefillAttention(1, 4096, 4096**2, 24, 24, 64, "bf16")).seconds
    full = bundle.cost(NonCausalAttention(1, 4096, 4096, 24, 64, "fa3")).seconds
    assert 0.6 < float(full / causal) < 0.95


def test_the_importer_reads_square_problems_and_names_kernels(tmp_path) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path / "h100_sxm" / "encoder_attention" / "vllm" / "0.24.0"
    folder.mkdir(parents=True)
    raw = {"batch_size": [2, 2], "isl": [100, 100], "num_heads": [4, 4], "head_dim": [64, 64], "latency": [0.5, 0.7]}
    kernels = ["vllm_vit_flash_attn_fa3", "a kernel without a name here"]
    pd.DataFrame(raw | {"kernel_source": kernels}).to_parquet(folder / "encoder_attention_perf.parquet")
    found = read_family(tmp_path, "h100_sxm", "noncausal_attention")
    assert found is not None
    assert found[["sequences", "query_tokens", "key_tokens", "n_heads", "kernel", "seconds"]].to_numpy().tolist() == [
        [2.0, 100.0, 100.0, 4, "fa3", 0.0005]
    ]


def test_measured_lengths_that_differ_correct_the_rules_and_are_read_back() -> None:
    """Pooled queries that take three times what the rules say are priced so; square ones stay as they are."""
    plain = NonCausalAttentionModel.fit(rows(), BOARD)
    op = NonCausalAttention(4, 128, 1024, 8, 64, "fa2")
    ruled = float(plain.cost(op, BOARD)[0])
    fields = {"sequences": 4, "query_tokens": 128, "key_tokens": 1024, "n_heads": 8, "head_dim": 64, "kernel": "fa2"}
    pooled = pd.DataFrame([fields | {"dtype": "bf16", "seconds": 3 * ruled, "source": "x"}])
    fitted = NonCausalAttentionModel.fit(pd.concat([rows(), pooled], ignore_index=True), BOARD)
    for model in (fitted, NonCausalAttentionModel.from_parts(*fitted.to_parts())):
        found, origin = model.cost(op, BOARD)
        assert float(found) == pytest.approx(3 * ruled, rel=2e-3)
        assert float(origin) == MEASURED
        assert seconds(model, 4, 1024, 1024) == pytest.approx(seconds(plain, 4, 1024, 1024), rel=2e-3)


def test_a_dtype_has_tables_of_its_own_and_tables_of_two_calibrations_join() -> None:
    own = rows(0.2).assign(kernel="sdpa", dtype="fp32")
    own["seconds"] *= 10.0  # the peak in fp32 is a tenth
    mine, theirs = NonCausalAttentionModel.fit(own, BOARD), NonCausalAttentionModel.fit(rows(), BOARD)
    joined = mine.joined(theirs)
    assert joined.kernels == ["fa2", "sdpa"]
    wide = NonCausalAttention(4, 1024, 1024, 8, 64, "sdpa", "fp32")
    assert joined.covers(wide)
    assert not joined.covers(NonCausalAttention(4, 1024, 1024, 8, 64, "sdpa"))
    measured = float(own[(own.sequences == 4) & (own.key_tokens == 1024) & (own.n_heads == 8)].seconds.iloc[0])
    assert float(joined.cost(wide, BOARD)[0]) == pytest.approx(measured, rel=2e-3)
    assert seconds(joined, 4, 1024, 1024) == pytest.approx(seconds(theirs, 4, 1024, 1024))
