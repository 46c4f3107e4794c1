"""Small sessions and short runs, so that a plan for agents takes a second."""

from __future__ import annotations

import pytest

SESSIONS = (
    "{arrivals: {closed_loop: 4}, input_tokens: 200, output_tokens: 30, "
    "turns: {per_session: {uniform: {low: 4, high: 9}}, "
    "gap_s: {tool: 1.0, human: 5.0, human_share: 0.2}, first_input_tokens: 900}}"
)


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate few requests in each run, and try only one larger hardware."""
    monkeypatch.setattr("planner.agents.agent_runs.FEWEST_REQUESTS", 60)
    monkeypatch.setattr("planner.agents.session_times.N_REQUESTS", 600)
    monkeypatch.setattr("planner.agents.refusal.MOST_STEPS", 1)
