"""Service-level objectives: `METRIC.STAT=LIMIT`, for example `ttft.p99=2s,tpot.mean=50ms`.

A condition in brackets restricts an objective to requests of some lengths: `e2e[in<1k,out<256].p99=5s`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np

from catalogs.arrays import FloatArray
from catalogs.errors import LONGEST_VALUE, InputError, nearest_name
from catalogs.ui.words import digits, exact_duration, human_s
from planner.problem.interactivity import INTERACTIVITY, rate_text, tpot_limit_s
from planner.problem.key_definition import need_one_of
from planner.problem.latency_metrics import LATENCY_METRICS, TPOT, TTFT
from planner.problem.length_condition import LengthCondition
from planner.problem.metric_definition import LatencyMetric

#: Seconds of each unit of a limit.
UNIT_S: Final[dict[str, float]] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0, "h": 3600.0}

#: The least limit in seconds, far below any step of an engine. Margins of smaller limits would have hundreds of digits.
LEAST_LIMIT_S: Final = 1e-6

#: The greatest limit in seconds, a day. No request, session or job that anyone waits for takes longer.
MOST_LIMIT_S: Final = 86400.0

#: Other spellings of units, for error messages.
_UNITS_AS_WRITTEN: Final = {
    **dict.fromkeys(("", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("msec", "msecs", "millis", "milliseconds"), "ms"),
    **dict.fromkeys(("µs", "μs", "usec", "micros", "microseconds"), "us"),
    **dict.fromkeys(("m", "mins", "minute", "minutes"), "min"),
    **dict.fromkeys(("hr", "hrs", "hour", "hours"), "h"),
}

_DAYS: Final = ("d", "day", "days")

#: A limit without a unit from this number on is taken for milliseconds in error messages.
_LEAST_LIKELY_MS: Final = 20.0

DEFAULT_METRIC: Final = TTFT.name

#: Statistics that answers, reports and predictions hold of each latency.
STATS: Final = ("mean", "p50", "p90", "p95", "p99")

#: Other names of statistics, for error messages.
_STATS_AS_WRITTEN: Final = {"avg": "mean", "average": "mean", "median": "p50", "max": "p99.9"}

_USUAL_STAT: Final = "p99"

#: Largest percentile of an objective: no run is long enough for more.
MOST_PERCENTILE: Final = 99.99

#: From here on, limits are written in minutes or hours where these are whole.
_LONG_S: Final = 600.0

_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?)")

#: A percentile that no distribution has.
_AT_LEAST_100: Final = re.compile(r"p[1-9]\d{2,}(\.\d*)?")

#: What stands between commas that separate objectives; those of the condition of an objective do not.
_OBJECTIVE = re.compile(r"(?:\[[^\[\]]*\]|[^,])+")

_CONDITION = re.compile(r"\[([^\[\]]*)\]")

#: An opening bracket without its closing one, with what follows up to the next opening one.
_OPEN = re.compile(r"\[[^\[\]]*(?=\[|\Z)")

#: The statistic after a condition.
_STATISTIC = re.compile(r"\.(?:mean|p\d{1,2}(?:\.\d+)?)\s*=", re.IGNORECASE)

#: A metric, a statistic and a limit, with any signs between them.
_PARTS = re.compile(r"([a-z0-9_]*?)[\s.:_/-]*(mean|p\d{1,2}(?:\.\d+)?)\s*[<>=:\s]+\s*(\S+\s?[a-z]*)", re.IGNORECASE)

#: What follows a comma in a limit that is written with a decimal comma.
_AFTER_COMMA = re.compile(r"\d+\s*[a-z]+", re.IGNORECASE)

_LIMIT = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\d\s]*)")


@dataclass(frozen=True, slots=True)
class Slo:
    """One objective: a statistic of one latency must not exceed a limit.

    Attributes:
        metric: The name of the latency metric, with the canonical text of its condition: "e2e" or "e2e[in<1k]".
        stat: "mean" or "pNN".
        limit_s: The limit, seconds.
        metric_given: False if the metric was left out and ttft is assumed.
        as_rate: True if it was written as interactivity, in tokens per second.
    """

    metric: str
    stat: str
    limit_s: float
    metric_given: bool = field(default=True, compare=False)
    as_rate: bool = field(default=False, compare=False)

    @property
    def name(self) -> str:
        """Return metric and statistic, for example "ttft.p99"."""
        return f"{self.metric}.{self.stat}"

    @property
    def latency(self) -> LatencyMetric:
        """Return the metric's entry in `LATENCY_METRICS`."""
        return LATENCY_METRICS[self.metric]

    @property
    def text(self) -> str:
        """Return the objective as METRIC.STAT=LIMIT, as a rate where it was written as one."""
        if self.as_rate:
            return f"{self.name.replace(TPOT.name, INTERACTIVITY, 1)}={rate_text(self.limit_s)}"
        return f"{self.name}={seconds_text(self.limit_s)}"

    @property
    def quantile(self) -> float | None:
        """Return the percentile as a share in 0..1; None for the mean."""
        return None if self.stat == "mean" else float(self.stat[1:]) / 100

    @property
    def words(self) -> str:
        """Return the objective as a sentence, which states whether the metric was assumed."""
        limit = human_s(self.limit_s)
        what = self.latency.words
        if not self.latency.is_per_request and self.quantile is not None:
            return f"{self.stat[1:]} % of {self.latency.samples_called} are at most {limit}"
        condition = self.latency.condition
        some = f" with {condition.words}" if condition is not None else ""
        if self.as_rate and self.quantile is not None:
            return (
                f"{self.stat[1:]} % of requests{some} have at least {digits(1 / self.limit_s)} output tokens per second"
            )
        if self.quantile is None:
            words = f"the mean {what}{f' of requests{some}' if some else ''} is at most {limit}"
        else:
            article = "an" if what[0] in "aeiou" else "a"
            words = f"{self.stat[1:]} % of requests{some} have {article} {what} of at most {limit}"
        return words if self.metric_given else f"{words} (no metric given: time to first token assumed)"

    def value_s(self, samples_s: FloatArray) -> float:
        """Return the statistic of `samples_s` in seconds; unserved requests count as infinite. Shape (n,)."""
        return statistic_s(samples_s, self.quantile)


