"""Charts of reports and of pages, in a real browser at two widths: no text is cut off, and none covers another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from catalogs.ui.charts import limit_line, logarithmic_axis, vertical_line
from catalogs.ui.html_page import Page as HtmlPage
from catalogs.ui.html_page import PageSection, chart, render
from planner.report.machine_figures import _sides
from planner.report.plots import PlotlyFigure, bars, draw, line, names_axis, percent_axis
from tests.planner.web.running_server import RunningServer
from tests.planner.web.watched_page import DESKTOP, PHONE, watched

if TYPE_CHECKING:
    from playwright.sync_api import Browser

#: Returns the texts of each chart that leave it or cover another, and legends that cover the chart area.
FAULTS = """selector => [...document.querySelectorAll(selector)].flatMap((chart) => {
    const whole = chart.getBoundingClientRect();
    const place = document.documentElement.clientWidth;
    const texts = [...chart.querySelectorAll("svg text")].filter((text) => text.textContent.trim());
    const boxes = texts.map((text) => [text.textContent, text.getBoundingClientRect()]);
    const cut = boxes.filter(([, box]) => box.left < whole.left - 1 || box.right > Math.min(whole.right, place) + 1);
    const over = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 3
        && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4;
    const covered = boxes.flatMap(([text, a], i) => boxes.slice(i + 1).filter(([, b]) => over(a, b))
        .map(([other]) => `${text} covers ${other}`));
    const legend = chart.querySelector(".legend")?.getBoundingClientRect();
    const marks = [...chart.querySelectorAll(".point path, .scatterlayer .js-line")];
    const hidden = marks.filter((mark) => legend && over(mark.getBoundingClientRect(), legend)).length;
    return [...cut.map(([text]) => `${text} is cut off`), ...covered, ...(hidden ? ["a legend covers marks"] : [])];
})"""

#: Draws figures into the page as its own charts are drawn.
DRAW = """async (figures) => {
    const { LEGEND_ABOVE, draw } = await import("/static/js/charts.js");
    const main = document.querySelector("main");
    main.replaceChildren();
    for (const { data, layout } of figures) {
        const place = document.createElement("div");
        main.append(place);
        const legend = layout.legend.above ? LEGEND_ABOVE : layout.legend;
        await draw(place, { data, layout: { ...layout, legend } }, { label: "chart", height: 420 });
    }
}"""


def curve() -> PlotlyFigure:
    """Latency against load, with marks of two rates that are close together and near the right edge."""
    points = [(float(x), 20.0 + x * x) for x in range(1, 24)]
    x_axis = {"title": {"text": "rate of requests to the whole deployment (requests/s)"}, "rangemode": "tozero"}
    figure = draw([line(points, "p99", mode="lines+markers")], x_axis, logarithmic_axis("latency", "ms", [10.0, 900.0]))
    vertical_line(figure, 20.5, "planned: 20.5/s")
    vertical_line(figure, 22.0, "highest sustainable rate: 22/s")
    limit_line(figure, 400.0, "objective: p99 at most 400 ms")
    return figure


def prices() -> PlotlyFigure:
    """Bars with long names and long texts at their ends, one bar much longer than the others."""
    regions = ("estimate: rental-3-years (reserved 3 years)", "lambda europe-central-1 (on demand)", "azure (spot)")
    values = [(name, 3.0**i, f" ${3.0**i:.2f}, ${27 * 3.0**i:.2f}/h") for i, name in enumerate(regions)]
    return draw([bars(values)], {"title": {"text": "per million output tokens (USD)"}}, names_axis("region (contract)"))


def tornado() -> PlotlyFigure:
    """Bars to both sides of zero, with texts at both ends."""
    names = ("request rate", "prompt length", "output length")
    low = bars([(name, -20.0, " x 1.25 → −20.0 % ") for name in names], 0)
    high = bars([(name, 25.0, " x 0.8 → +25.0 % ") for name in names], 1)
    x_axis = percent_axis("change of the cost per million output tokens", 50.0) | {"range": [-40, 45]}
    return draw([low, high], x_axis, names_axis("input changed"), barmode="overlay")


def named_marks() -> PlotlyFigure:
    """Marks with names at both edges of the chart area."""
    points = [(1.0, 1.0, "decode_attention"), (1000.0, 100.0, "gate_up_projection")]
    axes = (logarithmic_axis(words, "unit", [0.9, 1100.0]) for words in ("intensity", "rate"))
    return draw([line(points, "marks", mode="markers+text", textposition="bottom center")], *axes)


def phases() -> PlotlyFigure:
    """Stacked bars with a legend of several lines above them."""
    names = ("stalled by prefill", "decode", "prefill", "wait step", "api server", "client path")
    traces = [
        bars([("end to end, p99", 1.0, ""), ("first token, p99", 0.5, "")], i, name=n) for i, n in enumerate(names)
    ]
    return draw(traces, {"title": {"text": "seconds"}}, names_axis(""), barmode="stack")


FIGURES = (curve, prices, tornado, named_marks)


def test_marks_near_each_other_have_their_names_on_different_sides() -> None:
    near = [(180.0, 350.0), (181.0, 340.0), (200.0, 330.0), (182.0, 300.0)]
    sides = _sides([*near, (4.0, 9.0)])
    assert len({sides[mark] for mark in near}) == 4
    assert sides[(4.0, 9.0)] == sides[near[0]]


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_charts_of_a_report_fit(browser: Browser, tmp_path: Path, viewport: Any) -> None:
    pytest.importorskip("plotly")
    section = PageSection("Charts", [chart(make(), make.__name__) for make in FIGURES])
    (tmp_path / "report.html").write_text(render(HtmlPage("Report", "of charts", [section])))
    context = browser.new_context(viewport=viewport)
    page = context.new_page()
    page.goto((tmp_path / "report.html").as_uri())
    page.locator("body[data-drawn]").wait_for()
    assert page.evaluate(FAULTS, "div.plot") == []
    assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
    other = {"width": viewport["height"], "height": viewport["width"]}  # the screen is turned
    page.set_viewport_size(other)
    fits = "() => [...document.querySelectorAll('div.plot')].every(p => p.clientWidth === p.firstChild.clientWidth)"
    page.wait_for_function(fits)
    page.wait_for_function(f"() => ({FAULTS})('div.plot').length === 0")
    context.close()


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_charts_of_a_page_fit(browser: Browser, server: RunningServer, viewport: Any) -> None:
    figures = [json.loads(make().to_json()) for make in (*FIGURES, phases)]
    figures[-1]["layout"]["legend"] = {"above": True}
    with watched(browser, server.url, viewport=viewport) as found:
        page = found.open("/catalog")
        page.evaluate(DRAW, figures)
        assert page.evaluate(FAULTS, ".chart") == []


def test_a_chart_that_was_drawn_while_hidden_takes_the_width_of_its_place(
    browser: Browser, server: RunningServer
) -> None:
    with watched(browser, server.url, viewport=PHONE) as found:
        page = found.open("/catalog")
        page.evaluate("() => { document.querySelector('main').hidden = true; }")
        page.evaluate(DRAW, [json.loads(prices().to_json())])
        page.evaluate("() => { document.querySelector('main').hidden = false; }")
        page.wait_for_function("() => document.querySelector('.chart .main-svg').clientWidth < window.innerWidth")
        page.wait_for_function(f"() => ({FAULTS})('.chart').length === 0")


def test_texts_of_the_roofline_stay_readable_on_its_lines(browser: Browser, server: RunningServer) -> None:
    """The label of a lower ceiling crosses the slope of the memory: it needs an edge in the colour of the page."""
    with watched(browser, server.url) as found:
        page = found.open("/analyze?model=deepseek-v3&hardware=h200x8")
        label = page.locator("svg.plot text", has_text="bf16")
        label.wait_for()
        style = label.evaluate(
            "text => { const s = getComputedStyle(text); return [s.paintOrder, s.stroke, s.strokeWidth]; }"
        )
        ground = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        assert style == ["stroke", ground, "4px"]
