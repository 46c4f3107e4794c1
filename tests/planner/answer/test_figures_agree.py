"""Every printed figure of small answers, recomputed from the others by hand, as `docs/figures.md` defines them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from catalogs.ui.html_page import render as page_text
from catalogs.ui.words import digits, dollars, joules, kilowatts, percent, rate, seconds
from planner.cli.screens.plan import render
from planner.economics.ownership import OwnedHardware
from planner.evaluation.multi_hardware import open_evaluator
from planner.evaluation.observation import Load, Observation
from planner.evaluation.runs import SimulatedRuns
from planner.pipeline import make_plan
from planner.problem.accounting import Accounting
from planner.problem.candidate import Candidate
from planner.problem.request import PlanRequest, SearchOptions
from planner.problem.slo import parse_slos
from planner.problem.tariff import Tariff
from planner.report.material import gather
from planner.report.page import answer_page
from planner.search.pareto_answer import pareto_front
from planner.sections.full_answer import FullAnswer, parse_answer
from planner.sections.section import interval_words

SLOS = "ttft.p90=2s,tpot.mean=100ms"

SHORT: dict[str, Any] = {"input_tokens": 200, "output_tokens": 20}

KINDS: dict[str, dict[str, Any]] = {
    "rate": {"hardware": "l4x2", "requests_per_s": 6.0},
    "no load": {"hardware": "l4", "confidence": 0.8, **SHORT},
    "several": {"hardware": "l4,l40s", "requests_per_s": 2.0},
    "users": {"hardware": "l4", "users": 10, "think_s": 20.0, **SHORT},
    "refused": {"hardware": "l4", "requests_per_s": 2.0, "slos": parse_slos(["ttft.p90=10us"]), **SHORT},
}

#: Means in the answer have two decimals, so products with them have this relative error.
ROUNDED = 3e-4


def request(kind: str) -> PlanRequest:
    given = {"model": "llama3.2-1b", "precisions": ("native",), "workload": "lmsys-turns", "slos": parse_slos([SLOS])}
    return PlanRequest(**given | {"search": SearchOptions(trials=1, workers=1)} | KINDS[kind])


@cache
def document(kind: str) -> dict[str, Any]:
    world = open_evaluator(request(kind))
    return make_plan(request(kind), world, world.elsewhere).document()


def answer(kind: str) -> FullAnswer:
    return parse_answer(document(kind))


def plans(kind: str) -> list[dict[str, Any]]:
    """All plans of an answer that were simulated, the recommended one or the closest one first."""
    found = document(kind)
    if not found["feasible"]:
        return [plan for plan in [found["infeasible"]["closest"]] if plan is not None and plan["metrics"] is not None]
    return [found["best"], *found["alternatives"], *found["pareto"]]


def screen(kind: str) -> str:
    return re.sub(r"\s+", " ", render(answer(kind), 100))


every_kind = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) if kind == "users" else kind for kind in KINDS]
)


@every_kind
def test_the_answer_is_of_its_kind(kind: str) -> None:
    assert document(kind)["feasible"] is (kind != "refused")


@every_kind
def test_tokens_are_requests_times_mean_lengths(kind: str) -> None:
    lengths = document(kind)["workload"]
    for plan in plans(kind):
        m = plan["metrics"]
        assert m["output_tokens_per_s"] == pytest.approx(
            m["requests_per_s"] * lengths["output_tokens"]["mean"], rel=ROUNDED
        )
        assert m["input_tokens_per_s"] == pytest.approx(
            m["requests_per_s"] * lengths["input_tokens"]["mean"], rel=ROUNDED
        )
        assert m["total_tokens_per_s"] == pytest.approx(m["input_tokens_per_s"] + m["output_tokens_per_s"])
        assert m["requests_per_s"] == pytest.approx(plan["requests_per_s"])


@every_kind
def test_the_bill_is_that_of_its_instances_and_divides_by_what_is_served(kind: str) -> None:
    for plan in plans(kind):
        cost, m = plan["cost"], plan["metrics"]
        assert cost["usd_per_hour"] == pytest.approx(sum(i["count"] * i["usd_per_hour"] for i in cost["instances"]))
        assert cost["usd_per_year"] == pytest.approx(cost["usd_per_hour"] * 24 * 365.25)
        assert cost["usd_per_month"] == pytest.approx(cost["usd_per_year"] / 12)
        for tokens in ("input", "output", "total"):
            millions_per_hour = m[f"{tokens}_tokens_per_s"] * 3600 / 1e6
            assert cost[f"usd_per_million_{tokens}_tokens"] == pytest.approx(cost["usd_per_hour"] / millions_per_hour)
        if cost["usd_per_request"] is not None:
            assert cost["usd_per_request"] == pytest.approx(cost["usd_per_hour"] / 3600 / m["requests_per_s"])


@every_kind
def test_energy_is_power_over_tokens_and_carbon_is_energy_on_the_grid(kind: str) -> None:
    for plan in plans(kind):
        e, m = plan["energy"], plan["metrics"]
        assert e["j_per_output_token"] == pytest.approx(e["w_mean"] / m["output_tokens_per_s"])
        assert e["j_per_total_token"] == pytest.approx(e["w_mean"] / m["total_tokens_per_s"])
        assert e["kwh_per_million_output_tokens"] == pytest.approx(e["j_per_output_token"] / 3.6 * e["pue"])
        grams = e["kwh_per_million_output_tokens"] * e["grid_gco2e_per_kwh"]
        assert e["gco2e_per_million_output_tokens"] == pytest.approx(grams)
        assert m["power"]["node_w_mean"] == e["w_mean"]
        assert m["energy"]["total_j_per_output_token"] == pytest.approx(e["j_per_output_token"])
        assert 0 < m["energy"]["gpu_j_per_output_token"] < e["j_per_output_token"]
        accelerators = plan["deployment"]["replicas"] * plan["deployment"]["tensor_parallel"]
        all_w = m["energy"]["gpu_j_per_output_token"] * m["output_tokens_per_s"]
        assert m["power"]["gpu_w_mean"] * accelerators == pytest.approx(all_w)


@every_kind
def test_capacity_objectives_intervals_and_curve_agree(kind: str) -> None:
    sure = request(kind).confidence
    for plan in plans(kind):
        capacity, planned = plan["capacity_requests_per_s"], plan["requests_per_s"]
        assert all(row["met"] for row in plan["slo"]) == (capacity is not None and capacity >= planned * (1 - 1e-9))
        for row in plan["slo"]:
            assert row["value_s"] == plan["metrics"][f"{row['metric']}_s"][row["stat"]]
            assert row["met"] == (row["probability_met"] >= sure)
            most = row["value_at_confidence_s"]
            assert row["met"] == (most is not None and most <= row["limit_s"])
            if row["met"] and sure == 0.9:  # the interval is bounded, and by the limit
                assert row["ci_low_s"] < row["ci_high_s"] == pytest.approx(most)
                assert row["ci_high_s"] <= row["limit_s"]
        rates = [point["requests_per_s"] for point in plan["curve"]]
        assert rates == sorted(rates)
        assert all(p["met"] == (capacity is not None and p["requests_per_s"] <= capacity) for p in plan["curve"])
        if capacity is not None:
            missed = {digits(p["requests_per_s"]) for p in plan["curve"] if not p["met"]}
            assert digits(capacity) not in missed
    if document(kind)["request"]["rate"] is None and kind != "users":
        assert plans(kind)[0]["capacity_requests_per_s"] == plans(kind)[0]["requests_per_s"]


@every_kind
def test_memory_time_and_search_add_up(kind: str) -> None:
    for plan in plans(kind):
        memory, seconds_of = plan["memory"], plan["time_breakdown"]
        parts = sum(memory[f"{name}_bytes"] for name in ("weights", "activation", "non_torch", "kv"))
        assert parts <= memory["usable_bytes"] * (1 + 1e-9) <= memory["device_bytes"]
        assert all(part >= 0 for part in seconds_of.values())
        assert sum(seconds_of.values()) > 0
    search = document(kind)["search"]
    left = search["n_space"] - search["n_bounded_out"] - search["n_simulated"]
    assert left >= 0
    assert sum(search["bounded_out"].values()) == search["n_bounded_out"]
    assert f"{search['n_bounded_out']} ruled out by bounds, {left} not simulated, {search['n_simulated']}" in screen(
        kind
    )
    if not document(kind)["feasible"]:
        assert sum(document(kind)["infeasible"]["reasons"].values()) == search["n_space"]


@pytest.mark.parametrize("kind", ["rate", "several", "no load"])
def test_every_simulated_candidate_is_counted(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates whose runs were observed, in any search and for the table of hardware."""
    seen: set[Candidate] = set()
    observe = SimulatedRuns.observe

    def noted(self: SimulatedRuns, candidate: Candidate, load: Load) -> Observation:
        seen.add(candidate)
        return observe(self, candidate, load)

    monkeypatch.setattr(SimulatedRuns, "observe", noted)
    world = open_evaluator(request(kind))
    search = make_plan(request(kind), world, world.elsewhere).search
    assert search.n_simulated == len(seen)
    assert search.n_simulated <= search.n_trials
    assert search.n_searches > 1 or kind != "several"


