"""A page of the browser that records what must not happen: errors of the console, and requests to other hosts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 375, "height": 800}
#: How long a page may take to load or to change, on a machine that does much else.
MOST_WAIT_MS = 120_000
#: How Chromium reports a request that the page itself gave up, for example because the next one replaces it.
_ABORTED = "net::ERR_ABORTED"


@dataclass
class WatchedPage:
    """A page and its faults."""

    page: Page
    url: str
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        own = urlsplit(self.url).netloc
        self.page.on("console", lambda m: m.type in ("error", "warning") and self.faults.append(m.text))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("request", lambda r: _other(r.url, own) and self.faults.append(f"request to {r.url}"))
        self.page.on("requestfailed", lambda r: r.failure != _ABORTED and self.faults.append(f"{r.failure} {r.url}"))
        self.page.on("response", lambda r: r.status >= 400 and self.faults.append(f"{r.status} {r.url}"))

    def open(self, path: str) -> Page:
        self.page.goto(self.url + path)
        self.page.wait_for_load_state("networkidle")
        self.page.locator("form[inert]").first.wait_for(state="detached")
        return self.page


def _other(url: str, own: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("http", "https") and parts.netloc != own


@contextmanager
def watched(browser: Browser, url: str, **options: Any) -> Iterator[WatchedPage]:
    """Yield a page in a context of its own; faults fail the test at the end."""
    context = browser.new_context(**{"viewport": DESKTOP, **options})
    context.set_default_timeout(MOST_WAIT_MS)
    found = WatchedPage(context.new_page(), url)
    yield found
    context.close()
    assert found.faults == [], found.faults
