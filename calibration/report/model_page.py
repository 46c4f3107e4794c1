"""The page of whole-model rows: the error of predictions for held-out configurations, and the rows themselves."""

from __future__ import annotations

import pandas as pd

from calibration.fitting.scores import EstimatorScore
from calibration.report import model_figures as figures
from calibration.whole_models.screen import value_text
from calibration.whole_models.study import CHOSEN, TargetStudy, WholeModelStudy
from catalogs.ui.html_page import Markup, Page, PageSection, bullets, cards, chart, note, paragraph, table
from catalogs.ui.words import percent

ERRORS = ("R²", "MAE", "RMSE", "Median error", "Mean error", "9 of 10 within", "Bias")

HEAD = ("Predicted", "Held out", "Best", "Rows", "Aim for R²", *ERRORS)

COVERAGE_HEAD = ("Predicted", "Held out", "Interval", "Held-out rows inside")


def page_of_study(found: WholeModelStudy) -> Page:
    """Return the page of a study: summary, then each target, then the rows."""
    used = found.used
    power = [note("Not shown: no energy counter was readable while these rows were measured.")]
    if (used.watts.notna() & (used.flops_per_s > 0)).any():
        power = [chart(figures.power(used), "Mean power while a point is repeated, by the device's energy counter.")]
    workloads = chart(figures.by_workload(used), "One point per row; workloads differ in lengths, rows also in batch.")
    batch = chart(figures.against_batch(used), "Medians over workloads and lengths. Dashed: encoder-decoder models.")
    boxes = chart(figures.by_architecture(used), "Boxes hold half of the rows; points beyond the whiskers are drawn.")
    sections = [
        _summary(found),
        *(_target(t) for t in found.targets),
        PageSection("Latency by workload", [workloads], "Workload"),
        PageSection("Latency and memory against batch", [batch], "Batch"),
        _device_time(used),
        PageSection("By type of architecture", [boxes], "Architecture"),
        PageSection("Power", power),
    ]
    names = ", ".join(sorted(used.model.unique()))
    return Page("Whole models, measured and predicted", names, sections, "Written by calibrate report.")


def _summary(found: WholeModelStudy) -> PageSection:
    n_measured = int((found.rows["status"] == "ok").sum())
    figures_first = [
        ("Models", str(found.used.model.nunique())),
        ("Points measured", f"{n_measured:,}"),
        ("Skipped or failed", f"{len(found.rows) - n_measured:,}"),
        ("Rows studied", f"{len(found.used):,}"),
    ]
    text = (
        "Every figure is of rows that were left out of the fit with their whole configuration (model, workload, batch) "
        "or model; the estimator was chosen on the other rows alone."
    )
    lines = [line for t in found.targets for line in _lines(t)]
    intervals = table(
        COVERAGE_HEAD,
        [line for t in found.targets for line in _intervals(t)],
        "90 % intervals of a prediction for a new group; the last column is checked with intervals from other groups.",
        words=2,
    )
    parts = [cards(figures_first), paragraph(text), table(HEAD, lines, words=3), intervals, bullets(found.notes)]
    return PageSection("Summary", parts)


def _lines(t: TargetStudy) -> list[tuple[str, ...]]:
    aim = "" if t.target.r2_goal is None else f"{t.target.r2_goal:.2f} {'met' if t.met else 'missed'}"
    return [
        (t.target.title, words, held.best, f"{held.score().n:,}", of_aim, *_errors(held.score(), t.target.unit))
        for held, words, of_aim in ((t.by_configuration, "configurations", aim), (t.by_model, "whole models", ""))
        if held is not None
    ]


def _errors(s: EstimatorScore, unit: str) -> tuple[str, ...]:
    """Return the cells of ERRORS."""
    shares = (percent(s.median, 1), percent(s.mape, 1), percent(s.p90), percent(s.bias, 1, signed=True))
    return (f"{s.r2:.3f}", value_text(s.mae, unit), value_text(s.rmse, unit), *shares)


def _intervals(t: TargetStudy) -> list[tuple[str, ...]]:
    return [
        (t.target.title, words, f"÷ or × {held.interval_factor:.3g}", percent(held.interval_coverage))
        for held, words in ((t.by_configuration, "configurations"), (t.by_model, "whole models"))
        if held is not None
    ]


def _target(t: TargetStudy) -> PageSection:
    rows = [(s.estimator, *_errors(s, t.target.unit)) for s in t.by_configuration.scores]
    caption = f"Estimators on held-out configurations, best first; {CHOSEN}: picked by an inner validation."
    parts: list[Markup] = [
        chart(figures.predictions(t), "Each point was predicted by a fit without any row of its configuration.", 460),
        chart(figures.residuals(t), "Error against the prediction, and the distribution of errors.", 400),
        table(("Estimator", *ERRORS), rows, caption),
    ]
    if any(i.added_error > 0 for i in t.importance):
        text = "The error added by shuffling a column of held-out rows. Work columns follow from the lengths."
        parts.append(chart(figures.importance_bars(t), text, 140 + 26 * min(len(t.importance), figures.MOST_FEATURES)))
    return PageSection(t.target.title, parts)


def _device_time(used: pd.DataFrame) -> PageSection:
    title = "Device and host time"
    if figures.device_rows(used)[0].empty:
        return PageSection(
            title, [note("Not shown: these rows hold no processor time and no time of a GPU's kernels.")]
        )
    text = "Each point: one generation. On a CPU the device's time is the processor time of a thread."
    return PageSection(title, [chart(figures.device_against_host(used), text)], "Device time")
