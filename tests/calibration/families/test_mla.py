"""MLA blocks: an affine world is reproduced, holes are filled, other shapes scale by physics, table points hold."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from calibration.families.mla import REFERENCE_SHAPE, MlaModel
from calibration.families.uncalibrated import UncalibratedModel
from calibration.importers.aiconfigurator import read_family
from calibration.operators.operators import MlaModule
from calibration.operators.roofline import roofline_s
from catalogs.hardware.catalog import parse_hardware

H200 = parse_hardware("h200").accelerator
SHAPE: dict[str, Any] = dict(REFERENCE_SHAPE)


def decode(sequences: float, context: float, heads: int = 16, dtype: str = "bf16") -> MlaModule:
    return MlaModule("decode", sequences, sequences, 0.0, context, heads, **SHAPE, dtype=dtype, kv_dtype="bf16")


def prefill(chunks: float, tokens: float, pairs: float, context: float = 0.0, heads: int = 16) -> MlaModule:
    return MlaModule("prefill", chunks, tokens, pairs, context, heads, **SHAPE, dtype="bf16", kv_dtype="bf16")


def world() -> pd.DataFrame:
    """decode: 100 us + 1 ns per cached token; prefill: 100 us + 50 ns a token + 0.1 ns a pair; 32 heads double it."""
    rows = []
    for heads in (16, 32):
        for b in (1.0, 2.0, 4.0, 8.0):
            for length in (64.0, 256.0, 1024.0, 4096.0):
                if b * length > 16384:
                    continue
                decode_s = heads / 16 * (100e-6 + 1e-9 * b * length)
                prefill_s = heads / 16 * (100e-6 + 50e-9 * b * length + 1e-10 * b * length**2 / 2)
                common = {"n_heads": heads, "sequences": b, **SHAPE, "dtype": "bf16", "kv_dtype": "bf16"}
                rows.append(
                    {
                        "stage": "decode",
                        "tokens": b,
                        "pairs": 0.0,
                        "context_tokens": b * length,
                        **common,
                        "seconds": decode_s,
                    }
                )
                rows.append(
                    {
                        "stage": "prefill",
                        "tokens": b * length,
                        "pairs": b * length**2 / 2,
                        "context_tokens": 0.0,
                        **common,
                        "seconds": prefill_s,
                    }
                )
    return pd.DataFrame(rows)


def test_an_affine_decode_is_exact_between_lengths() -> None:
    model = MlaModel.fit(world(), H200)
    seconds, origin = model.cost(decode(4.0, 4 * 2500.0), H200)
    assert float(seconds) == pytest.approx(100e-6 + 1e-9 * 10000)
    assert float(origin) == 1.0
    assert float(model.cost(decode(4.0, 4 * 1024.0), H200)[1]) == 0.0
    assert float(model.cost(decode(3.0, 3 * 1024.0), H200)[1]) == 1.0


def test_a_stage_without_rows_is_priced_by_the_roofline() -> None:
    rows = world()
    model = MlaModel.fit(rows[rows.stage == "decode"], H200)
    op = prefill(1.0, 2048.0, 2048.0**2 / 2)
    seconds, origin = model.cost(op, H200)
    default = UncalibratedModel("mla").cost(op, H200)[0]
    assert float(seconds) == pytest.approx(float(default))
    assert float(seconds) > float(roofline_s(op, H200))
    assert float(origin) == 2.0
    assert float(model.cost(decode(4.0, 4096.0), H200)[1]) == 0.0


def test_the_corner_that_did_not_fit_follows_its_neighbours_and_is_not_called_measured() -> None:
    model = MlaModel.fit(world(), H200)
    seconds, origin = model.cost(decode(8.0, 8 * 4096.0), H200)
    assert float(seconds) == pytest.approx(100e-6 + 1e-9 * 8 * 4096, rel=0.10)
    assert float(origin) == 2.0


def test_earlier_context_adds_its_pairs_at_the_marginal_cost() -> None:
    model = MlaModel.fit(world(), H200)
    alone = float(model.cost(prefill(1.0, 1024.0, 1024**2 / 2), H200)[0])
    chunk = prefill(1.0, 1024.0, 1024 * (8192 + 512.0), context=8192.0)
    later, origin = model.cost(chunk, H200)
    projection = 8192 * 2 * 512 * 16 * 256 / (0.6 * H200.flops_for("bf16"))
    assert float(later) == pytest.approx(alone + 1024 * 8192 * 1e-10 + projection, rel=0.05)
    assert float(origin) == 2.0


def test_other_shapes_scale_by_the_roofline_and_so_do_other_dtypes() -> None:
    model = MlaModel.fit(world(), H200)
    reference = decode(1.0, 64.0)
    small = replace(reference, hidden_size=2048, q_lora_rank=0)
    ratio = float(roofline_s(small, H200) / roofline_s(reference, H200))
    seconds, origin = model.cost(small, H200)
    assert float(seconds) == pytest.approx(ratio * float(model.cost(reference, H200)[0]))
    assert float(origin) == 2.0
    narrow, origin = model.cost(replace(reference, dtype="fp8"), H200)
    assert 0.4 < float(narrow / model.cost(reference, H200)[0]) < 0.6
    assert float(origin) == 2.0


def test_parts_round_trip_and_vectors_equal_scalars() -> None:
    model = MlaModel.fit(world(), H200)
    facts, arrays = model.to_parts()
    again = MlaModel.from_parts(json.loads(json.dumps(facts)), arrays)
    b, context = np.array([1.0, 3.0, 8.0, 20.0]), np.array([100.0, 3000.0, 30000.0, 90000.0])
    together, origin = again.cost(replace(decode(1.0, 1.0), sequences=b, tokens=b, context_tokens=context), H200)
    for i in range(len(b)):
        one, o = model.cost(decode(float(b[i]), float(context[i])), H200)
        assert together[i] == pytest.approx(float(one), rel=1e-6)
        assert origin[i] == float(o)


def test_table_points_and_physics(public_data: Path) -> None:
    """H200, DeepSeek-V3 bf16: one sequence over 16,384 tokens takes 183 us on 128 heads (read off the table)."""
    rows = read_family(public_data / "profiles" / "aiconfigurator", "h200_sxm", "mla")
    assert rows is not None
    model = MlaModel.fit(rows, H200)
    part = rows[(rows.stage == "decode") & (rows.dtype == "bf16") & (rows.kv_dtype == "bf16") & (rows.n_heads == 128)]
    op = replace(
        decode(1.0, 1.0, heads=128), sequences=part.sequences.to_numpy(), context_tokens=part.context_tokens.to_numpy()
    )
    seconds, origin = model.cost(op, H200)
    np.testing.assert_allclose(seconds, part.seconds, rtol=0.03)  # rows that fall by noise are pooled
    assert float(np.median(np.abs(seconds / part.seconds.to_numpy() - 1))) < 0.002
    assert (origin == 0).all()
    assert (seconds * 1.02 >= roofline_s(op, H200)).all()
    mid = model.cost(decode(24.0, 24 * 3000.0, heads=128), H200)[0]
    low, high = (float(model.cost(decode(b, b * c, heads=128), H200)[0]) for b, c in ((16.0, 2048.0), (32.0, 4096.0)))
    assert low < float(mid) < high
