"""The report's page: loads nothing, says the answer's numbers, names every unit; tables and refusals."""

from __future__ import annotations

import copy
import csv
import json
import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from calibration.accuracy.reliability import load_reliability
from catalogs.errors import InputError
from catalogs.ui.entry_point import run_command
from catalogs.ui.html_page import render
from catalogs.ui.terminal import PIPED
from catalogs.ui.words import dollars, rate, seconds, sure_percent
from planner.answer.answer_schema import Answer
from planner.answer.plan_schema import Stats
from planner.cli.commands.report import report
from planner.cli.main import app
from planner.cli.screens.plan import render as screen
from planner.evaluation.multi_hardware import open_evaluator
from planner.pipeline import make_plan
from planner.problem.request import PlanRequest, SearchOptions
from planner.problem.slo import parse_slos
from planner.problem.tariff import Tariff
from planner.report.answer_tables import capacity_words
from planner.report.latency_figures import capacity_curve, knee, knee_of
from planner.report.material import ReportData, gather
from planner.report.money_figures import front
from planner.report.page import answer_page
from planner.report.write import names_of_files, rows_as_csv, tables_of, write_table_files, write_tables
from planner.sections.full_answer import parse_answer, read_answer
from planner.sections.registry import section_pages
from planner.sections.users import UsersInClosedLoop, UsersSection
from planner.space.candidates import candidates
from planner.studies.rerun import Rerun, found_again
from tests.planner.short_runs import shortened

REQUEST = PlanRequest(
    model="llama3.1-8b",
    hardware="l40sx2",
    slos=parse_slos(["ttft.p90=500ms,tpot.mean=60ms"]),
    workload="lmsys-turns",
    search=SearchOptions(trials=3),
    tariff=Tariff(usd_per_hour=3.0),
)


@cache
def told() -> str:
    """The answer that the tests of several modules share, from short runs whichever comes first."""
    with shortened():
        return planned()


def planned() -> str:
    world = open_evaluator(REQUEST)
    return json.dumps(make_plan(REQUEST, world, world.elsewhere).document())


def data() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(told())
    return found


@cache
def answer() -> Answer:
    return parse_answer(data())


@cache
def material() -> ReportData:
    with shortened():
        return gather(answer())


@cache
def page() -> str:
    return render(answer_page(material()))


def figures(text: str) -> list[dict[str, Any]]:
    return [json.loads(f) for f in re.findall(r'<script type="application/json">(.*?)</script>', text, flags=re.S)]


def words_of(text: str) -> str:
    bare = re.sub(r"<script.*?</script>|<style.*?</style>", "", text, flags=re.S)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", bare))


def test_the_screen_and_the_page_say_the_same_of_an_objective_that_is_missed_just_above_the_capacity() -> None:
    found = data()
    best = found["best"]
    for row in best["slo"]:
        row["value_at_confidence_s"] = 0.5 * row["limit_s"]
    best |= {"limited_by": best["slo"][0]["metric"], "missed_requests_per_s": 1.05 * best["requests_per_s"]}
    near = parse_answer(found)
    words = "ith 90 % confidence the tightest objective is at 50 % of its limit; it is missed at a rate 5 % higher"
    assert f"w{words}" in " ".join(screen(near).split())
    assert near.best is not None
    assert f"W{words}. " in capacity_words(near, near.best)


def test_the_page_loads_nothing_from_elsewhere() -> None:
    bare = re.sub(r"<script.*?</script>", "", page(), flags=re.S)
    assert "default-src 'none'" in bare
    assert "http://" not in bare
    assert "https://" not in bare
    assert not re.findall(r"<script[^>]+src", page())
    assert page().count("plotly.js v") == 1
    assert "showSendToCloud: false" in page()


def test_every_axis_with_a_title_names_its_unit() -> None:
    drawn = figures(page())
    assert len(drawn) >= 12
    for figure in drawn:
        titles = [
            v["title"]["text"] for k, v in figure["layout"].items() if re.fullmatch(r"[xy]axis\d*", k) and "title" in v
        ]
        named = [t for t in titles if re.search(r"\([^()]+\)$", t)]
        assert named, titles
        numeric = [v for k, v in figure["layout"].items() if re.fullmatch(r"[xy]axis\d*", k) and v.get("type") == "log"]
        assert all(re.search(r"\([^()]+\)$", v["title"]["text"]) for v in numeric)