@every_kind
def test_prices_of_regions_divide_by_the_same_tokens(kind: str) -> None:
    if not document(kind)["feasible"]:
        assert document(kind)["prices"] == []
        return
    cost, m = plans(kind)[0]["cost"], plans(kind)[0]["metrics"]
    for row in document(kind)["prices"]:
        millions_per_hour = m["output_tokens_per_s"] * 3600 / 1e6
        assert row["usd_per_million_output_tokens"] == pytest.approx(row["usd_per_hour"] / millions_per_hour)
        assert row["usd_per_month"] == pytest.approx(row["usd_per_hour"] * 24 * 365.25 / 12)
    offers = [r["usd_per_hour"] for r in document(kind)["prices"] if r["cloud"] == cost["cloud"]]
    assert min(abs(usd - cost["usd_per_hour"]) for usd in offers) < 1e-9


def test_the_row_of_the_recommended_hardware_is_the_plan() -> None:
    found, best = document("several"), document("several")["best"]
    (row,) = (r for r in found["hardware"] if r["hardware"] == best["deployment"]["hardware"])
    for name in ("usd_per_hour", "usd_per_month", "usd_per_million_output_tokens"):
        assert row[name] == best["cost"][name]
    assert row["j_per_output_token"] == best["energy"]["j_per_output_token"]
    assert row["requests_per_s"] == best["requests_per_s"]
    assert row["capacity_requests_per_s"] == best["capacity_requests_per_s"]
    assert row["ttft_s"] == best["metrics"]["ttft_s"][row["ttft_stat"]]
    assert row["tpot_s"] == best["metrics"]["tpot_s"][row["tpot_stat"]]


