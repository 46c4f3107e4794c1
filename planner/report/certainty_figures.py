"""How well the times are known, and how often what was said to hold did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calibration.reliability import SAID, Reliability
from calibration.report.axes import REFERENCE
from planner.answer_file import Known
from planner.report.style import BELOW, MARGIN, PALE, bar, linear, place


def coverage(plans: Sequence[tuple[str, Known]]) -> Any:
    """Of the simulated step time: measured, interpolated, roofline only."""
    import plotly.graph_objects as go

    figure = go.Figure()
    words = (("measured", PALE[2]), ("interpolated", PALE[0]), ("roofline", PALE[3]))
    for i, (kind, colour) in enumerate(words):
        values = [100 * float(getattr(known, f"{kind}_fraction")) for _, known in plans]
        texts = [f"{v:.0f} %" if v >= 5 else "" for v in values]
        inside = {"text": texts, "textposition": "inside", "insidetextanchor": "middle", "textangle": 0}
        style = {"orientation": "h", "marker": bar(i, colour), "textfont": {"color": "#10151b"}}
        figure.add_bar(y=[name for name, _ in plans], x=values, name=kind, hoverinfo="skip", **inside, **style)
    figure.update_xaxes(**linear("share of simulated step time", "%", range=[0, 100.5]))
    figure.update_yaxes(autorange="reversed", showgrid=False, title={"text": "plan"})
    below = BELOW | {"y": -0.55}
    return figure.update_layout(barmode="stack", legend=below, margin=MARGIN, bargap=0.3)


def reliability(found: Reliability) -> Any:
    """The probability said against the share that held, per cent; on the diagonal "90 % sure" is right 90 % of the
    time, above it more often."""
    import plotly.graph_objects as go

    percent, figure = [100 * p for p in SAID], go.Figure()
    ideal = {"color": REFERENCE, "width": 1.5}
    figure.add_scatter(x=[0, 100], y=[0, 100], mode="lines", line=ideal, name="as often as said", hoverinfo="skip")
    for i, kind in enumerate(found.kinds):
        shares = [100 * r for r in kind.right]
        hover = "said %{x:.0f} %: %{y:.0f} % held<extra></extra>"
        name = f"{kind.name} ({kind.n:,})"
        line = place(i)["line"]
        figure.add_scatter(x=percent, y=shares, mode="lines", line=line, name=name, hovertemplate=hover)
    figure.update_xaxes(**linear("probability said to meet a limit", "%", range=[0, 100]))
    figure.update_yaxes(**linear("share that met it", "%", range=[0, 101]))
    return figure.update_layout(legend=BELOW, margin=MARGIN)
