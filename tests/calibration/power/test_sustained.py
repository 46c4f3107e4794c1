"""The clock of boards at their limit: the law of power, what tables show already, and the boards that it holds for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.bundles.bundle import load_bundle
from calibration.operators.cost import MEASURED, Cost
from calibration.operators.operators import DecodeAttention, Gemm, GroupedGemm, Operator, PrefillAttention
from calibration.operators.roofline import compute_s
from calibration.power.model import capped_w
from calibration.power.sustained import (
    CLOCK_EXPONENT,
    REACTION_S,
    at_clock,
    demand_w,
    held_clock,
    lowers_clock,
    slowed_in_table,
)
from catalogs.hardware.catalog import parse_hardware

H200 = parse_hardware("h200").accelerator
EXPERTS = GroupedGemm(4096.0, 4096, 1536, 64, 8, 1, "bf16")
ATTENTION = PrefillAttention(1.0, 8192.0, 8192.0**2 / 2, 64, 8, 128, "bf16")


def lasting(seconds: float, watts: float = 600.0) -> Cost:
    return Cost(np.array(seconds), np.array(watts), np.array(MEASURED))


def test_the_clock_falls_until_the_demand_fits_the_limit() -> None:
    asked_w = np.array([300.0, capped_w(H200), 900.0, 1400.0])
    clock = held_clock(asked_w, H200)
    drawn_w = H200.idle_w + (asked_w - H200.idle_w) * clock ** (1 / CLOCK_EXPONENT)
    assert clock[:2] == pytest.approx([1.0, 1.0])
    assert drawn_w == pytest.approx([300.0, *[capped_w(H200)] * 3])
    assert clock[3] < clock[2] < 1.0


def test_a_kernel_of_the_time_of_reaction_shows_half_of_its_slowdown() -> None:
    alone, seconds = np.full(3, 1.2), np.array([0.0, REACTION_S, 1e6])
    assert slowed_in_table(alone, seconds) == pytest.approx([1.0, 1.1, 1.2])


def test_large_products_would_draw_more_than_the_limit_and_decodes_less() -> None:
    """What the rows of vLLM 0.22 show: products of many rows read 691 W, those of few rows and 800 MB 550 to 610 W."""
    bundle = load_bundle(H200)
    products = [Gemm(m, 8192, 8192, "bf16") for m in (4096.0, 8.0)]
    many_w, few_w = (float(demand_w(op, bundle.cost(op), H200)) for op in products)
    reading = DecodeAttention(8.0, 8.0 * 4096, 4096.0, 64, 8, 128, "bf16")
    assert few_w < capped_w(H200) < many_w
    assert demand_w(reading, bundle.cost(reading), H200) == bundle.cost(reading).watts


def at_share(op: Gemm | GroupedGemm, share: float) -> float:
    """Return the clock of a board that repeats an operator at a share of the peak of its operands."""
    return float(held_clock(demand_w(op, lasting(float(compute_s(op, H200)) / share), H200), H200))


def test_operands_of_8_bits_lower_the_clock_more_than_those_of_16_at_the_same_share_of_their_peaks() -> None:
    """The rows of vLLM 0.22: at 60 % of the peak, products in bf16 take 1.06 to 1.10 times as long, DeepGEMM's 1.2."""
    clocks = {dtype: at_share(Gemm(8192.0, 8192, 8192, dtype), 0.6) for dtype in ("bf16", "fp8", "fp8_block")}
    assert 1 / clocks["bf16"] == pytest.approx(1.08, abs=0.03)
    assert 1 / clocks["fp8_block"] == pytest.approx(1.21, abs=0.03)
    assert clocks["fp8"] == pytest.approx(clocks["fp8_block"], abs=0.01)


def test_experts_draw_more_beside_their_arithmetic_than_products() -> None:
    """The rows of vLLM 0.22 in bf16: experts at half of the peak take 1.14 times as long, products 1.03 to 1.06."""
    many = replace(EXPERTS, tokens=65536.0)
    padded = replace(many, block_rows=128, dtype="fp8_block")
    assert 1 / at_share(many, 0.5) == pytest.approx(1.11, abs=0.03)
    assert 1 / at_share(Gemm(65536.0, 8192, 8192, "bf16"), 0.5) == pytest.approx(1.03, abs=0.03)
    assert at_share(padded, 0.5) > at_share(replace(padded, block_rows=0), 0.5)  # every padded row is counted


@pytest.mark.parametrize("op", [Gemm(4096.0, 8192, 8192, "bf16"), Gemm(4096.0, 8192, 8192, "fp4"), EXPERTS, ATTENTION])
@given(clock=st.floats(0.5, 1.0), seconds=st.floats(1e-5, 0.1))
def test_a_lower_clock_never_makes_an_operator_faster_nor_slower_than_it_is_low(
    op: Operator, clock: float, seconds: float
) -> None:
    there = at_clock(op, lasting(seconds), np.array(clock), H200)
    assert seconds <= float(there.seconds) <= seconds / clock * (1 + 1e-12)
    assert float(there.watts) == 600.0


def test_only_dense_products_of_long_bursts_show_the_limit_in_their_rows() -> None:
    """Both rows reach 80 % of the peak (0.35 TFLOP in 0.44 ms, 35 in 44); the second is of a board at its limit."""
    short, long = (Gemm(m, 8192, 8192, "bf16") for m in (2600.0, 260000.0))
    clock = held_clock(demand_w(short, lasting(0.44e-3), H200), H200)
    assert float(at_clock(short, lasting(0.44e-3), clock, H200).seconds) > 0.44e-3 / float(clock) * 0.97
    assert float(at_clock(long, lasting(44e-3), clock, H200).seconds) < 44e-3 * 1.02
    assert float(at_clock(EXPERTS, lasting(44e-3), clock, H200).seconds) == pytest.approx(44e-3 / float(clock))


def test_boards_without_rows_at_their_limit_keep_the_clock_of_their_tables() -> None:
    names = ("h100", "h200", "b200", "gb200", "a100-80gb", "l40s", "rtxpro6000", "mi300x", "xeon-8480")
    assert [n for n in names if lowers_clock(parse_hardware(n).accelerator)] == ["h100", "h200", "b200", "gb200"]
