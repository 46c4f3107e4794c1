"""The closed form by which placements are ordered."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from catalogs.hardware.catalog import parse_hardware
from catalogs.units import GIB
from catalogs.workloads.workload import load_workload
from planner.agents.choices import HOST_SHARE, open_serving, priced_choices, tiers
from planner.agents.estimate import AgentLoad, estimated_ratio
from planner.agents.load import new_tokens, requests_of
from planner.problem.request import PlanRequest
from planner.problem.slo import parse_slos
from tests.planner.agents.small_runs import SESSIONS


def asking(**changes: object) -> PlanRequest:
    """Return a request for agents on eight GPUs."""
    keys = {"model": "llama3.1-8b", "hardware": "h100x8", "workload": SESSIONS, "agents": 16}
    return PlanRequest(**keys, slos=parse_slos(["tpot.p90=20ms,ttft.p95=1s"]), **changes)  # type: ignore[arg-type]


def test_new_tokens_are_those_that_no_earlier_turn_has() -> None:
    work = requests_of(load_workload(SESSIONS), 2, 60, 0)
    found = new_tokens(work)
    assert ((found == 200) | (found >= 900)).all()  # a turn adds 200 tokens to its context, a first prompt has 900
    assert (found == 200).mean() > 0.5
    assert np.all(found <= work.input_tokens)


def test_more_agents_and_dearer_prompts_are_slower() -> None:
    request = asking()
    workload = request.read_workload()
    serving = open_serving(request, workload, "h100x8")
    candidate = priced_choices(request, workload, 16)[0].choices[0].candidate
    load = AgentLoad.of(serving.sample(16), 16)
    found = [estimated_ratio(serving, candidate, replace(load, agents=n)) for n in (1, 16, 256, 4096)]
    assert found == sorted(found)
    more = [estimated_ratio(serving, candidate, replace(load, new_tokens=n)) for n in (100, 300, 900)]
    assert more == sorted(more)


def test_each_price_has_placements_with_prefill_together_and_separate() -> None:
    request = asking()
    found = priced_choices(request, request.read_workload(), 16)
    prices = [float(re.sub(r"[^\d.]", "", group.price)) for group in found]  # such as "$1,234.50 per hour"
    assert prices == sorted(prices)
    whole = found[-1]
    assert {bool(choice.candidate.split) for choice in whole.choices} == {False, True}
    assert len(whole.choices) <= 5 < whole.n_all
    only = priced_choices(asking(extensions=("disaggregated",)), request.read_workload(), 16)
    assert any(choice.candidate.split for group in only for choice in group.choices)


@pytest.mark.parametrize("tokens", [512, 4096])
def test_a_fixed_budget_is_kept(tokens: int) -> None:
    request = asking(fixed={"max_num_batched_tokens": tokens})
    choice = priced_choices(request, request.read_workload(), 4)[0].choices[0]
    assert choice.candidate.max_num_batched_tokens == tokens
    assert choice.budgets(request) == []


@pytest.mark.parametrize("hardware", ["h100", "h100x4", "h100x8"])
def test_a_part_of_a_node_has_its_part_of_the_host_memory(hardware: str) -> None:
    """A GPU of a node of eight is rented with an eighth of the node's memory, however many of them are rented."""
    request = asking().model_copy(update={"hardware": hardware})
    whole = parse_hardware("h100x8").host_memory_bytes
    assert whole is not None
    per_gpu = HOST_SHARE * whole / 8 / GIB
    for choice in priced_choices(request, request.read_workload(), 16)[0].choices:
        each = min(pool.layout.accelerators for _, pool in choice.candidate.pools)
        kept = [tier.keys.values["kv_offload"]["host_gib"] for tier in tiers(choice.candidate) if tier.keys.values]
        assert kept
        assert set(kept) == {float(int(per_gpu * each))}
