"""The metrics of a running vLLM server over an interval: counters and histograms.

They come from two queries of the server's /metrics, at the start and at the end of the interval, or from one query of a
Prometheus server that scrapes the server. The parser of the text format is our own: 21 lines here, and it names the
line that it cannot read. prometheus_client.parser would save about ten of them, takes 69 ms instead of 23 ms for 3,000
samples, and would be one more dependency of every installation.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

from catalogs.errors import InputError
from planner.problem.latency_metrics import LATENCY_METRICS

#: Names that vLLM has given its counters, the newest first.
COUNTERS: Final = {
    "requests": ("vllm:request_success_total", "vllm:request_success"),
    "input_tokens": ("vllm:prompt_tokens_total", "vllm:prompt_tokens"),
    "output_tokens": ("vllm:generation_tokens_total", "vllm:generation_tokens"),
}

#: Histograms of the lengths of finished requests, tokens.
LENGTHS: Final = {"input": "vllm:request_prompt_tokens", "output": "vllm:request_generation_tokens"}

_NAMES: Final = (
    *(name for metric in LATENCY_METRICS.values() for name in metric.histograms),
    *(name for names in COUNTERS.values() for name in names),
    *LENGTHS.values(),
)

_PREFIX: Final = "vllm:"

_TIMEOUT_S: Final = 10.0

_MAX_BYTES: Final = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Sample:
    """The labels and the value of one sample."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Exposition:
    """All samples of one query, by the name of the metric."""

    by_name: Mapping[str, list[Sample]] = field(default_factory=dict)

    def values(self, label: str) -> set[str]:
        """Return all values of a label."""
        return {s.labels[label] for samples in self.by_name.values() for s in samples if label in s.labels}

    def only(self, label: str, value: str) -> Exposition:
        """Return the samples whose label has this value, and those without the label."""
        kept = {
            name: [s for s in samples if s.labels.get(label, value) == value] for name, samples in self.by_name.items()
        }
        return Exposition({name: samples for name, samples in kept.items() if samples})

    def total(self, name: str) -> float | None:
        """Return the sum of a metric over all label sets; None if there is no sample."""
        samples = self.by_name.get(name)
        return None if not samples else sum(s.value for s in samples)

    def histogram(self, name: str) -> Histogram:
        """Return a histogram, summed over all labels other than the bound; empty if there is no sample."""
        counts: dict[float, float] = defaultdict(float)
        for sample in self.by_name.get(f"{name}_bucket", ()):
            if "le" in sample.labels:
                counts[float(sample.labels["le"])] += sample.value
        bounds = tuple(sorted(counts))
        return Histogram(bounds, tuple(counts[b] for b in bounds), self.total(f"{name}_sum") or 0.0)


@dataclass(frozen=True, slots=True)
class Interval:
    """The metrics of one model at the start and at the end of an interval of `seconds`.

    `before` is empty for a query of a Prometheus server, which returns the increase.
    """

    before: Exposition
    after: Exposition
    seconds: float

    @property
    def models(self) -> set[str]:
        """Return the names of the model on the server."""
        return self.after.values("model_name")

    def counted(self, counter: str) -> float:
        """Return the increase of a counter; 0 if the server does not have it."""
        name = next((name for name in COUNTERS[counter] if name in self.after.by_name), "")
        return (self.after.total(name) or 0.0) - (self.before.total(name) or 0.0)

    def mean_tokens(self, side: Literal["input", "output"]) -> float:
        """Return the mean length of the finished requests, tokens; NaN if no request finished.

        Without a histogram of lengths, counters are used, which include the tokens of unfinished requests.
        """
        found = self._increase(LENGTHS[side])
        if found is not None:
            return found.mean_s  # the unit of this histogram is tokens
        ended = self.counted("requests")
        return self.counted(f"{side}_tokens") / ended if ended else math.nan

    def histogram(self, metric: str) -> Histogram:
        """Return the histogram of a latency metric over the interval, seconds; empty if the server does not have it."""
        found = map(self._increase, LATENCY_METRICS[metric].histograms)
        return next((histogram for histogram in found if histogram is not None), Histogram((), (), 0.0))

    def _increase(self, name: str) -> Histogram | None:
        after = self.after.histogram(name)
        return after.since(self.before.histogram(name)) if after.counts else None


def observe_server(url: str, seconds: float, planned: str, served: str | None = None) -> Interval:
    """Observe a server for an interval, and return its metrics.

    Args:
        url: Address of the vLLM server or of its /metrics, or of a Prometheus server that scrapes it.
        seconds: Length of the interval.
        planned: Name of the planned model.
        served: Name of the model on the server, if it is not `planned`.

    Raises:
        InputError: No server answers, the server is not vLLM, or several of its models could be the planned one.
    """
    base = _base(url)
    first, began = _scrape(base), time.monotonic()
    if first is None:
        return Interval(Exposition(), _of_model(_increases(base, seconds), planned, served), seconds)
    before = _of_model(first, planned, served)
    time.sleep(seconds)
    second = _scrape(base)
    if second is None:
        raise InputError("the server stopped between the two queries", url)
    return Interval(before, _of_model(second, planned, served), time.monotonic() - began)


