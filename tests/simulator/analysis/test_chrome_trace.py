"""The trace follows the Trace Event Format: what a viewer needs to draw it, and what the run did is in it."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.workloads.workload import load_workload
from simulator.analysis import chrome_trace
from simulator.analysis.chrome_trace import TraceWindow, write_chrome_trace
from simulator.cli.outputs import RequestedOutputs, parse_window
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import Pool, compile_fleet
from simulator.cluster.run import Run
from simulator.cluster.simulate import run_pools, run_rules, simulate
from simulator.engine.event_log import EventLog
from simulator.layers.operator_call import CLASSES
from tests.simulator.cluster.test_pools import Script, crash_and_replacement
from tests.simulator.worlds import Linear, requests, rules

Event = dict[str, Any]


def events(done: Run, path: Path, window: TraceWindow | None = None) -> tuple[list[Event], list[str]]:
    notices = write_chrome_trace(done, path / "t.json", window)
    document = json.loads((path / "t.json").read_text())
    assert set(document) == {"displayTimeUnit", "traceEvents"}
    return document["traceEvents"], notices


def ns(microseconds: float) -> int:
    """Timestamps are whole nanoseconds."""
    found = round(microseconds * 1000)
    assert abs(microseconds * 1000 - found) < 1e-3
    return found


def check_format(trace: list[Event]) -> None:
    """Known phases with the keys each needs, every process named, times ascending, slices nested, asynchronous ones in
    pairs."""
    needed = {"M": {"args"}, "X": {"ts", "dur"}, "C": {"ts", "args"}, "b": {"ts", "id", "cat"}}
    needed |= {"e": needed["b"], "i": {"ts", "s"}}
    for event in trace:
        assert needed[event["ph"]] | {"name", "pid", "tid"} <= set(event)
        assert event.get("dur", 0) >= 0
    named = {e["pid"] for e in trace if e["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]) for e in trace if e["name"] == "thread_name"}
    timed = [e for e in trace if e["ph"] != "M"]
    assert {e["pid"] for e in timed} <= named
    assert {(e["pid"], e["tid"]) for e in timed if e["ph"] == "X"} <= threads
    at = [ns(e["ts"]) for e in timed]
    assert at == sorted(at)
    check_nesting([e for e in timed if e["ph"] == "X"])
    open_slices = defaultdict(int)
    for event in timed:
        if event["ph"] in "be":
            key = (event["cat"], event["id"], event["name"], event["pid"])
            open_slices[key] += 1 if event["ph"] == "b" else -1
            assert open_slices[key] in (0, 1)
    assert not any(open_slices.values())


def check_nesting(slices: list[Event]) -> None:
    """As a viewer stacks them: a slice begins within the one it lies in and ends no later."""
    stacks: dict[tuple[int, int], list[int]] = defaultdict(list)
    for event in slices:
        stack = stacks[event["pid"], event["tid"]]
        begin, end = ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])
        while stack and stack[-1] <= begin:
            stack.pop()
        assert not stack or end <= stack[-1]
        assert bool(stack) == (event["cat"] == "operators")
        stack.append(end)


@pytest.fixture(scope="module", params=["pool", "pipeline", "apart"])
def done(request: pytest.FixtureRequest) -> Run:
    layout: dict[str, object] = {
        "pool": {"hardware": "h100x2", "replicas": 2, "kv_blocks": 400},
        "pipeline": {"hardware": "h100x2", "pipeline_parallel": 2},
        "apart": {"hardware": "h100x2", "disaggregation": {"prefill_replicas": 1, "decode_replicas": 1}},
    }[request.param]
    fleet = compile_fleet(Deployment(model="llama3.1-8b", max_model_len=4096, **layout))  # type: ignore[arg-type]
    work = load_workload("azure-conv").materialise(0, 150, 20.0)
    return simulate(fleet, work, RunOptions(event_log=EventLog()))


def test_the_format(done: Run, tmp_path: Path) -> None:
    trace, notices = events(done, tmp_path)
    check_format(trace)
    steps = [e for e in trace if e.get("cat") == "step"]
    assert len(steps) == sum(map(len, done.logs))
    assert sum(e["args"]["steps"] for e in steps) == sum(float(log.steps.sum()) for log in done.logs)
    parts = [e for e in trace if e.get("cat") == "operators"]
    assert {e["name"] for e in parts} <= {*CLASSES, "host"}
    # what steps are made of fills them, and adds up to the log
    assert sum(ns(e["dur"]) for e in parts) == sum(ns(e["dur"]) for e in steps)
    seconds = sum(float(log.total_s.sum()) for log in done.logs)
    assert sum(e["dur"] for e in steps) / 1e6 == pytest.approx(seconds, rel=1e-6)
    assert {e["name"] for e in trace if e["ph"] == "C"} == set(chrome_trace.COUNTERS)
    assert sum(e["ph"] == "i" for e in trace) == done.preemptions.sum()
    assert sum(e["ph"] == "b" for e in trace) == len(done.handovers)
    long = any(float(log.steps.max()) > 1 for log in done.logs)
    assert any("simulated as one" in notice for notice in notices) == long


def test_a_window_shows_the_steps_that_touch_it(done: Run, tmp_path: Path) -> None:
    trace, _ = events(done, tmp_path, TraceWindow(2.0, 2.5))
    check_format(trace)
    steps = [e for e in trace if e.get("cat") == "step"]
    touching = sum(int(((log.start_s < 2.5) & (log.start_s + log.total_s > 2.0)).sum()) for log in done.logs)
    assert len(steps) == touching > 0
    assert all(2e6 - 1 <= e["ts"] <= 2.5e6 + 1 for e in trace if e["ph"] in "Ci")


def test_big_runs_stay_bounded(done: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = sum(map(len, done.logs))
    monkeypatch.setattr(chrome_trace, "MOST_SLICES", rows)
    trace, notices = events(done, tmp_path)
    check_format(trace)
    assert not [e for e in trace if e.get("cat") == "operators"]
    assert sum(e.get("cat") == "step" for e in trace) == rows
    assert "omits operator classes" in notices[0]
    monkeypatch.setattr(chrome_trace, "MOST_SLICES", rows // 4)
    monkeypatch.setattr(chrome_trace, "MOST_COUNTS", 80)
    trace, notices = events(done, tmp_path)
    check_format(trace)
    assert sum(e.get("cat") == "step" for e in trace) <= rows // 4 + len(done.logs)
    assert sum(e["ph"] == "C" for e in trace) <= 160
    assert "--trace-window" in notices[1]


def test_who_was_in_a_step_and_what_happened_to_replicas(tmp_path: Path) -> None:
    options = RunOptions(event_log=EventLog(), controllers=(Script(crash_and_replacement),))
    done = run_pools([Pool(rules(), Linear())], requests([0.0], [4], [2 + 3]), options)
    trace, _ = events(done, tmp_path)
    check_format(trace)
    first, *_, last = [e for e in trace if e.get("cat") == "step"]
    assert (first["name"], first["ts"], first["dur"]) == ("4 prompt tokens in 1", 0.0, 1e6)
    assert first["args"]["prompts_done"] == [0]
    assert last["args"]["requests_done"] == [0]
    instants = [(e["name"], e["ts"], e["pid"]) for e in trace if e["ph"] == "i"]
    assert instants == [("replica stopped", 2.5e6, 0), ("replica started", 4e6, 1)]


def test_an_empty_run_is_a_trace_too(tmp_path: Path) -> None:
    trace, notices = events(
        run_rules(rules(), Linear(), requests([], [], []), 1, RunOptions(event_log=EventLog())), tmp_path
    )
    check_format(trace)
    assert notices == []


@pytest.mark.parametrize(
    ("text", "window"),
    [("10s..20s", (10, 20)), ("1.5m..2m", (90, 120)), ("..3", (0, 3)), ("200ms..", (0.2, float("inf")))],
)
def test_windows(text: str, window: tuple[float, float]) -> None:
    assert parse_window(text) == pytest.approx(window)


@pytest.mark.parametrize("text", ["", "..", "5", "5..4", "a..b", "1x..2x", "1..2..3", "-1..2"])
def test_no_windows(text: str) -> None:
    with pytest.raises(InputError, match=r"10s\.\.20s"):
        parse_window(text)


def test_options_that_make_no_sense() -> None:
    with pytest.raises(InputError, match="chrome-trace"):
        RequestedOutputs(None, "1..2", None, 1.0, False)
    with pytest.raises(InputError, match="parquet"):
        RequestedOutputs(None, None, Path("x.json"), 1.0, False)
    with pytest.raises(InputError, match="above 0"):
        RequestedOutputs(None, None, Path("x.csv"), -1.0, False)
    assert RequestedOutputs(None, None, None, 1.0, False).event_log() is None
