"""How surprised the planner is by measured open-loop runs: the probability it gives to at most the measured value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from measured_points import Compared, open_loop

from calibration.accuracy.reliability import SAID, Reliability, RunKind
from calibration.accuracy.stated_error import StatedError
from catalogs.ui.words import percent
from planner.evaluation.confidence import LatencyCurve, Spread, probability_met
from planner.problem.slo import Slo

#: Load simulated around the measured one, so that slower and faster machines can be read off (their clocks rescaled).
#: The statistics are of this finite run, which has them at any load: every point of the curve counts as stable.
SCALES: Final = (0.6, 0.8, 0.9, 1.0, 1.1, 1.3, 1.7)


def surprises(folder: Path) -> Iterator[float]:
    """Yield `probability_met` of objectives whose limits are the measured values, for every statistic of the case.

    The probabilities are uniform between 0 and 1 if the stated ones are right.
    """
    by_scale = {scale: {(p.metric, p.stat): p for p in open_loop(folder, scale)} for scale in SCALES}
    for key, point in by_scale[1.0].items():
        curve = LatencyCurve(
            SCALES,
            tuple(_never_falling([by_scale[scale][key].simulated for scale in SCALES])),
            tuple(True for _ in SCALES),
            tuple(_never_falling([by_scale[scale][key].waiting_share for scale in SCALES])),
        )
        yield _probability(curve, point)


def _probability(curve: LatencyCurve, point: Compared) -> float:
    slo = Slo(point.metric, point.stat, point.measured)
    error = StatedError.of(point.engine, point.operator_error, point.regime)
    return probability_met(curve, slo, 1.0, Spread.of((), slo, error))


def _never_falling(values: list[float]) -> list[float]:
    return [max(values[: i + 1]) for i in range(len(values))]


#: Colour-blind safe (Okabe and Ito), and told apart in print by their dashes.
_STROKES: Final = (
    ("#000000", ""),
    ("#0072B2", "6 3"),
    ("#D55E00", "2 3"),
    ("#009E73", "9 3 2 3"),
    ("#CC79A7", "12 4"),
    ("#E69F00", "4 2 1 2"),
    ("#56B4E9", "15 3 3 3"),
)

#: Side of the drawing in pixels.
_SIDE: Final = 320

#: Edge around it in pixels.
_EDGE: Final = 50


def reliability(told: Mapping[str, Sequence[float]], command: str) -> Reliability:
    """Return the share of each kind of run that met its limit, by the stated probability."""
    kinds = [
        RunKind(
            name=name, n=len(values), right=tuple(round(sum(v <= p for v in values) / len(values), 4) for p in SAID)
        )
        for name, values in told.items()
    ]
    return Reliability(command=command, kinds=tuple(kinds))


def drawing(found: Reliability) -> str:
    """Return an SVG of the stated probability against the share that met its limit; the diagonal is ideal."""
    axis = f'<text x="{_EDGE + _SIDE / 2}" y="{_EDGE + _SIDE + 38}" text-anchor="middle">said to hold</text>'
    axis += f'<text transform="translate(14 {_EDGE + _SIDE / 2}) rotate(-90)" text-anchor="middle">did hold</text>'
    ticks = "".join(_ticks(share / 4) for share in range(5))
    lines = "".join(_line(i, kind) for i, kind in enumerate(found.kinds))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_SIDE + 340} {_SIDE + 110}" '
        f'font-family="sans-serif" font-size="13"><rect width="100%" height="100%" fill="#fff"/>'
        f'<path d="M{_at(0, 0)}L{_at(1, 1)}" stroke="#999"/>{ticks}{axis}{lines}</svg>\n'
    )


def _at(said: float, right: float) -> str:
    return f"{_EDGE + _SIDE * said:.1f} {_EDGE + _SIDE * (1 - right):.1f}"


def _ticks(share: float) -> str:
    x, y = _EDGE + _SIDE * share, _EDGE + _SIDE * (1 - share)
    return (
        f'<path d="M{_at(share, 0)}L{_at(share, 1)}M{_at(0, share)}L{_at(1, share)}" stroke="#ddd"/>'
        f'<text x="{x}" y="{_EDGE + _SIDE + 18}" text-anchor="middle">{percent(share)}</text>'
        f'<text x="{_EDGE - 6}" y="{y + 4}" text-anchor="end">{percent(share)}</text>'
    )


def _line(i: int, kind: RunKind) -> str:
    points = "L".join(_at(p, right) for p, right in zip(SAID, kind.right, strict=True))
    colour, dashes = _STROKES[i % len(_STROKES)]
    stroke = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"'
    x, y = _EDGE + _SIDE + 16, _EDGE + 20 + 24 * i
    label = f'<text x="{x + 40}" y="{y + 4}">{kind.name}</text>'
    return f'<path d="M{points}" {stroke}/><path d="M{x} {y}h32" {stroke}/>{label}'