def test_the_numbers_are_the_answers() -> None:
    said, best = words_of(page()), data()["best"]
    assert f"{dollars(best['cost']['usd_per_hour'])} per hour" in said
    assert f"{dollars(best['cost']['usd_per_million_output_tokens'])} per million output tokens" in said
    assert rate(best["requests_per_s"]) in said
    for row in best["slo"]:
        cells = (row["limit_s"], row["value_s"])
        assert " ".join(seconds(c) for c in cells) in said
        assert sure_percent(row["probability_met"]) in said
    assert f"{best['energy']['w_mean'] / 1e3:.2f} kW" in said
    assert best["memory"]["equation"] in said
    assert data()["reproduce"]["command"] in said.replace("&#x27;", "'")


def test_the_curve_and_the_distribution_are_the_answers() -> None:
    drawn = {
        t["name"]: t for f in figures(page()) for t in f["data"] if t.get("name") in ("p90", "time to first token")
    }
    by_rate = dict(zip(drawn["p90"]["x"], drawn["p90"]["y"], strict=True))
    curve = [p for p in data()["best"]["curve"] if not p["whole_cluster"]]
    assert len(curve) >= 4
    assert {point["requests_per_s"] for point in curve} <= set(by_rate)
    assert list(by_rate.values()) == sorted(by_rate.values())
    best = data()["best"]
    at_plan_ms = by_rate[min(by_rate, key=lambda rate: abs(rate - best["requests_per_s"]))]
    own_ms = [1e3 * best["metrics"][m]["p90"] for m in ("ttft_s", "tpot_s")]
    assert any(at_plan_ms == pytest.approx(ms, rel=0.02) for ms in own_ms)
    cdf = data()["best"]["latency_cdf"]
    assert drawn["time to first token"]["x"] == pytest.approx([1e3 * v for v in cdf["ttft_s"]])


def test_a_changed_number_changes_the_page() -> None:
    changed = data()
    changed["best"]["cost"]["usd_per_hour"] = 1234.56
    changed["best"]["memory"]["weights_bytes"] = 11.5e9
    other = gather(parse_answer(changed), swings=False)
    text = render(answer_page(other))
    assert "$1,234.56 per hour" in text
    assert "weights: 11.50 GB" in text
    assert "11.50 GB" not in page()


def test_the_trade_offs_start_idle_and_end_at_capacity() -> None:
    s = material().simulated
    assert s is not None
    beyond = [p for p in s.points if p.share > 1]
    assert {p.plan for p in beyond} == {0}
    assert not any(p.met for p in beyond[1:])
    mine = [p for p in s.points if p.plan == 0 and p.share <= 1]
    capacity = answer().plans[0].capacity_requests_per_s
    assert mine[-1].requests_per_s == pytest.approx(capacity)
    costs = [p.usd_per_million_output_tokens or 0.0 for p in mine]
    assert costs == sorted(costs, reverse=True)  # the same hardware, more tokens
    planned = answer().plans[0]
    near = min(mine, key=lambda p: abs(p.requests_per_s - (planned.requests_per_s or 0.0)))
    scale = near.output_tokens_per_s * near.usd_per_million_output_tokens  # type: ignore[operator]
    assert scale == pytest.approx(3.0 / 3600 * 1e6, rel=1e-6)


def test_the_front_is_what_nothing_beats() -> None:
    pairs = [(1.0, 5.0), (2.0, 3.0), (2.5, 4.0), (3.0, 3.0), (4.0, 1.0)]
    assert front(pairs[::-1]) == [pairs[0], pairs[1], pairs[4]]
    assert front([]) == []


def test_the_knee_is_where_the_curve_bends() -> None:
    bent = [(1.0, 1.0), (2.0, 1.1), (3.0, 1.2), (4.0, 1.3), (5.0, 4.0), (6.0, 9.0)]
    assert knee(bent) == 4.0
    assert knee([(float(x), 2.0 * x) for x in range(1, 9)]) is None  # a straight line has none
    assert knee(bent[:4]) is None
    assert knee([(x, 1.0) for x, _ in bent]) is None


