"""Fronts on the page of an answer: read strictly, of the same question, with the answer's plans on them."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from catalogs.errors import InputError
from catalogs.ui.entry_point import run_command
from catalogs.ui.html_page import render
from planner.cli.main import app
from planner.evaluation.multi_hardware import open_evaluator
from planner.problem.front import observed_slos, parse_axes
from planner.problem.request import PlanRequest, SearchOptions
from planner.problem.tariff import Tariff
from planner.report.material import ReportData, gather
from planner.report.page import answer_page
from planner.report.pareto_page import read_front
from planner.report.write import tables_of
from planner.search.pareto_answer import FrontFile, make_front
from tests.planner.report.test_plan_report import answer, figures


@cache
def told() -> str:
    axes = parse_axes("cost,ttft.p90")
    request = PlanRequest(
        model="llama3.1-8b",
        hardware="l40sx2",
        slos=observed_slos(axes, ()),
        workload="lmsys-turns",
        requests_per_s=20.0,
        search=SearchOptions(trials=5),
        tariff=Tariff(usd_per_hour=3.0),
    )
    return json.dumps(make_front(request, open_evaluator(request), axes, ()).document())


@cache
def plain() -> ReportData:
    return gather(answer(), swings=False)


def written(folder: Path, **change: Any) -> Path:
    path = folder / "front.json"
    path.write_text(json.dumps(json.loads(told()) | change))
    return path


def read(folder: Path) -> FrontFile:
    return read_front(written(folder), answer())


def test_the_page_draws_the_front_and_the_answers_plans_on_it(tmp_path: Path) -> None:
    found = read(tmp_path)
    text = render(answer_page(replace(plain(), fronts=(found,))))
    drawn = {t["name"]: t for f in figures(text) for t in f["data"] if "name" in t}
    front = drawn["Pareto front"]
    assert front["x"] == pytest.approx([p.values["cost"] for p in found.front])
    assert front["y"] == pytest.approx([1e3 * (p.values["ttft.p90"] or 0.0) for p in found.front])
    assert found.best_balance is not None
    assert drawn["best balance"]["x"] == pytest.approx([found.front[found.best_balance].values["cost"]])
    own = drawn["plans of this answer"]
    costs = [p.cost.usd_per_million_output_tokens for p in answer().plans if p.cost is not None]
    assert own["x"] == pytest.approx(costs)
    assert "plan front --model" not in text
    assert "plan front --model" in render(answer_page(plain()))
    rows = tables_of(replace(plain(), fronts=(found,)))["front_1"]
    assert len(rows) == len(found.simulated)
    assert {"cost_usd", "ttft_p90_s", "on_front"} <= set(rows[0])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema_version": 9}, "schema_version"),
        ({"front": "none"}, "front: "),
        ({"calibration": "0" * 16}, "another calibration"),
        (
            {"request": {"model": "mistral-7b", "hardware": "l40sx2", "workload": "chat", "engine": "vllm"}},
            "model",
        ),
        ({"request": {"model": "llama3.1-8b", "hardware": "l40sx2", "workload": "x", "engine": "vllm"}}, "workload"),
    ],
)
def test_a_front_of_another_question_is_refused(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says) as caught:
        read_front(written(tmp_path, **change), answer())
    assert "\n" not in str(caught.value)


def test_a_front_that_is_none_is_one_line_and_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "answer.json"
    path.write_text(answer().model_dump_json())
    (tmp_path / "text").write_text("no json")
    for name in ("text", "absent", "answer.json"):
        args = ["report", str(path), "--front", str(tmp_path / name)]
        assert run_command("plan", app, args) == 2
        assert capsys.readouterr().err.count("\n") == 1
