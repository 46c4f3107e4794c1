"""Answers and studies from short simulated runs, for tests of what an answer states rather than of its precision.

The figures of an answer must agree with each other, and a study must answer in full, for runs of any length. So every
test of the planner has short runs, except slow tests and those that need runs of the usual length: these are marked
`usual_runs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from planner.evaluation import queueing
from planner.evaluation.evaluator import RunSizes
from planner.studies import binding, sensitivity

#: Requests of the longest runs with few requests in flight.
MOST_REQUESTS = 400

#: Times as many requests have runs with many in flight.
MOST_LONGER = 2

_FOR_SLOS = RunSizes.for_slos


@contextmanager
def shortened(most_requests: int = MOST_REQUESTS, most_longer: int = MOST_LONGER) -> Iterator[None]:
    """Simulate at most `most_requests` in every run of a search, of an answer and of a study.

    Runs with many requests in flight have up to `most_longer` times as many.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunSizes, "for_slos", lambda slos, *shares: _FOR_SLOS(slos, *shares).at_most(most_requests))
        patch.setattr(queueing, "_MAX_LONGER", most_longer)
        patch.setattr(binding, "LEAST_REQUESTS", most_requests)
        patch.setattr(sensitivity, "SETTLED", most_requests)
        yield
