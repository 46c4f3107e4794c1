"""The statistics of a run of a load client that does not keep the values of each request."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from calibration.accuracy.measured_run import UNSTATED, OfferedLoad
from catalogs.errors import InputError

#: The statistic that gives the standard deviation of the samples of a metric.
DEVIATION: Final = "std"


@dataclass(frozen=True, slots=True)
class MeasuredSummary:
    """The summary of one run: statistics instead of samples, NaN where the client gives no value.

    Attributes:
        client: Name of the load client.
        source: Name of the result.
        n: Requests that finished.
        n_failed: Requests that failed.
        duration_s: From the first request to the last token, which includes the drain after the last arrival.
        input_mean_tokens: Mean prompt length.
        output_mean_tokens: Mean output length.
        statistics_s: By metric and statistic ("mean", "p90", DEVIATION), seconds.
        offered: The load that the client was set to offer.
        most_in_flight: Most requests in flight at one time; None if the client does not count them.
        notes: What the summary lacks, one sentence each.

    Raises:
        InputError: No request finished, the duration is not positive, or a statistic is negative or not finite.
    """

    client: str
    source: str
    n: int
    n_failed: int
    duration_s: float
    input_mean_tokens: float
    output_mean_tokens: float
    statistics_s: Mapping[str, Mapping[str, float]]
    offered: OfferedLoad = UNSTATED
    most_in_flight: int | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.n < 1:
            rule = f"no finished request in this {self.client} result ({self.n_failed} failed)"
            raise InputError(rule, self.source)
        if not 0 < self.duration_s < math.inf:
            raise InputError(f"this {self.client} result has no valid duration, seconds", self.duration_s)
        for metric, by_stat in self.statistics_s.items():
            for stat, value in by_stat.items():
                if not 0 <= value < math.inf:
                    raise InputError(f"{metric}.{stat} of this {self.client} result is not a time, seconds", value)

    def value_s(self, metric: str, stat: str) -> float | None:
        """Return a statistic in seconds; None if the summary does not have it."""
        return self.statistics_s.get(metric, {}).get(stat)

    def mean_error_s(self, metric: str) -> float:
        """Return the standard error of the mean of a metric, seconds; 0 if it is not known."""
        return (self.value_s(metric, DEVIATION) or 0.0) / math.sqrt(self.n)
