"""Scans of linear attention: utilisation by the size of the states and the length of a prompt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.families.linear_attention import LinearAttentionModel
from calibration.families.uncalibrated import UncalibratedModel
from calibration.importers.aiconfigurator import read_family
from calibration.operators.operators import LinearAttentionScan
from calibration.operators.roofline import roofline_s
from catalogs.hardware.catalog import parse_hardware

H100 = parse_hardware("h100").accelerator


def _scan(tokens: float, sequences: float, heads: int = 8, stage: str = "prefill") -> LinearAttentionScan:
    return LinearAttentionScan(tokens, sequences, heads, 128, 128, stage)


def _row(op: LinearAttentionScan, seconds: float) -> dict[str, object]:
    sizes = {"n_heads": op.n_heads, "key_head_dim": op.key_head_dim, "value_head_dim": op.value_head_dim}
    return {"tokens": op.tokens, "sequences": op.sequences, **sizes, "stage": op.stage, "seconds": seconds}


def _chain_s(op: LinearAttentionScan) -> float:
    """A kernel whose chunks of 64 tokens follow each other at 2 us, beside a throughput of 5 TFLOP/s a state value."""
    each = float(op.tokens) / float(op.sequences)
    return 10e-6 + each / 64 * 2e-6 + float(op.tokens) * op.n_heads * 1e-9


CHAIN = [
    _row(op, _chain_s(op))
    for tokens in (64.0, 256.0, 1024.0, 4096.0, 16384.0)
    for sequences in (1.0, 4.0, 16.0)
    for op in [_scan(tokens * sequences, sequences)]
]
MODEL = LinearAttentionModel.fit(pd.DataFrame(CHAIN), H100)


def test_measured_sizes_take_their_measured_time() -> None:
    for row in CHAIN:
        seconds, origin = MODEL.cost(_scan(row["tokens"], row["sequences"]), H100)  # type: ignore[arg-type]
        assert float(seconds) == pytest.approx(row["seconds"], rel=1e-6)
        assert float(origin) == 0.0


def test_one_long_prompt_takes_longer_than_many_short_ones_of_as_many_tokens() -> None:
    """16,384 tokens: 256 chunks in turn at 2 us are 512 us more than 16 prompts of 16 chunks each (32 us)."""
    long, short = (float(MODEL.cost(_scan(16384.0, n), H100)[0]) for n in (1.0, 16.0))
    assert long - short == pytest.approx(480e-6, rel=1e-6)


def test_heads_and_sequences_count_alike() -> None:
    """Two sequences of eight heads are the states of one sequence of sixteen."""
    both = [float(MODEL.cost(op, H100)[0]) for op in (_scan(8192.0, 8.0, 8), _scan(4096.0, 4.0, 16))]
    assert both[0] == pytest.approx(both[1])


@given(st.floats(1.0, 1e6), st.floats(1.0, 100.0), st.floats(1.0, 4.0))
def test_time_never_falls_as_a_prompt_gets_longer(tokens: float, sequences: float, factor: float) -> None:
    times = [float(MODEL.cost(_scan(n * sequences, sequences), H100)[0]) for n in (tokens, tokens * factor)]
    assert times[1] >= times[0] * (1 - 1e-9)
    assert times[0] >= MODEL.least_s["prefill"]


def test_a_stage_without_rows_keeps_the_stated_efficiency() -> None:
    op = _scan(64.0, 64.0, stage="decode")
    seconds, origin = MODEL.cost(op, H100)
    assert float(seconds) == float(UncalibratedModel("linear_attention").cost(op, H100)[0])
    assert float(origin) == 2.0


def test_another_accelerator_reaches_the_same_utilisation() -> None:
    h200, op = parse_hardware("h200").accelerator, _scan(16384.0, 4.0)
    ratio = float(roofline_s(op, h200)) / float(roofline_s(op, H100))
    assert float(MODEL.cost(op, h200)[0]) == pytest.approx(float(MODEL.cost(op, H100)[0]) * ratio)


def test_a_stored_model_is_the_same_to_the_precision_of_its_arrays() -> None:
    stored = LinearAttentionModel.from_parts(*MODEL.to_parts())
    op = _scan(np.array([100.0, 5000.0]), 2.0)  # type: ignore[arg-type]
    assert stored.cost(op, H100)[0] == pytest.approx(MODEL.cost(op, H100)[0], rel=2e-3)


def test_public_rows_are_those_of_the_scan_alone(public_data: Path) -> None:
    """SGLang on B200: the convolution before a scan is another row, and one prompt of 8,192 tokens over eight heads
    takes more than twice as long as its share of 16."""
    tables = public_data / "profiles" / "aiconfigurator"
    rows = read_family(tables, "b200_sxm", "linear_attention", "sglang")
    assert rows is not None
    assert not rows.kernel.str.contains("conv").any()
    accelerator = parse_hardware("b200").accelerator
    model = LinearAttentionModel.fit(rows, accelerator)
    alone, shared = (float(model.cost(_scan(8192.0 * n, n), accelerator)[0]) / n for n in (1.0, 16.0))
    assert alone > 2 * shared
    assert float(model.cost(_scan(8192.0, 1.0), accelerator)[0]) == pytest.approx(324e-6, rel=0.1)
