"""The lengths of simulated runs in the tests of the planner."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, nullcontext

import pytest

from tests.planner.short_runs import shortened, usual


def _length(item: pytest.Item) -> AbstractContextManager[None]:
    """Return what gives the runs of a test their length: short, unless the test is slow or needs another one."""
    if item.config.getoption("usual_runs") or item.get_closest_marker("usual_runs"):
        return usual()
    if longer := item.get_closest_marker("runs_of"):
        return shortened(*longer.args)
    return nullcontext() if item.get_closest_marker("slow") else shortened()


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
