"""Recorded sessions of agents: read, replayed and fitted, on a session small enough to follow by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from catalogs.errors import InputError
from catalogs.workloads.fit import fit_workload
from catalogs.workloads.sessions.texts import TextTree
from catalogs.workloads.traces import read_trace
from catalogs.workloads.workload import load_workload


def turn(t: float, tokens: int, ids: list[int], api_s: float = 1.0, stop: str = "tool_use") -> dict[str, Any]:
    """Return one recorded request with 10 output tokens."""
    return {"t": t, "type": "n", "in": tokens, "out": 10, "hash_ids": ids, "api_time": api_s, "stop": stop}


SUB = {"t": 4.0, "type": "subagent", "requests": [turn(0.0, 40, [1, 9]), turn(3.0, 70, [1, 9, 10, 11])]}

SESSION = {
    "id": "s",
    "block_size": 16,
    "hash_id_scope": "local",
    "requests": [turn(0.0, 40, [1, 2]), SUB, turn(10.0, 70, [1, 2, 3, 4], stop="end_turn"), turn(71.0, 35, [1, 5])],
}


def written(folder: Path, *sessions: dict[str, Any]) -> Path:
    """Write each session to a file of a folder."""
    for number, session in enumerate(sessions):
        (folder / f"trace_{number}.json").write_text(json.dumps(session))
    return folder


def test_turns_sub_agents_and_joins_become_a_graph(tmp_path: Path) -> None:
    recorded = read_trace(written(tmp_path, SESSION)).recorded
    assert recorded is not None
    found = recorded.sessions
    # 0 the first turn, 1 and 2 the sub-agent, 3 the turn that waits for both, 4 after a human.
    assert found.waits.tolist() == [[1, 0], [2, 1], [3, 0], [3, 2], [4, 3]]
    assert found.gap_s.tolist() == [0.0, 3.0, 2.0, 2.0, 60.0]
    assert recorded.by_human.tolist() == [False, False, False, False, True]
    assert recorded.is_sub.tolist() == [False, True, True, False, False]
    assert found.texts.parent.tolist() == [-1, 0, 1, 0, 0]
    assert found.texts.kept_tokens.tolist() == [0, 16, 32, 32, 16]


def test_each_play_of_a_session_has_its_own_text(tmp_path: Path) -> None:
    drawn = load_workload(str(written(tmp_path, SESSION))).materialise(0, 10, 1.0)
    assert isinstance(drawn.block_hashes, TextTree)
    assert drawn.graph is not None
    drawn.graph.checked()
    by_session: dict[int, set[int]] = {}
    assert drawn.sessions is not None
    for session, ids in zip(drawn.sessions.tolist(), drawn.block_hashes, strict=True):
        by_session.setdefault(session, set()).update(ids)
    first, second = by_session.values()
    assert len(first) == len(second)
    assert not first & second


def test_agents_play_sessions_in_a_closed_loop(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    written(tmp_path / "t", SESSION)
    file = tmp_path / "w.yaml"
    file.write_text("trace: t\nagents: 3\nrequests: 20\n")
    workload = load_workload(str(file))
    assert workload.closed_loop
    drawn = workload.materialise()
    assert (drawn.n, drawn.concurrency) == (20, 3)


def test_a_scenario_leaves_out_long_sessions_and_begins_in_the_middle(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    turns = [turn(100.0 * k, 40 + k, [1, 2]) for k in range(8)]
    long = {**SESSION, "requests": [turn(0.0, 300_000, [1])]}
    written(tmp_path / "t", {**SESSION, "requests": turns}, long)
    file = tmp_path / "w.yaml"
    file.write_text("trace: t\nagents: 2\nscenario: agentx\nrequests: 12\n")
    drawn = load_workload(str(file)).materialise()
    assert drawn.input_tokens.max() == 47
    assert drawn.graph is not None
    assert drawn.graph.longest_idle_s == 10.0
    assert drawn.sessions is not None
    names, counts = np.unique(drawn.sessions, return_counts=True)
    assert all(2 <= counts[names == agent][0] <= 6 for agent in (0, 1))  # 8 turns, 2 to 6 of them before the run


@pytest.mark.parametrize(
    ("keys", "rule"), [("scenario: agentx", "needs a number of agents"), ("agents: 2\nscenario: agent", "agentx")]
)
def test_a_scenario_is_known_and_has_agents(tmp_path: Path, keys: str, rule: str) -> None:
    (tmp_path / "t").mkdir()
    written(tmp_path / "t", SESSION)
    (tmp_path / "w.yaml").write_text(f"trace: t\n{keys}\n")
    with pytest.raises(InputError, match=rule):
        load_workload(str(tmp_path / "w.yaml"))


def test_a_fitted_session_has_the_gaps_turns_and_prompts_of_the_recorded_one(tmp_path: Path) -> None:
    keys = fit_workload(read_trace(written(tmp_path, SESSION)))
    turns = keys["turns"]
    assert turns["per_session"]["quantiles"][1] == 3
    assert turns["gap_s"]["human"]["quantiles"][0] == pytest.approx(60.0)
    assert turns["gap_s"]["human_share"] == pytest.approx(0.5)
    assert turns["first_input_tokens"]["quantiles"][0] == 40
    assert turns["restarts"]["share"] == pytest.approx(0.3333)  # the last turn keeps one block of four
    assert turns["subagents"]["share"] == pytest.approx(0.3333, abs=1e-4)
    assert keys["input_tokens"]["quantiles"][0] == 20


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"block_size": 0}, "block_size of session 1"),
        ({"requests": {}}, "requests of session 1 must be a list"),
        ({"requests": [turn(-1.0, 40, [1])]}, "t of session 1 must be a time"),
        ({"requests": [turn(0.0, 0, [1])]}, "in of session 1"),
        ({"requests": [turn(0.0, 40, [1.5])]}, "hash_ids of session 1"),  # type: ignore[list-item]
        ({"requests": []}, "holds no requests"),
    ],
)
def test_a_broken_session_is_named(tmp_path: Path, change: dict[str, Any], rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        read_trace(written(tmp_path, {**SESSION, **change}))


def test_a_folder_without_sessions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no recorded sessions"):
        load_workload(str(tmp_path))


def test_agents_need_recorded_sessions(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival_s,input_tokens,output_tokens\n0,5,5\n")
    (tmp_path / "w.yaml").write_text("trace: t.csv\nagents: 3\n")
    with pytest.raises(InputError, match="agents play recorded sessions"):
        load_workload(str(tmp_path / "w.yaml"))


def test_a_mid_session_start_has_contexts_as_later_in_the_run() -> None:
    content = load_workload("agentic-coding").content
    drawn = replace(content, steady_sessions=True).draw(0, 4000, 1.0)  # type: ignore[call-arg, type-var]
    assert drawn.graph is not None
    first, rest = np.split(drawn.input_tokens, [1000])
    assert np.median(first) == pytest.approx(np.median(rest), rel=0.35)
