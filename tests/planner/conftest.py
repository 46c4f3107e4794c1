"""The lengths of simulated runs in the tests of the planner."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, nullcontext

import pytest

from tests.planner.short_runs import shortened


@pytest.fixture(scope="module")
def short_runs() -> Iterator[None]:
    """Shorten every simulated run of the tests of a module, the slow ones too."""
    with shortened():
        yield


def _length(item: pytest.Item) -> AbstractContextManager[None]:
    """Return what shortens the runs of a test, unless it is slow or needs the usual ones."""
    is_usual = item.get_closest_marker("slow") or item.get_closest_marker("usual_runs")
    return nullcontext() if is_usual else shortened()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Shorten the runs of fixtures, those of modules and sessions too."""
    with _length(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Shorten the runs of a test."""
    with _length(item):
        return (yield)
