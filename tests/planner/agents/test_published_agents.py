"""Agents on real hardware: published smoke runs of the AgentX replay, repeated with other sessions of the same set.

Four L40S, Qwen3.6-35B-A3B-FP8, vLLM 0.27, two replicas of two. The reports do not name their sessions, so these are the
60 public ones, and levels depend on them: what must hold is the order, the hit rate against the theoretical one, and
the fall of the hit rate when the cache no longer holds the contexts of all agents.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from catalogs.deployments.schema import Deployment
from catalogs.workloads.replay import Replay
from catalogs.workloads.sessions.scenarios import load_scenario
from catalogs.workloads.workload import load_workload
from planner.agents.load import measured
from simulator.analysis.prefix_hits import PrefixHits
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import compile_deployment
from simulator.cluster.simulate import simulate

BASE: dict[str, Any] = {
    "model": "qwen3.5-35b-a3b-fp8",  # of the same architecture and format; the catalog has no FP8 checkpoint of 3.6
    "hardware": "l40sx4",
    "tensor_parallel": 2,
    "replicas": 2,
}


def play(traces: Path, agents: int, n: int, router: str = "round_robin", **keys: object) -> tuple[float, PrefixHits]:
    """Return the median time to first token in seconds, and the hits, of agents that play the public sessions."""
    workload = load_workload(str(traces / "weka"))
    assert isinstance(workload.content, Replay)
    rules = replace(workload.content, concurrency=agents, scenario=load_scenario("agentx"))
    work = rules.draw(0, n, 1.0)
    served = compile_deployment(Deployment.model_validate(BASE | keys))
    run = simulate(served, work, RunOptions(router=router))
    counted = measured(run, agents) & run.completed
    return float(np.median(run.ttft_s[counted])), PrefixHits.of(run, counted)


@pytest.mark.slow
def test_one_agent_without_a_cache_with_one_and_with_affinity(public_data: Path) -> None:
    """Published: TTFT p50 6.93, 0.60 and 0.39 s; hits 0, 85.0 and 92.5 % of 94.1 %."""
    traces = public_data / "traces"
    without, _ = play(traces, 1, 300, prefix_caching=False)
    in_turn, hits = play(traces, 1, 300)
    by_session, more = play(traces, 1, 300, "session_affinity")
    assert without > 5 * in_turn > 5 * by_session
    assert more.theoretical_rate == pytest.approx(0.941, abs=0.03)
    assert hits.rate == pytest.approx(0.850, abs=0.03)
    assert more.rate == pytest.approx(0.925, abs=0.03)
    assert in_turn == pytest.approx(0.60, rel=0.3)
    # Other sessions add other numbers of tokens: these two are 30 and 36 % longer than published (docs/agents.md).
    assert without == pytest.approx(6.93, rel=0.4)
    assert by_session == pytest.approx(0.39, rel=0.4)


@pytest.mark.slow
def test_the_hit_rate_falls_when_the_cache_holds_fewer_contexts_than_agents(public_data: Path) -> None:
    """Published at 48 agents: 95 % with 0.9 of the device memory for the engine, 21 % with 0.8."""
    many, few = (
        play(public_data / "traces", 48, 1500, "session_affinity", gpu_memory_utilization=fraction)[1].rate
        for fraction in (0.9, 0.8)
    )
    assert many > 0.9
    assert few < many - 0.15  # less deep than published: docs/agents.md
