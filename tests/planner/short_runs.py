"""Answers and studies from short simulated runs, for tests of what an answer states rather than of its precision.

The figures of an answer must agree with each other, and a study must answer in full, for runs of any length. So every
test of the planner has short runs, except slow tests and those that need runs of the usual length: these are marked
`usual_runs`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from planner.evaluation import queueing
from planner.evaluation.evaluator import RunSizes
from planner.studies import binding, sensitivity

#: Requests of the longest runs with few requests in flight.
MOST_REQUESTS = 200

#: Runs with many requests in flight have up to this many times as many.
MOST_LONGER = 2

_USUAL = (RunSizes.for_slos, queueing._MAX_LONGER, binding.LEAST_REQUESTS, sensitivity.SETTLED)


@contextmanager
def shortened(most_requests: int = MOST_REQUESTS) -> Iterator[None]:
    """Simulate at most `most_requests` in every run with few requests in flight, of a search, answer or study."""

    def sizes(*slos: Any) -> RunSizes:
        return _USUAL[0](*slos).at_most(most_requests)

    with _sizes(sizes, MOST_LONGER, most_requests, most_requests):
        yield


@contextmanager
def usual() -> Iterator[None]:
    """Simulate as many requests as users do, also in a test whose runs are short."""
    with _sizes(*_USUAL):
        yield


@contextmanager
def _sizes(for_slos: Callable[..., RunSizes], longer: int, least: int, settled: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunSizes, "for_slos", for_slos)
        patch.setattr(queueing, "_MAX_LONGER", longer)
        patch.setattr(binding, "LEAST_REQUESTS", least)
        patch.setattr(sensitivity, "SETTLED", settled)
        yield
