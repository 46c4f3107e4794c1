"""The metrics of a running vLLM server over an interval: counters and histograms.

They come from two queries of the server's /metrics, at the start and at the end of the interval, or from one query of a
Prometheus server that scrapes the server. The parser of the text format is our own: 21 lines here, and it names the
line that it cannot read. prometheus_client.parser would save about ten of them, takes 69 ms instead of 23 ms for 3,000
samples, and would be one more dependency of every installation.
"""

from __future__ import annotations

import math
import re
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, Literal
from urllib.parse import urlencode

from pydantic import BaseModel, ValidationError

from catalogs.errors import InputError
from catalogs.io.http import TIMEOUT_S, ReplyError, ServerUrl, get_json, get_text, plain_text
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

_QUERIES_S: Final = 60.0  # all queries of a Prometheus server together

#: Most samples of one reply; a vLLM server has about 1,000.
_MAX_SAMPLES: Final = 100_000


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
        if bounds and math.isfinite(bounds[-1]):
            raise InputError("a histogram of the server has no bucket for +Inf", name)
        # `increase` extrapolates each bucket by itself; Prometheus mends this in the same way (promql/quantile.go).
        rising = tuple(accumulate((counts[b] for b in bounds), max))
        return Histogram(bounds, rising, self.total(f"{name}_sum") or 0.0)


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
        url: Address of the vLLM server or of its /metrics, or of a Prometheus server that scrapes it. A user and a
            password in it are sent as basic authentication.
        seconds: Length of the interval.
        planned: Name of the planned model.
        served: Name of the model on the server, if it is not `planned`.

    Raises:
        InputError: No server answers, the server is not vLLM, or several of its models could be the planned one.
    """
    server = ServerUrl.parse(url, ("/metrics",))
    first, began = _scrape(server), time.monotonic()
    if first is None:
        return Interval(Exposition(), _of_model(_increases(server, seconds), planned, served), seconds)
    before = _of_model(first, planned, served)
    time.sleep(seconds)
    second = _scrape(server)
    if second is None:
        raise InputError("the server stopped between the two queries", server.base)
    return Interval(before, _of_model(second, planned, served), time.monotonic() - began)


def _scrape(server: ServerUrl) -> Exposition | None:
    """Return the metrics of a vLLM server; None if the metrics are of another program, such as Prometheus itself."""
    address = f"{server.base}/metrics"
    found = parse(get_text(address, {"Accept": "text/plain", **server.headers()}), address)
    return found if any(name.startswith(_PREFIX) for name in found.by_name) else None


def _increases(server: ServerUrl, seconds: float) -> Exposition:
    """Return the increase of every metric in the last seconds, as a Prometheus server computes it.

    The function `increase` drops the names of metrics, so there is one query for each name. All queries together take
    at most _QUERIES_S seconds.
    """
    ends_s = time.monotonic() + _QUERIES_S
    possible = {f"{name}{end}" for name in _NAMES for end in ("", "_bucket", "_sum", "_count")}
    names = "|".join(f"{name}(_bucket|_sum|_count)?" for name in _NAMES)
    rows = _query(server, f'count by (__name__) ({{__name__=~"{names}"}})', ends_s)
    found = sorted(possible & {row.metric.get("__name__", "") for row in rows})
    if not found:
        raise InputError("this is neither a vLLM server nor a Prometheus server with metrics of one", server.base)
    span = f"[{max(round(seconds), 1)}s]"
    return Exposition(
        {
            name: [_sample(row.metric, row.value[1], name) for row in _query(server, f"increase({name}{span})", ends_s)]
            for name in found
        }
    )


class _Row(BaseModel, extra="ignore"):
    metric: dict[str, str]
    value: tuple[float, float] = (0.0, math.nan)  # (time, value)


class _Result(BaseModel, extra="ignore"):
    result: list[_Row]


class _Reply(BaseModel, extra="ignore"):
    """The reply of a Prometheus server to an instant query."""

    data: _Result


def _query(server: ServerUrl, text: str, ends_s: float) -> list[_Row]:
    too_slow = InputError(f"the server did not answer all queries within {_QUERIES_S:.0f} s", server.base)
    left_s = min(TIMEOUT_S, ends_s - time.monotonic())
    if left_s <= 0:
        raise too_slow
    address = f"{server.base}/api/v1/query?{urlencode({'query': text})}"
    neither = "this is neither a vLLM server nor a Prometheus server"
    try:
        return _Reply.model_validate(get_json(address, server.headers(), left_s)).data.result
    except ReplyError as error:
        raise InputError(f"{neither} ({error.rule})", server.base) from None
    except ValidationError:
        raise InputError(neither, server.base) from None
    except InputError:
        if time.monotonic() >= ends_s:
            raise too_slow from None
        raise


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
        if self.total_s < earlier.total_s:
            raise InputError("the server restarted between the two queries: try again")
        return Histogram(self.bounds_s, counts, self.total_s - earlier.total_s)


def parse(text: str, where: str) -> Exposition:
    """Return the samples of a text in the Prometheus exposition format.

    Raises:
        InputError: A line is not a sample, a sample cannot be used, or there are too many.
    """
    found: dict[str, list[Sample]] = defaultdict(list)
    n = 0
    for line in map(str.strip, text.split("\n")):
        if not line or line.startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None:
            rule = f"{where} returns no Prometheus metrics"
            raise InputError(rule, plain_text(line, 60), hint="give the URL of /metrics")
        n += 1
        if n > _MAX_SAMPLES:
            raise InputError(f"{where} returns more than {_MAX_SAMPLES:,} samples")
        labels = {
            name: re.sub(r"\\.", lambda escape: _ESCAPES.get(escape[0], escape[0]), value)
            for name, value in _LABEL.findall(match[2] or "")
        }
        found[match[1]].append(_sample(labels, float(match[3]), match[1]))
    return Exposition(found)


def _sample(labels: dict[str, str], value: float, name: str) -> Sample:
    """Return a sample of a counter or a histogram.

    Raises:
        InputError: Its value is negative or not finite although it is read, or its bound is not a number.
    """
    used = name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") in _NAMES
    if used and not 0 <= value < math.inf:
        raise InputError(f"the server's {name} is not a count", value)
    if used and "le" in labels:
        try:
            bound = float(labels["le"])
        except ValueError:
            bound = math.nan
        if math.isnan(bound):
            raise InputError(f"a bucket of the server's {name} has no number as its bound", labels["le"])
    return Sample({k: plain_text(v) if k == "model_name" else v for k, v in labels.items()}, value)
