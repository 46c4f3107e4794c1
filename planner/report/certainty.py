"""How sure an answer is: what its step times rest on, how far whole runs were off, how often it was right before."""

from __future__ import annotations

from calibration.reliability import load_reliability
from catalogs.html_page import Markup, Section, bullets, chart, paragraph, table
from planner.answer_file import AnswerFile, Known
from planner.report import certainty_figures, latency_figures
from planner.words import percent, plan_name

STATED_WORDS = latency_figures.METRIC_TITLES | {"power": "power", "j_per_token": "energy per token"}


def certainty(answer: AnswerFile) -> Section:
    known = [(plan_name(i), p.calibration) for i, p in enumerate(answer.plans)]
    plans = [(name, c) for name, c in known if c is not None]
    rows = [(name, c.bundle, f"{100 * c.of_operators:.1f} %") for name, c in plans]
    text = (
        "How much of the simulated step time rests on measured operators, on interpolation between them, and on the "
        "roofline alone. The error stated for whole runs is carried into every interval and probability."
    )
    head = ("Plan", "Calibration", "Error of a step's time, operators alone (median)")
    parts = [paragraph(text), chart(certainty_figures.coverage(plans), "From the answer.", 120 + 40 * len(plans))]
    parts += [table(head, rows, words=2), *_stated(plans[0][1] if plans else None), *_right_before(answer)]
    parts += [paragraph("What is taken for granted:"), bullets(answer.assumptions)]
    return Section("How sure: calibration and assumptions", parts, "How sure")


def _stated(known: Known | None) -> list[Markup]:
    """How far whole runs were off, by statistic."""
    if known is None or not known.intervals:
        return []
    counts = known.stated_error.get("n") or {}
    rows = []
    for name, (low, high) in known.intervals.items():
        span = f"{100 * low:+.0f} % to {100 * high:+.0f} %".replace("-", "−")
        rows.append((STATED_WORDS.get(name, name), str(counts.get(name, "")), span))
    share = float(known.stated_error.get("coverage") or 0.0)
    said = f"In {share:.0%} of whole runs compared with measured ones: {known.stated_error.get('source')}."
    return [table(("Statistic", "Runs compared", "True value against the simulated one"), rows, said)]


def _right_before(answer: AnswerFile) -> list[Markup]:
    """Whether probabilities like those of this answer were right on measured runs."""
    found = load_reliability()
    least = min((row.probability_met for row in answer.plans[0].slo), default=0.0)
    n = sum(kind.n for kind in found.kinds)
    said = (
        f"Of {n:,} statistics of public measured runs, none of which the error was learned from (numbers in brackets): "
        f"how often the measured value met a limit that it was said to meet. Found by: {found.command}"
    )
    text = f"This answer says {percent(least)} for its least sure objective. What such words were worth:"
    return [paragraph(text), chart(certainty_figures.reliability(found), said, 460)]
