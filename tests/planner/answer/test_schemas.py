"""The shipped JSON Schemas are those of the classes, and answers of every kind are valid against them."""

from __future__ import annotations

import copy
import json
import runpy
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from planner import sections
from planner.economics.ownership import OwnedHardware
from planner.evaluation.multi_hardware import open_evaluator
from planner.pipeline import make_plan
from planner.problem.accounting import Accounting
from planner.problem.front import observed_slos, parse_axes
from planner.problem.overrides import Overrides
from planner.problem.request import PlanRequest, SearchOptions
from planner.problem.slo import parse_slos
from planner.problem.tariff import Tariff
from planner.search.pareto_answer import make_front
from planner.sections.full_answer import parse_answer
from planner.sections.registry import SECTIONS

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "planner" / "schemas"
SMALL = {
    "model": "llama3.2-1b",
    "hardware": "l4",
    "slos": parse_slos(["ttft.p90=1s"]),
    "search": SearchOptions(trials=1),
}
LIMITS = Overrides.of({"max_num_seqs": 64, "max_num_batched_tokens": 2048, "kv_dtype": "bf16"})
GIVEN = Accounting(
    owned=OwnedHardware(capex=9000.0, years=4.0, power_price=0.1), power_caps_w=(60.0, 90.0), nodes_per_rack=2
)
QUESTIONS = {
    "users": PlanRequest(**SMALL, users=10, think_s=10.0, precisions=("fp8",), accounting=GIVEN),  # type: ignore[arg-type]
    "refused": PlanRequest(**SMALL, requests_per_s=1e4, fixed=LIMITS),  # type: ignore[arg-type]
    "too large": PlanRequest(model="llama3.1-70b", hardware="l4", slos=SMALL["slos"], search=SearchOptions(trials=1)),  # type: ignore[arg-type]
}


@cache
def schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / name).read_text())
    return found


@cache
def answer_text(name: str) -> str:
    world = open_evaluator(QUESTIONS[name])
    return json.dumps(make_plan(QUESTIONS[name], world, world.elsewhere).document(), allow_nan=False)


def test_the_shipped_schemas_are_those_of_the_classes() -> None:
    """After a change of a block: python tools/write_schemas.py."""
    for path, text in runpy.run_path(str(ROOT / "tools" / "write_schemas.py"))["schemas"]().items():
        assert path.read_text() == text


@pytest.mark.parametrize("name", QUESTIONS)
def test_an_answer_is_valid_and_is_read_back_as_it_was_written(name: str) -> None:
    data = json.loads(answer_text(name))
    jsonschema.validate(data, schema("answer.schema.json"))
    assert parse_answer(data).document() == data


def test_an_answer_has_the_sections_that_its_request_wants() -> None:
    for name, request in QUESTIONS.items():
        data = json.loads(answer_text(name))
        wanted = {section.name for section in SECTIONS if section.wanted(request)} if data["feasible"] else set()
        assert {section.name for section in SECTIONS} & set(data) == wanted
    assert json.loads(answer_text("users"))["power_caps"]["rows"]


def test_what_is_no_answer_is_not_valid() -> None:
    data = json.loads(answer_text("users"))
    for path, wrong in (
        (("best", "slo", 0, "met"), "yes"),
        (("closed_loop", "slo", 0, "limit_s"), None),
        (("accounts", "owned", "given", "capex"), -1.0),
    ):
        other = copy.deepcopy(data)
        place = other
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = wrong
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(other, schema("answer.schema.json"))


def test_a_front_is_valid() -> None:
    axes = parse_axes("cost,ttft.p90")
    request = PlanRequest(
        model="llama3.2-1b",
        hardware="l4",
        slos=observed_slos(axes, ()),
        requests_per_s=2.0,
        search=SearchOptions(trials=5),
        tariff=Tariff(usd_per_hour=3.0),
    )
    data = json.loads(json.dumps(make_front(request, open_evaluator(request), axes, ()).document(), allow_nan=False))
    jsonschema.validate(data, schema("front.schema.json"))
    assert data["front"]


def test_a_section_is_one_file_and_one_line_of_the_registry() -> None:
    """A section that another module than its own file names is not a plug-in."""
    folder = Path(next(iter(sections.__path__)))
    names = [type(section).__name__ for section in SECTIONS]
    for name in names:
        holders = {p.name for p in folder.parent.rglob("*.py") if name in p.read_text()}
        assert len(holders) == 2
        assert "registry.py" in holders