def statistic_s(samples_s: FloatArray, quantile: float | None) -> float:
    """Return the mean (quantile None) or the linearly interpolated quantile of samples of shape (n,).

    The result is nan without samples, and inf if an infinite sample contributes to it.
    """
    if not len(samples_s):
        return float("nan")
    if quantile is None:
        return float(np.mean(samples_s))
    rank = quantile * (len(samples_s) - 1)
    low = int(rank)
    high = min(low + 1, len(samples_s) - 1)
    parted = np.partition(samples_s, (low, high))  # a plan asks thousands of times, of up to millions of samples
    below, above = parted[low], parted[high]
    if rank == low or not np.isfinite(above):
        return float(below if rank == low else np.inf)
    return float(below + (above - below) * (rank - low))


def seconds_text(value_s: float) -> str:
    """Return seconds as an exact limit of an objective: 2.0 gives "2s", 0.05 gives "50ms", 10800.0 gives "3h"."""
    if value_s >= _LONG_S:
        return exact_duration(value_s)
    unit = "s" if value_s >= 1 else "ms" if value_s >= 1e-3 else "us"
    short = f"{value_s / UNIT_S[unit]:.12g}"
    return f"{short}{unit}" if _seconds_of(float(short), unit) == value_s else f"{value_s!r}s"


def rounded_up(limit_s: float) -> float:
    """Return a limit in seconds, rounded up to two digits; at most the greatest limit that an objective may have."""
    digit = 10.0 ** (math.floor(math.log10(limit_s)) - 1)
    return min(float(f"{math.ceil(limit_s / digit) * digit:.3g}"), MOST_LIMIT_S)


def _seconds_of(number: float, unit: str) -> float:
    """Return a number of a unit in seconds: the nearest number to it, so that 51 ms are 0.051 s to the last bit."""
    unit_s = UNIT_S[unit]
    return number * unit_s if unit_s >= 1 else number / round(1 / unit_s)


