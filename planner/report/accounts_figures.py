"""Figures of costs: owning against renting by use, and what power limits change."""

from __future__ import annotations

from typing import Any, Final

from planner.report.style import BELOW, MARGIN, linear, place, vertical

_POINTS: Final = 21


def own_or_rent(owned: dict[str, Any]) -> Any:
    """Dollars per hour of the calendar against the share of hours in use."""
    import plotly.graph_objects as go

    figure = go.Figure()
    shares = [i / (_POINTS - 1) for i in range(_POINTS)]
    fixed = owned["capital_usd_per_hour"] + owned["upkeep_usd_per_hour"]
    busy, idle = owned["busy_usd_per_hour"], owned["idle_usd_per_hour"]
    rent, always = owned["rent_usd_per_hour"], owned["rent_always"]
    lines = {
        "owned": [fixed + u * busy + (1 - u) * idle for u in shares],
        f"rented ({owned['rent_source']})": [rent if always else u * rent for u in shares],
    }
    for i, (name, values) in enumerate(lines.items()):
        x = [100 * u for u in shares]
        figure.add_scatter(x=x, y=values, mode="lines+markers", name=name, **place(i))
    if owned["break_even_utilisation"] is not None:
        even = 100 * owned["break_even_utilisation"]
        vertical(figure, even, f"break-even: {even:.0f} %")
    figure.update_xaxes(**linear("hours in use", "%", range=[0, 100]))
    figure.update_yaxes(**linear("an hour of the calendar", "USD"))
    return figure.update_layout(legend=BELOW, margin=MARGIN)


def cap_lines(rows: list[dict[str, Any]], own_limit_w: float) -> Any:
    """Changes against no limit, per cent, by limit; the row without one stands at the board's own."""
    import plotly.graph_objects as go

    figure = go.Figure()
    limits = [own_limit_w if row["cap_w"] is None else row["cap_w"] for row in rows]
    series = {k: [row["latency_change"][k] for row in rows] for k in rows[0]["latency_s"]}
    series |= {"highest rate": [row["capacity_change"] for row in rows]}
    series |= {"energy per output token": [row["energy_change"] for row in rows]}
    for i, (name, values) in enumerate(series.items()):
        known = [(w, 100 * v) for w, v in zip(limits, values, strict=True) if v is not None]
        x, y = [w for w, _ in known], [v for _, v in known]
        figure.add_scatter(x=x, y=y, mode="lines+markers", name=name, **place(i))
    figure.update_xaxes(title={"text": "limit of each accelerator (W)"})
    figure.update_yaxes(title={"text": "change against no limit (%)"})
    return figure.update_layout(legend=BELOW, margin=MARGIN)
