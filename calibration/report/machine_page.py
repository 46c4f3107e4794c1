"""The page of a trace of the machine: what it did while the slowest requests were served, and every signal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

from calibration.machine_trace.advice import measured_copies, page_fault_costs
from calibration.machine_trace.disturbances import disturbances
from calibration.machine_trace.folder import document, write_trace
from calibration.machine_trace.readings import moment_text, quantity, value_text
from calibration.machine_trace.sampler import MachineTrace
from catalogs.errors import InputError
from catalogs.io.output_files import write_atomically
from catalogs.ui import html_page
from catalogs.ui.html_page import Markup, Page, PageSection
from catalogs.ui.words import percent, with_sign

#: Name of the page in the folder of a trace.
PAGE: Final = "machine.html"

#: Signals that are drawn, those that differ most in slow times first.
_DRAWN: Final = 24


def write_page(trace: MachineTrace, requests: Sequence[Mapping[str, float]], found: dict[str, Any], path: Path) -> None:
    """Write the page.

    Args:
        trace: The trace.
        requests: The requests with their times.
        found: The document of the trace (`calibration.machine_trace.folder.document`).
        path: The page.

    Raises:
        InputError: plotly is not installed, or the page cannot be written.
    """
    html_page.need_plotly()
    charts, missing = _signals(trace, requests, found), _missing(found)
    sections = [_advice(found), _disturbances(found), _slow(found), *_first_token(found), charts, missing]
    subtitle = f"{found['samples']} samples in {found['duration_s']:.0f} s, {found['requests']} requests"
    write_atomically(path, [html_page.render(Page("What the machine did", subtitle, tuple(sections)))])


def write_trace_and_page(folder: Path, trace: MachineTrace, requests: Sequence[Mapping[str, float]]) -> None:
    """Write a trace with its requests into a folder, and its page as machine.html if plotly is installed."""
    write_trace(folder, trace, requests)
    if len(trace.at_s) < 2:
        return
    with suppress(InputError):
        html_page.need_plotly()
        found = document(trace, requests, page_fault_costs(), measured_copies())
        write_page(trace, requests, found, folder / PAGE)


def _advice(found: dict[str, Any]) -> PageSection:
    rows = [[each["change"], f"at most {percent(each['gain'], 1)}", each["because"]] for each in found["advice"]]
    body = html_page.table(("change", "gain of the engine's time", "because"), rows, words=3)
    nothing = html_page.paragraph("The signals show nothing whose change would gain half a percent or more.")
    return PageSection("What to change", (body if rows else nothing,))


def _disturbances(found: dict[str, Any]) -> PageSection:
    rows = [
        [
            each["means"],
            each["signal"],
            moment_text(each["start_s"]),
            moment_text(each["end_s"]),
            value_text(each["usual"], each["unit"]),
            value_text(each["extreme"], each["unit"]),
        ]
        for each in found["disturbances"]
    ]
    head = ("what", "signal", "from", "to", "usual", "extreme")
    nothing = html_page.paragraph("No signal left its usual range.")
    return PageSection("Disturbances", (html_page.table(head, rows, words=2) if rows else nothing,))


def _first_token(found: dict[str, Any]) -> list[PageSection]:
    """Return the section on the slowest times to first token; [] if the requests do not state them."""
    limit_s = found["first_token_slow_from_s"]
    if limit_s is None:
        return []
    words = html_page.paragraph(
        f"A time to first token of {limit_s * 1e3:,.0f} ms or more is among the slowest 1 %. The signals are compared "
        "between the times in which one of these requests waited for its first token and the rest."
    )
    return [PageSection("During the slowest 1 % of first tokens", (words, _compared(found["while_first_token_slow"])))]


def _slow(found: dict[str, Any]) -> PageSection:
    if found["slow_from_s"] is None:
        return PageSection("During the slowest 1 % of requests", (html_page.paragraph("The trace has no requests."),))
    words = html_page.paragraph(
        f"Requests of {found['slow_from_s'] * 1e3:,.0f} ms or more are the slowest 1 %. The signals are sorted by how "
        "much they differed while these were served, in robust standard deviations. A difference is not yet a cause."
    )
    return PageSection("During the slowest 1 % of requests", (words, _compared(found["while_slow"])))


def _compared(signals: list[dict[str, Any]]) -> Markup:
    rows = [
        [
            each["signal"],
            quantity(each["signal"]).words,
            value_text(each["slow"], each["unit"]),
            value_text(each["rest"], each["unit"]),
            with_sign(each["effect"], 1),
        ]
        for each in signals[:_DRAWN]
    ]
    return html_page.table(("signal", "meaning", "slow requests", "rest of the run", "difference"), rows, words=2)


def _signals(trace: MachineTrace, requests: Sequence[Mapping[str, float]], found: dict[str, Any]) -> PageSection:
    import plotly.graph_objects as go

    signals = trace.signals()
    first = [each["signal"] for each in found["while_slow"]] or [each["signal"] for each in found["disturbances"]]
    charts = []
    marked = disturbances(trace)
    for name in list(dict.fromkeys((*first, *signals)))[:_DRAWN]:
        meaning = quantity(name)
        figure = go.Figure(go.Scatter(x=trace.middle_s, y=signals[name], mode="lines", name=name))
        for each in marked:
            if each.signal == name:
                figure.add_vrect(each.start_s, each.end_s, opacity=0.2, fillcolor="firebrick", line_width=0)
        limit_s = found["slow_from_s"]
        for request in requests if limit_s is not None else ():
            if request["latency_s"] >= (limit_s or np.inf):
                figure.add_vrect(
                    request["start_s"], request["end_s"], opacity=0.15, fillcolor="goldenrod", line_width=0
                )
        figure.update_layout(xaxis_title="s", yaxis_title=meaning.unit, showlegend=False)
        charts.append(html_page.chart(figure, f"{name}: {meaning.words}", height=220))
    return PageSection("Signals (red: disturbed; yellow: slowest requests)", tuple(charts), "Signals")


def _missing(found: dict[str, Any]) -> PageSection:
    rows = [[name, why] for name, why in found["not_measured"].items()]
    body = (
        html_page.table(("group", "reason"), rows, words=2) if rows else html_page.paragraph("Everything was measured.")
    )
    return PageSection("Not measured", (body,))
