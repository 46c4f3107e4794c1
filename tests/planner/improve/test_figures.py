"""The figures by which `plan improve` compares variants: equal seeds for all, and the energy of what is rented."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from catalogs.hardware.catalog import parse_hardware
from catalogs.launch.reading.read import ReadLaunch, read_command
from planner.answer.confirmed_rates import BEST, SeedBudget
from planner.economics.rack_power import idle_w, unused_w
from planner.improve import improver as improver_module
from planner.improve.changes import Change
from planner.improve.improver import ChangesInTurn, Improver
from planner.problem.request import PlanRequest
from planner.problem.slo import parse_slos
from planner.studies.written_deployment import WrittenDeployment


def request() -> PlanRequest:
    return PlanRequest(model="llama3.1-8b", hardware="h100x8", slos=parse_slos(["ttft.p99=2s"]), requests_per_s=3.0)


def read() -> ReadLaunch:
    return read_command("vllm serve meta-llama/Llama-3.1-8B", "h100x8")


def variant(accelerators: int, joules: float, w_mean: float, idle: int, capacity_per_s: float = 4.0) -> Any:
    """A deployment on a part of a node of eight, all of which is rented; its energy has that of the rest.

    The joules and watts given are those of the part alone.
    """
    hardware = parse_hardware(f"h100x{accelerators}")
    all_w = w_mean + unused_w(hardware, idle)
    energy = SimpleNamespace(j_per_output_token=joules * all_w / w_mean, w_mean=all_w)
    cost = SimpleNamespace(idle_accelerators=idle)
    return SimpleNamespace(
        met=True,
        candidate=SimpleNamespace(hardware=hardware),
        plan=SimpleNamespace(usd_per_hour=23.6, energy=energy, cost=cost),
        capacity_requests_per_s=capacity_per_s,
    )


def test_energy_between_equal_bills_has_that_of_rented_accelerators_that_idle() -> None:
    whole, half = variant(8, 10.0, 4000.0, 0), variant(4, 9.0, 3600.0, 4)
    idle = idle_w(parse_hardware("h100x4"))
    assert improver_module._joules(whole) == 10.0
    assert improver_module._joules(half) == pytest.approx(9.0 * (3600.0 + idle) / 3600.0)
    assert improver_module._joules(half) > 10.0
    improver = Improver(read(), request(), lambda _: None)
    assert not improver.better(half, whole)
    assert improver.better(variant(4, 5.0, 2000.0, 4), whole)


@pytest.mark.parametrize(
    ("objective", "wins"), [("cost", True), ("energy", False)], ids=["cost: capacity", "energy: joules"]
)
def test_at_equal_cost_more_capacity_is_better_than_less_energy(objective: str, wins: bool) -> None:
    frugal, fast = variant(8, 10.0, 4000.0, 0), variant(8, 12.0, 4000.0, 0, capacity_per_s=6.0)
    improver = Improver(read(), request().replace(objective=objective), lambda _: None)
    assert improver.better(fast, frugal) == wins
    assert improver.better(frugal, fast) != wins
    assert sorted([frugal, fast], key=improver.rank)[0] is (fast if wins else frugal)


def test_energy_decides_between_equal_capacities() -> None:
    frugal, tied = variant(8, 10.0, 4000.0, 0), variant(8, 12.0, 4000.0, 0, capacity_per_s=4.04)
    improver = Improver(read(), request(), lambda _: None)
    assert improver.better(frugal, tied)
    assert not improver.better(tied, frugal)


def test_a_change_that_is_left_out_states_both_gains() -> None:
    improver = Improver(read(), request().replace(objective="latency"), lambda _: None)
    turns = ChangesInTurn(improver, {}, variant(8, 12.0, 4000.0, 0), ())
    words = turns.why(Change("block_size", {}, {}), [], variant(8, 10.0, 4000.0, 0, capacity_per_s=6.0))
    assert "alone it serves 6 requests/s, not 4, and takes 10 J per output token, not 12 J, but the" in words
    assert words.endswith("but the objective is latency")


def test_every_variant_has_the_seeds_of_a_recommended_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change alone, of one seed, stood beside the present command, of four: one deployment had two capacities."""
    efforts: list[SeedBudget] = []

    def entry(_: WrittenDeployment, start_per_s: float | None, budget: SeedBudget) -> Any:
        assert start_per_s is None
        efforts.append(budget)
        return variant(8, 10.0, 4000.0, 0)

    monkeypatch.setattr(WrittenDeployment, "entry", entry)
    improver = Improver(read(), request(), lambda _: None)
    base = {"model": "llama3.1-8b", "hardware": "h100x8"}
    for keys in (base, base | {"max_num_seqs": 64}, base):
        improver.entry(keys)
    assert efforts == [BEST, BEST]  # equal variants are simulated once
