"""The text that Prometheus scrapes, and what two of them tell: counts and histograms of the time between."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from catalogs.errors import InputError

_LINE: Final = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?$")
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPES: Final = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: name, labels, value."""

    name: str
    labels: Labels
    value: float


@dataclass(frozen=True, slots=True)
class Histogram:
    """Cumulative counts by upper bound, ascending, the last one infinite; the sum of what was observed, seconds."""

    bounds_s: tuple[float, ...]
    counts: tuple[float, ...]
    total_s: float

    @property
    def n(self) -> float:
        return self.counts[-1] if self.counts else 0.0

    @property
    def mean_s(self) -> float:
        return self.total_s / self.n if self.n else math.nan

    def bucket_s(self, quantile: float) -> tuple[float, float]:
        """The bounds between which the quantile lies: all that a histogram knows. Infinite beyond the last bound."""
        rank, below = quantile * self.n, 0.0
        for bound, count in zip(self.bounds_s, self.counts, strict=True):
            if count >= rank and count > 0:
                return below, bound
            below = bound
        return below, math.inf

    def quantile_s(self, quantile: float) -> float:
        """Linear within its bucket, as Prometheus's histogram_quantile; the last finite bound beyond it."""
        low, high = self.bucket_s(quantile)
        if not math.isfinite(high):
            return low
        i = self.bounds_s.index(high)
        before = self.counts[i - 1] if i else 0.0
        inside = self.counts[i] - before
        return low + (high - low) * ((quantile * self.n - before) / inside if inside else 1.0)

    def since(self, earlier: Histogram) -> Histogram:
        """What came after an earlier scrape. Raises InputError where the server was started anew in between."""
        if not earlier.counts:
            return self
        if earlier.bounds_s != self.bounds_s or any(a < b for a, b in zip(self.counts, earlier.counts, strict=True)):
            raise InputError("the server was started anew between the two looks: try again")
        counts = tuple(a - b for a, b in zip(self.counts, earlier.counts, strict=True))
        return Histogram(self.bounds_s, counts, self.total_s - earlier.total_s)


@dataclass(frozen=True, slots=True)
class Exposition:
    """All samples of a scrape, by name."""

    by_name: Mapping[str, list[Sample]] = field(default_factory=dict)

    def values(self, label: str) -> set[str]:
        """Every value a label has."""
        return {s.labels[label] for samples in self.by_name.values() for s in samples if label in s.labels}

    def only(self, label: str, value: str) -> Exposition:
        """Samples with this value, and those without the label."""
        kept = {
            name: [s for s in samples if s.labels.get(label, value) == value] for name, samples in self.by_name.items()
        }
        return Exposition({name: samples for name, samples in kept.items() if samples})

    def total(self, name: str) -> float | None:
        """Sum over all label sets; None where there is none."""
        samples = self.by_name.get(name)
        return None if not samples else sum(s.value for s in samples)

    def histogram(self, name: str) -> Histogram:
        """Summed over all label sets but the bounds; empty where there is none."""
        counts: dict[float, float] = defaultdict(float)
        for sample in self.by_name.get(f"{name}_bucket", ()):
            if "le" in sample.labels:
                counts[_number(sample.labels["le"])] += sample.value
        bounds = tuple(sorted(counts))
        return Histogram(bounds, tuple(counts[b] for b in bounds), self.total(f"{name}_sum") or 0.0)


def parse(text: str, where: str) -> Exposition:
    """Raises InputError for a line that is no sample."""
    found: dict[str, list[Sample]] = defaultdict(list)
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _LINE.match(stripped)
        if match is None:
            raise InputError(f"{where} answers no Prometheus metrics", stripped[:60], "the URL of /metrics")
        labels = {name: _plain(value) for name, value in _LABEL.findall(match[2] or "")}
        found[match[1]].append(Sample(match[1], labels, _number(match[3])))
    return Exposition(dict(found))


def _number(text: str) -> float:
    try:
        return float(text.replace("+Inf", "inf").replace("-Inf", "-inf"))
    except ValueError:
        raise InputError("a metric's value is a number", text) from None


def _plain(text: str) -> str:
    return re.sub(r"\\.", lambda m: _ESCAPES.get(m[0], m[0]), text)
