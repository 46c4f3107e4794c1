"""Answers and studies from short simulated runs, for tests of what an answer states rather than of its precision.

The figures of an answer must agree with each other, and a study must answer in full, for runs of any length.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from planner.evaluation.evaluator import RunSizes
from planner.studies import binding, sensitivity

#: Requests of the longest runs.
MOST_REQUESTS = 400


@contextmanager
def shortened(most_requests: int = MOST_REQUESTS) -> Iterator[None]:
    """Simulate at most `most_requests` in every run of a search, of an answer and of a study."""
    usual = RunSizes.for_slos
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunSizes, "for_slos", lambda slos, *shares: usual(slos, *shares).at_most(most_requests))
        patch.setattr(binding, "LEAST_REQUESTS", most_requests)
        patch.setattr(sensitivity, "SETTLED", most_requests)
        yield
