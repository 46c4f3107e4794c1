"""The fit E2E = a + b * input tokens + c * output tokens: of the mean, and of quantiles.

The mean is fitted by least squares, in sums that are rounded once, so that its digits do not depend on the kernels that
the library of linear algebra chooses. A quantile is fitted by `calibration.complexity.quantile_regression`.

A length that is the same in all requests has no coefficient: its time is part of the constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum
from typing import Final

import numpy as np

from calibration.complexity.quantile_regression import quantile_fit
from calibration.complexity.records import LatencyRecords
from catalogs.arrays import FloatArray
from catalogs.statistics import QUANTILES
from catalogs.ui.words import human_s

#: Most requests of a quantile regression. Of more, so many are taken at equal distances in their order.
MOST_REQUESTS: Final = 5_000

#: The quantiles that are fitted, if at least one request lies above each.
FITTED: Final = ("p50", "p90", "p99")

#: Two lengths whose correlation differs from 1 by less than this have no separate coefficients.
_LEAST_SPREAD: Final = 1e-9


@dataclass(frozen=True, slots=True)
class LatencyLaw:
    """A linear law of end-to-end time.

    Attributes:
        constant_s: Seconds of a request regardless of its length.
        input_token_s: Seconds for each input token; None if all requests have one input length, or if the inputs are
            proportional to the outputs.
        output_token_s: Seconds for each output token; None if all requests have one output length.
    """

    constant_s: float
    input_token_s: float | None
    output_token_s: float | None

    def e2e_s(self, input_tokens: FloatArray, output_tokens: FloatArray) -> FloatArray:
        """Return the end-to-end time of requests, seconds. All arrays have shape (n,)."""
        return np.asarray(
            self.constant_s + (self.input_token_s or 0.0) * input_tokens + (self.output_token_s or 0.0) * output_tokens
        )

    @property
    def words(self) -> str:
        """Return the law in words: "0.21 s + 0.18 ms x input tokens + 12 ms x output tokens"."""
        text = f"-{human_s(-self.constant_s)}" if self.constant_s < 0 else human_s(self.constant_s)
        for side, slope_s in (("input", self.input_token_s), ("output", self.output_token_s)):
            if slope_s is not None:
                text += f" {'-' if slope_s < 0 else '+'} {human_s(abs(slope_s))} x {side} tokens"
        return text

    def block(self) -> dict[str, float | None]:
        """Return the law as a block of JSON."""
        return {
            "constant_s": self.constant_s,
            "input_token_s": self.input_token_s,
            "output_token_s": self.output_token_s,
        }


@dataclass(frozen=True, slots=True)
class LatencyFit:
    """The linear laws of the end-to-end times of a run, and what they leave unexplained.

    Attributes:
        mean: The law of the mean (least squares).
        quantiles: The law of each quantile by name ("p50"), for which there are enough requests.
        explained: Share of the variance of the end-to-end times that the mean law explains (R squared); None if all
            times are equal.
        residual_s: Quantiles of observed minus fitted time by name, seconds.
        relative_error: Quantiles of the absolute residual over the observed time, by name.
        n: The number of requests.
    """

    mean: LatencyLaw
    quantiles: dict[str, LatencyLaw]
    explained: float | None
    residual_s: dict[str, float]
    relative_error: dict[str, float]
    n: int

    @classmethod
    def of(cls, records: LatencyRecords) -> LatencyFit | None:
        """Return the fit of the records; None if there are no more requests than coefficients."""
        design = _Design.of(records)
        if records.n <= design.scaled.shape[1]:
            return None
        mean = design.least_squares(records.e2e_s)
        left_s = records.e2e_s - mean.e2e_s(records.input_tokens, records.output_tokens)
        total = float(np.square(records.e2e_s - records.e2e_s.mean()).sum())
        shares = np.abs(left_s) / np.maximum(records.e2e_s, 1e-300)
        enough = [name for name in FITTED if records.n * (1.0 - QUANTILES[name] / 100.0) >= 1.0]
        kept = np.unique(np.linspace(0, records.n - 1, min(records.n, MOST_REQUESTS)).round().astype(np.int64))
        few = _Design(design.scaled[kept], design.scales, design.kept)
        return cls(
            mean=mean,
            quantiles={name: few.quantile(records.e2e_s[kept], QUANTILES[name] / 100.0) for name in enough},
            explained=1.0 - float(np.square(left_s).sum()) / total if total > 0.0 else None,
            residual_s=_percentiles(left_s, (5.0, 50.0, 90.0, 95.0, 99.0)),
            relative_error=_percentiles(shares, (50.0, 90.0, 99.0)),
            n=records.n,
        )

    def block(self) -> dict[str, object]:
        """Return the fit as a block of JSON."""
        return {
            "requests": self.n,
            "mean": self.mean.block(),
            "explained": self.explained,
            "residual_s": self.residual_s,
            "relative_error": self.relative_error,
            "quantiles": {name: law.block() for name, law in self.quantiles.items()},
        }


def mean_law(records: LatencyRecords) -> LatencyLaw | None:
    """Return the law of the mean alone; None if there are no more requests than coefficients."""
    design = _Design.of(records)
    return design.least_squares(records.e2e_s) if records.n > design.scaled.shape[1] else None


def _slope(column: FloatArray, values: FloatArray) -> float:
    """Return the coefficient of a centred column of shape (n,) in the least-squares fit of values of the same shape."""
    return fsum((column * values).tolist()) / fsum((column * column).tolist())


def _percentiles(values: FloatArray, points: tuple[float, ...]) -> dict[str, float]:
    """Return percentiles of values of shape (n,) by name."""
    return {f"p{p:g}": float(v) for p, v in zip(points, np.percentile(values, points), strict=True)}


@dataclass(frozen=True, slots=True)
class _Design:
    """The columns of the regression: a constant, and the lengths that have coefficients, scaled to a mean of one.

    Attributes:
        scaled: Shape (n, columns).
        scales: The divisor of each column. Shape (columns,).
        kept: Whether the inputs, and whether the outputs, have a coefficient.
    """

    scaled: FloatArray
    scales: FloatArray
    kept: tuple[bool, bool]

    @classmethod
    def of(cls, records: LatencyRecords) -> _Design:
        """Return the columns of the records' lengths."""
        inputs, outputs = records.input_tokens, records.output_tokens
        varies = (
            bool(np.ptp(inputs) > 0 if len(inputs) else False),
            bool(np.ptp(outputs) > 0 if len(outputs) else False),
        )
        if all(varies) and abs(np.corrcoef(inputs, outputs)[0, 1]) > 1.0 - _LEAST_SPREAD:
            varies = False, True
        chosen = [column for column, use in zip((inputs, outputs), varies, strict=True) if use]
        columns = np.column_stack([np.ones(len(inputs)), *chosen])
        scales = columns.mean(axis=0) if len(inputs) else np.ones(columns.shape[1])
        return cls(columns / scales, scales, varies)

    def least_squares(self, values_s: FloatArray) -> LatencyLaw:
        """Return the law with the least squared residuals, by orthogonal columns (Gram-Schmidt). Shape (n,)."""
        means = [fsum(column) / len(column) for column in self.scaled.T.tolist()]
        mean_s = fsum(values_s.tolist()) / len(values_s)
        columns, left_s = (self.scaled - means)[:, 1:].T, values_s - mean_s
        if len(columns) < 2:
            slopes_s = [_slope(column, left_s) for column in columns]
        else:
            first, second = columns
            shared = _slope(first, second)
            slope_s = _slope(second - shared * first, left_s)
            slopes_s = [_slope(first, left_s - slope_s * second), slope_s]
        constant_s = mean_s - fsum(slope * mean for slope, mean in zip(slopes_s, means[1:], strict=True))
        return self._law(np.array([constant_s, *slopes_s]))

    def quantile(self, values_s: FloatArray, level: float) -> LatencyLaw:
        """Return the law of a quantile, given as a share in 0..1. Shape (n,)."""
        scale = float(values_s.mean()) or 1.0
        return self._law(scale * quantile_fit(self.scaled, values_s / scale, level))

    def _law(self, coefficients: FloatArray) -> LatencyLaw:
        """Return the law of scaled coefficients. Shape (columns,)."""
        constant_s, *slopes_s = (coefficients / self.scales).tolist()
        slopes = iter(slopes_s)
        input_s, output_s = (next(slopes) if use else None for use in self.kept)
        return LatencyLaw(constant_s, input_s, output_s)
