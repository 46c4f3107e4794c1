"""The section on confidence: evidence of the step times, error of whole runs, and reliability of probabilities."""

from __future__ import annotations

from collections.abc import Sequence

from calibration.accuracy.reliability import SAID, Reliability, load_reliability
from catalogs.ui.charts import PALE, REFERENCE, series_style
from catalogs.ui.html_page import Markup, PageSection, bullets, chart, paragraph, table
from catalogs.ui.words import percent, plan_name, sure_percent
from planner.answer.answer_schema import Answer
from planner.answer.plan_schema import CalibrationBlock
from planner.problem.latency_metrics import LATENCY_METRICS
from planner.report.plots import PlotlyFigure, bars, draw, line, names_axis, percent_axis

STATED_WORDS = {name: metric.title for name, metric in LATENCY_METRICS.items()} | {
    "power": "power",
    "j_per_token": "energy per token",
}


def certainty(answer: Answer) -> PageSection:
    """Return the section on confidence, calibration and assumptions."""
    plans = [(plan_name(i), p.calibration) for i, p in enumerate(answer.plans) if p.calibration is not None]
    rows = [(name, known.bundle, percent(known.of_operators, 1)) for name, known in plans]
    text = (
        "Shares of the simulated step time from measured operators, from interpolation between them, from operators "
        "measured on another accelerator (borrowed), and from the roofline alone. Every interval and probability "
        "includes the stated error of whole runs."
    )
    head = ("Plan", "Calibration", "Error of a step's time, operators alone (median)")
    parts = [paragraph(text), chart(coverage(plans), "From the answer.", 120 + 40 * len(plans))]
    parts += [table(head, rows, words=2), *_stated(plans[0][1] if plans else None), *_reliability_chart(answer)]
    parts += [paragraph("Assumptions:"), bullets(answer.assumptions)]
    return PageSection("Confidence: calibration and assumptions", parts, "Confidence")


def _stated(known: CalibrationBlock | None) -> list[Markup]:
    """Return a table of the error of whole runs by statistic."""
    if known is None or not known.intervals:
        return []
    share = float(known.stated_error.get("coverage") or 0.0)
    caption = f"In {percent(share)} of whole runs compared with measured ones: {known.stated_error.get('source')}."
    return [
        table(("Statistic", "Runs compared", "True value relative to the simulated one"), stated_rows(known), caption)
    ]


def stated_rows(known: CalibrationBlock) -> list[tuple[str, str, str]]:
    """Return the statistic, the number of runs that were compared, and the interval of its error, in words."""
    counts = known.stated_error.get("n") or {}
    rows = []
    for name, (low, high) in known.intervals.items():
        span = f"{percent(low, signed=True)} to {percent(high, signed=True)}"
        rows.append((STATED_WORDS.get(name, name), str(counts.get(name, "")), span))
    return rows


def _reliability_chart(answer: Answer) -> list[Markup]:
    """Return a chart of how often stated probabilities were right on measured runs."""
    found = load_reliability()
    least = min((row.probability_met for row in answer.plans[0].slo), default=0.0)
    caption = (
        f"{sum(kind.n for kind in found.kinds):,} statistics of public measured runs not used to fit the error "
        "(numbers in brackets): how often the measured value met a limit, by the stated probability. Reproduce with: "
        f"{found.command}"
    )
    text = f"The lowest confidence of this answer is {sure_percent(least)}. Reliability of such probabilities:"
    return [paragraph(text), chart(reliability(found), caption, 460)]


def coverage(plans: Sequence[tuple[str, CalibrationBlock]]) -> PlotlyFigure:
    """Return a bar chart of the simulated step time of each plan by evidence; borrowed if there is any."""
    traces = []
    kinds = {"measured": PALE[2], "interpolated": PALE[0], "borrowed": PALE[1], "roofline": PALE[3]}
    if not any(known.borrowed_fraction for _, known in plans):
        del kinds["borrowed"]
    for i, (kind, colour) in enumerate(kinds.items()):
        shares = [(name, 100 * float(getattr(known, f"{kind}_fraction"))) for name, known in plans]
        values = [(name, share, f"{share:.0f} %" if share >= 5 else "") for name, share in shares]
        traces.append(bars(values, i, colour, inside=True, name=kind))
    x_axis = percent_axis("share of simulated step time", 100.5)
    legend_y = -65 / (30 + 40 * len(plans))  # 65 pixels below the bars, under the title of the axis
    return draw(traces, x_axis, names_axis("plan"), legend_y, barmode="stack", bargap=0.3)


def reliability(found: Reliability) -> PlotlyFigure:
    """Return a chart of the share of met limits by stated probability, per cent.

    On the diagonal, limits with 90 % confidence are met 90 % of the time; above it they are met more often.
    """
    ideal = {"color": REFERENCE, "width": 1.5}
    traces = [line([(0, 0), (100, 100)], "as stated", line=ideal, hoverinfo="skip")]
    for i, kind in enumerate(found.kinds):
        points = [(100 * stated, 100 * right) for stated, right in zip(SAID, kind.right, strict=True)]
        style = {"line": series_style(i)["line"], "hovertemplate": "stated %{x:.0f} %: %{y:.0f} % met<extra></extra>"}
        traces.append(line(points, f"{kind.name} ({kind.n:,})", **style))
    x_axis = percent_axis("stated probability to meet a limit", 100)
    return draw(traces, x_axis, percent_axis("share that met it", 101))
