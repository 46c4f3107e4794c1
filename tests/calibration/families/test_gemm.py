"""Products that no table has: fp32 where bf16 products are known, and products narrower than a tile."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from calibration.families.gemm import PAD_MARGIN, SMALLEST, VECTOR_EFFICIENCY, GemmModel
from calibration.operators.operators import Gemm
from calibration.operators.roofline import roofline_s
from catalogs.hardware.catalog import parse_hardware

H100 = parse_hardware("h100").accelerator
SIZES = (64, 256, 1024, 4096, 8192)
ROWS = (1, 16, 256, 4096, 8192)
LATENCY_S = 4e-6


def bf16_model(sizes: tuple[int, ...] = SIZES) -> GemmModel:
    """A model of bf16 products that take their roofline and a latency that no size changes."""
    shapes = [(m, n, k) for m in ROWS for n in sizes for k in sizes]
    m, n, k = (np.array(column, dtype=np.float64) for column in zip(*shapes, strict=True))
    seconds = roofline_s(Gemm(m, n, k, "bf16"), H100) + LATENCY_S
    return GemmModel.fit(pd.DataFrame({"dtype": "bf16", "m": m, "n": n, "k": k, "seconds": seconds}), H100)


@pytest.mark.parametrize("rows", [1.0, 16.0, 256.0, 4096.0, 8192.0])
def test_fp32_products_start_like_bf16_ones_and_run_on_vector_units(rows: float) -> None:
    """The latency counts once, however much slower the arithmetic is."""
    model = bf16_model()
    narrow, wide = Gemm(rows, 256.0, 4096.0, "bf16"), Gemm(rows, 256.0, 4096.0, "fp32")
    seconds = float(model.cost(wide, H100)[0])
    further = float(roofline_s(wide, H100) - roofline_s(narrow, H100)) / VECTOR_EFFICIENCY
    assert seconds == pytest.approx(float(model.cost(narrow, H100)[0]) + further)
    assert seconds == pytest.approx(float(roofline_s(narrow, H100)) + LATENCY_S + further, rel=0.05)


def test_an_fp32_product_is_an_estimate_that_never_beats_its_roofline() -> None:
    model, rows = bf16_model(), np.geomspace(1.0, 16_384.0, 29)
    wide = Gemm(rows, 256.0, 3072.0, "fp32")
    seconds, origin = model.cost(wide, H100)
    assert (seconds >= roofline_s(wide, H100)).all()
    assert (seconds >= model.cost(Gemm(rows, 256.0, 3072.0, "bf16"), H100)[0]).all()
    assert (origin == 2.0).all()
    assert model.notice(wide, H100) == "gemm in fp32: not measured, bf16 latency and the fp32 peak"
    assert model.notice(Gemm(rows, 256.0, 3072.0, "bf16"), H100) is None


def test_a_product_narrower_than_a_tile_takes_as_long_as_a_whole_one() -> None:
    """Eight columns take the time of 64."""
    model, rows = bf16_model(), np.array([1.0, 16.0, 4096.0])
    for op, least in (
        (Gemm(rows, 8.0, 4096.0, "bf16"), Gemm(rows, float(SMALLEST), 4096.0, "bf16")),
        (Gemm(rows, 4096.0, 8.0, "bf16"), Gemm(rows, 4096.0, float(SMALLEST), "bf16")),
    ):
        seconds, origin = model.cost(op, H100)
        assert seconds.tolist() == model.cost(least, H100)[0].tolist()
        assert (origin == 2.0).all()  # an estimate, not a measurement
    assert (model.cost(Gemm(rows, 256.0, 4096.0, "bf16"), H100)[1] < 2.0).all()


def test_a_product_wider_than_a_tile_is_not_priced_as_the_narrowest_row() -> None:
    """A table of large products (some cards have 4096 and more only) leaves smaller ones to the roofline."""
    model, rows = bf16_model(sizes=(4096, 8192)), np.array([4096.0])
    small, large = (model.cost(Gemm(rows, n, n, "bf16"), H100)[0] for n in (896.0, 4096.0))
    assert (small < large / 4).all()


def test_more_rows_save_no_time_where_the_table_has_holes() -> None:
    """A large product was timed with 64 rows and a small, inefficient one with 8: neither fills the other's time."""
    small, large = (1024.0, 1024.0), (8192.0, 8192.0)
    shapes = [(8.0, *small, 0.05), (8.0, 8192.0, 1024.0, 0.05), (8.0, 1024.0, 8192.0, 0.05), (64.0, *large, 0.8)]
    m, n, k, efficiency = np.array(shapes).T
    seconds = roofline_s(Gemm(m, n, k, "bf16"), H100) / efficiency
    rows = pd.DataFrame({"dtype": "bf16", "m": m, "n": n, "k": k, "seconds": seconds})
    model = GemmModel.fit(rows, H100)
    few, many = model.cost(Gemm(np.array([8.0, 64.0]), *large, "bf16"), H100)[0]
    assert few <= PAD_MARGIN * many * (1 + 1e-6)
    assert float(many) == pytest.approx(float(seconds[-1]), rel=0.12)
