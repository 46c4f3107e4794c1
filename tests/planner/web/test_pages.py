"""Every page in a real browser: a short smoke test, and in the slow tests whole flows, accessibility and phones."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from catalogs.ui import words
from catalogs.workloads.limits import LEAST_REQUESTS_PER_S
from planner.cli.screens.studies import change_text
from planner.studies.comparison import Figure
from planner.web.documents.question_form import further_groups
from planner.web.pages import FOLDER, PAGES
from planner.web.questions import to_query
from tests.planner.agents.small_runs import SESSIONS
from tests.planner.web.running_server import SMALL, RunningServer
from tests.planner.web.watched_page import PHONE, watched

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[3]
PICTURE = ROOT / "docs" / "plan-page.png"
PATHS = [page.path for page in PAGES if (FOLDER / "templates" / f"{page.name}.html").exists()]
#: The query of a question whose answer takes seconds.
SMALL_QUERY = to_query(
    {name: value for name, value in SMALL.items() if name != "fixed"}
    | {f"fixed.{name}": value for name, value in SMALL["fixed"].items()}
)
#: A question that nothing meets, and that more hardware meets.
NO_QUERY = (
    "model=llama3.1-8b&hardware=l40sx1&slo=ttft.p50%3D1s&rate=40&input_tokens=512&output_tokens=64&search.trials=4"
)
ANSWER = "#answer .verdict"


def test_smoke(browser: Browser, server: RunningServer) -> None:
    with watched(browser, server.url) as found:
        for path in PATHS:
            page = found.open(path)
            assert page.locator("h1").count() == 1
            assert page.locator("nav [aria-current=page]").count() == (path != "/")
        page = found.open(f"/plan?{SMALL_QUERY}")
        page.locator("#live .good", has_text="It fits").wait_for(timeout=20_000)
        assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
        found.open("/plan?model=qwen3-coder-480b")  # another name of qwen3-coder-480b-a35b
        page.locator("#model-note", has_text="480 B parameters").wait_for(timeout=20_000)
        check_words(page)


def check_words(page: Page) -> None:
    """The numbers of the pages have the words of every other screen."""
    draw = random.Random(0)
    values = [0.0, 0.001, 0.00099951, 0.1, 0.99, 0.9995, 1.0, 999.4, 999.6, 1000.0, 1234.5, 2.5e-4, 5.3e-5]
    values += [2e-7, 9.95e-2, 9.96e-2, 9e-10, *(10 ** draw.uniform(-10, 9) for _ in range(300))]
    functions = {
        "digits": words.digits, "seconds": words.seconds, "dollars": words.dollars, "rate": words.rate,
        "gigabytes": words.gigabytes,
    }  # fmt: skip
    shares = [draw.random() for _ in range(50)] + [0.0, 0.004, 0.995, 1.0]
    script = """async ([names, values, shares]) => {
        const words = await import("/static/js/words.js");
        const ofShares = [words.percent, words.surePercent].map((function_) => shares.map(function_));
        return [...names.map((name) => values.map(words[name])), ...ofShares];
    }"""
    found = page.evaluate(script, [list(functions), values, shares])
    check_changes(page)
    for name, texts in zip(functions, found, strict=False):
        assert texts == [functions[name](value) for value in values], name
    assert found[-2] == [words.percent(share) for share in shares]
    assert found[-1] == [words.sure_percent(share) for share in shares]


def check_changes(page: Page) -> None:
    """The compare page writes changes as the screen of `plan whatif` does, with the minus sign of typography."""
    pairs = [(1.0, 1.005), (2.0, 1.0), (3.0, 2.996), (8.0, 9.0), (0.9, 0.615), (0.2, 0.9), (1.0, None), (5.0, 5.0)]
    figures = [Figure("f", unit, a, b) for unit in ("rate", "usd", "share", "confidence") for a, b in pairs]
    documents = [figure.as_dict() for figure in figures]
    assert {d["change_is"] for d in documents if d["change"] is not None} == {"relative", "difference"}
    script = """async (documents) => {
        const words = await import("/static/js/words.js");
        return documents.map(words.changeWords);
    }"""
    assert page.evaluate(script, documents) == [change_text(figure) for figure in figures]
    large = [{"change": 9.0, "change_is": "relative"}, {"change": 1234.0, "change_is": "relative"}]
    assert page.evaluate(script, large) == ["× 10", "× 1,235"]
    assert [change_text(Figure("f", "rate", 1.0, b)) for b in (10.0, 1235.0)] == ["× 10", "× 1,235"]
    numbers = [8.03e9, 350e6, 1.04e12, 66_000]
    script = """async (numbers) => {
        const words = await import("/static/js/words.js");
        return numbers.map(words.parameters);
    }"""
    assert page.evaluate(script, numbers) == ["8.03 B", "350 M", "1.04 T", "66 k"]


def test_every_key_of_a_question_has_a_control(server: RunningServer) -> None:
    from planner.problem.request_keys import request_keys

    with server.client() as client:
        form = client.get("/plan").text
    generated = {field.name for group in further_groups() for field in group.fields}
    left_out = {
        "search.study",
        "search.workers",
        "search.distributed",
        "accounting.carbon_hours",
    }  # the server's, or files
    rows = {"hardware": 'id="hardware-search"', "slo": 'id="slo-row"'}
    missing = [name for name in request_keys() if name not in left_out and rows.get(name, f'name="{name}"') not in form]
    assert missing == []
    assert generated.isdisjoint(left_out)


@pytest.mark.parametrize("path", ["/plan", "/fronts", "/simulate"])
def test_the_field_of_a_rate_states_its_rule(server: RunningServer, path: str) -> None:
    """Zero is refused, so the browser must not offer it."""
    with server.client() as client:
        form = client.get(path).text
    (field,) = re.findall(r'<input id="rate"[^>]*>', form)
    (least,) = re.findall(r'min="([^"]*)"', field)
    assert float(least) == LEAST_REQUESTS_PER_S
    (note,) = re.findall(r'aria-describedby="([^"]*)"', field)
    assert re.search(rf'id="{note}">A rate is a number above 0\.', form)


# ---- slow flows


def finish(page: Page, selector: str = ANSWER) -> None:
    page.locator(selector).wait_for(timeout=180_000)


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def focused(page: Page) -> str:
    return str(page.evaluate("() => document.activeElement.id || document.activeElement.textContent.trim()"))


def tab_to(page: Page, wanted: str, most: int = 80) -> None:
    """Press Tab until the element with this id or text has the focus."""
    for _ in range(most):
        if focused(page) == wanted:
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not reach {wanted}")


@pytest.mark.slow
def test_a_plan_by_keyboard_alone(browser: Browser, server: RunningServer) -> None:
    with watched(browser, server.url) as found:
        page = found.open("/plan")
        tab_to(page, "model")
        page.keyboard.type("3.2-1b")
        page.locator("[role=option]:visible").first.wait_for()
        press(page, "ArrowDown", "Enter")
        assert page.locator("#model").input_value() == "llama3.2-1b"
        tab_to(page, "hardware-search")
        page.keyboard.type("l40s")
        page.locator("[role=option]:visible").first.wait_for()
        press(page, "ArrowDown", "Enter")
        assert page.locator("#hardware-chips li").count() == 1
        tab_to(page, "rate")
        page.keyboard.type("1")
        page.locator("#live .good", has_text="It fits").wait_for(timeout=20_000)
        tab_to(page, "go")
        page.keyboard.press("Enter")
        finish(page)
        assert "job=" in page.url
        tab_to(page, "Start it")
        page.keyboard.press("Enter")
        assert page.locator("pre", has_text="vllm serve").first.is_visible()


@pytest.mark.slow
def test_a_plan_in_the_browser_is_that_of_the_command(browser: Browser, server: RunningServer) -> None:
    from planner.pipeline import plan
    from planner.problem.scenario import request_of_keys, scenario_keys

    answer = plan(request_of_keys(scenario_keys(SMALL, "the question"))).document()
    with watched(browser, server.url) as found:
        page = found.open(f"/plan?{SMALL_QUERY}")
        page.locator("#go").click()
        finish(page)
        job = page.evaluate("() => new URLSearchParams(location.search).get('job')")
        with server.client() as client:
            own = client.get(f"/api/v1/jobs/{job}/result").json()
        assert without_times(own) == without_times(answer)
        assert answer["best"]["deployment"]["hardware"] in page.locator(ANSWER).inner_text()
        page.locator("summary", has_text="Terminal output").click()
        screen = page.locator("pre.screen").inner_text()
        assert answer["best"]["command"].split()[2] in screen


def without_times(answer: dict[str, Any]) -> dict[str, Any]:
    found = json.loads(json.dumps(answer))
    found["search"].pop("seconds")
    return dict(found)


#: Sets every control of the form to a value that is not its default, and returns the values of all controls.
CHANGE = """() => {
    const form = document.getElementById("question");
    for (const part of document.querySelectorAll("#conversations [data-part]")) part.value = "5";
    document.getElementById("conversations").dispatchEvent(new Event("input", { bubbles: true }));
    for (const control of form.elements) {
        if (!control.name || control.disabled || control.name === "model") continue;  // those of networks are off
        if (control.type === "checkbox") control.checked = !control.defaultChecked;
        else if (control.tagName === "SELECT") control.value = [...control.options].at(-1).value;
        else if (control.dataset.kind === "keys") control.value = control.name === "fixed"
            ? "kv_dtype=fp8\\nmax_num_seqs=64" : "capex=100000\\nyears=4";
        else if (control.dataset.kind === "numbers") control.value = "300,400";
        else if (control.dataset.kind === "list") control.value = "fp8,native";
        else if (control.type === "number") control.value = control.max ? "0.8" : "7";
        else control.value = `text & ${control.name} = é`;
    }
    document.getElementById("model").value = "llama3.1-8b";
    document.getElementById("add-slo").click();
    const [metric, stat, limit, unit] = [...document.querySelectorAll(".slo:last-child select, .slo:last-child input")];
    [metric.value, stat.value, limit.value, unit.value] = ["e2e", "mean", "2.5", "s"];
    form.dispatchEvent(new Event("input", { bubbles: true }));
}"""

VALUES = """() => ({
    controls: [...document.getElementById("question").elements].filter((c) => c.name)
        .map((c) => [c.name, c.type === "checkbox" ? c.checked : c.value]),
    rows: [...document.querySelectorAll(".slo")]
        .map((row) => [...row.querySelectorAll("select, input")].map((c) => c.value)),
    chips: [...document.querySelectorAll("#hardware-chips li")].map((chip) => chip.textContent),
    conversations: [...document.querySelectorAll("#conversations:not([hidden]) [data-part]")].map((c) => c.value),
})"""


@pytest.mark.slow
def test_every_control_survives_form_address_new_tab_form(browser: Browser, server: RunningServer) -> None:
    with watched(browser, server.url) as found:
        page = found.open("/plan")
        page.locator("#hardware-search").fill("h100x2")
        page.keyboard.press("Enter")
        page.evaluate(CHANGE)
        page.evaluate("() => document.getElementById('workload').dispatchEvent(new Event('change', { bubbles: true }))")
        page.wait_for_function("() => location.search.includes('e2e.mean')")
        first, address = page.evaluate(VALUES), page.url
        tab = page.context.new_page()
        tab.goto(address)
        tab.wait_for_load_state("networkidle")
        assert tab.evaluate(VALUES) == first
        assert set(first["conversations"]) == {"5"}
        names = {name for name, _ in first["controls"]}
        assert {"model", "rate", "fixed", "accounting.owned", "tariff.region", "search.trials", "over_time"} <= names
        found.faults.clear()  # values that exclude each other: the estimate refuses them, as it should


@pytest.mark.slow
def test_agents_are_planned_in_the_browser_in_the_words_of_the_screen(browser: Browser, server: RunningServer) -> None:
    slo = ["interactivity.p90=5", "session.p90=3h"]
    question = {"model": "llama3.2-1b", "hardware": "h100", "slo": slo, "workload": SESSIONS, "agents": 2}
    with watched(browser, server.url) as found:
        page = found.open("/plan")
        agents = page.locator("#agents-field")
        assert not agents.is_visible()
        page.get_by_role("button", name="Agents").click()
        agents.wait_for()
        assert page.locator("#agents").input_value() == "16"
        assert page.locator(".slo").first.locator("select").last.input_value() == "tokens/s"
        page.locator("#rate").fill("3")
        page.keyboard.press("Tab")
        assert page.locator("#agents").input_value() == ""
        page.locator("#workload").select_option("azure-conv")
        agents.wait_for(state="hidden")
        page = found.open(f"/plan?{to_query(question)}")
        page.locator("#live", has_text="Agents have no estimate").wait_for()
        assert page.locator("#agents").input_value() == "2"
        assert "interactivity.p90%3D5&" in page.evaluate("() => location.search")
        page.locator("#go").click()
        finish(page)
        shown = page.locator("#answer").inner_text()
        assert "5 tokens/s" in shown
        assert "3 h" in shown
        page.locator("summary", has_text="The same question as a command").click()
        assert "--slo interactivity.p90=5,session.p90=3h" in page.locator("#spelled pre").first.inner_text()


@pytest.mark.slow
def test_a_trace_that_cannot_be_read_is_refused_where_it_is_uploaded(browser: Browser, server: RunningServer) -> None:
    good = b"arrival_s,input_tokens,output_tokens\n" + b"".join(b"%d,100,%d\n" % (i, 10 + i) for i in range(50))
    with watched(browser, server.url) as found:
        page = found.open("/plan")
        for name, content in (("bad.csv", b"a,b\n1,2\n"), ("good.csv", good)):
            page.locator("#trace-file").set_input_files({"name": name, "mimeType": "text/csv", "buffer": content})
            if name == "bad.csv":
                page.locator("#workload-problem .problem").wait_for()
                assert page.locator("#workload").input_value() == "azure-conv"
        page.locator("#workload-note", has_text="Mean 100 tokens in").wait_for()
        assert page.locator("#workload-problem .problem").count() == 0
        assert page.locator("#workload option:checked").inner_text() == "good.csv"
        page.locator("#paste-config").click()
        page.locator("#config-text").fill("{not JSON")
        page.locator("#use-config").click()
        page.locator("#pasted .problem", has_text="not JSON").wait_for()
        found.faults.clear()  # the refused trace


@pytest.mark.slow
def test_a_no_offers_ways_out_that_hold(browser: Browser, server: RunningServer) -> None:
    with watched(browser, server.url) as found:
        page = found.open(f"/plan?{NO_QUERY}")
        page.locator("#go").click()
        finish(page)
        assert page.locator(ANSWER).inner_text().startswith("NO")
        way = page.locator(".ways li", has_text="l40s").first
        way.get_by_role("button", name="Change and plan again").click()
        page.locator(ANSWER, has_text="Rent").wait_for(timeout=180_000)
        page.go_back()
        page.locator(ANSWER, has_text="NO").wait_for()
        page.go_forward()
        page.locator(ANSWER, has_text="Rent").wait_for()


@pytest.mark.slow
def test_cancel_keeps_the_best(browser: Browser, server: RunningServer) -> None:
    with watched(browser, server.url) as found:
        page = found.open("/plan?model=llama3.1-70b&hardware=h100x8&slo=ttft.p99%3D2s&search.trials=200")
        page.locator("#go").click()
        page.locator(".progress p", has_text="Best so far").wait_for(timeout=120_000)
        page.get_by_role("button", name="Cancel and keep the best").click()
        # A slow machine has no time left to measure the best plan; the page then shows the deployment alone.
        ended = page.locator("#answer", has_text=re.compile("Cancelled: this is the best|Stopped: the best so far"))
        ended.wait_for(timeout=60_000)
        assert "h100" in ended.inner_text()


@pytest.mark.slow
def test_jobs_can_be_deleted(browser: Browser, server: RunningServer) -> None:
    with watched(browser, server.url) as found:
        with server.client() as client:
            job = client.post("/api/v1/plans", json=SMALL | {"seed": 7}).json()
        page = found.open("/jobs")
        row = page.locator("tr", has=page.locator(f"a[href$='{job['id']}']"))
        row.get_by_text("done").wait_for(timeout=120_000)
        row.get_by_role("button", name="Delete").click()
        row.wait_for(state="detached")


def axe_source() -> str:
    """The script of axe-core, which is a developer's tool and not part of the project."""
    found = os.environ.get("AXE_CORE")
    if not found:
        pytest.skip("AXE_CORE does not name a file of axe-core (npm pack axe-core)")
    return Path(found).read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("look", [{}, {"color_scheme": "dark"}, {"viewport": PHONE}], ids=["light", "dark", "phone"])
