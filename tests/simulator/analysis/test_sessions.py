"""The statistics of sessions and tasks, by hand."""

from __future__ import annotations

import numpy as np

from simulator.analysis.sessions import grouped_times, session_metrics
from simulator.cluster.cluster import RunOptions
from simulator.cluster.simulate import run_rules
from tests.simulator.cluster.test_session_clients import by_hand
from tests.simulator.worlds import Linear, rules


def test_the_times_of_a_session_and_of_its_tasks() -> None:
    """Turn 0 is sent at 0.5 s and ends at 2.5; 1 and 2 end at 6.5; a human sends 3 at 8.5, which ends at 10.5."""
    work = by_hand([(1, 0), (2, 0), (3, 1), (3, 2)], [0.5, 1.0, 1.5, 2.0], tasks=np.array([0, 0, 0, 1]))
    run = run_rules(rules(), Linear(), work, options=RunOptions(check_invariants=True))
    found = session_metrics(run)["sessions"]
    assert found["session_s"]["mean"] == 10.0
    assert found["served_s"]["mean"] == 7.0  # without 2.5 to 3.5 and 6.5 to 8.5
    assert found["task_s"]["mean"] == (6.0 + 2.0) / 2
    assert run.requests.tasks is not None
    assert grouped_times(run, run.requests.tasks)[0].tolist() == [6.0, 2.0]


def test_a_run_without_tasks_has_no_times_of_them() -> None:
    run = run_rules(rules(), Linear(), by_hand([(1, 0)], [0.0, 1.0]))
    assert session_metrics(run)["sessions"]["task_s"]["mean"] is None
