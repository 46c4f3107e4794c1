"""Blocks of an answer: keys that are set, numbers that are finite, and one builder of every objective row."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from calibration.accuracy.regime import UNKNOWN, Regime
from calibration.accuracy.spread_fit import RunSet, fit
from calibration.accuracy.stated_error import METRICS, StatedError
from catalogs.errors import InputError
from catalogs.io.json_block import JsonBlock, every_key_set
from planner.answer.answer_schema import SearchSummary
from planner.answer.plan_schema import CalibrationBlock, CurvePoint, Plan, SloResult, SloValue
from planner.cli.screens.plan import show
from planner.evaluation.confidence import Confidence
from planner.problem.latency_metrics import LATENCY_METRICS
from planner.problem.slo import Slo
from planner.sections.full_answer import parse_answer
from planner.sections.power_limits import NamedSloValue

SLO = Slo("ttft", "p99", 2.0)


class Toy(JsonBlock):
    value_s: float | None
    count: int = 3
    inner: Toy | None = None


def test_a_block_writes_the_keys_that_are_set_and_null_for_what_is_not_finite() -> None:
    block = Toy(value_s=math.inf, inner=Toy(value_s=1.0, count=3))
    assert block.value_s is None
    assert block.document() == {"value_s": None, "inner": {"value_s": 1.0, "count": 3}}
    assert every_key_set(Toy(value_s=1.0)).document() == {"value_s": 1.0, "count": 3, "inner": None}


def test_keys_of_a_newer_version_are_ignored_and_text_is_no_number() -> None:
    assert Toy.model_validate_json('{"value_s": 1.5, "newer": true}') == Toy(value_s=1.5)
    with pytest.raises(ValidationError):
        Toy.model_validate_json('{"value_s": "1.5"}')


def test_every_kind_of_objective_row_has_its_own_keys() -> None:
    named = NamedSloValue.of(SLO, math.inf)
    assert named.document() == {"name": "ttft.p99", "limit_s": 2.0, "value_s": None}
    plain = SloValue.of(SLO, 1.5)
    assert plain.document() == {"metric": "ttft", "stat": "p99", "limit_s": 2.0, "value_s": 1.5}
    row = SloResult.of(SLO, 1.5, Confidence(1.5, 1.0, math.inf, 0.8))
    assert row.document() == {
        **plain.document(),
        "ci_low_s": 1.0,
        "ci_high_s": None,
        "met": True,
        "probability_met": 0.8,
        "value_at_confidence_s": None,
    }
    assert not SloResult.of(SLO, 1.5, Confidence(1.5, 1.0, math.inf, 0.8), 0.9).met
    assert SloResult.of(SLO, 1.5, Confidence(1.5, 1.0, 2.0, 0.8), ci_level=0.9).document()["ci_level"] == 0.9


@pytest.mark.parametrize(("value_s", "stable"), [(2.5, True), (1.5, False), (math.inf, True), (math.nan, True)])
def test_a_limit_that_is_missed_or_a_growing_queue_is_not_met(value_s: float, stable: bool) -> None:
    row = SloResult.of(SLO, value_s, Confidence(value_s, math.nan, math.nan, math.nan), stable=stable)
    assert not row.met
    assert row.probability_met == 0.0


def test_a_plan_that_cannot_start_has_null_for_every_figure() -> None:
    data = Plan.unstarted({"hardware": "l4"}, None).document()
    figures = {k: v for k, v in data.items() if k not in ("deployment", "slo")}
    assert set(figures.values()) == {None}
    assert "curve" not in data


def test_a_curve_point_has_one_key_for_each_metric_that_was_measured() -> None:
    head = {"requests_per_s": 2.0, "whole_cluster": False, "n_seeds": 1, "n_measured": 900, "stable": True, "met": True}
    for measured in (["ttft", "tpot", "e2e"], list(LATENCY_METRICS)):
        stats = {f"{name}_s": {"mean": 0.5 + i, "p99": 1.0 + i} for i, name in enumerate(measured)}
        point = CurvePoint.model_validate(head | stats)
        assert list(point.document().items()) == list((head | stats).items())
        assert [point.of(name).at("p99") for name in LATENCY_METRICS] == [
            stats[f"{name}_s"]["p99"] if name in measured else None for name in LATENCY_METRICS
        ]


def test_all_reasons_of_the_bounds_are_kept_and_the_main_ones_add_up() -> None:
    reasons = {f"reason {i}": 10 - i for i in range(7)}
    few, many = (
        SearchSummary(
            n_space=99, n_bounded_out=0, n_simulated=0, n_pruned=0, seconds=0.0, seed=0, method="", bounded_out=found
        )
        for found in (dict(list(reasons.items())[:4]), reasons)
    )
    assert few.main_reasons == few.bounded_out
    assert many.bounded_out == reasons
    assert list(many.main_reasons)[:3] == list(reasons)[:3]
    assert list(many.main_reasons)[3].startswith("one of 4 other reasons")
    assert sum(many.main_reasons.values()) == sum(reasons.values())


CORPUS = Path(__file__).resolve().parents[2] / "fuzz" / "corpus"


KEYS = ["coverage", "n", "source", "ttft", "ttft_waiting_share", "generation", "layers", "e2e", "power"]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    "value", [None, "x", True, [], {}, [[]], ["a", "b"], [1.0, None], {"ttft": None}, {"a": []}, math.inf]
)
def test_stated_errors_of_any_content_are_read_or_refused(key: str, value: object) -> None:
    data = json.loads((CORPUS / "answer.json").read_text())
    show(parse_answer(data))
    data["best"]["calibration"]["stated_error"][key] = value
    refusal = ""
    try:
        show(parse_answer(data))
    except InputError as error:
        refusal = str(error)
    assert not refusal or "stated_error" in refusal


@pytest.mark.parametrize("regime", [Regime("hopper", "dense"), Regime("ampere", "other"), UNKNOWN])
def test_every_key_of_a_fresh_fit_is_read_by_the_schema(regime: Regime) -> None:
    rng = np.random.default_rng(1)
    n, learned = 60, (Regime("hopper", "dense"), Regime("blackwell", "other"))
    about = {
        "regimes": tuple(learned[i % 2] for i in range(n)),
        "models": tuple(f"model {i % 5}" for i in range(n)),
        "waiting_shares": rng.uniform(size=n),
    }
    logs, operators = 0.1 * rng.standard_normal(n), np.full(n, 0.05)
    groups = fit([RunSet("toy", metric, "toy runs", logs, operators, **about) for metric in METRICS])  # type: ignore[arg-type]
    stated = StatedError("toy", 0.05, {g.metric: g for g in groups}, 0.5, regime).block()
    answered = json.loads(json.dumps(stated))
    kinds = ("measured_fraction", "interpolated_fraction", "roofline_fraction", "expected_error")
    read = CalibrationBlock(bundle="toy", stated_error=answered, **dict.fromkeys(kinds, 0.1))
    assert read.stated_error == stated
    assert set(read.intervals) == set(METRICS)
    assert read.regime == regime
    assert ("n_of_regime" in stated) == (regime != UNKNOWN)
