"""LLMServingSim and Vidur rows: sizes of the layers, the split of attention, units that physics would refuse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from calibration.families.decode_attention import DEFAULT_SKEW_ALPHA
from calibration.importers import llmservingsim, vidur
from calibration.rows.dataset import OPERATOR_COLUMNS, check_rows
from calibration.rows.physics_check import gate
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware


@pytest.fixture(scope="module")
def rtx4090(public_data: Path) -> dict[str, pd.DataFrame]:
    return llmservingsim.import_profiles(public_data / "profiles" / "llmservingsim" / "perf", "rtx4090")


def test_rows_keep_the_schema(rtx4090: dict[str, pd.DataFrame]) -> None:
    assert set(rtx4090) == {"gemm", "elementwise", "decode_attention", "prefill_attention", "mixed_attention"}
    for family, rows in rtx4090.items():
        assert family in OPERATOR_COLUMNS
        assert len(check_rows(family, rows)) == len(rows)


def test_layer_sizes_of_llama_8b(rtx4090: dict[str, pd.DataFrame]) -> None:
    sizes = rtx4090["gemm"].groupby("kernel")[["n", "k"]].first()
    found = {name: (float(row["n"]), float(row["k"])) for name, row in sizes.iterrows()}
    assert found["qkv_proj"] == (6144, 4096)
    assert found["gate_up_proj"] == (28672, 4096)
    assert found["lm_head"] == (128256, 4096)


def test_weights_stream_below_bandwidth_and_a_slip_of_units_is_refused(rtx4090: dict[str, pd.DataFrame]) -> None:
    accelerator = parse_hardware("rtx4090").accelerator
    assert gate("gemm", rtx4090["gemm"], accelerator)[1].n_rejected == 0
    one = rtx4090["gemm"][(rtx4090["gemm"].m == 1) & (rtx4090["gemm"].kernel == "gate_up_proj")]
    rate = float(one.n.iloc[0] * one.k.iloc[0] * 2 / one.seconds.iloc[0])
    assert 0.85 < rate / accelerator.memory_bandwidth_bytes_per_s < 1.0
    slipped = rtx4090["gemm"].assign(seconds=rtx4090["gemm"].seconds * 1e-3)  # ns for us
    assert gate("gemm", slipped, accelerator)[1].n_rejected == len(slipped)


def test_attention_rows_are_split_by_what_they_hold(rtx4090: dict[str, pd.DataFrame]) -> None:
    decode, prefill = rtx4090["decode_attention"], rtx4090["prefill_attention"]
    assert (decode.context_tokens == decode.sequences * decode.max_context_tokens).all()
    assert (prefill.pairs >= prefill.tokens**2 / 2).all()
    assert set(rtx4090["mixed_attention"].chunks.unique()) == {1.0}


def test_experts_are_timed_at_the_number_balanced_routing_touches(public_data: Path) -> None:
    """One token of eight experts: 50.2 us, a table point. 2,048 tokens touch all 128: 1,066.6 us."""
    tables = llmservingsim.import_profiles(public_data / "profiles" / "llmservingsim" / "perf", "rtxpro6000")
    moe = tables["moe"].set_index("tokens").seconds
    assert moe.loc[1.0] == pytest.approx(50.2e-6, rel=0.01)
    assert moe.loc[2048.0] == pytest.approx(1066.6e-6, rel=0.01)
    assert (np.diff(moe.to_numpy()) > 0).all()


def test_unknown_hardware_names_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="rtx4090"):
        llmservingsim.import_profiles(tmp_path, "h100")
    with pytest.raises(InputError, match="a100-80gb"):
        vidur.import_profiles(tmp_path, "h100")


def test_vidur_rows_obey_physics(public_data: Path) -> None:
    tables = vidur.import_profiles(public_data / "profiles" / "vidur")
    a100 = parse_hardware("a100-80gb").accelerator
    assert set(tables) == {"gemm", "prefill_attention", "decode_attention"}
    for family, rows in tables.items():
        assert gate(family, check_rows(family, rows), a100)[1].n_rejected == 0


def test_the_skew_constant_lies_among_the_public_means(public_data: Path) -> None:
    """Decode-only buckets, weighted by samples, one mean for each profile."""
    perf = public_data / "profiles" / "llmservingsim" / "perf"
    tables = [pd.read_csv(file) for file in sorted(perf.glob("*/*/*/bf16/tp*/skew_fit.csv"))]
    decodes = [table[table.pc == 0] for table in tables]
    means = [float(np.average(part.alpha, weights=part.n_samples)) for part in decodes]
    assert len(means) >= 5
    assert min(means) < DEFAULT_SKEW_ALPHA < max(means)
    assert abs(float(np.median(means)) - DEFAULT_SKEW_ALPHA) < 0.02
