"""Deployments and workloads drawn at random, through the same door as a user's: every law after every step."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catalogs.deployments.schema import Deployment
from catalogs.engines.files import list_engines, load_engine
from catalogs.workloads.files import parse_workload_file
from catalogs.workloads.request_set import RequestSet
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import CompiledFleet, compile_fleet
from simulator.cluster.run import Run
from simulator.cluster.simulate import simulate
from simulator.core.outcomes import STATUS

SUPPORTED = list_engines(supported_only=True)
FEW = settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@cache
def built(keys: tuple[tuple[str, Any], ...]) -> CompiledFleet:
    queue = {k[6:]: v for k, v in keys if k.startswith("queue_")}
    plain = {k: v for k, v in keys if not k.startswith("queue_")}
    return compile_fleet(Deployment(**plain, queue=queue or None))


@st.composite
def deployments(draw: st.DrawFn, engine: str) -> CompiledFleet:
    seats = draw(st.sampled_from([1, 3, 8]))
    longest = draw(st.sampled_from([512, 1024]))
    profile = load_engine(engine)
    keys: dict[str, Any] = {
        "model": "qwen2.5-0.5b",
        "engine": engine,
        "hardware": "rtx4090",
        "max_num_seqs": seats,
        "max_model_len": longest,
        "max_num_batched_tokens": draw(st.sampled_from([longest, 2 * longest])),
        "queue_order": draw(st.sampled_from(profile.orders)),
        "queue_too_long": draw(st.sampled_from(["reject", "truncate"])),
    }
    if profile.memory_rule != "slots":
        size = profile.block_size_tokens
        keys["kv_blocks"] = -(-longest // size) * draw(st.sampled_from([1, 2])) + draw(st.integers(1, 8))
    if draw(st.booleans()):
        keys["queue_max_waiting"] = draw(st.integers(1, 10))
    if draw(st.booleans()):
        keys["queue_timeout_s"] = draw(st.sampled_from([0.5, 5.0]))
    if profile.batches_wait:
        keys["queue_max_delay_s"] = draw(st.sampled_from([0.0, 0.2]))
    return built(tuple(keys.items()))


@st.composite
def workloads(draw: st.DrawFn) -> RequestSet:
    rate = draw(st.sampled_from([2, 20, 200]))
    closed = {"closed_loop": {"concurrency": draw(st.integers(1, 12))}}
    file: dict[str, Any] = {
        "arrivals": draw(st.sampled_from([{"poisson": {"requests_per_s": rate}}, closed, "all_at_once"])),
        "input_tokens": {"lognormal": {"mean": draw(st.sampled_from([32, 300])), "cv": 1.0}},
        "output_tokens": {"uniform": {"low": 1, "high": draw(st.sampled_from([4, 200]))}},
        "requests": draw(st.integers(1, 30)),
        "classes": [{"share": 1, "deadline_s": 0.3}, {"share": 2, "priority": 3, "timeout_s": 2.0}],
    }
    if draw(st.booleans()):
        file["shared_prefix"] = {"tokens": 64, "groups": 2}
    _, content, _ = parse_workload_file(file, Path(), "random")
    return content.draw(draw(st.integers(0, 5)), file["requests"], float(rate))


def answered(done: Run) -> bool:
    return not any(STATUS[s] in ("not sent", "unfinished") for s in done.status)


@pytest.mark.parametrize("engine", SUPPORTED)
@FEW
@given(st.data())
def test_laws_hold_and_fast_forward_is_exact(engine: str, data: st.DataObject) -> None:
    fleet, work = data.draw(deployments(engine)), data.draw(workloads())
    slow = simulate(fleet, work, RunOptions(fast_forward=False, check_invariants=True))
    fast = simulate(fleet, work, RunOptions(check_invariants=True))
    assert answered(fast)
    np.testing.assert_array_equal(slow.status, fast.status)
    np.testing.assert_array_equal(slow.preemptions, fast.preemptions)
    for name in ("started_s", "first_token_s", "last_token_s"):
        np.testing.assert_allclose(getattr(slow, name), getattr(fast, name), rtol=0, atol=1e-9, err_msg=name)
    done = fast.completed
    assert (fast.first_token_s[done] > fast.arrival_s[done]).all()
    assert (fast.last_token_s[done] >= fast.first_token_s[done]).all()
    counted = sum(int(n) for n in (done.sum(), fast.rejected.sum(), fast.timed_out.sum()))
    assert counted == work.n
