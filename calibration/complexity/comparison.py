"""The comparison of two runs at equal complexity: both sides of every ratio have requests of the same lengths.

Both runs are divided into the same bins of input and output length. The mean end-to-end time of each run is then taken
with the same weights: the share of each bin among the requests of both runs, of the bins in which both have requests
(direct standardisation: Fleiss, Levin and Paik, Statistical Methods for Rates and Proportions, 3rd ed., chapter 19).
A run compared with itself has the ratio 1 exactly. The second ratio takes the means of both linear fits over all
requests of both runs, which also removes the differences of lengths within a bin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from calibration.complexity.length_bins import LengthBins, TokenRange
from calibration.complexity.linear_fit import mean_law
from calibration.complexity.records import LatencyRecords
from calibration.complexity.summary import range_block
from catalogs.arrays import FloatArray
from catalogs.errors import InputError

#: The standard normal quantile of the ends of a two-sided interval of 90 %.
_Z90: Final = 1.6448536269514722


@dataclass(frozen=True, slots=True)
class BinRatio:
    """One bin of both runs.

    Attributes:
        inputs: The input lengths of the bin.
        outputs: The output lengths of the bin.
        n_first: The number of requests of the first run.
        n_second: The number of requests of the second run.
        weight: The share of the bin in the weighted means; 0 if one run has no request in it.
        first_s: The mean end-to-end time of the first run, seconds; None without requests.
        second_s: The same of the second run.
    """

    inputs: TokenRange
    outputs: TokenRange
    n_first: int
    n_second: int
    weight: float
    first_s: float | None
    second_s: float | None

    @property
    def ratio(self) -> float | None:
        """Return the time of the second run over that of the first; None if one has no request here."""
        return None if self.first_s is None or self.second_s is None else self.second_s / self.first_s

    def block(self) -> dict[str, Any]:
        """Return the bin as a block of JSON."""
        return {
            "input_tokens": range_block(self.inputs),
            "output_tokens": range_block(self.outputs),
            "requests": [self.n_first, self.n_second],
            "weight": self.weight,
            "e2e_mean_s": [self.first_s, self.second_s],
            "ratio": self.ratio,
        }


@dataclass(frozen=True, slots=True)
class ComplexityComparison:
    """Two runs at equal complexity; ratios are those of the second run to the first, so 2 means twice as slow.

    Attributes:
        ratio: Of the means with equal weights of the bins.
        low: Lower end of its interval of 90 %, with the requests taken as independent. None if a run has no bin of two
            requests.
        high: The upper end.
        fit_ratio: Of the mean fitted times of all requests of both runs; None without a fit of both, or if a fit is
            not positive.
        raw_ratio: Of the plain means, in which lengths may differ.
        covered: The share of all requests that lie in bins in which both runs have requests.
        bins: The bins, in the order of `LengthBins.ranges`.
    """

    ratio: float
    low: float | None
    high: float | None
    fit_ratio: float | None
    raw_ratio: float
    covered: float
    bins: tuple[BinRatio, ...]

    def block(self) -> dict[str, Any]:
        """Return everything as a block of JSON."""
        return {
            "ratio": self.ratio,
            "ratio_low": self.low,
            "ratio_high": self.high,
            "fit_ratio": self.fit_ratio,
            "raw_ratio": self.raw_ratio,
            "covered": self.covered,
            "by_bin": [each.block() for each in self.bins],
        }


def common_weights(first: FloatArray, second: FloatArray) -> FloatArray:
    """Return the weights of bins: their shares of the requests of both runs, zero where one run has no request.

    Args:
        first: Requests of the first run by bin. Shape (bins,).
        second: Requests of the second run by bin. Shape (bins,).

    Returns:
        Shape (bins,); the sum is one, or zero without a common bin.
    """
    together = np.where((first > 0) & (second > 0), first + second, 0.0)
    return np.asarray(together / max(float(together.sum()), 1.0))


def standardised_means(
    counts: tuple[FloatArray, FloatArray], means_s: tuple[FloatArray, FloatArray]
) -> tuple[float, float] | None:
    """Return the mean times of two runs with the same weights of bins; None without a bin that both have requests in.

    Args:
        counts: Requests of each run by bin. Each has shape (bins,).
        means_s: Mean time of each run by bin, NaN without requests. Each has shape (bins,).
    """
    weight = common_weights(*counts)
    shared = weight > 0
    if not shared.any():
        return None
    first_s, second_s = (float(weight[shared] @ mean_s[shared]) for mean_s in means_s)
    return first_s, second_s


def compare(first: LatencyRecords, second: LatencyRecords, bins: LengthBins | None = None) -> ComplexityComparison:
    """Return the comparison of two runs at equal complexity.

    Args:
        first: The requests of the first run, which ratios are relative to.
        second: The requests of the second run.
        bins: The bins of lengths; None: quartiles of the lengths of both runs together.

    Raises:
        InputError: A run has no request, or no bin has requests of both.
    """
    if not first.n or not second.n:
        raise InputError("two runs are compared by their finished requests", f"{first.n} and {second.n} requests")
    chosen = bins or LengthBins.of(first, second)
    groups = len(chosen.ranges)
    one, two = (_Groups.of(each, chosen, groups) for each in (first, second))
    means_s = standardised_means((one.n, two.n), (one.mean_s, two.mean_s))
    if means_s is None:
        rule = "two runs are compared in bins of lengths that both have requests in"
        raise InputError(rule, "no bin in common", hint="run both with the same workload")
    first_s, second_s = means_s
    weight = common_weights(one.n, two.n)
    shared = weight > 0
    ratio = second_s / first_s
    variance = one.variance(weight, shared) / first_s**2 + two.variance(weight, shared) / second_s**2
    margin = math.exp(_Z90 * math.sqrt(variance)) if math.isfinite(variance) else None
    rows = zip(chosen.ranges, one.rows, two.rows, weight.tolist(), strict=True)
    return ComplexityComparison(
        ratio=ratio,
        low=None if margin is None else ratio / margin,
        high=None if margin is None else ratio * margin,
        fit_ratio=_fit_ratio(first, second),
        raw_ratio=float(second.e2e_s.mean()) / float(first.e2e_s.mean()),
        covered=float((one.n + two.n)[shared].sum() / (one.n + two.n).sum()),
        bins=tuple(BinRatio(*r, int(a[0]), int(b[0]), w, a[1], b[1]) for r, a, b, w in rows),
    )


@dataclass(frozen=True, slots=True)
class _Groups:
    """The requests of one run by bin. All arrays have shape (bins,).

    Attributes:
        n: The number of requests.
        mean_s: The mean end-to-end time, NaN without requests.
        error: The squared standard error of the mean. A bin with one request has the variance within all bins, which
            is infinite if no bin has two requests.
    """

    n: FloatArray
    mean_s: FloatArray
    error: FloatArray

    @classmethod
    def of(cls, records: LatencyRecords, bins: LengthBins, groups: int) -> _Groups:
        """Return the groups of a run."""
        numbers = bins.numbers(records)
        n, mean_s, spread = np.zeros(groups), np.full(groups, np.nan), np.zeros(groups)
        for group in range(groups):
            mine = records.e2e_s[numbers == group]
            n[group] = len(mine)
            if len(mine):
                mean_s[group] = mine.mean()
                spread[group] = np.square(mine - mean_s[group]).sum()
        free = np.maximum(n - 1, 0)
        pooled = spread.sum() / free.sum() if free.any() else np.inf
        with np.errstate(divide="ignore", invalid="ignore"):
            return cls(n, mean_s, np.where(free > 0, spread / free, pooled) / n)

    @property
    def rows(self) -> list[tuple[float, float | None]]:
        """Return (requests, mean time or None) of each bin."""
        return [(n, mean_s if n else None) for n, mean_s in zip(self.n.tolist(), self.mean_s.tolist(), strict=True)]

    def variance(self, weight: FloatArray, shared: np.ndarray) -> float:
        """Return the squared standard error of the weighted mean, of the bins that are shared."""
        return float(np.square(weight[shared]) @ self.error[shared])


def _fit_ratio(first: LatencyRecords, second: LatencyRecords) -> float | None:
    """Return the ratio of the mean fitted times over the requests of both runs."""
    one, two = mean_law(first), mean_law(second)
    if one is None or two is None:
        return None
    both = LatencyRecords.pooled([first, second])
    first_s, second_s = (float(law.e2e_s(both.input_tokens, both.output_tokens).mean()) for law in (one, two))
    return second_s / first_s if min(first_s, second_s) > 0.0 else None
