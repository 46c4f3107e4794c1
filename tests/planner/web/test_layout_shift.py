"""Pages keep the places of what comes later, so that nothing moves while they load (Core Web Vitals: below 0.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from tests.planner.web.running_server import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser

#: Sum of the shares of the window that move without an action of the reader.
RECORD = """
window.shifted = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifted += entry.value;
}).observe({ type: "layout-shift", buffered: true });
"""

#: A good page shifts less (web.dev/articles/cls).
MOST = 0.1


@pytest.mark.parametrize("width", [412, 1350])
@pytest.mark.parametrize(("path", "answer"), [("/analyze", "#roofline svg"), ("/graph", "svg"), ("/plan", ".live")])
def test_nothing_moves_while_a_page_loads(
    browser: Browser, server: RunningServer, client: httpx.Client, path: str, answer: str, width: int
) -> None:
    server.wait_until_ready(client)
    page = browser.new_page(viewport={"width": width, "height": 823})
    try:
        page.add_init_script(RECORD)
        page.goto(server.url + path)
        page.locator(answer).first.wait_for()
        page.wait_for_load_state("networkidle")
        assert page.evaluate("window.shifted") < MOST
    finally:
        page.close()
