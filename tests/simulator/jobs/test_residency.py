"""What does not fit together in the memory of a replica: states of sessions and weights of networks, by hand."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.jobs.residency import Residency, SessionStates, Weights
from simulator.jobs.run import JobRun
from tests.simulator.jobs.worlds import constant, job_set, run


def sessions_run(router: str, replicas: int = 2, states_bytes: float = 1e9, seed: int = 0) -> JobRun:
    """Return three sessions of ten jobs each, with a state of 100 bytes that takes 1 s to copy."""
    draw = Random(seed)
    order = sorted(range(30), key=lambda _: draw.random())
    sessions = np.array([order[i] % 3 for i in range(30)])
    more = {"state_bytes": 100.0, "states_bytes": states_bytes, "host_bytes_per_s": 100.0}
    jobs = job_set([0.5 * i for i in range(30)], sessions=sessions)
    return run(jobs, constant(0.25), replicas=replicas, router=router, more=more)


def test_the_least_recently_used_item_makes_room() -> None:
    memory = Residency(capacity_bytes=20.0, bytes_per_s=10.0, written=True)
    assert memory.bring("a", 10.0, new=True) == 0.0
    assert memory.bring("b", 10.0, new=True) == 0.0
    assert memory.bring("a", 10.0, new=False) == 0.0  # it is there
    assert memory.bring("c", 10.0, new=True) == 1.0  # b is copied out
    assert memory.bring("b", 10.0, new=False) == 2.0  # a is copied out, b is copied in
    assert ("a" in memory, "b" in memory, "c" in memory) == (False, True, True)
    assert memory.n_brought == 1


def test_items_of_one_batch_stay_together() -> None:
    memory = Residency(capacity_bytes=20.0, bytes_per_s=10.0, written=True)
    memory.bring("a", 10.0, new=True)
    memory.bring("b", 10.0, new=True)
    memory.bring("c", 10.0, new=True, keep=("a", "c"))
    assert "a" in memory
    assert "b" not in memory


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=60))
def test_a_memory_never_holds_more_than_it_can(steps: list[tuple[int, bool]]) -> None:
    memory, known = Residency(capacity_bytes=30.0, bytes_per_s=1.0, written=True), set[int]()
    for item, drop in steps:
        if drop:
            memory.drop(item)
        else:
            memory.bring(item, 10.0, new=item not in known)
            known.add(item)
            assert item in memory
        assert sum(10.0 for each in range(7) if each in memory) <= 30.0


def test_affinity_copies_no_state_and_round_robin_copies_them_all_the_time() -> None:
    assert sessions_run("session_affinity").n_states_moved == 0
    moved = sessions_run("round_robin")
    assert moved.n_states_moved > 5
    assert moved.service_s.max() == pytest.approx(0.25 + 2.0)  # out of the other replica, and in
    assert sessions_run("session_affinity").e2e_s.mean() < moved.e2e_s.mean()


def test_sessions_beyond_the_memory_of_a_replica_go_to_host_memory() -> None:
    """One state fits, so each change of session copies one out and one in."""
    found = sessions_run("round_robin", replicas=1, states_bytes=100.0)
    log = found.batches
    order = [found.jobs.sessions[found.batch == row][0] for row in range(len(log.start_s))]  # type: ignore[index]
    seen: set[int] = set()
    for row, session in enumerate(order):
        changed = row > 0 and order[row - 1] != session
        expected = 0.25 + (1.0 if changed else 0.0) + (1.0 if changed and session in seen else 0.0)
        assert log.end_s[row] - log.start_s[row] == pytest.approx(expected)
        seen.add(session)


@given(seed=st.integers(0, 10**6), router=st.sampled_from(["round_robin", "session_affinity", "least_outstanding"]))
def test_jobs_of_a_session_run_one_after_the_other_in_order(seed: int, router: str) -> None:
    found = sessions_run(router, seed=seed)
    assert found.completed.all()
    for session in range(3):
        mine = np.flatnonzero(found.jobs.sessions == session)
        assert (found.started_s[mine][1:] >= found.ended_s[mine][:-1]).all()


def test_a_state_is_in_one_place() -> None:
    states = SessionStates(state_bytes=10.0, capacity_bytes=100.0, bytes_per_s=10.0, replicas=2)
    assert states.move_s(0, [1, 2]) == 0.0
    assert states.move_s(1, [1]) == 2.0
    assert states.move_s(0, [2, -1]) == 0.0
    assert states.move_s(0, [1]) == 2.0
    assert states.n_moved == 2


def test_networks_that_do_not_fit_together_are_loaded_in_turn() -> None:
    """Networks of 60 and 50 bytes in a memory of 100: each change loads one at 10 bytes per second."""
    jobs = job_set([0.0, 20.0, 40.0, 60.0], kind=[0, 1, 1, 0])
    more = {"weights_bytes": (60.0, 50.0), "all_weights_bytes": 100.0, "host_bytes_per_s": 10.0}
    found = run(jobs, constant(1.0), kinds=[(1, 0, 0), (1, 1, 1)], more=more)
    assert found.service_s.tolist() == pytest.approx([1.0, 6.0, 1.0, 7.0])
    assert found.n_networks_loaded == 2


def test_networks_that_fit_are_loaded_before_the_first_job() -> None:
    weights = Weights((60.0, 40.0), 100.0, 10.0, 1)
    assert [weights.load_s(0, model) for model in (0, 1, 0)] == [0.0, 0.0, 0.0]
    assert weights.n_loaded == 0