def parse_slos(texts: Iterable[str]) -> tuple[Slo, ...]:
    """Return the objectives of repeated or comma-separated options.

    Raises:
        InputError: There is no objective, one is not valid, or a statistic has two limits.
    """
    given = list(texts)
    wrong = next((text for text in given if not isinstance(text, str)), None)
    if wrong is not None:
        raise InputError("an SLO is a text", wrong, "ttft.p99=2s")
    for text in given:
        _need_closed(text)
    parts = [part for text in given for part in split_slos(text)]
    for before, part in pairwise(parts):
        if _AFTER_COMMA.fullmatch(part) and before[-1:].isdigit():
            rule = "a limit has a decimal point, and commas separate objectives"
            raise InputError(rule, f"{before},{part}", f"{before}.{part}")
    if not parts:
        raise InputError("an SLO is needed, written METRIC.STAT=LIMIT", None, "ttft.p99=2s")
    slos = tuple(parse_slo(part) for part in parts)
    for name, n in Counter(slo.name for slo in slos).items():
        if n > 1:
            tightest = min(slo.limit_s for slo in slos if slo.name == name)
            raise InputError("an SLO sets one limit for each statistic", name, f"{name}={seconds_text(tightest)}")
    return slos


def split_slos(text: str) -> list[str]:
    """Return the texts that commas separate, without spaces around them; conditions keep their commas."""
    return [part.strip() for part in _OBJECTIVE.findall(text) if part.strip()]


def parse_slo(text: str) -> Slo:
    """Return the objective that a text describes.

    Raises:
        InputError: The text is not valid; the error names the broken rule and the nearest valid choice.
    """
    _need_closed(text)
    written, condition = _taken_apart(text)
    name, equals, limit = (part.strip() for part in written.partition("="))
    if not equals:
        raise InputError("an SLO is written METRIC.STAT=LIMIT", text, _as_objective(written) or "ttft.p99=2s")
    if "=" in limit:
        raise InputError("an SLO has one =, and commas separate several", text, _separated(written))
    metric, dot, stat = name.lower().partition(".")
    if not dot and metric in (*LATENCY_METRICS, INTERACTIVITY):
        where = "" if condition is None else text[text.index("[") : text.index("]") + 1]
        nearest = f"{metric}{where}.{_USUAL_STAT}={limit or '2s'}"
        raise InputError("an SLO names a statistic, mean or pNN, after its metric", text, nearest)
    given = bool(dot) and not _PERCENTILE.fullmatch(name.lower())
    if not given:
        metric, stat = DEFAULT_METRIC, name.lower()
    is_rate = given and metric == INTERACTIVITY
    metric = TPOT.name if is_rate else metric
    need_one_of("an SLO metric", metric, (*LATENCY_METRICS, INTERACTIVITY))
    if condition is not None:
        metric = LATENCY_METRICS[metric].where(condition).name
    if not is_rate and limit.lower().endswith("/s"):
        number = _LIMIT.match(limit)
        nearest = f"{INTERACTIVITY}.{_stat(stat)}={number[1].lstrip('+-') if number else '30'}"
        raise InputError(f"tokens per second are a limit of {INTERACTIVITY}", text, nearest)
    try:
        stat = _stat(stat)
    except InputError as error:
        named = stat in _STATS_AS_WRITTEN or nearest_name(stat, STATS) is not None
        if not given and stat.isalpha() and not named:
            need_one_of("an SLO metric", stat, (*LATENCY_METRICS, INTERACTIVITY))
        meant = None if condition is not None else _as_objective(written)
        raise InputError(error.rule, error.value, meant or error.nearest) from None
    return Slo(metric, stat, tpot_limit_s(limit) if is_rate else _limit_s(limit), given, is_rate)


def _as_objective(text: str) -> str | None:
    """Return the objective that a text writes with other signs ("ttft p99 <= 2s"); None for any other text."""
    found = _PARTS.fullmatch(text.strip())
    if found is None:
        return None
    metric, stat, limit = found[1].lower(), found[2].lower(), found[3].replace(" ", "")
    nearest = f"{metric}.{stat}={limit}" if metric else f"{DEFAULT_METRIC}.{stat}={limit}"
    return nearest if nearest != text and _is_valid(nearest) else None


def _separated(text: str) -> str:
    """Return objectives with commas between them; of a text that is none with commas either, an example."""
    parts = list(filter(None, re.split(r"[;&|\s]+", text)))
    nearest = ",".join(parts)
    if len(parts) > 1 and _is_valid(nearest):
        return nearest
    return _as_objective(text) or "ttft.p99=2s,tpot.p99=50ms"


def _is_valid(text: str) -> bool:
    """Return whether a text of usual length is one objective or several."""
    try:
        return len(text) <= LONGEST_VALUE and bool(parse_slos([text]))
    except InputError:
        return False


