"""Fixtures of the tests of `plan serve`: a server, a client, and Chromium of the system, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.planner.web.running_server import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome")

#: No sandbox: tests may run as root in a container. The others keep the browser itself from calling its maker.
OPTIONS = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run",
)  # fmt: skip


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server for all tests that do not end it; nothing listens at its endpoint."""
    folder = tmp_path_factory.mktemp("server")
    endpoints = folder / "endpoints.yaml"
    endpoints.write_text("silent: {url: 'http://127.0.0.1:9/v1', models: [m]}\n")
    found = RunningServer(folder, ("--endpoints", str(endpoints))).start()
    yield found
    found.stop()


@pytest.fixture
def client(server: RunningServer) -> Iterator[httpx.Client]:
    with server.client() as found:
        yield found


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no Chromium is installed")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=list(OPTIONS))
        yield chromium
        chromium.close()
