"""Latency that accounts for complexity: the end-to-end time of the recommended plan by the lengths of requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from calibration.complexity.length_bins import LengthBins, TokenRange, quantile_edges
from calibration.complexity.linear_fit import LatencyLaw
from calibration.complexity.records import PARTS
from calibration.complexity.summary import complexity_of
from catalogs.arrays import FloatArray
from catalogs.io.json_block import JsonBlock
from catalogs.ui.html_page import Markup, paragraph, table
from catalogs.ui.terminal import Line
from catalogs.ui.words import counted, percent, seconds
from planner.answer.plan_schema import Plan, Stats
from planner.evaluation.observation import Load
from planner.evaluation.run_sizes import run_sizes
from planner.problem.latency_metrics import E2E, LATENCY_METRICS
from planner.sections.section import ChosenPlan, Section

#: Levels of the printed range of the stated error.
_RANGE: Final = (0.05, 0.95)


class TokenSpan(JsonBlock):
    """The lengths of a bin, tokens: at least `least`, and below `below` (None: no upper bound)."""

    least: float
    below: float | None

    @property
    def words(self) -> str:
        """Return the range as text."""
        return TokenRange(self.least, float("inf") if self.below is None else self.below).words


class LengthBinBlock(JsonBlock):
    """The simulated requests of one bin of lengths, with the statistics of their times in seconds."""

    input_tokens: TokenSpan
    output_tokens: TokenSpan
    requests: int
    mean_input_tokens: float | None
    mean_output_tokens: float | None
    e2e_s: Stats
    per_output_token_s: Stats


class LawBlock(JsonBlock):
    """A linear law of the end-to-end time in seconds; None for a length that all requests share."""

    constant_s: float
    input_token_s: float | None
    output_token_s: float | None

    @property
    def words(self) -> str:
        """Return the law in words."""
        return LatencyLaw(self.constant_s, self.input_token_s, self.output_token_s).words


class FitBlock(JsonBlock):
    """The linear fit of the end-to-end time: its mean, its quantiles, and what it leaves unexplained."""

    requests: int
    mean: LawBlock
    explained: float | None
    residual_s: dict[str, float]
    relative_error: dict[str, float]
    quantiles: dict[str, LawBlock]


class PartBlock(JsonBlock):
    """One part of the end-to-end time: statistics in seconds, and its share of the time of all requests."""

    seconds: Stats
    share: float


class LatencyByLength(JsonBlock):
    """The end-to-end time of the recommended plan against the lengths of requests; see docs/complexity.md.

    All statistics are of the steady part of one simulated run. `error_low` and `error_high` are the factors between
    which 90 % of measured end-to-end times lie, by the stated error of the engine; they apply to normalised times too.
    """

    requests: int
    e2e_s: Stats
    per_output_token_s: Stats
    per_token_s: Stats
    by_bin: list[LengthBinBlock]
    fit: FitBlock | None
    parts: dict[str, PartBlock]
    error_low: float
    error_high: float

    @property
    def edges(self) -> list[tuple[float, float | None, float, float | None]]:
        """Return the lengths of all bins: blocks with equal bins can be compared."""
        sides = ((each.input_tokens, each.output_tokens) for each in self.by_bin)
        return [(i.least, i.below, o.least, o.below) for i, o in sides]

    @property
    def counts(self) -> FloatArray:
        """Return the number of requests of each bin. Shape (bins,)."""
        return np.array([each.requests for each in self.by_bin], dtype=np.float64)

    @property
    def means_s(self) -> FloatArray:
        """Return the mean end-to-end time of each bin, seconds; NaN without requests. Shape (bins,)."""
        means = [each.e2e_s.mean for each in self.by_bin]
        return np.array([np.nan if mean is None else mean for mean in means])


class ComplexitySection(Section[LatencyByLength]):
    """The section of end-to-end times by bins of lengths, as a fit, per token and in parts.

    The bins are quartiles of the lengths of the workload, so answers for one workload share them.
    """

    name = "complexity"
    title = "Latency by the length of requests"
    short_title = "Latency by length"
    schema = LatencyByLength

    def compute(self, chosen: ChosenPlan) -> LatencyByLength:
        """Simulate one replica's share of the load, which the search has usually done already."""
        request, sample = chosen.request, chosen.evaluator.statistics.sample
        n = run_sizes(request).full
        load = Load(chosen.evaluated.requests_per_s, n, request.seed)
        records = chosen.evaluator.runs.records(chosen.candidate, load)
        lengths = (sample.input_tokens, sample.output_tokens)
        bins = LengthBins(*(quantile_edges(tokens.astype(np.float64)) for tokens in lengths))
        low, high = chosen.error.factors(E2E.stated_error, np.array(_RANGE)).tolist()
        found = complexity_of(records, bins).block()
        return LatencyByLength.model_validate(found | {"error_low": low, "error_high": high})

    def screen(self, block: LatencyByLength, plan: Plan) -> Iterator[Line]:
        """Yield the law and the normalised times if an objective is about lengths; otherwise nothing."""
        metrics = [LATENCY_METRICS[row.metric] for row in plan.slo]
        normalised = [m for m in metrics if m.stated_error == E2E.stated_error and m.name != E2E.name]
        if not normalised and all(m.condition is None for m in metrics):
            return
        yield "By length", _normalised_words(block)
        if block.fit is not None:
            yield "", f"mean end-to-end time = {block.fit.mean.words}"

    def page(self, block: LatencyByLength, plan: Plan) -> Iterator[Markup]:  # noqa: ARG002
        """Yield the parts, the fits, and the end-to-end time by bins of lengths."""
        span = f"{block.error_low:.2g} to {block.error_high:.2g}"
        yield paragraph(
            f"{_normalised_words(block)}. From {counted(block.requests, 'simulated request')} at the planned rate. "
            f"90 % of measured end-to-end times are {span} times the simulated ones, and so are times per token."
        )
        if block.parts:
            parts = [(PARTS[name], *_stats(part.seconds), percent(part.share)) for name, part in ordered(block.parts)]
            head = ("Part of the end-to-end time", "mean", "p50", "p99", "share")
            yield table(head, [*parts, ("end to end", *_stats(block.e2e_s), percent(1.0))])
        if block.fit is not None:
            laws = [("mean", block.fit.mean.words)] + [(n, law.words) for n, law in block.fit.quantiles.items()]
            yield table(("Statistic", "End-to-end time by linear fit"), laws, words=2)
        columns = list(dict.fromkeys(each.output_tokens.words for each in block.by_bin))
        cells = {(each.input_tokens.words, each.output_tokens.words): _cell(each) for each in block.by_bin}
        inputs = dict.fromkeys(each.input_tokens.words for each in block.by_bin)
        bins = [(row, *(cells[row, column] for column in columns)) for row in inputs]
        titles = ("Input tokens", *(f"{column} output tokens" for column in columns))
        yield table(titles, bins, "Median and 99th percentile of the end-to-end time, seconds (requests)")


def ordered(parts: Mapping[str, PartBlock]) -> list[tuple[str, PartBlock]]:
    """Return the parts in the order of a request's life."""
    return [(name, parts[name]) for name in PARTS if name in parts]


def _normalised_words(block: LatencyByLength) -> str:
    each, total = block.per_output_token_s, block.per_token_s
    return (
        f"end-to-end time per output token: mean {seconds(each.mean)}, p99 {seconds(each.p99)}; "
        f"per input and output token: mean {seconds(total.mean)}, p99 {seconds(total.p99)}"
    )


def _stats(found: Stats) -> tuple[str, str, str]:
    return seconds(found.mean), seconds(found.p50), seconds(found.p99)


def _cell(each: LengthBinBlock) -> str:
    if not each.requests:
        return "none"
    return f"{each.e2e_s.p50:.3g}, {each.e2e_s.p99:.3g} ({each.requests})"
