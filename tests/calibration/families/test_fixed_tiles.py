"""FlashInfer's FP8 kernel of fixed tiles: counted by hand, and in the models that price it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from calibration.families.fixed_tiles import (
    FLASHINFER,
    MEMORY_SHARE,
    PASS_S,
    QUANTISE_S,
    START_S,
    TABLED,
    WAVE_S,
    fixed_tile_s,
    layer_s,
    tile_rows,
)
from calibration.families.gemm import GemmModel
from calibration.operators.cost import ROOFLINE
from calibration.operators.operators import Gemm
from calibration.operators.roofline import roofline_s
from catalogs.hardware.catalog import list_hardware, parse_hardware
from catalogs.hardware.specs import Accelerator

B200 = parse_hardware("b200").accelerator
ROWS = np.array([1.0, 32.0, 256.0, 4096.0, 16384.0])


BLACKWELL = [unit for name in list_hardware() if (unit := parse_hardware(name).accelerator).is_data_center_blackwell]


def product(m: float, n: int, k: int) -> float:
    return float(fixed_tile_s(Gemm(m, n, k, FLASHINFER), B200))


@pytest.mark.parametrize(
    ("n", "k", "rows"), [(576, 7168, 32), (4096, 2048, 32), (24576, 1536, 32), (7168, 2048, 16), (8192, 256, 8)]
)
def test_the_shape_of_the_weights_chooses_the_tile(n: int, k: int, rows: int) -> None:
    assert float(tile_rows(np.array(float(n)), np.array(float(k)))) == rows


def test_tiles_that_run_at_once_take_the_time_of_one() -> None:
    """2,048 columns are 16 tiles, so nine tiles of rows fill 144 of 148 multiprocessors; a tenth starts a new wave."""
    wave_s = WAVE_S + 8 * PASS_S  # 1,024 values of k
    assert product(1.0, 2048, 1024) == pytest.approx(START_S + wave_s)
    assert product(9 * 32.0, 2048, 1024) == product(1.0, 2048, 1024)
    assert product(9 * 32.0 + 1.0, 2048, 1024) == pytest.approx(START_S + 2 * wave_s)


def test_a_slice_with_half_of_the_multiprocessors_starts_a_wave_after_half_of_the_tiles() -> None:
    """74 multiprocessors hold four tiles of rows by 16 of columns; a fifth starts a new wave."""
    half = replace(B200, multiprocessors=B200.multiprocessors // 2)
    few, more = (float(fixed_tile_s(Gemm(m, 2048, 1024, FLASHINFER), half)) for m in (4 * 32.0, 4 * 32.0 + 1.0))
    assert few == product(1.0, 2048, 1024)
    assert more == pytest.approx(few + WAVE_S + 8 * PASS_S)


@pytest.mark.parametrize("unit", BLACKWELL, ids=lambda unit: unit.name)
def test_the_catalog_states_the_multiprocessors_of_every_board_that_has_the_kernel(unit: Accelerator) -> None:
    assert unit.multiprocessors > 0


def test_weights_beyond_the_cache_are_read_again_for_every_tile_of_rows() -> None:
    weight_bytes = 24576 * 7168
    assert weight_bytes > B200.cache_bytes
    once_s = weight_bytes / (MEMORY_SHARE * B200.memory_bandwidth_bytes_per_s)
    assert product(64 * 32.0, 24576, 7168) == pytest.approx(START_S + 64 * once_s)


def test_more_rows_never_take_less_time() -> None:
    rows = np.arange(1.0, 4000.0)
    for n, k in ((576, 7168), (7168, 2048), (24576, 7168)):
        assert (np.diff(fixed_tile_s(Gemm(rows, n, k, FLASHINFER), B200)) >= 0.0).all()


def test_the_kernel_that_quantises_the_input_is_added() -> None:
    few, many = Gemm(1.0, 7168, 2048, FLASHINFER), Gemm(1e6, 7168, 2048, FLASHINFER)
    assert float(layer_s(few, B200) - fixed_tile_s(few, B200)) == pytest.approx(QUANTISE_S)
    moved_s = 3e6 * 2048 / (MEMORY_SHARE * B200.memory_bandwidth_bytes_per_s)
    assert float(layer_s(many, B200) - fixed_tile_s(many, B200)) == pytest.approx(moved_s)


@pytest.fixture
def tabled() -> GemmModel:
    """A model of block-scaled products at their roofline."""
    sizes = (128.0, 512.0, 2048.0, 8192.0)
    m, n, k = (a.ravel() for a in np.meshgrid(ROWS, sizes, sizes))
    seconds = roofline_s(Gemm(m, n, k, TABLED), B200)
    return GemmModel.fit(pd.DataFrame({"dtype": TABLED, "m": m, "n": n, "k": k, "seconds": seconds}), B200)


def test_a_table_of_other_kernels_does_not_price_it(tabled: GemmModel) -> None:
    op = Gemm(ROWS, 2048, 2048, FLASHINFER)
    seconds, origin = tabled.cost(op, B200)
    assert seconds.tolist() == layer_s(op, B200).tolist()
    assert (origin == ROOFLINE).all()  # an estimate
    assert "FlashInfer" in str(tabled.notice(op, B200))
    assert float(seconds[-1]) > 3.0 * float(tabled.cost(Gemm(ROWS, 2048, 2048, TABLED), B200)[0][-1])


def test_with_few_values_of_k_the_engine_runs_another_kernel(tabled: GemmModel) -> None:
    narrow = tabled.cost(Gemm(ROWS, 2048, 128, FLASHINFER), B200)[0]
    assert narrow.tolist() == tabled.cost(Gemm(ROWS, 2048, 128, TABLED), B200)[0].tolist()