def _base(url: str) -> str:
    parts = urlsplit(url if "//" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise InputError("an address must be an http or https URL", url, "http://localhost:8000")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/metrics')}"


def _scrape(base: str) -> Exposition | None:
    """Return the metrics of a vLLM server; None if the metrics are of another program, such as Prometheus itself."""
    found = parse(_get(f"{base}/metrics"), f"{base}/metrics")
    return found if any(name.startswith(_PREFIX) for name in found.by_name) else None


def _increases(base: str, seconds: float) -> Exposition:
    """Return the increase of every metric in the last seconds, as a Prometheus server computes it.

    The function `increase` drops the names of metrics, so there is one query for each name.
    """
    names = "|".join(f"{name}(_bucket|_sum|_count)?" for name in _NAMES)
    rows = _query(base, f'count by (__name__) ({{__name__=~"{names}"}})')
    if not rows:
        raise InputError("this is neither a vLLM server nor a Prometheus server with metrics of one", base)
    span = f"[{max(round(seconds), 1)}s]"
    return Exposition(
        {
            name: [Sample(row["metric"], float(row["value"][1])) for row in _query(base, f"increase({name}{span})")]
            for name in sorted({str(row["metric"]["__name__"]) for row in rows})
        }
    )


def _query(base: str, text: str) -> list[dict[str, Any]]:
    address = f"{base}/api/v1/query?{urlencode({'query': text})}"
    try:
        answer = json.loads(_get(address))
        rows: list[dict[str, Any]] = answer["data"]["result"]
    except (ValueError, KeyError, TypeError):
        raise InputError("this is neither a vLLM server nor a Prometheus server", base) from None
    return rows


def _get(address: str) -> str:
    try:
        with urlopen(Request(address, headers={"Accept": "text/plain"}), timeout=_TIMEOUT_S) as answer:
            text: str = answer.read(_MAX_BYTES).decode("utf-8", "replace")
            return text
    except HTTPError as error:
        raise InputError(f"the server answers {error.code}", address) from None
    except (URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise InputError(f"no server answers at this address ({reason})", address) from None


def _of_model(found: Exposition, planned: str, served: str | None) -> Exposition:
    """Return the metrics of the planned model, or all metrics if they do not name a model."""
    names, wanted = found.values("model_name"), served or planned
    if not names:
        return found
    if wanted not in names:
        if served is not None or len(names) > 1:
            several = "the server has several models; name the planned one"
            rule = "the server has no model with this name" if served else several
            raise InputError(rule, wanted, "--served " + " or ".join(sorted(names)))
        (wanted,) = names
    return found.only("model_name", wanted)


_NUMBER: Final = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?Inf|NaN"

_LINE: Final = re.compile(rf"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{{(.*)\}})?\s+({_NUMBER})(?:\s+-?\d+)?$")

_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')

_ESCAPES: Final = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


@dataclass(frozen=True, slots=True)
class Histogram:
    """A cumulative histogram.

    Attributes:
        bounds_s: Upper bounds of the buckets in ascending order, seconds; the last one is infinite.
        counts: Number of observations up to each bound.
        total_s: Sum of all observations, seconds.
    """

    bounds_s: tuple[float, ...]
    counts: tuple[float, ...]
    total_s: float

    @property
    def n(self) -> float:
        """Return the number of observations."""
        return self.counts[-1] if self.counts else 0.0

    @property
    def mean_s(self) -> float:
        """Return the mean of the observations, seconds; NaN without observations."""
        return self.total_s / self.n if self.n else math.nan

    def bucket_s(self, quantile: float) -> tuple[float, float]:
        """Return the bounds between which a quantile lies, seconds; infinite above the last finite bound."""
        rank, below = quantile * self.n, 0.0
        for bound, count in zip(self.bounds_s, self.counts, strict=True):
            if count >= rank and count > 0:
                return below, bound
            below = bound
        return below, math.inf

    def quantile_s(self, quantile: float) -> float:
        """Return an estimate of a quantile by linear interpolation within its bucket, seconds.

        Above the last finite bound it is that bound, as in the function histogram_quantile of Prometheus.
        """
        low, high = self.bucket_s(quantile)
        if not math.isfinite(high):
            return low
        i = self.bounds_s.index(high)
        before = self.counts[i - 1] if i else 0.0
        inside = self.counts[i] - before
        return low + (high - low) * ((quantile * self.n - before) / inside if inside else 1.0)

    def since(self, earlier: Histogram) -> Histogram:
        """Return the observations after an earlier query.

        Raises:
            InputError: The server restarted between the two queries.
        """
        if not earlier.counts:
            return self
        if earlier.bounds_s != self.bounds_s or any(a < b for a, b in zip(self.counts, earlier.counts, strict=True)):
            raise InputError("the server restarted between the two queries: try again")
        counts = tuple(a - b for a, b in zip(self.counts, earlier.counts, strict=True))
        return Histogram(self.bounds_s, counts, self.total_s - earlier.total_s)


def parse(text: str, where: str) -> Exposition:
    """Return the samples of a text in the Prometheus exposition format.

    Raises:
        InputError: A line is not a sample.
    """
    found: dict[str, list[Sample]] = defaultdict(list)
    for line in map(str.strip, text.splitlines()):
        if not line or line.startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None:
            raise InputError(f"{where} returns no Prometheus metrics", line[:60], hint="give the URL of /metrics")
        labels = {
            name: re.sub(r"\\.", lambda escape: _ESCAPES.get(escape[0], escape[0]), value)
            for name, value in _LABEL.findall(match[2] or "")
        }
        found[match[1]].append(Sample(labels, float(match[3])))
    return Exposition(found)
