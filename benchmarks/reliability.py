"""How surprised the planner is by measured open-loop runs: the probability it gives to at most the measured value."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from measured_points import Compared, open_loop

from calibration.stated_error import StatedError
from planner.confidence import Curve, Spread, probability_met
from planner.slo import Slo

#: Load simulated around the measured one, so that slower and faster machines can be read off (their clocks rescaled).
#: The statistics are of this finite run, which has them at any load: every point of the curve counts as stable.
SCALES: Final = (0.6, 0.8, 0.9, 1.0, 1.1, 1.3, 1.7)


def surprises(folder: Path) -> Iterator[float]:
    """`probability_met` of an objective whose limit is the measured value, for every statistic of the case. Uniform in
    0..1 where "p sure" is right p of the time."""
    by_scale = {scale: {(p.metric, p.stat): p for p in open_loop(folder, scale)} for scale in SCALES}
    for key, point in by_scale[1.0].items():
        curve = Curve(
            SCALES,
            tuple(_never_falling([by_scale[scale][key].simulated for scale in SCALES])),
            tuple(True for _ in SCALES),
        )
        yield _probability(curve, point)


def _probability(curve: Curve, point: Compared) -> float:
    slo = Slo(point.metric, point.stat, point.measured)
    return probability_met(curve, slo, 1.0, Spread.of((), slo, StatedError.of(point.engine, point.operator_error)))


def _never_falling(values: list[float]) -> list[float]:
    return [max(values[: i + 1]) for i in range(len(values))]
