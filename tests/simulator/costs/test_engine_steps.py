"""Whole steps as a timer: by hand, and as a run of decodes."""

from __future__ import annotations

import pytest

from calibration.bundles.engine_calibration import MeasuredSteps
from simulator.core.batch import BatchShape
from simulator.costs.measured_steps import MeasuredStepTimer

STEPS = MeasuredSteps(
    decodes=(1, 4),
    decode_s=(0.010, 0.016),
    tokens=(16, 116),
    token_s=(0.020, 0.120),
    per_decode_s=0.001,
    per_context_token_s=1e-6,
)
TIMER = MeasuredStepTimer(STEPS)


def _decodes(n: int, context: int, passes: int = 1) -> BatchShape:
    return BatchShape(decodes=n, logits=n, decode_context_sum=n * context, decode_context_max=context, passes=passes)


@pytest.mark.parametrize(
    ("shape", "seconds"),
    [
        (_decodes(1, 1000), 0.011),
        (_decodes(2, 1000), 0.012 + 0.002),
        (_decodes(6, 0), 0.020),  # beyond the last node: as it rose before
        (BatchShape(prefill_tokens=66, prefill_chunks=1, logits=1), 0.070),
        (BatchShape(prefill_tokens=64, prefill_chunks=1, decodes=2, decode_context_sum=1000, logits=3), 0.070 + 0.003),
        (_decodes(4, 0, passes=2), 2 * 0.012),  # two passes of two decodes
        (BatchShape(prefill_tokens=66, prefill_chunks=1, decodes=2, logits=3, passes=2), 0.070 + 0.012),
    ],
)
def test_seconds_by_hand(shape: BatchShape, seconds: float) -> None:
    assert TIMER.cycle_s(shape) == pytest.approx(seconds)


def test_a_run_of_decodes_is_its_steps() -> None:
    first_s, slope_s, _ = TIMER.decode_segment(3, 300, 100)
    assert first_s == TIMER.cycle_s(_decodes(3, 100))
    assert first_s + slope_s == pytest.approx(TIMER.cycle_s(_decodes(3, 101)))