@pytest.mark.parametrize("kind", ["rate", "no load", "several"])
def test_the_screen_prints_the_figures_of_the_answer(kind: str) -> None:
    best, said = plans(kind)[0], screen(kind)
    cost, e, m = best["cost"], best["energy"], best["metrics"]
    assert f"Capacity {rate(best['capacity_requests_per_s'])} with {percent(request(kind).confidence)}" in said
    assert f"{m['output_tokens_per_s']:,.0f} output tokens/s at {rate(best['requests_per_s'])}" in said
    month, year = f"${cost['usd_per_month']:,.0f} a month", f"${cost['usd_per_year']:,.0f} a year"
    assert f"{dollars(cost['usd_per_hour'])}/h ({month}, {year})" in said
    for tokens in ("input", "output", "total"):
        assert f"{dollars(cost[f'usd_per_million_{tokens}_tokens'])} per million {tokens} tokens" in said
    assert f"{kilowatts(e['w_mean'])}, {digits(e['j_per_output_token'])} J per output token at the servers; " in said
    grams = f"{digits(e['gco2e_per_million_output_tokens'])} gCO2e per million output tokens ("
    assert f"; with PUE {e['pue']:g}: {digits(e['kwh_per_million_output_tokens'])} kWh, {grams}" in said
    for row in best["slo"]:
        assert f"{row['metric']}.{row['stat']} = {seconds(row['value_s'])} (" in said
        assert f"{interval_words(row['ci_low_s'], row['ci_high_s'])}): met" in said
    total = sum(best["time_breakdown"].values())
    kind_of, longest = max(best["time_breakdown"].items(), key=lambda item: item[1])
    said_first = re.search(rf"Time {kind_of.replace('_', ' ')} (\d+) %", said)
    assert said_first is not None
    assert abs(int(said_first[1]) - 100 * longest / total) < 1  # rounded so that all shares add up to 100


