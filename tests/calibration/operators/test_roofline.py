"""Flops, bytes and roofline seconds of every operator against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from calibration.operators.flops_and_bytes import bytes_moved, flops, stored_bytes
from calibration.operators.operators import (
    OPERATOR_OF,
    Collective,
    DecodeAttention,
    Elementwise,
    Gemm,
    GroupedGemm,
    LinearAttentionScan,
    MlaModule,
    Operator,
    PrefillAttention,
    window_pairs,
)
from calibration.operators.roofline import link_bytes, roofline_s
from catalogs.errors import InputError
from catalogs.hardware.specs import Accelerator

#: 1 Tflop/s in 16 bit, 2 Tflop/s in fp8, 1 GB/s: seconds can be read off.
TOY = Accelerator("toy", "toy", 1e9, 1e9, {"bf16": 1e12, "fp8": 2e12}, 100.0, 10.0)
MLA = {
    "n_heads": 2,
    "hidden_size": 8,
    "q_lora_rank": 4,
    "kv_lora_rank": 4,
    "nope_head_dim": 2,
    "rope_head_dim": 2,
    "v_head_dim": 2,
    "dtype": "bf16",
    "kv_dtype": "bf16",
}
# weights: q 4 * (8 + 2 * 4) = 64, kv down 8 * 6 = 48, kv up 4 * 2 * 4 = 32, out 2 * 2 * 8 = 32
MLA_WEIGHTS = 176

CASES: list[tuple[Operator, float, float]] = [
    (Gemm(2, 3, 5, "bf16"), 60, 2 * (15 + 10 + 6)),
    (Gemm(2, 3, 5, "fp8"), 60, 15 + 10 + 2 * 6),
    (Gemm(2, 3, 5, "int4"), 60, 15 * 0.53125 + 2 * (10 + 6)),  # weight-only: 16-bit activations
    (GroupedGemm(1, 8, 4, 4, 2, 1, "bf16"), 2 * 6 * 8 * 4, 2 * 3 * 8 * 4 * 2 + 2 * 2 * (16 + 12)),
    # two tokens touch 4 (1 - (1 - 2/4)^2) = 3 of 4 experts
    (GroupedGemm(2, 8, 4, 4, 2, 1, "bf16"), 2 * 2 * 6 * 8 * 4, 3 * 3 * 8 * 4 * 2 + 4 * 2 * (16 + 12)),
    # the same with 3 more rows for each of 4 experts, in blocks of 4; each moves 3 * 8 + 14 * 4 bytes
    (GroupedGemm(2, 8, 4, 4, 2, 1, "bf16", 4), 16 * 6 * 8 * 4, 3 * 3 * 8 * 4 * 2 + 4 * 2 * (16 + 12) + 12 * 80),
    # over two ranks a rank has 2 rows and computes the 2 of the other one, and 3 for each of its 2 experts
    (GroupedGemm(2, 8, 4, 4, 2, 2, "bf16", 4), 10 * 6 * 8 * 4, 1.5 * 3 * 8 * 4 * 2 + 2 * 2 * (16 + 12) + 8 * 80),
    # 10 new tokens after 90: pairs 10 * 95; keys seen 100
    (PrefillAttention(1, 10, 950, 4, 2, 8, "bf16"), 4 * 950 * 32, 100 * 2 * 16 * 2 + 2 * 10 * 32 * 2),
    (DecodeAttention(3, 300, 150, 4, 2, 8, "fp8"), 4 * 300 * 32, 300 * 2 * 16 + 2 * 3 * 32 * 2),
    (MlaModule("decode", 1, 1, 0, 10, **MLA), 2 * 176 + 2 * 10 * 2 * 10, 2 * 176 + 10 * 6 * 2 + 2 * 8 * 2),
    (MlaModule("prefill", 1, 10, 50, 0, **MLA), 20 * 176 + 2 * 50 * 2 * 6, 2 * 176 + 10 * 6 * 2 + 20 * 8 * 2),
    (LinearAttentionScan(1, 1, 2, 4, 8, "decode"), 6 * 2 * 32, 2 * 2 * 32 * 4 + 2 * 2 * 12 * 2),
    (Elementwise("norm", 7, 32.0), 0, 224),
    (Collective("all_reduce", 1000, 4), 0, 2000),
]


@pytest.mark.parametrize(("op", "want_flops", "want_bytes"), CASES, ids=lambda c: type(c).__name__)
def test_flops_and_bytes_by_hand(op: Operator, want_flops: float, want_bytes: float) -> None:
    assert flops(op) == pytest.approx(want_flops)
    assert bytes_moved(op, TOY) == pytest.approx(want_bytes)


def test_roofline_takes_the_slower_of_arithmetic_and_memory() -> None:
    assert roofline_s(Gemm(1, 1000, 1000, "bf16"), TOY) == pytest.approx((2e6 + 4e3) / 1e9)
    assert roofline_s(Gemm(1e6, 1000, 1000, "bf16"), TOY) == pytest.approx(max(2e12 / 1e12, 4.002e9 / 1e9))
    fast = Accelerator("fast", "fast", 1e9, 1e15, {"bf16": 1e12, "fp8": 2e12}, 100.0, 10.0)
    assert roofline_s(Gemm(1e6, 1000, 1000, "fp8"), fast) == pytest.approx(1.0)


def test_fields_broadcast() -> None:
    op = Gemm(np.arange(1, 4)[:, None], np.array([16, 32]), 8, "bf16")
    assert flops(op).shape == (3, 2)
    assert flops(op)[2, 1] == flops(Gemm(3, 32, 8, "bf16"))


@pytest.mark.parametrize(
    ("kind", "share"), [("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("send_recv", 1.0)]
)
def test_bytes_over_the_link(kind: str, share: float) -> None:
    assert link_bytes(Collective(kind, 1000, 4)) == pytest.approx(1000 * share)


def test_unknown_dtype_and_cache_names() -> None:
    with pytest.raises(InputError, match="unknown dtype"):
        stored_bytes("bf17")
    assert TOY.cache_bytes == 0


@pytest.mark.parametrize("window", [None, 0, 3, 32, 64, 100])
def test_window_pairs_are_counted_query_by_query(window: int | None) -> None:
    for q, context in ((7, 0), (8, 4), (40, 100), (10, 20), (60, 30), (100, 10)):
        exact = sum(min(context + t + 0.5, window or np.inf) for t in range(q))
        assert float(window_pairs(q, context, window)) == pytest.approx(exact, rel=0.02)
        array = window_pairs(np.array([float(q)]), np.array([float(context)]), np.array([float(window or 0)]))
        assert array[0] == window_pairs(q, context, window)


def test_every_family_stands_in_every_table() -> None:
    """A new operator family: what else must know it."""
    from calibration.families.registry import FAMILIES
    from calibration.families.uncalibrated import DEFAULTS
    from calibration.fitting.cross_validation import GROUPS

    for table in (FAMILIES, DEFAULTS, GROUPS):
        assert set(table) == set(OPERATOR_OF)
