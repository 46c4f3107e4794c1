"""The analyze and the graph page in a real browser: figures follow the controls, by mouse and by keyboard."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from catalogs.ui import words
from tests.planner.web.own_model import CONFIG
from tests.planner.web.running_server import RunningServer
from tests.planner.web.watched_page import watched

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

MARKS = "#roofline .mark"

NODES = "#graphs .node"


def card(page: Page, i: int = 0) -> str:
    return page.locator("#answer .cards dd").nth(i).inner_text().split("\n")[0]


def engine_s(server: RunningServer, **question: object) -> float:
    with server.client() as client:
        found = client.get("/api/v1/analyze", params=question).json()
    return float(found["step"]["engine_s"])


def test_the_step_follows_the_controls(browser: Browser, server: RunningServer) -> None:
    with watched(browser, server.url) as found:
        page = found.open("/analyze")
        question = {"model": "llama3.1-8b", "hardware": "h100", "context": 1024}
        page.locator(MARKS).first.wait_for()
        assert card(page) == words.seconds(engine_s(server, batch=16, **question))
        before = page.locator(MARKS).first.get_attribute("d")
        page.locator("#batch").fill("512")
        page.wait_for_function(
            "(old) => document.querySelector('#roofline .mark').getAttribute('d') !== old", arg=before
        )
        assert card(page) == words.seconds(engine_s(server, batch=512, **question))
        assert "batch=512" in page.url
        page = found.open("/graph?model=llama3.1-8b&hardware=h100x2")
        page.locator(NODES).first.wait_for()
        with server.client() as client:
            graph = client.get("/api/v1/graph?model=llama3.1-8b&hardware=h100x2&batch=16").json()
        assert page.locator(NODES).count() == len(graph["nodes"])
        page.locator("#more summary").click()
        total = page.locator("#more tr", has=page.locator("th", has_text="Sum")).locator("td").nth(6).inner_text()
        assert total == words.seconds(graph["step_s"])
        assert sum(node["count"] * node["seconds"] for node in graph["nodes"]) == pytest.approx(graph["step_s"])


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/analyze", "/graph", "/simulate"])
def test_a_pasted_configuration_is_a_model(browser: Browser, server: RunningServer, path: str) -> None:
    with watched(browser, server.url) as found:
        page = found.open(path)
        page.locator("summary", has_text="A model of your own").first.click()
        page.locator(".own-model textarea").first.fill(json.dumps(CONFIG))
        use = page.locator(".own-model button").first
        if path == "/simulate":
            with page.expect_response(lambda r: "upload:" in (r.request.post_data or "")) as checked:
                use.click()
            assert checked.value.json()["faults"] == []
        else:
            use.click()
            page.wait_for_function("() => location.search.includes('upload')")
            page.locator(MARKS if path == "/analyze" else NODES).first.wait_for()
            page.wait_for_load_state("networkidle")
        assert page.locator(".problem").count() == 0


@pytest.mark.slow
def test_the_roofline_by_keyboard(browser: Browser, server: RunningServer) -> None:
    with watched(browser, server.url) as found:
        page = found.open("/analyze?stage=prefill&model=llama3.1-8b&hardware=l40s")
        page.locator(MARKS).first.focus()
        first = page.locator("figcaption").inner_text()
        page.keyboard.press("ArrowRight")
        second = page.locator("figcaption").inner_text()
        assert first != second
        assert page.locator(MARKS).nth(1).get_attribute("aria-label") == second
        assert page.locator(f"{MARKS}[tabindex='0']").count() == 1
        for title in ("Operators", "Memory", "Precision: 16, 8 and 4 bits", "Scaling with batch and context"):
            page.locator("summary", has_text=title).first.click()
        page.locator("#more .main-svg").first.wait_for()
        assert page.locator("table[class], table").count() >= 4
        page.locator("label", has_text="Decode").click()
        page.wait_for_function("() => document.querySelector('.headline').textContent.includes('one token for each')")
        assert page.locator("#more details[open]").count() == 4


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/analyze", "/graph"])
def test_every_control_survives_form_address_new_tab_form(browser: Browser, server: RunningServer, path: str) -> None:
    values = """() => [...document.getElementById("step").elements].filter((c) => c.name || c.dataset.part)
        .map((c) => [c.name || c.dataset.part, c.type === "radio" ? c.checked : c.value])"""
    with watched(browser, server.url) as found:
        page = found.open(path)
        page.locator("#add-setup").click()
        page.locator("[data-part=hardware]").nth(1).fill("h200x2")
        page.locator("[data-part=hardware]").nth(1).press("Tab")
        page.locator("label", has_text="Prefill").click()
        page.locator("#batch").fill("3")
        page.locator("#context").fill("700")
        for name, value in {"weight_dtype": "fp8", "kv_dtype": "fp8", "tensor_parallel": "1"}.items():
            page.locator(f"#{name}").select_option(value)
        if path == "/graph":
            page.locator("#size").select_option("bytes")
            page.locator("#find").fill("proj")
        page.wait_for_function("() => location.search.includes('tensor_parallel=1')")
        page.wait_for_load_state("networkidle")
        tab = page.context.new_page()
        tab.goto(page.url)
        tab.wait_for_load_state("networkidle")
        assert tab.evaluate(values) == page.evaluate(values)
        shown = "#answer tbody tr" if path == "/analyze" else "#answer p"
        tab.locator(shown).first.wait_for()
        assert tab.locator(shown).all_inner_texts() == page.locator(shown).all_inner_texts()


@pytest.mark.slow
def test_operators_of_the_graph_are_found_and_explained_by_keyboard(browser: Browser, server: RunningServer) -> None:
    with watched(browser, server.url) as found:
        page = found.open("/graph?model=deepseek-v3&hardware=h200x8&model=deepseek-v3&hardware=b200x8")
        page.locator("#find").fill("experts")
        page.locator("#found", has_text="2 operators").wait_for()
        page.keyboard.press("Enter")
        details = page.locator("#details")
        details.locator("h2", has_text="experts").wait_for()
        assert details.locator("strong").count() == 2
        assert "FLOP/B" in details.inner_text()
        assert "interpolated" in details.inner_text() or "measured" in details.inner_text()
        assert "node=" in page.url
        page.keyboard.press("ArrowDown")
        details.locator("h2", has_text="add shared").wait_for()


@pytest.mark.slow
def test_a_wrong_name_is_a_problem_with_the_nearest(browser: Browser, server: RunningServer) -> None:
    with watched(browser, server.url) as found:
        page = found.open("/analyze?model=llama3.1-9b&hardware=h100")
        page.locator(".problem code", has_text="llama3.1-8b").wait_for()
        assert any("422" in fault for fault in found.faults)
        found.faults.clear()


@pytest.mark.slow
@pytest.mark.parametrize(("path", "control"), [("/analyze", "batch"), ("/graph", "batch"), ("/plan", "rate")])
def test_a_form_is_emptied_by_its_reset_and_restored_by_going_back(
    browser: Browser, server: RunningServer, path: str, control: str
) -> None:
    """Also the slider of a number follows, which listens to the restored form."""
    value = f"(wanted) => document.getElementById('{control}').value === wanted"
    with watched(browser, server.url) as found:
        page = found.open(path)
        default = page.locator(f"#{control}").input_value()
        page = found.open(f"{path}?{control}=512")
        page.wait_for_function(value, arg="512")
        slider = page.locator(f"#{control}-slider")
        at_512 = slider.input_value() if slider.count() else None
        page.locator("form button[type=reset]").first.click()
        page.wait_for_function(value, arg=default)
        page.wait_for_function(f"() => !location.search.includes('{control}=')")
        for text in ("512", "64"):
            page.evaluate(f"(text) => history.pushState(null, '', '?{control}=' + text)", text)
        page.go_back()
        page.wait_for_function(value, arg="512")
        assert at_512 is None or slider.input_value() == at_512
        page.wait_for_load_state("networkidle")


@pytest.mark.slow
@pytest.mark.parametrize(("path", "name"), [("/analyze", "analysis.json"), ("/graph", "graph.json")])
def test_json_holds_one_document_or_a_list_of_several(
    browser: Browser, server: RunningServer, path: str, name: str
) -> None:
    one = "model=llama3.1-8b&hardware=h100"
    with watched(browser, server.url) as found:
        for query, n in ((one, None), (f"{one}&{one}x2", 2)):
            page = found.open(f"{path}?{query}")
            with page.expect_download() as download:
                page.get_by_role("button", name="JSON", exact=True).click()
            assert download.value.suggested_filename == name
            document = json.loads(download.value.path().read_text(encoding="utf-8"))
            assert (len(document) if isinstance(document, list) else None) == n
