"""The page of whole-model rows: the error of predictions for held-out configurations, and the rows themselves."""

from __future__ import annotations

from calibration.fitting.scores import EstimatorScore
from calibration.report import model_figures as figures
from calibration.whole_models.study import CHOSEN, TargetStudy, WholeModelStudy
from catalogs.ui.html_page import Markup, Page, PageSection, bullets, cards, chart, note, paragraph, table
from catalogs.ui.words import percent

HEAD = ("Predicted", "Held out", "Chosen", "Rows", "R²", "Aim", "Mean error", "9 of 10 within", "Bias")


def page_of_study(found: WholeModelStudy) -> Page:
    """Return the page of a study: summary, then each target, then the rows."""
    used = found.used
    power = [note("Not shown: no energy counter was readable while these rows were measured.")]
    if (used.watts.notna() & (used.flops_per_s > 0)).any():
        power = [chart(figures.power(used), "Mean power while a point is repeated, by the device's energy counter.")]
    batch = chart(figures.against_batch(used), "Medians over workloads and lengths. Dashed: encoder-decoder models.")
    boxes = chart(figures.by_architecture(used), "Boxes hold half of the rows; points beyond the whiskers are drawn.")
    sections = [
        _summary(found),
        *(_target(t) for t in found.targets),
        PageSection("Latency and memory against batch", [batch], "Batch"),
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
    return PageSection(
        "Summary", [cards(figures_first), paragraph(text), table(HEAD, lines, words=3), bullets(found.notes)]
    )


def _lines(t: TargetStudy) -> list[tuple[str, ...]]:
    aim = "" if t.target.r2_goal is None else f"{t.target.r2_goal:.2f} {'met' if t.met else 'missed'}"
    out = [(t.target.title, "configurations", t.winner, *_figures(t.by_configuration.score(), aim))]
    if t.by_model is not None:
        out.append((t.target.title, "whole models", t.winner, *_figures(t.by_model.score(), "")))
    return out


def _figures(s: EstimatorScore, aim: str) -> tuple[str, ...]:
    lean = percent(s.bias, 1, signed=True)
    return (f"{s.n:,}", f"{s.r2:.3f}", aim, percent(s.mape, 1), percent(s.p90), lean)


def _target(t: TargetStudy) -> PageSection:
    rows = [(s.estimator, *_figures(s, "")[1:2], *_figures(s, "")[3:]) for s in t.by_configuration.scores]
    head = ("Estimator", "R²", "Mean error", "9 of 10 within", "Bias")
    caption = f"Estimators on held-out configurations, best first; {CHOSEN}: picked by an inner validation."
    parts: list[Markup] = [
        chart(figures.predictions(t), "Each point was predicted by a fit without any row of its configuration.", 460),
        chart(figures.residuals(t), "Error against the prediction, and the distribution of errors.", 400),
        table(head, rows, caption),
    ]
    if any(i.added_error > 0 for i in t.importance):
        text = "The error added by shuffling a column of held-out rows. Work columns follow from the lengths."
        parts.append(chart(figures.importance_bars(t), text, 140 + 26 * min(len(t.importance), figures.MOST_FEATURES)))
    return PageSection(t.target.title, parts)
