"""Fixtures of the tests of `plan serve`."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.planner.web.running_server import RunningServer


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server for all tests that do not end it."""
    found = RunningServer(tmp_path_factory.mktemp("server")).start()
    yield found
    found.stop()


@pytest.fixture
def client(server: RunningServer) -> Iterator[httpx.Client]:
    with server.client() as found:
        yield found