def test_only_without_a_load_the_lowest_latency_is_that_of_a_light_load() -> None:
    """Users have a load although the request has no rate; at a light load, the cost of a token means nothing."""
    for kind, load in (("no load", False), ("rate", True)):
        for users in (None, 10) if load else (None,):
            given = {"requests_per_s": None, "users": users} if users else {}
            asked = request(kind).replace(objective="latency", **given)
            said = re.sub(r"\s+", " ", render(answer(kind).model_copy(update={"request": asked}), 100))
            assert ("at this light load" in said) is not load
            assert ("per million output tokens, or" in said) is load


def test_the_page_prints_the_figures_of_the_answer() -> None:
    pytest.importorskip("plotly")
    best, said = plans("rate")[0], answer("rate")
    m = gather(said, swings=False)
    text = re.sub(r"<script.*?</script>|<style.*?</style>|<[^>]+>", " ", page_text(answer_page(m)), flags=re.S)
    for words in (
        f"{dollars(best['cost']['usd_per_hour'])} per hour",
        f"{dollars(best['cost']['usd_per_million_output_tokens'])} per million output tokens",
        joules(best["energy"]["j_per_output_token"]),
        rate(best["capacity_requests_per_s"]),
        kilowatts(best["energy"]["w_mean"]),
    ):
        assert words in text
    for row in best["slo"]:
        assert f"{seconds(row['ci_low_s'])} to {seconds(row['ci_high_s'])}" in text
    assert m.simulated is not None
    idle = [use.share for use in m.simulated.uses if use.resource == "idle"]
    total = sum(best["time_breakdown"].values())
    assert idle == [pytest.approx(best["time_breakdown"]["idle"] / total)]
    shares = [use.share for use in m.simulated.uses if use.of == "replica time"]
    assert sum(share for share in shares if share is not None) == pytest.approx(1.0, abs=1e-6)


def test_a_front_has_the_figures_and_the_confidence_of_the_plan() -> None:
    """At one rate and one price, equal deployments cost the same on the front and in the plan."""
    best, load = plans("rate")[0], request("rate")
    found = pareto_front(load.replace(search=SearchOptions(trials=4)), "cost,energy,ttft.p90").document()
    assert found["request"]["confidence"] == load.confidence
    cost = best["cost"]["usd_per_million_output_tokens"] / best["cost"]["usd_per_hour"]
    assert found["front"]
    for point in found["front"]:
        assert point["values"]["cost"] / point["usd_per_hour"] == pytest.approx(cost)
        assert point["values"]["ttft.p90"] <= 2.0


def test_a_front_leaves_out_what_only_holds_as_simulated() -> None:
    """No point and no plan meets a limit between the simulated latency and that at the confidence."""
    best = plans("rate")[0]
    value_s, at_confidence_s = best["slo"][0]["value_s"], best["slo"][0]["value_at_confidence_s"]
    between_s = (value_s * at_confidence_s) ** 0.5
    tight = request("rate").replace(slos=parse_slos([f"ttft.p90={between_s:.4f}s"]), search=SearchOptions(trials=3))
    found = pareto_front(tight, "cost,ttft.p90").document()
    alike = [p for p in found["simulated"] if not p["stopped_early"] and p["values"]["ttft.p90"] > 0.9 * value_s]
    assert alike
    assert not any(p["holds"] for p in alike)


def objective_rows(block: Any) -> Iterator[dict[str, Any]]:
    """Every row of an answer that has a confidence, wherever it stands."""
    if isinstance(block, dict):
        if "probability_met" in block:
            yield block
        for part in block.values():
            yield from objective_rows(part)
    elif isinstance(block, list):
        for part in block:
            yield from objective_rows(part)


@pytest.mark.parametrize("kind", KINDS)
def test_values_verdicts_and_confidences_agree(kind: str) -> None:
    """A missed value has less than 50 % confidence, and an objective is met exactly with the required one."""
    sure, rows = request(kind).confidence, list(objective_rows(document(kind)))
    assert rows
    for row in rows:
        if row["value_s"] is not None and row["value_s"] > row["limit_s"]:
            assert row["probability_met"] < 0.5
        if row["met"]:
            assert row["value_s"] is None or row["value_s"] <= row["limit_s"]
        assert row["met"] == (row["probability_met"] >= sure)
        if row["value_at_confidence_s"] is not None and row["value_s"] is not None:
            assert row["met"] == (row["value_at_confidence_s"] <= row["limit_s"])
            assert row["value_at_confidence_s"] >= row["value_s"]