def test_an_answer_has_one_knee_wherever_it_is_shown() -> None:
    """The report simulates further rates, and printed another knee of the same curve than the page of the plan."""
    plan, point = answer().plans[0], answer().plans[0].curve[0]
    bent = {1.0: 1.0, 2.0: 1.1, 3.0: 1.2, 4.0: 1.3, 5.0: 4.0, 6.0: 9.0}
    stats = [f"p{q}" for q in (50, 90, 95, 99)]
    curve = [
        point.model_copy(
            update={
                "requests_per_s": per_s,
                "whole_cluster": False,
                "stable": True,
                "ttft_s": Stats(**dict.fromkeys(["mean", *stats], value_s)),
            }
        )
        for per_s, value_s in bent.items()
    ]
    plan = plan.model_copy(update={"curve": curve, "requests_per_s": 5.0})
    simulated = material().simulated
    assert simulated is not None
    swept = next(p for p in simulated.points if p.plan == 0)
    beyond = [
        replace(swept, requests_per_s=per_s, stable=True, latency_s={"ttft": dict.fromkeys(stats, 9.0 * per_s)})
        for per_s in (7.0, 8.0, 9.0)
    ]
    shown = [
        [trace["name"] for trace in capacity_curve(plan, points, "ttft").data if "knee" in trace.get("name", "")]
        for points in ([], beyond)
    ]
    assert shown == [["knee of p90: 4 requests/s"]] * 2
    assert knee_of(plan, "ttft", "p90") == 4.0


def test_the_page_shows_how_often_such_words_were_right() -> None:
    shipped = load_reliability()
    assert sum(k.n for k in shipped.kinds) > 2000
    assert all(0 <= r <= 1 for k in shipped.kinds for r in k.right)
    assert all(list(k.right) == sorted(k.right) for k in shipped.kinds)
    drawn = {t["name"]: t for f in figures(page()) for t in f["data"] if "name" in t}
    for kind in shipped.kinds:
        assert drawn[f"{kind.name} ({kind.n:,})"]["y"] == pytest.approx([100 * r for r in kind.right])
    assert shipped.command in words_of(page())


def test_sensitivity_goes_the_right_way() -> None:
    s = material().simulated
    assert s is not None
    assert s.sensitivity is not None
    inputs = {i.name: i for i in s.sensitivity.inputs}
    assert {"request rate", "output length", "prefix hits", "host overhead", "price"} <= set(inputs)
    own = answer().plans[0].capacity_requests_per_s or 0.0
    longer, shorter = inputs["output length"].high, inputs["output length"].low
    assert longer is not None
    assert shorter is not None
    assert (longer.capacity_requests_per_s or 0) < own < (shorter.capacity_requests_per_s or 0)
    shared = inputs["prefix hits"].high
    assert shared is not None
    assert (shared.capacity_requests_per_s or 0) >= own
    dearer = inputs["price"].high
    assert dearer is not None
    usd = data()["best"]["cost"]["usd_per_million_output_tokens"]
    assert dearer.usd_per_million_output_tokens == pytest.approx(1.25 * usd)
    assert dearer.capacity_requests_per_s == pytest.approx(own)
    slower, faster = inputs["step time"].high, inputs["step time"].low
    assert slower is not None
    assert faster is not None
    assert (slower.capacity_requests_per_s or 0) < own < (faster.capacity_requests_per_s or 0)


def test_sensitivity_begins_with_the_plan_as_it_is() -> None:
    s, cost = material().simulated, data()["best"]["cost"]["usd_per_million_output_tokens"]
    assert s is not None
    assert s.sensitivity is not None
    unchanged = s.sensitivity.unchanged
    assert unchanged.words == "the plan unchanged"
    assert unchanged.capacity_requests_per_s == pytest.approx(answer().plans[0].capacity_requests_per_s)
    assert unchanged.usd_per_million_output_tokens == pytest.approx(cost)
    assert unchanged.holds
    assert "the plan unchanged" in words_of(page())
    first, *others = tables_of(material())["sensitivity"]
    assert first["input"] is None
    assert first["capacity_requests_per_s"] == unchanged.capacity_requests_per_s
    assert all(row["input"] for row in others)


