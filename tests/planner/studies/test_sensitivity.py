"""Where a choice flips: found by bisection, by price where hardware differs, and never where nothing can flip it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import cast

import pytest

from catalogs.ui.entry_point import run_command
from catalogs.ui.html_page import render
from catalogs.ui.terminal import PIPED
from planner.answer.answer_schema import Answer
from planner.cli.main import app
from planner.evaluation.multi_hardware import open_evaluator
from planner.pipeline import make_plan
from planner.problem.request import PlanRequest, SearchOptions
from planner.problem.slo import parse_slos
from planner.report.material import gather
from planner.report.page import answer_page
from planner.search.candidate_tester import TIE
from planner.sections.full_answer import parse_answer
from planner.studies.rerun import Rerun
from planner.studies.sensitivity import HALVINGS, NOT_IN_ANSWER, ChoiceFlips, ComparedCandidate, Flip, flip_words
from planner.studies.sensitivity_inputs import (
    OUTPUT,
    PRICE,
    RATE,
    InputChange,
    SensitivityInput,
    inputs_of,
    step_error,
    times,
)
from tests.planner.report.test_plan_report import planned, words_of

#: The capacities are compared with each other.
pytestmark = pytest.mark.usual_runs

CHOICE = PlanRequest(
    model="llama3.1-8b",
    hardware="l40sx1,h100x1",
    slos=parse_slos(["ttft.p90=500ms,tpot.mean=60ms"]),
    search=SearchOptions(trials=6),
    workload="alpaca",
)


@cache
def on_one_kind() -> Answer:
    return parse_answer(json.loads(planned()))


@cache
def choice() -> Answer:
    world = open_evaluator(CHOICE)
    return parse_answer(json.loads(json.dumps(make_plan(CHOICE, world, world.elsewhere).document())))


def dial(at: float = 1.0, ends: tuple[float, float] = (0.5, 2.0)) -> SensitivityInput:
    return SensitivityInput(OUTPUT, at, (0.8, 1.25), ends, times, lambda f: InputChange(OUTPUT, times(f), f))


def test_a_load_beyond_the_capacity_flips_the_choice_where_it_lies() -> None:
    """With a rate asked for and no alternative, the plan is the choice up to its capacity."""
    best = on_one_kind().plans[0]
    rate = 0.7 * (best.capacity_requests_per_s or 0.0)
    asked = on_one_kind().request.replace(requests_per_s=rate)
    loaded = best.model_copy(update={"requests_per_s": rate})
    one = on_one_kind().model_copy(update={"request": asked, "best": loaded, "alternatives": []})
    rerun = Rerun.of(one)
    turn = next(d for d in inputs_of(one, rerun) if d.name == RATE)
    flip = ChoiceFlips(one, rerun).flip(turn, turn.ends[1])
    assert flip is not None
    assert flip.alternative == NOT_IN_ANSWER
    assert flip.value == pytest.approx(1 / 0.7, rel=0.08)


def test_a_seed_that_finds_less_than_the_answer_keeps_the_headroom_of_the_plan() -> None:
    """With one seed at two thirds of the capacity in the answer, a load of 0.8 of it meets, up to 1 / 0.8 times."""
    kind = on_one_kind()
    base = ChoiceFlips(kind, Rerun.of(kind)).base
    loaded = kind.plans[0].model_copy(
        update={"capacity_requests_per_s": 1.5 * base, "requests_per_s": 0.8 * 1.5 * base}
    )
    asked = kind.request.replace(requests_per_s=loaded.requests_per_s)
    one = kind.model_copy(update={"request": asked, "best": loaded, "alternatives": []})
    flips = ChoiceFlips(one, Rerun.of(one))
    turn = next(d for d in inputs_of(one, flips.rerun) if d.name == RATE)
    assert flips.compare(turn.changed(turn.at)).met
    flip = flips.flip(turn, turn.ends[1])
    assert flip is not None
    assert flip.value == pytest.approx(1 / 0.8, rel=0.12)


@dataclass(frozen=True)
class Planted(ChoiceFlips):
    """Alternative 2 takes over from `beyond` on."""

    beyond: float = 1.37
    looked: list[float] = field(default_factory=list)

    def compare(self, variant: InputChange) -> ComparedCandidate:
        self.looked.append(variant.value)
        return ComparedCandidate(variant, None, None, 1.0)  # type: ignore[arg-type]

    def choice(self, seen: ComparedCandidate) -> int:
        return 2 if seen.variant.value >= self.beyond else 0


def test_a_planted_flip_is_found_to_five_per_cent() -> None:
    planted = Planted(on_one_kind(), cast(Rerun, None))
    found = planted.flip(dial(), 2.0)
    assert found is not None
    assert found.alternative == 2
    assert found.value == pytest.approx(planted.beyond, rel=2 ** (0.5 / 2**HALVINGS) - 1 + 1e-9)
    assert len(planted.looked) == HALVINGS + 1
    assert planted.flip(dial(), 0.5) is None
    shares = Planted(on_one_kind(), cast(Rerun, None), beyond=0.3)
    prefix = shares.flip(dial(at=0.0, ends=(0.0, 0.9)), 0.9)
    assert prefix is not None
    assert prefix.value == pytest.approx(0.3, abs=0.9 / 2**HALVINGS)


def test_what_is_said_of_flips() -> None:
    assert flip_words(dial(), None, None) == "never within x 2 either way"
    assert flip_words(dial(), Flip(0.7, 1), Flip(1.3, 2)) == "below x 0.7: alternative 1; above x 1.3: alternative 2"
    beyond = flip_words(dial(), None, Flip(1.6, NOT_IN_ANSWER))
    assert beyond == "above x 1.6: no plan of this answer meets the load"
    assert flip_words(dial(ends=(0.7, 1.3)), None, None) == "never between x 0.7 and x 1.3"


def test_the_step_time_swings_as_far_as_whole_runs_were_off() -> None:
    plan = on_one_kind().plans[0]
    assert plan.calibration is not None
    low, high = plan.calibration.intervals["tpot"]
    assert step_error(plan) == (1 + low, 1 + high)
    bare = plan.calibration.model_copy(update={"stated_error": {}, "expected_error": 0.1})
    assert step_error(plan.model_copy(update={"calibration": bare})) == (0.9, 1.1)
    assert step_error(plan.model_copy(update={"calibration": None})) is None


def test_no_price_flips_a_choice_on_one_kind_of_hardware() -> None:
    rerun = Rerun.of(on_one_kind())
    rivals = ChoiceFlips(on_one_kind(), rerun)
    said = {d.name: rivals.never(d) for d in inputs_of(on_one_kind(), rerun)}
    if on_one_kind().alternatives:
        assert "same kind of hardware" in said[PRICE]
        assert "no rate is required" in said[RATE]
        assert said[OUTPUT] == ""
    alone = on_one_kind().model_copy(update={"alternatives": []})
    assert "no alternative" in ChoiceFlips(alone, rerun).never(dial())


def test_the_price_at_which_other_hardware_takes_over_is_what_capacities_say() -> None:
    """Alone, the price moves no simulation: the choice flips where rate per dollar is equal, but for a tie."""
    best, *others = choice().plans
    kinds = {p.deployment["hardware"].rstrip("0123456789") for p in choice().plans}
    assert len(kinds) == 2
    rival = next(p for p in others if p.usd_per_hour != best.usd_per_hour)
    assert any(p.usd_per_hour == best.usd_per_hour for p in others)  # its price moves with that of the best
    assert best.capacity_requests_per_s
    assert rival.capacity_requests_per_s
    per_usd = [(p.capacity_requests_per_s or 0.0) / (p.usd_per_hour or 1.0) for p in (best, rival)]
    expected = per_usd[0] / per_usd[1]
    rerun = Rerun.of(choice())
    price = next(d for d in inputs_of(choice(), rerun) if d.name == PRICE)
    rivals = ChoiceFlips(choice(), rerun)
    flip = rivals.flip(price, 2.5)
    if expected < 2.1:
        assert flip is not None
        # The comparison is on the scale of the printed capacities, but a tail of one seed crosses its limit at several
        # rates.
        assert flip.value == pytest.approx(expected * (1 + TIE), rel=0.1)
        assert choice().plans[flip.alternative] is rival
    elif expected > 2.9:
        assert flip is None
    assert rivals.flip(price, price.ends[0]) is None  # cheaper than the best it stays the best


def test_an_answer_that_chose_among_hardware_has_a_page_and_an_explanation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    material = gather(choice(), swings=False)
    said = words_of(render(answer_page(material)))
    assert choice().plans[0].deployment["hardware"] in said
    path = tmp_path / "answer.json"
    path.write_text(choice().model_dump_json())
    assert run_command("plan", app, ["whatif", str(path), "--rate", "x0.5"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= PIPED
