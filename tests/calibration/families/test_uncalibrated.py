"""Costs of families without measurements: the roofline over a stated efficiency."""

from __future__ import annotations

import numpy as np
import pytest

from calibration.families.uncalibrated import DEFAULTS, UncalibratedModel
from calibration.operators.operators import LinearAttentionScan
from calibration.operators.roofline import roofline_s
from catalogs.hardware.catalog import parse_hardware

H100 = parse_hardware("h100").accelerator


def _scan(tokens: float, sequences: float, stage: str) -> LinearAttentionScan:
    return LinearAttentionScan(tokens, sequences, 128, 128, 80, stage)


@pytest.mark.parametrize("family", DEFAULTS)
def test_no_default_is_faster_than_the_roofline(family: str) -> None:
    default = DEFAULTS[family]
    for each in (default, default.prompts or default):
        assert 0.0 < each.efficiency <= 1.0
        assert each.floor_s > 0.0


def test_a_decode_streams_the_state_at_the_rate_of_the_public_tables() -> None:
    """A state of 128 x 128 x 80 in fp32 is read and written once: 10.5 MB a sequence, 80 % of 3.35 TB/s."""
    seconds, origin = UncalibratedModel("linear_attention").cost(_scan(256.0, 256.0, "decode"), H100)
    assert float(seconds) == pytest.approx(256 * 2 * 128 * 128 * 80 * 4 / 3.35e12 / 0.8, rel=0.02)
    assert float(origin) == 2.0


def test_prompts_have_an_efficiency_of_their_own() -> None:
    model = UncalibratedModel("linear_attention")
    prompt, decode = _scan(4096.0, 1.0, "prefill"), _scan(4096.0, 1.0, "decode")
    ratio = float(model.cost(prompt, H100)[0]) / float(model.cost(decode, H100)[0])
    assert ratio == pytest.approx(8.0, rel=1e-6)
    assert float(roofline_s(prompt, H100)) == float(roofline_s(decode, H100))
    least = model.cost(LinearAttentionScan(1.0, 1.0, 1, 64, 64, "prefill"), H100)[0]
    assert float(least) == pytest.approx(20e-6)
    assert "prompts / 0.1" in model.notice


def test_arrays_keep_their_shape() -> None:
    seconds, origin = UncalibratedModel("linear_attention").cost(
        LinearAttentionScan(np.arange(1.0, 4.0), np.ones(3), 8, 64, 64, "decode"), H100
    )
    assert seconds.shape == origin.shape == (3,)