def test_carbon_is_energy_times_the_grid() -> None:
    kwh = data()["best"]["energy"]["kwh_per_million_output_tokens"]
    assert [c.region for c in material().carbon if c.chosen] == ["us"]
    for c in material().carbon:
        assert c.gco2e_per_million_output_tokens == pytest.approx(kwh * c.gco2e_per_kwh)


def test_tables_hold_the_same_numbers(tmp_path: Path) -> None:
    import pandas as pd

    written = write_tables(material(), tmp_path / "tables")
    assert {path.name for path in written} <= names_of_files(len(material().fronts))
    assert {p.suffix for p in written} == {".csv", ".parquet", ".json"}
    whole = json.loads((tmp_path / "tables" / "report.json").read_text())
    assert whole["curve"][0]["ttft_p90_s"] == data()["best"]["curve"][0]["ttft_s"]["p90"]
    assert whole["curve"][0]["ttft_waiting_p90"] == data()["best"]["curve"][0]["ttft_waiting"]["p90"]
    rows = list(csv.DictReader((tmp_path / "tables" / "curve.csv").read_text().splitlines()))
    first = data()["best"]["curve"][0]
    assert float(rows[0]["requests_per_s"]) == first["requests_per_s"]
    assert float(rows[0]["ttft_p90_s"]) == first["ttft_s"]["p90"]
    parquet = pd.read_parquet(tmp_path / "tables" / "plans.parquet")
    assert parquet["usd_per_hour"][0] == data()["best"]["cost"]["usd_per_hour"]
    assert rows_as_csv([{"a": 1}, {"b": None}]) == "a,b\n1,\n,\n"
    uneven = [{"a": 1e-07, "b": "x,y"}, {"b": None, "c": math.nan, "a": True}, {"c": math.inf, "a": 3.0}]
    assert rows_as_csv(uneven) == pd.DataFrame(uneven, dtype=object).to_csv(index=False, lineterminator="\n")
    assert {"plans", "curve", "operators", "sensitivity", "more_capacity"} <= set(tables_of(material()))


def test_without_the_packages_of_parquet_the_other_tables_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.report.write.parquet_is_installed", lambda: False)
    written = write_table_files({"some": [{"a": 1.5}]}, tmp_path / "tables", 1)
    assert sorted(p.name for p in (tmp_path / "tables").iterdir()) == ["report.json", "some.csv"]
    assert sorted(written) == sorted((tmp_path / "tables").iterdir())


def test_the_hint_about_parquet_waits_until_the_answer_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("planner.report.write.parquet_is_installed", lambda: False)
    damaged = tmp_path / "answer.json"
    damaged.write_text("{")
    with pytest.raises(InputError, match="not valid JSON"):
        report(damaged, csv=tmp_path / "tables", html=None, sensitivity=False, front=None)
    assert capsys.readouterr().err == ""


