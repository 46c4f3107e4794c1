"""What a running server did in an interval: scraped twice from its /metrics, or asked of a Prometheus server once.

The text that Prometheus scrapes, and what two of them tell: counts and histograms of the time between.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

from catalogs.errors import InputError
from planner.problem.latency_metrics import LATENCY_METRICS

#: Names vLLM has had for what is read here; the newest first.
HISTOGRAMS: Final = {name: metric.histograms for name, metric in LATENCY_METRICS.items()}

COUNTERS: Final = {
    "requests": ("vllm:request_success_total", "vllm:request_success"),
    "input_tokens": ("vllm:prompt_tokens_total", "vllm:prompt_tokens"),
    "output_tokens": ("vllm:generation_tokens_total", "vllm:generation_tokens"),
}

LENGTHS: Final = {"input": "vllm:request_prompt_tokens", "output": "vllm:request_generation_tokens"}

_PREFIX: Final = "vllm:"

_TIMEOUT_S: Final = 10.0

_MOST_BYTES: Final = 64 * 2**20


Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: name, labels, value."""

    name: str
    labels: Labels
    value: float


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


@dataclass(frozen=True, slots=True)
class Interval:
    """Of one model: scrapes at both ends and the seconds between. For an API query the first is empty."""

    before: Exposition
    after: Exposition
    seconds: float

    @property
    def models(self) -> set[str]:
        """What the server calls the model."""
        return self.after.values("model_name")

    def counted(self, counter: str) -> float:
        """How much a counter grew; 0 where there is none."""
        for name in COUNTERS[counter]:
            after = self.after.total(name)
            if after is not None:
                return after - (self.before.total(name) or 0.0)
        return 0.0

    def mean_tokens(self, side: Literal["input", "output"]) -> float:
        """Of the requests that ended; counters also hold those still running. NaN where none did."""
        after, before = (x.histogram(LENGTHS[side]) for x in (self.after, self.before))
        if after.counts:
            return after.since(before).mean_s  # a histogram of tokens: its unit is theirs
        ended = self.counted("requests")
        return self.counted(f"{side}_tokens") / ended if ended else math.nan

    def histogram(self, metric: str) -> Histogram:
        """What was observed in between, seconds; empty where the server keeps none."""
        for name in HISTOGRAMS[metric]:
            after = self.after.histogram(name)
            if after.counts:
                return after.since(self.before.histogram(name))
        return Histogram((), (), 0.0)


def look(url: str, seconds: float, planned: str, served: str | None = None) -> Interval:
    """Raises InputError where nothing answers, what answers is no vLLM, or it is unclear which of its models is meant.

    url: a server's own address or its /metrics, or that of a Prometheus server that scrapes it. served: the name the
    server calls the planned model by, where it is not the plan's.
    """
    base = _base(url)
    first = _scrape(base)
    if first is None:
        asked = _ask(base, seconds)
        return Interval(Exposition(), _of_model(asked, _name(asked, planned, served)), seconds)
    name = _name(first, planned, served)
    began = time.monotonic()
    time.sleep(seconds)
    second = _scrape(base)
    if second is None:
        raise InputError("the server stopped between the two queries", url)
    return Interval(_of_model(first, name), _of_model(second, name), time.monotonic() - began)


def _base(url: str) -> str:
    parts = urlsplit(url if "//" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise InputError("an address must be an http or https URL", url, "http://localhost:8000")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/metrics')}"


def _scrape(base: str) -> Exposition | None:
    """None where the page is there and not vLLM's (Prometheus shows its own)."""
    found = parse(_get(f"{base}/metrics"), f"{base}/metrics")
    return found if any(name.startswith(_PREFIX) for name in found.by_name) else None


def _ask(base: str, seconds: float) -> Exposition:
    """What grew in the last seconds, as Prometheus reckons it. increase() drops names: one query for each."""
    names = "|".join(f"{n}(_bucket|_sum|_count)?" for n in _read_names())
    rows = _query(base, f'count by (__name__) ({{__name__=~"{names}"}})')
    found = sorted({str(row["metric"]["__name__"]) for row in rows})
    if not found:
        raise InputError("this is neither a vLLM server nor a Prometheus server with metrics of one", base)
    return Exposition({name: list(_samples(base, name, seconds)) for name in found})


def _read_names() -> list[str]:
    return [n for known in (HISTOGRAMS, COUNTERS) for names in known.values() for n in names] + list(LENGTHS.values())


def _samples(base: str, name: str, seconds: float) -> Iterator[Sample]:
    for row in _query(base, f"increase({name}[{max(round(seconds), 1)}s])"):
        yield Sample(name, row["metric"], float(row["value"][1]))


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
            text: str = answer.read(_MOST_BYTES).decode("utf-8", "replace")
            return text
    except HTTPError as error:
        raise InputError(f"the server answers {error.code}", address) from None
    except (URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise InputError(f"no server answers at this address ({reason})", address) from None


def _name(found: Exposition, planned: str, served: str | None) -> str | None:
    """Which of the server's models is meant; None where its metrics name none."""
    names = found.values("model_name")
    wanted = served or planned
    if not names or wanted in names:
        return wanted if names else None
    if served is None and len(names) == 1:
        return next(iter(names))
    rule = "the server has no model with this name" if served else "the server has several models; name the planned one"
    raise InputError(rule, wanted, "--served " + " or ".join(sorted(names)))


def _of_model(found: Exposition, name: str | None) -> Exposition:
    return found if name is None else found.only("model_name", name)


_LINE: Final = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?$")

_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')

_ESCAPES: Final = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


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
            raise InputError("the server restarted between the two queries: try again")
        counts = tuple(a - b for a, b in zip(self.counts, earlier.counts, strict=True))
        return Histogram(self.bounds_s, counts, self.total_s - earlier.total_s)


def parse(text: str, where: str) -> Exposition:
    """Raises InputError for a line that is no sample."""
    found: dict[str, list[Sample]] = defaultdict(list)
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _LINE.match(stripped)
        if match is None:
            raise InputError(f"{where} returns no Prometheus metrics", stripped[:60], "the URL of /metrics")
        labels = {name: _plain(value) for name, value in _LABEL.findall(match[2] or "")}
        found[match[1]].append(Sample(match[1], labels, _number(match[3])))
    return Exposition(dict(found))


def _number(text: str) -> float:
    try:
        return float(text.replace("+Inf", "inf").replace("-Inf", "-inf"))
    except ValueError:
        raise InputError("the value of a metric must be a number", text) from None


def _plain(text: str) -> str:
    return re.sub(r"\\.", lambda m: _ESCAPES.get(m[0], m[0]), text)
