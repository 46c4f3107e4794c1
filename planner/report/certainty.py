"""The section on confidence: evidence of the step times, error of whole runs, and reliability of probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calibration.accuracy.reliability import SAID, Reliability, load_reliability
from catalogs.ui.charts import BELOW, MARGIN, PALE, REFERENCE, bar_style, linear_axis, series_style
from catalogs.ui.html_page import Markup, PageSection, bullets, chart, paragraph, table
from catalogs.ui.words import percent, plan_name
from planner.answer.plan_schema import Known
from planner.answer.schema import Answer
from planner.problem.latency_metrics import LATENCY_METRICS

STATED_WORDS = {name: metric.title for name, metric in LATENCY_METRICS.items()} | {
    "power": "power",
    "j_per_token": "energy per token",
}


def certainty(answer: Answer) -> PageSection:
    """Return the section on confidence, calibration and assumptions."""
    known = [(plan_name(i), p.calibration) for i, p in enumerate(answer.plans)]
    plans = [(name, c) for name, c in known if c is not None]
    rows = [(name, c.bundle, f"{100 * c.of_operators:.1f} %") for name, c in plans]
    text = (
        "Shares of the simulated step time from measured operators, from interpolation between them, and from the "
        "roofline alone. Every interval and probability includes the stated error of whole runs."
    )
    head = ("Plan", "Calibration", "Error of a step's time, operators alone (median)")
    parts = [paragraph(text), chart(coverage(plans), "From the answer.", 120 + 40 * len(plans))]
    parts += [table(head, rows, words=2), *_stated(plans[0][1] if plans else None), *_right_before(answer)]
    parts += [paragraph("Assumptions:"), bullets(answer.assumptions)]
    return PageSection("Confidence: calibration and assumptions", parts, "Confidence")


def _stated(known: Known | None) -> list[Markup]:
    """Return a table of the error of whole runs by statistic."""
    if known is None or not known.intervals:
        return []
    counts = known.stated_error.get("n") or {}
    rows = []
    for name, (low, high) in known.intervals.items():
        span = f"{100 * low:+.0f} % to {100 * high:+.0f} %".replace("-", "−")
        rows.append((STATED_WORDS.get(name, name), str(counts.get(name, "")), span))
    share = float(known.stated_error.get("coverage") or 0.0)
    said = f"In {share:.0%} of whole runs compared with measured ones: {known.stated_error.get('source')}."
    return [table(("Statistic", "Runs compared", "True value relative to the simulated one"), rows, said)]


def _right_before(answer: Answer) -> list[Markup]:
    """Return a chart of how often stated probabilities were right on measured runs."""
    found = load_reliability()
    least = min((row.probability_met for row in answer.plans[0].slo), default=0.0)
    n = sum(kind.n for kind in found.kinds)
    said = (
        f"{n:,} statistics of public measured runs not used to fit the error (numbers in brackets): how often "
        f"the measured value met a limit, by the stated probability. Reproduce with: {found.command}"
    )
    text = f"The lowest confidence of this answer is {percent(least)}. Reliability of such probabilities:"
    return [paragraph(text), chart(reliability(found), said, 460)]


def coverage(plans: Sequence[tuple[str, Known]]) -> Any:
    """Return a chart of the simulated step time by evidence: measured, interpolated, roofline only."""
    import plotly.graph_objects as go

    figure = go.Figure()
    words = (("measured", PALE[2]), ("interpolated", PALE[0]), ("roofline", PALE[3]))
    for i, (kind, colour) in enumerate(words):
        values = [100 * float(getattr(known, f"{kind}_fraction")) for _, known in plans]
        texts = [f"{v:.0f} %" if v >= 5 else "" for v in values]
        inside = {"text": texts, "textposition": "inside", "insidetextanchor": "middle", "textangle": 0}
        style = {"orientation": "h", "marker": bar_style(i, colour), "textfont": {"color": "#10151b"}}
        figure.add_bar(y=[name for name, _ in plans], x=values, name=kind, hoverinfo="skip", **inside, **style)
    figure.update_xaxes(**linear_axis("share of simulated step time", "%", range=[0, 100.5]))
    figure.update_yaxes(autorange="reversed", showgrid=False, title={"text": "plan"})
    below = BELOW | {"y": -0.55}
    return figure.update_layout(barmode="stack", legend=below, margin=MARGIN, bargap=0.3)


def reliability(found: Reliability) -> Any:
    """Return a chart of the share of met limits by stated probability, per cent.

    On the diagonal, limits with 90 % confidence are met 90 % of the time; above it they are met more often.
    """
    import plotly.graph_objects as go

    percent, figure = [100 * p for p in SAID], go.Figure()
    ideal = {"color": REFERENCE, "width": 1.5}
    figure.add_scatter(x=[0, 100], y=[0, 100], mode="lines", line=ideal, name="as stated", hoverinfo="skip")
    for i, kind in enumerate(found.kinds):
        shares = [100 * r for r in kind.right]
        hover = "stated %{x:.0f} %: %{y:.0f} % met<extra></extra>"
        name = f"{kind.name} ({kind.n:,})"
        line = series_style(i)["line"]
        figure.add_scatter(x=percent, y=shares, mode="lines", line=line, name=name, hovertemplate=hover)
    figure.update_xaxes(**linear_axis("stated probability to meet a limit", "%", range=[0, 100]))
    figure.update_yaxes(**linear_axis("share that met it", "%", range=[0, 101]))
    return figure.update_layout(legend=BELOW, margin=MARGIN)
