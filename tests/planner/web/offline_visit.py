"""Opens every page of `plan serve` in Chromium, with a server of its own, on a machine without a network.

`test_offline.py` runs this in a network namespace that has nothing but a loopback device:

    unshare --net --map-root-user python -m tests.planner.web.offline_visit FOLDER

It prints the pages that it opened and what went wrong on each, as JSON.
"""

from __future__ import annotations

import errno
import fcntl
import json
import shutil
import socket
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.web.pages import PAGES
from planner.web.questions import to_query
from tests.planner.web.running_server import SMALL, RunningServer, answered
from tests.planner.web.watched_page import DESKTOP, WatchedPage

if TYPE_CHECKING:
    from playwright.sync_api import Browser

#: Address that no machine has (RFC 5737).
ELSEWHERE = ("192.0.2.1", 80)

#: Requests of Linux for the flags of a network device, and the flag of one that is up (linux/sockios.h, linux/if.h).
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 0x1

STEP = "model=llama3.1-8b&hardware=h100x2"


def start_loopback() -> None:
    """Switch the loopback device on: in a new namespace it is off."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH14x", b"lo", 0)
        (flags,) = struct.unpack_from("H", fcntl.ioctl(any_socket, _GET_FLAGS, request), 16)
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14x", b"lo", flags | _UP))


def has_no_route() -> bool:
    """Return whether this process reaches no other machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
        tried.settimeout(5)
        return tried.connect_ex(ELSEWHERE) == errno.ENETUNREACH


def addresses(jobs: list[str]) -> list[str]:
    """Return the pages as they open first, and those that load more: charts, graphs, and the answers of jobs."""
    pages = [page.path for page in PAGES]
    asked = to_query({name: value for name, value in SMALL.items() if name != "fixed"})
    return [
        *pages,
        f"/plan?{asked}",
        f"/plan?job={jobs[0]}",
        f"/analyze?{STEP}",
        f"/graph?{STEP}",
        "/compare?" + "&".join(f"job={job}" for job in jobs),
    ]


def visit(browser: Browser, url: str, path: str) -> dict[str, Any]:
    """Open one page in a fresh context; return its heading and its faults."""
    context = browser.new_context(viewport=DESKTOP)
    found = WatchedPage(context.new_page(), url)
    heading = found.open(path).locator("h1").all_inner_texts()
    context.close()
    return {"path": path, "headings": heading, "faults": found.faults}


def main(folder: Path) -> None:
    """Start the server and the browser, open every page, and print what happened."""
    from playwright.sync_api import sync_playwright

    from tests.planner.web.conftest import NAMES, OPTIONS

    start_loopback()
    if not has_no_route():
        raise SystemExit("this process reaches other machines")
    server = RunningServer(folder).start()
    try:
        with server.client() as client:
            jobs = [answered(client, "plans", SMALL | {"seed": seed})[0]["id"] for seed in (0, 1)]
        with sync_playwright() as playwright:
            chromium = next(filter(None, map(shutil.which, NAMES)))
            browser = playwright.chromium.launch(executable_path=chromium, args=list(OPTIONS))
            print(json.dumps([visit(browser, server.url, path) for path in addresses(jobs)]))
            browser.close()
    finally:
        server.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