def test_accessibility(browser: Browser, server: RunningServer, look: dict[str, Any]) -> None:
    source = axe_source()
    with watched(browser, server.url, **look) as found:
        for path in [*PATHS, f"/plan?{SMALL_QUERY}", "/catalog?kind=hardware"]:
            page = found.open(path)
            if "?model" in path:
                page.locator("#go").click()
                finish(page)
            page.evaluate("() => document.querySelectorAll('main details').forEach((node) => { node.open = true; })")
            page.wait_for_timeout(500)  # charts in what was folded
            page.evaluate(source)
            result = page.evaluate("() => axe.run(document, { resultTypes: ['violations'] })")
            broken = [(v["id"], [node["html"][:200] for node in v["nodes"][:3]]) for v in result["violations"]]
            assert broken == [], path
            wide = page.evaluate("() => document.documentElement.scrollWidth - window.innerWidth")
            assert wide <= 0, f"{path} is {wide} px wider than the screen"


@pytest.mark.slow
def test_the_picture_of_the_readme(browser: Browser, server: RunningServer, tmp_path: Path) -> None:
    """Draw the plan page with an answer; WRITE_PICTURES=1 replaces the picture in docs."""
    query = "model=llama3.1-8b&hardware=h100x2,l40sx4&slo=ttft.p99%3D1s&slo=tpot.p95%3D60ms&rate=12"
    with watched(browser, server.url, viewport={"width": 1280, "height": 1130}) as found:
        page = found.open(f"/plan?{query}")
        page.locator("#go").click()
        finish(page)
        page.locator("#answer .main-svg").first.wait_for()
        page.evaluate("() => window.scrollTo(0, 0)")
        time.sleep(0.5)
        page.screenshot(path=tmp_path / "plan.png")
    assert (tmp_path / "plan.png").stat().st_size > 20_000
    if os.environ.get("WRITE_PICTURES"):
        shutil.copy(tmp_path / "plan.png", PICTURE)
    assert PICTURE.exists()
