"""A step timer for steps that were measured as a whole on a real engine, without any operators."""

from __future__ import annotations

from bisect import bisect_right

from calibration.bundles.engine_calibration import MeasuredSteps
from simulator.core.batch import BatchShape
from simulator.core.step_timer import ENDLESS


class MeasuredStepTimer:
    """Seconds per step of one model in one layout, as a probe of the engine measured them (see `MeasuredSteps`)."""

    def __init__(self, steps: MeasuredSteps) -> None:
        self._steps = steps

    def cycle_s(self, shape: BatchShape) -> float:
        """Return the seconds from the start of this step to the start of the next.

        A step that the engine cuts into several passes over the weights is priced as that many steps, with the decodes
        divided evenly over them.
        """
        steps, n = self._steps, shape.decodes
        context_s = steps.per_context_token_s * shape.decode_context_sum
        pairs_s = steps.per_pair_s * (shape.prefill_pairs + shape.decode_context_sum)
        if not shape.prefill_tokens and n:
            return shape.passes * _line(steps.decodes, steps.decode_s, n / shape.passes) + context_s
        if shape.passes == 1 or not n:
            return _line(steps.tokens, steps.token_s, shape.tokens) + steps.per_decode_s * n + context_s + pairs_s
        alone = shape.passes - 1
        return (
            _line(steps.tokens, steps.token_s, shape.prefill_tokens)
            + alone * _line(steps.decodes, steps.decode_s, n / alone)
            + context_s
            + pairs_s
        )

    def decode_segment(self, decodes: int, context_sum: float, context_max: float) -> tuple[float, float, int]:  # noqa: ARG002 (the longest context is not measured)
        """Return (t0, slope, steps): step j < steps of this decode-only batch takes t0 + slope * j seconds."""
        steps = self._steps
        own = _line(steps.decodes, steps.decode_s, decodes)
        return own + steps.per_context_token_s * context_sum, steps.per_context_token_s * decodes, ENDLESS


def _line(nodes: tuple[int, ...], values: tuple[float, ...], x: float) -> float:
    """Interpolate linearly between nodes.

    Values below the first node are constant. Values above the last node continue the last slope but never fall.
    """
    if x <= nodes[0]:
        return values[0]
    k = min(bisect_right(nodes, x) - 1, len(nodes) - 2)
    slope = (values[k + 1] - values[k]) / (nodes[k + 1] - nodes[k])
    if x > nodes[-1]:
        return values[-1] + max(slope, 0.0) * (x - nodes[-1])
    return values[k] + slope * (x - nodes[k])
