"""Users become a rate by Little's law; what may be lost becomes load on what is left."""

from __future__ import annotations

import math

import pytest

from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from planner.problem.demand import Demand, FailureTolerance, RequiredRates, users_rate_per_s
from tests.planner.queue_toy import candidate


def test_users_of_a_server_that_never_waits() -> None:
    """100 users, each 5 s in service and 15 s thinking: 100 / 20 requests a second."""
    assert users_rate_per_s(100, 15.0, lambda _: 5.0) == pytest.approx(5.0, rel=2e-3)


def test_users_of_a_processor_sharing_queue() -> None:
    """R = s / (1 - X s) with s = 0.1 and Z = 0.9, N = 10: X (0.1 / (1 - 0.1 X) + 0.9) = 10 has the root below."""
    service_s, think_s, users = 0.1, 0.9, 10

    def e2e_s(rate: float) -> float:
        return service_s / (1 - rate * service_s) if rate * service_s < 1 else math.inf

    found = users_rate_per_s(users, think_s, e2e_s)
    # 0.09 X^2 - 2 X + 10 = 0
    assert found == pytest.approx((2 - math.sqrt(4 - 3.6)) / 0.18, rel=2e-3)


def test_more_users_than_could_ever_be_served_are_served_as_fast_as_there_is() -> None:
    """A server of 10 requests a second, and a million million users: just under ten, and no division by zero."""
    slow = lambda rate: 0.1 / (1 - rate / 10) if rate < 10 else math.inf  # noqa: E731
    assert users_rate_per_s(10**12, 0.0, slow) == pytest.approx(10.0, rel=2e-3)
    asked = RequiredRates(Demand(users=10**12), lambda _c, rate: slow(rate), lambda _c, _r: 1.0)
    assert 0 < (asked.nominal_per_s(candidate()) or 0.0) < 10


def test_a_short_run_corrects_the_guess() -> None:
    """The run is twice as slow as guessed at any rate: the rate is what twice the time gives."""
    asked = RequiredRates(Demand(users=30), lambda _c, _r: 1.0, lambda _c, _r: 2.0)
    assert asked.nominal_per_s(candidate()) == pytest.approx(15.0, rel=2e-3)


@pytest.mark.parametrize(
    ("text", "replicas", "nodes"), [("1", 1, 0), ("2 replicas", 2, 0), ("node", 0, 1), ("2nodes", 0, 2)]
)
def test_what_may_be_lost_in_words(text: str, replicas: int, nodes: int) -> None:
    assert FailureTolerance.parse(text) == FailureTolerance(replicas, nodes)


@pytest.mark.parametrize("text", ["", "one", "-1", "1 gpu"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--survive takes"):
        FailureTolerance.parse(text)


def test_survivors_carry_the_load_of_the_lost() -> None:
    four = candidate(tensor_parallel=2, replicas=4)
    asked = RequiredRates(
        Demand(requests_per_s=12.0, spare=FailureTolerance(1)), lambda _c, _r: 1.0, lambda _c, _r: 1.0
    )
    assert asked.nominal_per_s(four) == 12.0
    assert asked.held_per_s(four) == pytest.approx(16.0)  # as if all four were loaded like three with 12
    assert asked.held_per_s(candidate()) == math.inf  # the only replica


def test_a_lost_node_takes_its_replicas() -> None:
    two_nodes = candidate(hardware=parse_hardware("2*h100x8"), tensor_parallel=4, replicas=4)
    assert FailureTolerance(nodes=1).lost(two_nodes) == 2
    assert FailureTolerance(nodes=1).factor(two_nodes) == 2.0
    three = candidate(hardware=parse_hardware("2*h100x8"), tensor_parallel=4, replicas=3)
    assert FailureTolerance(nodes=1).lost(three) == 2  # the fuller node
    assert FailureTolerance(nodes=1).factor(candidate(tensor_parallel=1, replicas=8)) == math.inf


def test_a_rate_is_refused_where_the_planner_could_not_simulate_more() -> None:
    """Searches simulate rates above the requested one, which workloads refuse from 1e9 requests per second."""
    assert Demand(requests_per_s=1e8).given
    with pytest.raises(InputError, match=r"at most 100,000,000: got 1000000000\.0"):
        Demand(requests_per_s=1e9)