def test_the_answer_brings_its_candidates_back() -> None:
    again = Rerun.of(answer())
    assert again.request == REQUEST
    for plan, candidate in zip(answer().plans, again.candidates, strict=True):
        assert candidate.hardware.text == plan.deployment["hardware"]
        assert candidate.replicas == plan.deployment["replicas"]
        assert candidate.weight_dtype == plan.deployment["weight_dtype"]
    older = data()
    del older["best"]["deployment"]["sampling"]  # a key that answers did not have yet
    assert parse_answer(older).plans[0].deployment["sampling"] == "random"
    changed = copy.deepcopy(answer().plans[0].deployment) | {"max_num_seqs": 77}
    plan = answer().plans[0].model_copy(update={"deployment": changed})
    space = candidates(answer().request, again.evaluator.names)
    with pytest.raises(InputError, match="not a candidate"):
        found_again(plan, space, again.request)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema_version": 2}, "schema_version 1"),
        ({"reproduce": None}, "reproduce"),
        ({"best": {"deployment": {"model": "m"}}}, "best"),
        ({"request": {}}, "request"),
        ({"feasible": "yes"}, "feasible: .*boolean: got 'yes'"),
        ({"prices": [{"cloud": 3}]}, "prices.0.cloud"),
    ],
)
def test_an_answer_of_another_kind_is_one_line(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    path = tmp_path / "answer.json"
    path.write_text(json.dumps(data() | change))
    with pytest.raises(InputError, match=says) as caught:
        read_answer(path)
    assert "\n" not in str(caught.value)


def test_a_path_without_a_file_suggests_answers_alone(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"schema_version": 1}')
    (tmp_path / "plans.json").write_text("not JSON")
    with pytest.raises(InputError) as caught:
        read_answer(tmp_path / "pan.json")
    assert caught.value.nearest is None
    (tmp_path / "plan-2.json").write_text(told())
    with pytest.raises(InputError) as caught:
        read_answer(tmp_path / "pan.json")
    assert caught.value.nearest == str(tmp_path / "plan-2.json")


def test_a_fault_of_the_request_keeps_its_message() -> None:
    changed = data()
    changed["request"]["slo"] = ["norm.p99=1s"]
    said = r"^a\.json: an SLO metric is one of [a-z0-9_, ]+: got 'norm'; nearest valid choice: \w+$"
    with pytest.raises(InputError, match=said):
        parse_answer(changed, "a.json")


def test_bad_files_are_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("no json")
    (tmp_path / "list").write_text("[1]")
    for name in ("text", "list", "absent"):
        assert run_command("plan", app, ["report", str(tmp_path / name)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    other = data()
    other["reproduce"]["calibration"] = "0" * 16
    (tmp_path / "other").write_text(json.dumps(other))
    assert run_command("plan", app, ["report", str(tmp_path / "other")]) == 2
    assert "another calibration" in capsys.readouterr().err


def test_the_command_writes_and_the_screen_fits_its_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "answer.json"
    path.write_text(told())
    html, folder = tmp_path / "page.html", tmp_path / "tables"
    args = ["report", str(path), "--html", str(html), "--csv", str(folder), "--no-sensitivity"]
    assert run_command("plan", app, args) == 0
    page = html.read_text()
    assert page.startswith("<!doctype html>")
    assert "<dd></dd>" not in page  # no card without a value, as that of what binds without the sensitivity
    assert (folder / "plans.csv").is_file()
    capsys.readouterr()
    assert run_command("plan", app, ["report", str(path), "--no-sensitivity"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= PIPED
    assert any("memory bandwidth" in line for line in lines)


def test_a_no_has_a_page_too() -> None:
    request = PlanRequest(
        model="llama3.1-405b", hardware="h100x4", slos=parse_slos(["p99=2s"]), search=SearchOptions(trials=3)
    )
    world = open_evaluator(request)
    no = parse_answer(make_plan(request, world, world.elsewhere).document())
    text = render(answer_page(gather(no)))
    assert "NO" in words_of(text)
    assert no.infeasible is not None
    assert no.infeasible.binding_constraint.replace(">", "&gt;") in text


def test_users_that_wait_have_a_section_of_the_page() -> None:
    row = {"metric": "ttft", "stat": "p90", "limit_s": 1.0, "value_s": 0.25, "ci_low_s": 0.2, "ci_high_s": None}
    loop = {
        "users": 40,
        "think_s": 5.0,
        "requests_per_s": 3.25,
        "ci_low_per_s": 3.0,
        "ci_high_per_s": 3.5,
        "ci_level": 0.9,
        "open_requests_per_s": 3.4,
        "slo": [row | {"met": True, "probability_met": 0.97}],
    }
    block = UsersInClosedLoop.model_validate_json(json.dumps(loop))
    said = words_of("".join(part.text for part in UsersSection().page(block, answer().plans[0])))
    assert "40 users simulated" in said
    assert "3.25 requests/s" in said
    assert "250 ms (90 % interval: 200 ms or more): met with 97 % confidence" in said
    with_users = answer().model_copy(update={"closed_loop": block})
    pages = {section.title for section in section_pages(with_users)}
    assert pages - {section.title for section in section_pages(answer())} == {UsersSection.title}
