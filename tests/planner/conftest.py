"""Fixtures of the tests of whole answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from planner.evaluation.evaluator import RunSizes

#: Requests of the longest runs of answers whose figures need not be precise.
MOST_REQUESTS = 400


@pytest.fixture(scope="module")
def short_runs() -> Iterator[None]:
    """Simulate a quarter of the usual requests: what an answer says of itself must agree for runs of any length."""
    usual = RunSizes.for_slos
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunSizes, "for_slos", lambda slos: usual(slos).at_most(MOST_REQUESTS))
        yield
