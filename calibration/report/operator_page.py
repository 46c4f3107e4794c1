"""The page of a calibration of operators: a summary first, then the evidence."""

from __future__ import annotations

import pandas as pd

from calibration.families.base import HeldOutErrors
from calibration.report import operator_figures as figures
from calibration.report.material import EDGE, GROUP, OFF_GRID, CalibrationReport, FamilyLine, title_of
from catalogs.ui.charts import FAMILY_WORDS
from catalogs.ui.html_page import Page, PageSection, bullets, cards, chart, note, paragraph, table
from catalogs.ui.words import percent

HOW_WORDS = {
    OFF_GRID: "random shapes, measured only to check",
    GROUP: "whole groups of shapes left out of the fit",
    EDGE: "larger than anything fitted (grid cut short)",
}

HEAD = ("Operators", "Checked on", "Fitted rows", "Unseen rows", "Typical error", "9 of 10 within", "Bias", "In short")

#: Fewest rows of a family that gets a word. A judgement: the tail of one row in ten needs as many.
FEWEST_TO_JUDGE = 10

#: Error of nine rows in ten above which a family has the remark "wide tail". A judgement: well above the
#: limit of a "rough" typical error.
WIDE_TAIL = 0.4

#: The word for a typical error up to each limit. A judgement: the limits are round numbers.
WORDS = {"good": 0.05, "fair": 0.12, "rough": 0.25}

ON_THE_LINE = "Every point is a shape that no fit used. A point on the line is exact; the dotted lines are 25 % off."

RESIDUALS = "Left: above zero the prediction is too slow. Right: boxes hold half of the shapes, whiskers 80 %."

BY_SIZE = (
    "Median error by the duration of the operator; empty for fewer than three shapes. The time of short operators is "
    "mostly launches and caches."
)

UNDER_CEILINGS = (
    "Every measured operator under the ceilings of the machine: to the left memory is the limit, to the right "
    "arithmetic."
)


def operator_page(m: CalibrationReport) -> Page:
    """Return the page of a report; a section without material is replaced by a sentence that names what is missing."""
    words = [(k.replace(".", ", ").replace("_", " "), v) for k, v in m.facts]
    machine = PageSection("Machine and versions", [table(("what", "found"), words, words=2)], "Machine")
    sections = [_summary(m), *_held(m), _coverage(m), *_measured(m), machine]
    return Page(m.title, m.subtitle, sections, "Written by calibrate report. This file loads nothing from elsewhere.")


def _summary(m: CalibrationReport) -> PageSection:
    order = list(FAMILY_WORDS)
    lines = sorted(m.errors, key=lambda x: order.index(x.errors.family) if x.errors.family in order else len(order))
    text = (
        "The error of predicted against measured times, on shapes that the fit did not use. The typical error is the "
        "median; a positive bias means predicted too slow. A measured shape is predicted as it was measured."
    )
    rows = [_line(x) for x in lines]
    unknown = note("No shape was held out, so no error is known.")
    parts = [cards(m.cards), paragraph(text), table(HEAD, rows, words=2) if rows else unknown]
    if m.notices:
        parts += [paragraph("Every answer that uses this calibration carries these notices:"), bullets(m.notices)]
    if m.missing:
        wanted = "; ".join(m.missing)
        parts.append(note(f"Made from a bundle alone. Given its rows (--rows DIR) this page also shows {wanted}."))
    return PageSection("Summary", parts)


def _line(x: FamilyLine) -> tuple[str, ...]:
    e, fitted = x.errors, f"{x.n_fit:,}" if x.n_fit is not None else ""
    bias = percent(e.bias, 1, signed=True)
    errors = (percent(e.median_abs, 1), percent(e.p90_abs), bias)
    return (title_of(e.family), HOW_WORDS.get(e.region, e.region), fitted, f"{e.n:,}", *errors, verdict(e))


def verdict(x: HeldOutErrors) -> str:
    """Return a word for the typical error, with a remark where one error in ten is far larger.

    A family with few rows gets no word.
    """
    if x.n < FEWEST_TO_JUDGE:
        return "too few rows"
    word = next((word for word, limit in WORDS.items() if x.median_abs <= limit), "poor")
    return word + (", wide tail" if x.p90_abs > WIDE_TAIL and word != "poor" else "")


def _held(m: CalibrationReport) -> list[PageSection]:
    if m.held is None:
        return []
    held, height = m.held, 120 + 62 * m.held.family.nunique()
    against = chart(figures.predicted_against_measured(held), _count(ON_THE_LINE, held), 540)
    spread = [chart(figures.residuals(held), RESIDUALS, 480), chart(figures.error_by_size(held), BY_SIZE, height)]
    return [
        PageSection("Predicted against measured, unseen shapes only", [against], "Predictions"),
        PageSection("Errors against size, and how they spread", [*map(paragraph, m.remarks), *spread], "Errors"),
        *_importance(m),
    ]


def _importance(m: CalibrationReport) -> list[PageSection]:
    if not m.importance:
        return []
    text = (
        "Each field of the unseen shapes is shuffled among them, and the shapes are predicted again. The larger the "
        "error then, the more important the field. Fields that change together (tokens and pairs) share importance."
    )
    bases = {i.family: i.base for i in m.importance}
    rest = "; ".join(f"{title_of(f)} {percent(b - 1)}" for f, b in bases.items())
    caption = f"Longer bars are more important fields. With nothing shuffled, the typical errors are: {rest}."
    bars = chart(figures.importance_bars(m.importance), caption, 150 + 24 * len(m.importance))
    return [PageSection("What the time depends on", [paragraph(text), bars], "Importance")]


def _coverage(m: CalibrationReport) -> PageSection:
    text = (
        "How the shapes that the catalog's models run on this machine would be predicted, at the splits and batches "
        "that the planner tries."
    )
    counts = ", ".join(f"{figures.queue_title(c.queue)} {c.n:,}" for c in m.coverage)
    caption = f"Shapes counted: {counts}. Outside means beyond the largest measured shape, or a family without rows."
    bars = chart(figures.coverage_bars(m.coverage), caption, 130 + 42 * len(m.coverage))
    return PageSection("Coverage of the shapes that the planner uses", [paragraph(text), bars], "Coverage")


def _measured(m: CalibrationReport) -> list[PageSection]:
    rows, parts = m.measured, []
    if rows is None:
        return []
    if (rows.flops > 0).any():
        text = UNDER_CEILINGS
        if m.accelerator.source.startswith("measured"):
            text += " The ceilings are the highest rates that were measured here."
        parts.append(chart(figures.roofline_chart(rows, m.accelerator), _count(text, rows[rows.flops > 0]), 540))
    if ((rows.flops <= 0) & (rows.bytes > 0)).any():
        text = "Operators that only move data. Small ones run in a cache and may exceed the memory bandwidth."
        parts.append(chart(figures.bandwidth_chart(rows, m.accelerator), text, 400))
    power = [note(f"Not shown: {m.no_power.rstrip('.')}.")]
    if rows.watts.notna().any():
        text = "Mean power while an operator is repeated, by the device's energy counter."
        power = [chart(figures.power_chart(rows, m.accelerator), text, 440)]
    return [PageSection("Roofline", parts), PageSection("Power against utilisation", power, "Power")]


def _count(text: str, rows: pd.DataFrame) -> str:
    shown = len(figures.thinned(rows))
    return text + (f" {shown:,} of {len(rows):,} shapes are drawn, a random sample." if shown < len(rows) else "")
