"""The closest plan of a refusal: the least missed within the noise of short runs, of the strongest placement there."""

from __future__ import annotations

import pytest

from planner.answer.refusal import least_missed
from planner.problem.candidate import Candidate
from planner.search.candidate_tester import UNSTABLE, Outcome
from tests.planner.queue_toy import candidate

TWO, THREE = (candidate(2, replicas=n) for n in (2, 3))
THREE_SMALL = candidate(2, replicas=3, max_num_seqs=64)


def outcome(c: Candidate, ratio: float) -> Outcome:
    return Outcome(c, "infeasible", 0.0, 12.0, ratio, "ttft.p99", None)


def carried_per_s(c: Candidate) -> float:
    return c.replicas * 5.0 + c.max_num_seqs / 1000


@pytest.mark.parametrize(
    ("two", "three", "three_small", "closest"),
    [
        (1.81, 1.90, 1.87, THREE_SMALL),  # within the noise: the stronger placement, there the least missed
        (1.81, 1.87, 1.90, THREE),
        (1.20, 1.90, 1.87, TWO),  # beyond the noise
        (1.20, UNSTABLE + 1.2, UNSTABLE + 1.3, TWO),  # the others do not keep up
        (UNSTABLE + 3, UNSTABLE + 2, UNSTABLE + 2.5, THREE),
    ],
)
def test_the_closest_plan(two: float, three: float, three_small: float, closest: Candidate) -> None:
    found = [outcome(TWO, two), outcome(THREE, three), outcome(THREE_SMALL, three_small)]
    assert least_missed(found, carried_per_s) == closest
    assert least_missed(found[::-1], carried_per_s) == closest
