"""The power model: the form of its formula, its file, and its predictions for boards it was not fitted on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.operators.operators import DecodeAttention, Elementwise, Gemm, GroupedGemm, MlaModule
from calibration.power.model import GROUPS, MOST_DEMAND, PowerCurve, PowerModel, group_of, load_power
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
