"""The power model: the form of its formula, its file, and its predictions for boards it was not fitted on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.operators.operators import DecodeAttention, Elementwise, Gemm, GroupedGemm, MlaModule
from calibration.power.model import (
    GROUPS,
    MOST_DEMAND,
    PowerCurve,
    PowerModel,
    computing_share,
    group_of,
    load_power,
)
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Accelerator

H200 = Accelerator("h200", "H200", 143771 * 2**20, 4.8e12, {"bf16": 989e12, "fp8": 1979e12}, 700.0, 75.0)
CURVE = PowerCurve(base=0.3, joules_per_byte=60e-12, compute=0.5)
MODEL = PowerModel(dict.fromkeys(GROUPS, CURVE))
fractions = st.floats(0.0, 1.0)


@given(fractions, fractions, fractions, fractions)
def test_power_never_falls_as_utilisation_rises_and_demand_stays_in_reason(
    a: float, b: float, c: float, d: float
) -> None:
    low, high = MODEL.watts("gemm", np.array([min(a, b), max(a, b)]), np.array([min(c, d), max(c, d)]), H200)
    assert H200.idle_w < low <= high <= MOST_DEMAND * H200.tdp_w


def test_the_formula_by_hand() -> None:
    # 75 + 625 * (0.3 + 0.5 * 0.04) + 60e-12 * 0.5 * 4.8e12 = 75 + 200 + 144
    assert MODEL.watts("gemm", np.array(0.04), np.array(0.5), H200) == pytest.approx(419.0)


def test_a_byte_costs_what_it_costs_whatever_the_bandwidth() -> None:
    slower = Accelerator("h100", "H100", 80 * 2**30, 3.35e12, H200.peak_flops, 700.0, 75.0)
    fast, slow = (float(MODEL.watts("gemm", np.array(0.0), np.array(1.0), a)) for a in (H200, slower))
    assert fast - slow == pytest.approx(60e-12 * (4.8e12 - 3.35e12))


def test_operators_know_their_group() -> None:
    mla = (1.0, 1.0, 1.0, 1.0, 16, 7168, 1536, 512, 128, 64, 128, "fp8_block", "bf16")
    assert group_of(Gemm(1, 8, 8, "bf16")) == group_of(Gemm(1, 8, 8, "fp8")) == "gemm"
    assert group_of(Gemm(1, 8, 8, "fp8_block")) == "gemm_fp8_block"
    assert group_of(GroupedGemm(1, 8, 8, 4, 2, 1, "fp8_block")) == "moe"
    assert group_of(DecodeAttention(1, 1, 1, 8, 8, 64, "bf16")) == "decode_attention"
    assert group_of(MlaModule("decode", *mla)) == "mla_decode"
    assert group_of(MlaModule("prefill", *mla)) == "mla_prefill"
    assert group_of(Elementwise("norm", 1, 1.0)) == "other"


@pytest.mark.parametrize("broken", [{}, {"curves": {"gemm": {}}}, {"curves": {"gemm": {"base": -1}}}])
def test_a_broken_model_file_is_one_line(broken: dict[str, object]) -> None:
    with pytest.raises(InputError):
        PowerModel.from_json(broken)


def test_a_negative_coefficient_is_refused() -> None:
    raw = MODEL.to_json()
    raw["curves"]["gemm"]["base"] = -0.1
    with pytest.raises(InputError, match="negative"):
        PowerModel.from_json(raw)


def test_round_trip() -> None:
    assert PowerModel.from_json(MODEL.to_json()).curves == MODEL.curves


def test_streaming_weights_on_a_board_of_other_bandwidth() -> None:
    """H100 and B200 have no rows. Decode steps of dense models at a handful of sequences stream weights at 2.2 TB/s of
    an H100 and draw 440 to 510 W (public serving runs); at 4.2 TB/s of a B200, 760 to 850 W."""
    power = load_power()
    for name, rate, low, high in (("h100", 2.2e12, 0.6, 0.75), ("b200", 4.2e12, 0.68, 0.87)):
        unit = parse_hardware(name).accelerator
        share = float(power.watts("gemm", np.array(0.02), np.array(rate / unit.memory_bandwidth_bytes_per_s), unit))
        assert low < share / unit.tdp_w < high


def _experts(tokens: float, chosen: int, ranks: int) -> GroupedGemm:
    return GroupedGemm(tokens, 4096, 1024, 64, chosen, ranks, "bf16")


@given(st.floats(1.0, 1e5), st.integers(1, 8), st.sampled_from([1, 2, 4, 8, 16]))
def test_the_mean_rank_never_computes_longer_than_the_busiest(tokens: float, chosen: int, ranks: int) -> None:
    share = float(computing_share(_experts(tokens, chosen, ranks)))
    assert 0.0 < share <= 1.0
    if ranks == 1:
        assert share == 1.0


def test_the_share_of_the_mean_rank_is_that_of_drawn_routings() -> None:
    """Tokens choose 2 of 64 experts evenly; the rank of 8 with the most active experts sets the time."""
    draw = np.random.default_rng(0)
    for tokens in (4, 16, 64):
        active = np.zeros((400, 64), dtype=bool)
        for run in active:
            for _ in range(tokens):
                run[draw.choice(64, 2, replace=False)] = True
        held = active.reshape(400, 8, 8).sum(axis=2)
        drawn = held.mean() / held.max(axis=1).mean()
        assert float(computing_share(_experts(float(tokens), 2, 8))) == pytest.approx(drawn, rel=0.1)


def test_ranks_wait_for_few_tokens_and_not_for_many() -> None:
    tokens = np.array([1.0, 8.0, 64.0, 1e4])
    shares = computing_share(GroupedGemm(tokens, 4096, 1024, 64, 1, 8, "bf16"))
    assert shares[0] == pytest.approx(1 / 8)  # one expert on one of eight ranks
    assert (np.diff(shares) > 0).all()
    assert shares[-1] == pytest.approx(1.0)


def test_a_rank_that_waits_draws_the_base_of_a_collective() -> None:
    waits = PowerModel({**dict.fromkeys(GROUPS, CURVE), "collective": PowerCurve(0.1, 0.0, 0.0)})
    half = np.array(0.5)
    op = _experts(1.0, 1, 8)  # an eighth of the ranks computes
    full_w = float(waits.watts("moe", half, half, H200))
    assert float(waits.operator_w(op, half, half, H200)) == pytest.approx(full_w - 0.875 * 0.2 * 625.0)
    assert float(waits.operator_w(Gemm(1, 8, 8, "bf16"), half, half, H200)) == float(
        waits.watts("gemm", half, half, H200)
    )