def test_an_answer_about_owned_hardware_has_one_pue_and_one_grid() -> None:
    """The facility takes 1.05 times the energy of the servers: in the energy, the carbon and the cost of power."""
    owned = OwnedHardware(capex=10_000.0, years=4.0, power_price=0.1, pue=1.05)
    asked = request("rate").replace(accounting=Accounting(owned=owned), tariff=Tariff(grid="fr"))
    world = open_evaluator(asked)
    found = make_plan(asked, world, world.elsewhere).document()
    energy, account = found["best"]["energy"], found["accounts"]["owned"]
    kwh = energy["kwh_per_million_output_tokens"]
    assert kwh == pytest.approx(energy["j_per_output_token"] / 3.6 * 1.05)
    assert (energy["pue"], account["pue"], energy["grid_region"]) == (1.05, 1.05, "fr")
    assert energy["gco2e_per_million_output_tokens"] == pytest.approx(kwh * energy["grid_gco2e_per_kwh"])
    assert account["busy_usd_per_hour"] == pytest.approx(energy["w_mean"] / 1e3 * 1.05 * 0.1)
    for row in found["prices"]:
        if row["gco2e_per_kwh"] is not None:
            assert row["gco2e_per_million_output_tokens"] == pytest.approx(kwh * row["gco2e_per_kwh"])
    page = page_text(answer_page(gather(parse_answer(found), swings=False)))
    assert "given: accounting.owned.pue" in page
    assert "Uptime Institute" not in page


def test_hours_of_the_users_grid_are_the_grid_of_every_figure(tmp_path: Path) -> None:
    """300 g/kWh on average: around the clock, in the energy of the plan, on the screen, and on the page."""
    file = tmp_path / "co2.csv"
    file.write_text("hour,gco2e_per_kwh\n" + "".join(f"{h},{400 if h < 12 else 200}\n" for h in range(24)))
    asked = request("rate").replace(accounting=Accounting(carbon_hours=str(file)))
    world = open_evaluator(asked)
    found = make_plan(asked, world, world.elsewhere).document()
    energy, hours = found["best"]["energy"], found["accounts"]["carbon_hours"]
    grams = energy["gco2e_per_million_output_tokens"]
    assert (energy["grid_gco2e_per_kwh"], energy["grid_region"]) == (300.0, str(file))
    assert grams == pytest.approx(300.0 * energy["kwh_per_million_output_tokens"])
    assert hours["mean_gco2e_per_million_output_tokens"] == pytest.approx(grams)
    said = " ".join(render(parse_answer(found)).split())
    assert f"{digits(grams)} gCO2e per million output tokens (grid {file} (as given, the mean of its hours)" in said
    assert f"around the clock: {digits(grams)} gCO2e per million output tokens" in said
    answer = gather(parse_answer(found), swings=False)
    (chosen,) = (figures for figures in answer.carbon if figures.chosen)
    assert (chosen.gco2e_per_kwh, chosen.gco2e_per_million_output_tokens) == (300.0, pytest.approx(grams))
    assert "your file accounting.carbon_hours" in page_text(answer_page(answer))


def test_the_screen_has_every_note_of_the_plan() -> None:
    """A note beyond the third may be the one that says which operators were not measured."""
    found = document("rate")
    notes = [f"note number {i}" for i in range(1, 7)]
    said = render(parse_answer(found | {"best": found["best"] | {"notices": notes}}))
    assert all(note in said for note in notes)


@pytest.mark.parametrize(("n_regions", "said"), [(6, "and 1 more region ("), (8, "and 3 more regions (")])
def test_regions_beyond_those_shown_are_counted(n_regions: int, said: str) -> None:
    found = document("rate")
    offer = next(row for row in found["prices"] if row["contract"] == "on demand")
    rows = [offer | {"region": f"region-{i}"} for i in range(n_regions)]
    assert said in render(parse_answer(found | {"prices": rows}))
