"""Fixtures of the tests of whole answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.planner.short_runs import shortened


@pytest.fixture(scope="module")
def short_runs() -> Iterator[None]:
    """Shorten every simulated run of the tests of a module."""
    with shortened():
        yield
