"""Simulated time: exact times, the order of ties, processes beside events, and when a run is given up."""

from __future__ import annotations

import pytest
import simpy

from simulator.cluster.cluster import Cluster, RunOptions
from simulator.cluster.compiled import Pool
from simulator.core import clock as module
from simulator.core.clock import ARRIVAL, CONTROL, LAST, STEP, WAKE, Clock, Process, Timetable
from tests.simulator.worlds import Linear, requests, rules


def test_times_are_what_was_given() -> None:
    """SimPy's own delays would move an event: 0.2 + (0.9 - 0.2) is not 0.9."""
    clock, seen = Clock(), list[float]()
    clock.at(0.2, ARRIVAL, [lambda _: clock.at(0.9, ARRIVAL, [lambda _: seen.append(clock.now)])])
    clock.run()
    assert 0.2 + (0.9 - 0.2) != 0.9
    assert seen == [0.9]


def test_ties_have_an_order() -> None:
    """What SimPy schedules, steps by replica, controllers, arrivals, engines that wake; within one, who came first."""
    clock, seen = Clock(), list[str]()
    names = {
        "second wakes": WAKE + 1,
        "wakes": WAKE,
        "arrives": ARRIVAL,
        "arrives too": ARRIVAL,
        "control": CONTROL,
        "step of 1": STEP + 1,
        "step of 0": STEP,
    }
    for name, order in names.items():
        clock.at(1.0, order, [lambda _, name=name: seen.append(name)])
    clock.timeout(1.0).callbacks.append(lambda _: seen.append("SimPy's own"))
    clock.run()
    expected = ["SimPy's own", "step of 0", "step of 1", "control", "arrives", "arrives too", "wakes", "second wakes"]
    assert seen == expected


def test_what_is_triggered_comes_before_all_else_of_its_time() -> None:
    clock, seen = Clock(), list[str]()
    answer = clock.event()

    def client() -> Process:
        seen.append(f"answer {(yield answer)}")

    clock.process(client())
    clock.at(1.0, STEP, [lambda _: answer.succeed(4)])
    clock.at(1.0, STEP + 1, [lambda _: seen.append("next step")])
    clock.run()
    assert seen == ["answer 4", "next step"]


def test_a_horizon_includes_its_own_time() -> None:
    clock, seen = Clock(), list[float]()
    for time_s in (1.0, 2.0, 2.5):
        clock.at(time_s, WAKE, [lambda _: seen.append(clock.now)])
    clock.run(clock.at(2.0, LAST))
    assert seen == [1.0, 2.0]


def test_arrivals_come_in_the_order_of_the_workload_before_what_they_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three at one time: the second was scheduled before the first caused anything."""
    work, options = requests([1.0, 1.0, 2.0], [1, 1, 1], [1, 1, 1]), RunOptions(fast_path=False)
    cluster = Cluster([Pool(rules(), Linear())], work, options)
    seen: list[str] = []

    def admit(index: int) -> None:
        seen.append(f"request {index}")
        if index == 0:
            cluster.clock.at(1.0, ARRIVAL, [lambda _: seen.append("caused by 0")])

    monkeypatch.setattr(cluster, "_admit", admit)
    cluster.run()
    assert seen == ["request 0", "request 1", "caused by 0", "request 2"]


def test_controllers_stop_when_all_is_served() -> None:
    clock, seen, served = Clock(), list[float](), list[bool]()
    timetable = Timetable(clock, lambda: bool(served), lambda: "never")

    def story() -> Process:
        while True:
            yield timetable.after(0.75)
            seen.append(clock.now)

    timetable.process(story())
    timetable.at(1.0, lambda: seen.append(-clock.now))
    timetable.at(9.0, lambda: seen.append(-clock.now))
    clock.at(2.0, ARRIVAL, [lambda _: served.append(True)])
    clock.run()
    assert seen == [0.75, -1.0, 1.5]


def test_periodic_actions_alone_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_IDLE_PERIODS", 5)
    clock = Clock()
    timetable = Timetable(clock, lambda: False, lambda: "nothing is born")
    for period_s in (1.0, 2.0):
        timetable.every(period_s, lambda: None)
    clock.at(10.0, ARRIVAL)
    with pytest.raises(RuntimeError, match="no progress: nothing is born"):
        clock.run()
    assert clock.now > 10.0


def test_an_error_in_a_process_ends_the_run() -> None:
    clock = Clock()

    def story() -> Process:
        yield clock.at(1.0, ARRIVAL)
        raise ValueError("told")

    clock.process(story())
    with pytest.raises(ValueError, match="told"):
        clock.run()
    assert isinstance(clock, simpy.Environment)
