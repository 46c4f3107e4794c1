"""Replicas that fail and come back: how often enough of them are up, and the outages of windows of time, drawn.

Every replica fails by itself: exponential times of mean mtbf_s between the end of one outage and the next, which lasts
restart_s. (What takes several at once, a rack or a bad release, is another matter and not in here.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.slo import FloatArray


@dataclass(frozen=True, slots=True)
class Failing:
    """One replica's life. settle_s: after an outage, until what waited meanwhile is served."""

    mtbf_s: float
    restart_s: float
    settle_s: float

    @property
    def availability(self) -> float:
        """Share of time that it is up."""
        return self.mtbf_s / (self.mtbf_s + self.restart_s)

    def enough_up(self, replicas: int, needed: int) -> float:
        """Share of time that at least `needed` of them are up: the binomial distribution."""
        up = self.availability
        terms = (math.comb(replicas, k) * up**k * (1 - up) ** (replicas - k) for k in range(needed, replicas + 1))
        return min(1.0, sum(terms))

    def fewest(self, needed: int, share: float, most: int) -> int:
        """Replicas of which `needed` are up for that share of time; at most `most`."""
        found = (n for n in range(needed, most + 1) if self.enough_up(n, needed) >= share)
        return next(found, most)

    def window(self, rng: np.random.Generator, replicas: int, length_s: float) -> list[Outage]:
        """The outages of one window of time, each with all that begins before it is over."""
        starts = np.sort(np.concatenate([self._starts(rng, length_s) for _ in range(replicas)]))
        found: list[list[float]] = []
        for start_s in starts.tolist():
            if found and start_s < found[-1][-1] + self.restart_s + self.settle_s:
                found[-1].append(start_s)
            else:
                found.append([start_s])
        return [Outage(tuple(s - group[0] for s in group), self.restart_s, self.settle_s) for group in found]

    def _starts(self, rng: np.random.Generator, length_s: float) -> FloatArray:
        """Of one replica's outages within the window; up at its beginning."""
        expected = length_s / (self.mtbf_s + self.restart_s)
        n = int(expected + 10 * math.sqrt(expected) + 10)
        gaps = rng.exponential(self.mtbf_s, n) + self.restart_s
        starts: FloatArray = np.cumsum(gaps) - self.restart_s
        return starts[starts < length_s]


@dataclass(frozen=True, slots=True)
class Outage:
    """Replicas that fail so close together that one is not over when the next begins: seconds from the first."""

    starts_s: tuple[float, ...]
    restart_s: float
    settle_s: float

    @property
    def length_s(self) -> float:
        """Until all that waited is served."""
        return self.starts_s[-1] + self.restart_s + self.settle_s

    @property
    def most_down(self) -> int:
        """Replicas down at once."""
        return max(sum(s <= t < s + self.restart_s for s in self.starts_s) for t in self.starts_s)

    def victims(self) -> Iterator[tuple[int, float]]:
        """(place of the replica that fails, when): one that is up then."""
        back_s: dict[int, float] = {}
        for start_s in self.starts_s:
            place = next(p for p in range(len(self.starts_s)) if back_s.get(p, -1.0) <= start_s)
            back_s[place] = start_s + self.restart_s
            yield place, start_s


def binomial_bounds(met: int, n: int, level: float) -> tuple[float, float]:
    """Two-sided Clopper-Pearson interval of a share, `met` of `n` seen."""
    from scipy.stats import beta

    tail = (1 - level) / 2
    low = 0.0 if met == 0 else float(beta.ppf(tail, met, n - met + 1))
    high = 1.0 if met == n else float(beta.ppf(1 - tail, met + 1, n - met))
    return low, high
