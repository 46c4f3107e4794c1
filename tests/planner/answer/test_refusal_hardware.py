"""More hardware that would meet a refused request: the least of a kind, confirmed by the search of `plan --hw`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogs.errors import InputError
from catalogs.hardware.catalog import MOST_NODES, parse_hardware, with_count
from catalogs.hardware.specs import Hardware
from planner.answer import candidate_search
from planner.answer.answer_schema import Answer
from planner.answer.more_hardware import HardwareSizing, more_of, other_kinds
from planner.answer.plan_evaluator import PlanEvaluator
from planner.answer.refusal import Refuser
from planner.evaluation.multi_hardware import open_evaluator
from planner.pipeline import make_plan
from planner.problem.candidate import Candidate
from planner.problem.price_list import PriceList
from planner.problem.request import PlanRequest, SearchOptions
from planner.problem.slo import parse_slos
from tests.planner.queue_toy import candidate
from tests.planner.short_runs import shortened


@dataclass
class Counted:
    """A search for which `needed` accelerators suffice, in place of a simulation."""

    needed: int
    tried: list[str] = field(default_factory=list)

    def __call__(self, hardware: Hardware) -> Candidate | None:
        self.tried.append(hardware.text)
        return candidate(1, hardware=hardware) if hardware.n_accelerators >= self.needed else None


def sizing(quick: int, full: int) -> tuple[HardwareSizing, Counted, Counted]:
    searches = Counted(quick), Counted(full)
    return HardwareSizing(*searches), *searches


def offered(needed: int) -> int:
    """Up to 8 accelerators of a node count one by one, beyond that whole nodes."""
    return needed if needed <= 8 else 8 * -(-needed // 8)


@given(own=st.integers(1, 8), more=st.integers(1, 120))
def test_the_least_hardware_that_meets_the_request_is_named(own: int, more: int) -> None:
    needed, hardware = own + more, parse_hardware(f"h100x{own}")
    search, quick, full = sizing(needed, needed)
    found = search.least(more_of(hardware), hardware)
    assert found is not None
    assert found[0].n_accelerators == offered(needed)
    assert found[1].hardware == found[0]
    assert len(set(quick.tried)) <= 10
    assert len(full.tried) <= 2


@given(own=st.integers(1, 7), more=st.integers(1, 30), overlooked=st.integers(0, 40))
def test_sizes_that_few_tries_overlook_are_named(own: int, more: int, overlooked: int) -> None:
    """The quick search overlooks some sizes; the full search decides on those below what it found."""
    needed, hardware = own + more, parse_hardware(f"l40sx{own}")
    search, _, full = sizing(needed + overlooked, needed)
    found = search.least(more_of(hardware), hardware)
    assert found is not None
    assert found[0].n_accelerators == offered(needed)
    assert len(set(full.tried)) == len(full.tried)


@given(needed=st.integers(2, 8), hopeful=st.integers(1, 2))
def test_a_size_that_the_full_search_refuses_is_not_named(needed: int, hopeful: int) -> None:
    search, _, full = sizing(max(needed - hopeful, 1), needed)
    found = search.least(more_of(parse_hardware("h100x1")), parse_hardware("h100x1"))
    assert found is not None
    assert found[0].n_accelerators == needed
    assert full.tried[-1] == found[0].text


@given(nodes=st.integers(1, 3), more=st.integers(1, 12))
def test_more_than_some_nodes_is_the_fewest_nodes(nodes: int, more: int) -> None:
    hardware = parse_hardware(f"{nodes}*h100x8")
    found = sizing(8 * (nodes + more), 8 * (nodes + more))[0].least(more_of(hardware), hardware)
    assert found is not None
    assert found[0].n_nodes == nodes + more


@pytest.mark.parametrize("needed", [1, 2, 3, 5, 8])
def test_less_of_another_kind_is_named_if_less_suffices(needed: int) -> None:
    found = sizing(needed, needed)[0].least_of_others(parse_hardware("l40sx4"))
    assert found is not None
    assert (found[0].accelerator.name, found[0].n_accelerators) == ("h100", needed)


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_fewer_nodes_of_another_kind_are_named_if_fewer_suffice(nodes: int) -> None:
    found = sizing(8 * nodes, 8 * nodes)[0].least_of_others(parse_hardware("3*l40sx8"))
    assert found is not None
    assert (found[0].accelerator.name, found[0].n_nodes, found[0].n_accelerators) == ("h100", nodes, 8 * nodes)


def test_nothing_is_named_if_no_size_suffices() -> None:
    assert sizing(10_000, 1)[0].least(more_of(parse_hardware("h100x1")), None) is None
    assert sizing(1, 10_000)[0].least(more_of(parse_hardware("h100x1")), None) is None
    assert sizing(10_000, 1)[0].least_of_others(parse_hardware("h100x1")) is None


def test_nothing_is_larger_than_a_slice() -> None:
    slice_ = parse_hardware("a100-80gb:2g.20gbx3")
    assert list(more_of(slice_)) == list(other_kinds(slice_)) == []


def test_the_rate_of_users_follows_from_the_latencies_of_the_hardware_that_is_tried() -> None:
    """A refusal of a choice must find on other hardware what a request for that hardware finds."""
    request = PlanRequest(
        model="llama3.1-8b", hardware="l4x1,l40sx1", slos=parse_slos(["ttft.p90=2s"]), workload="lmsys-turns", users=8
    )
    other = parse_hardware("h100x1")

    def refuser(own: PlanRequest) -> Refuser:
        evaluator = open_evaluator(own)
        tester = candidate_search.tester_of(own, evaluator, ())
        prices = PriceList(own.tariff, evaluator.names.hardware)
        return Refuser(own, PlanEvaluator(evaluator, tester, prices), evaluator.elsewhere, lambda _: None)

    with shortened():
        found = refuser(request)._try_on(other)
        assert found is not None
        assert found == refuser(request.replace(hardware=other.text))._try_on(other)


def test_no_more_nodes_are_tried_than_hardware_has() -> None:
    assert [h.n_nodes for h in more_of(parse_hardware(f"{MOST_NODES // 4}*h100x8"))] == [MOST_NODES // 2, MOST_NODES]
    assert list(more_of(parse_hardware(f"{MOST_NODES}*h100x8"))) == []


# ---- the suggestion is what `plan --hw` answers with it

REFUSED: Sequence[tuple[str, str, str, float]] = (
    ("llama3.1-8b", "l4x1", "ttft.p90=2s,tpot.p90=100ms", 3.0),
    ("qwen2.5-14b", "l40sx1", "ttft.mean=800ms", 5.0),
    ("llama3.1-8b", "l40sx1", "e2e.p90=20s", 11.0),
    ("mistral-7b", "h100x1", "tpot.p95=12ms", 14.0),
)


def answer_on(request: PlanRequest, hardware: str) -> Answer:
    own = request.replace(hardware=hardware)
    evaluator = open_evaluator(own)
    return make_plan(own, evaluator, evaluator.elsewhere)


def smaller(hardware: Hardware) -> Hardware | None:
    """The next smaller count that the catalog offers; None below one accelerator."""
    if hardware.n_nodes > 1:
        return parse_hardware(f"{hardware.n_nodes - 1}*{hardware.accelerator.name}x{hardware.accelerators_per_node}")
    count = hardware.accelerators_per_node - 1
    return with_count(hardware, count) if count else None


@pytest.mark.slow
@pytest.mark.parametrize(("model", "hardware", "slo", "rate"), REFUSED)
def test_plan_agrees_with_the_hardware_that_a_refusal_names(model: str, hardware: str, slo: str, rate: float) -> None:
    request = PlanRequest(
        model=model,
        hardware=hardware,
        slos=parse_slos([slo]),
        workload="lmsys-turns",
        requests_per_s=rate,
        search=SearchOptions(trials=8),
    )
    while (refusal := answer_on(request, hardware).infeasible) is None:
        request = request.replace(requests_per_s=(request.requests_per_s or 0.0) * 1.7)
    named = [str(way.value) for way in refusal.what_would_meet_it if way.kind == "hardware"]
    assert named
    for text in named:
        assert answer_on(request, text).feasible
        less = smaller(parse_hardware(text))
        if less is not None and less.n_accelerators > parse_hardware(hardware).n_accelerators:
            try:
                assert not answer_on(request, less.text).feasible
            except InputError as error:  # the model or the engine cannot use that count
                pytest.skip(str(error))