def unclosed(text: str) -> bool:
    """Return whether a bracket of a text is not closed."""
    return _OPEN.search(text) is not None


def _need_closed(text: str) -> None:
    """Check that every bracket of a text is closed.

    Raises:
        InputError: One is not; the nearest choice closes it before the statistic.
    """
    if not unclosed(text):
        return
    nearest = _OPEN.sub(lambda found: _closed(found[0]), text)
    rule = "the bracket of a condition is not closed: ] is missing"
    raise InputError(rule, text, nearest if _is_valid(nearest) else "e2e[in<1k,out<256].p99=5s")


def _closed(condition: str) -> str:
    """Return a condition with the bracket that is missing: before the statistic, or at the end."""
    found = _STATISTIC.search(condition)
    return f"{condition}].p99=2s" if found is None else f"{condition[: found.start()]}]{condition[found.start() :]}"


def _taken_apart(text: str) -> tuple[str, LengthCondition | None]:
    """Return the text without its condition, and the condition.

    Raises:
        InputError: Brackets do not follow the metric, or the condition is not valid.
    """
    found = _CONDITION.search(text)
    rule = "a condition stands once, in brackets after the metric, as in e2e[in<1k,out<256].p99=5s"
    if found is None:
        if "[" in text or "]" in text:
            raise InputError(rule, text, text.replace("[", "").replace("]", ""))
        return text, None
    before, after = text[: found.start()], text[found.end() :]
    rest = before + after
    if "[" in rest or "]" in rest:
        raise InputError(rule, text, f"{DEFAULT_METRIC}{found[0]}.p99=2s")
    condition = LengthCondition.parse(found[1])
    if not before.strip() or "." in before or "=" in before or _PERCENTILE.fullmatch(before.strip().lower()):
        head, dot, stat = rest.strip().partition(".")
        known = head.lower() in LATENCY_METRICS
        nearest = f"{head}{found[0]}{dot}{stat}" if known else f"{DEFAULT_METRIC}{found[0]}.{rest.strip().lstrip('.')}"
        raise InputError(rule, text, nearest)
    return rest, condition


def _stat(text: str) -> str:
    if text == "mean":
        return text
    match = _PERCENTILE.fullmatch(text)
    if match is None or float(match[1]) <= 0:
        nearest = _STATS_AS_WRITTEN.get(text)
        if _AT_LEAST_100.fullmatch(text):
            nearest = "p99.9"
        near = nearest or nearest_name(text, (*STATS, "p99.9")) or "p99"
        raise InputError("an SLO statistic is mean or pNN with 0 < NN < 100", text, near)
    if float(match[1]) > MOST_PERCENTILE:
        raise InputError(f"a percentile is at most p{MOST_PERCENTILE:g}: no run is long enough for more", text, "p99.9")
    return f"p{float(match[1]):.12g}"


def _limit_s(text: str) -> float:
    match = _LIMIT.fullmatch(text)
    if match is None:
        raise InputError("an SLO limit is a number with a unit: us, ms, s, min or h", text, "2s")
    number, unit = match[1], match[2].lower()
    if unit not in UNIT_S:
        if unit in _DAYS:
            hours = min(max(abs(float(number)), 1e-3) * 24, MOST_LIMIT_S / UNIT_S["h"])
            raise InputError("an SLO limit has the unit us, ms, s, min or h", text, f"{hours:g}h")
        near = _UNITS_AS_WRITTEN.get(unit) or nearest_name(unit, UNIT_S) or "s"
        if not unit and abs(float(number)) >= _LEAST_LIKELY_MS:
            near = "ms"
        raise InputError("an SLO limit has the unit us, ms, s, min or h", text, f"{_above_zero(number)}{near}")
    value_s = _seconds_of(float(number), unit)
    if not 0 < value_s < float("inf"):
        raise InputError("an SLO limit is a time above zero", text, f"{_above_zero(number)}{unit}")
    if value_s < LEAST_LIMIT_S:
        raise InputError("an SLO limit is at least 1us: no step of an engine is shorter", text, "1us")
    if value_s > MOST_LIMIT_S:
        raise InputError("an SLO limit is at most 24h", text, "24h")
    return value_s


def _above_zero(number: str) -> str:
    """Return the nearest number that a limit may have, as text."""
    value = abs(float(number))
    return f"{value:g}" if 0 < value < float("inf") else "1"
