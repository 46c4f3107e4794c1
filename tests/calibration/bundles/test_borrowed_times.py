"""Tables of one board on another: by hand, and between two boards of one chip that both have tables."""

from __future__ import annotations

import numpy as np
import pytest

from calibration.bundles.borrowed_times import SAME_CHIP_ERROR, borrowed_cost, same_chip
from calibration.bundles.bundle import load_bundle
from calibration.operators.cost import ROOFLINE_ERROR
from calibration.operators.operators import Collective, DecodeAttention, Gemm, Operator
from calibration.operators.roofline import memory_s, roofline_s
from catalogs.arrays import FloatArray
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Accelerator

FAST = Accelerator("fast", "F", 1e11, 4e12, {"bf16": 1e15}, 700.0, 75.0)
SLOW = Accelerator("slow", "S", 1e11, 2e12, {"bf16": 1e15}, 700.0, 75.0)
HALF = Accelerator("half", "H", 1e11, 2e12, {"bf16": 5e14}, 700.0, 75.0)


class Constant:
    """A family that was measured to take the same time whatever its operator."""

    family = "gemm"

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def cost(self, op: Operator, accelerator: Accelerator) -> tuple[FloatArray, FloatArray]:
        del op, accelerator
        return np.array(self.seconds), np.array(0.0)


def test_the_time_beyond_the_roofline_stays() -> None:
    op = Gemm(1.0, 8192.0, 8192.0, "bf16")  # 134 MB: 33.6 us at 4 TB/s, 67.1 us at 2 TB/s
    more_s = 10e-6
    measured = Constant(float(roofline_s(op, FAST)) + more_s)
    seconds, _ = borrowed_cost(measured, op, FAST, SLOW)  # type: ignore[arg-type]
    assert float(seconds) == pytest.approx(float(roofline_s(op, SLOW)) + more_s)
    back, _ = borrowed_cost(Constant(float(seconds)), op, SLOW, FAST)  # type: ignore[arg-type]
    assert float(back) == pytest.approx(measured.seconds)


def test_a_time_below_the_roofline_keeps_its_share_of_it() -> None:
    op = Gemm(1.0, 8192.0, 8192.0, "bf16")
    cached = Constant(0.5 * float(roofline_s(op, FAST)))
    seconds, _ = borrowed_cost(cached, op, FAST, SLOW)  # type: ignore[arg-type]
    assert float(seconds) == pytest.approx(0.5 * float(roofline_s(op, SLOW)))


def test_collectives_are_taken_as_they_are() -> None:
    seconds, _ = borrowed_cost(Constant(1e-5), Collective("all_reduce", 1e6, 2), FAST, SLOW)  # type: ignore[arg-type]
    assert float(seconds) == 1e-5


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("a100-40gb", "a100-80gb", True),
        ("h100", "h200", True),
        ("mi325x", "mi300x", True),
        ("h100-pcie", "h100", False),
        ("dgx-spark", "rtxpro6000", False),
        ("a100-80gb:2g.20gb", "a100-80gb", False),
    ],
)
def test_boards_of_one_chip(one: str, other: str, alike: bool) -> None:
    boards = [parse_hardware(name).accelerator for name in (one, other)]
    assert same_chip(*boards) is same_chip(*reversed(boards)) is alike
    assert not same_chip(FAST, HALF)


def _products() -> list[Operator]:
    sizes = ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (8192, 8192), (8192, 28672))
    return [Gemm(float(m), float(n), float(k), "bf16") for m in (1, 16, 64, 128) for n, k in sizes]


def _decodes() -> list[Operator]:
    heads = ((32, 32), (32, 8), (16, 4), (8, 8))
    batches = [(b, c) for b in (1, 16, 64, 256) for c in (512, 2048)]
    return [
        DecodeAttention(float(b), float(b * c), float(c), h, kv, 128, "bf16") for b, c in batches for h, kv in heads
    ]


@pytest.mark.parametrize("operators", [_products(), _decodes()])
@pytest.mark.parametrize(("source", "target"), [("h200", "h100"), ("h100", "h200")])
def test_tables_of_one_board_predict_the_other(operators: list[Operator], source: str, target: str) -> None:
    """H100 and H200 were both measured: the rule is right within 4 %, and equal utilisation is not within 6 %."""
    own, other = (load_bundle(parse_hardware(name).accelerator) for name in (source, target))
    errors = []
    for op in operators:
        found, _ = borrowed_cost(own.models[op.family], op, own.accelerator, other.accelerator)
        measured_s = float(other.cost(op).seconds)
        scaled_s = float(own.cost(op).seconds * memory_s(op, other.accelerator) / memory_s(op, own.accelerator))
        errors.append((abs(float(found) / measured_s - 1.0), abs(scaled_s / measured_s - 1.0)))
    by_rule, by_utilisation = np.median(errors, axis=0)
    assert by_rule < 0.04
    assert by_utilisation > 0.06


def test_a_bundle_that_is_borrowed_within_a_chip_says_where_from() -> None:
    small, large = (load_bundle(parse_hardware(name).accelerator) for name in ("a100-40gb", "a100-80gb"))
    assert small.transferred
    assert small.measured_on == large.accelerator
    assert large.measured_on is None
    assert load_bundle(parse_hardware("h100-pcie").accelerator).measured_on is None
    op = Gemm(16.0, 4096.0, 4096.0, "bf16")
    more_s = float(memory_s(op, small.accelerator) - memory_s(op, large.accelerator))
    assert float(small.cost(op).seconds) == pytest.approx(float(large.cost(op).seconds) + more_s, rel=1e-9)
    assert float(large.cost(op).origin) <= float(small.cost(op).origin) == 1.0
    beyond = Gemm(16.0, 4096.0, 4096.0, "fp4")
    assert float(small.cost(beyond).origin) == 2.0
    error = large.relative_error("gemm")
    assert small.relative_error("gemm") == pytest.approx((error**2 + SAME_CHIP_ERROR**2) ** 0.5)


@pytest.mark.parametrize(
    ("name", "lender"), [("h100", None), ("h100-nvl", "h100"), ("a100-40gb", "a100-80gb"), ("l4", None)]
)
def test_a_bundle_names_the_accelerator_that_lends_its_times(name: str, lender: str | None) -> None:
    assert load_bundle(parse_hardware(name).accelerator).borrowed_from == lender


@pytest.mark.parametrize(("name", "error"), [("h100", None), ("l20", ROOFLINE_ERROR), ("a100-40gb", 0.0), ("l4", None)])
def test_another_chip_adds_an_error_to_the_times_that_it_lends(name: str, error: float | None) -> None:
    assert load_bundle(parse_hardware(name).accelerator).borrowed_error == error
