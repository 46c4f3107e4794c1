"""Experts with copies: dense products at many rows, reads of weights at few."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calibration.bundles.bundle import Bundle, load_bundle
from calibration.operators.operators import Gemm, GroupedGemm
from calibration.operators.roofline import memory_s
from catalogs.hardware.catalog import parse_hardware

TOKENS = np.array([1.0, 8.0, 64.0, 512.0, 4096.0, 32768.0, 393216.0])

#: DeepSeek-V3 with 32 copies over 32 ranks: nine experts of 2,048 on each.
EXPERTS = GroupedGemm(TOKENS, 7168, 2048, 288, 8, 32, "fp8_block", balanced=True)


@pytest.fixture(scope="module")
def h100() -> Bundle:
    return load_bundle(parse_hardware("h100").accelerator)


def test_many_rows_take_as_long_as_dense_products(h100: Bundle) -> None:
    rows = TOKENS[-1:] * 8 / 32
    dense = [h100.cost(Gemm(rows, n, k, "fp8_block")).seconds for n, k in ((4096, 7168), (7168, 2048))]
    assert h100.cost(replace(EXPERTS, tokens=TOKENS[-1:])).seconds == pytest.approx(dense[0] + dense[1])


def test_few_rows_take_at_least_the_time_to_read_the_weights_of_their_experts(h100: Bundle) -> None:
    """64 tokens choose 8 of 288 experts each, which reaches 83 % of the nine on a rank, each of 44 MB."""
    seconds = float(h100.cost(replace(EXPERTS, tokens=64.0)).seconds)
    reached = 9 * (1 - (1 - 8 / 288) ** 64)
    assert reached == pytest.approx(0.835 * 9, rel=0.01)
    assert seconds >= reached * 3 * 7168 * 2048 / h100.accelerator.memory_bandwidth_bytes_per_s
    assert np.all(h100.cost(EXPERTS).seconds >= memory_s(EXPERTS, h100.accelerator))


def test_more_rows_take_longer_and_equal_loads_less_time_than_unequal_ones(h100: Bundle) -> None:
    seconds = h100.cost(EXPERTS).seconds
    assert np.all(np.diff(seconds[1:]) > 0)
    skewed = h100.cost(replace(EXPERTS, n_experts=256, balanced=False)).seconds
    assert np.all(seconds[3:] < skewed[3:])  # from a row for each expert on


def test_accelerators_without_tables_have_a_roofline(h100: Bundle) -> None:
    bare = replace(h100, models={})
    assert np.all(bare.cost(EXPERTS).seconds >= memory_s(EXPERTS, bare.accelerator))
