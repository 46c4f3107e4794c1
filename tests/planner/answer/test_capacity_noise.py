"""The noise of a capacity: that of the objective's value between seeds, over the slope of its latency curve."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from catalogs.hardware.catalog import parse_hardware
from catalogs.statistics import student_t_quantile
from planner.answer.capacity_noise import LEAST_NOTICED, RANGE_LEVEL, capacity_noise, capacity_notices, piece_notices
from planner.evaluation.observation import Load, Observation, TracePiece
from planner.evaluation.simulated_evaluator import SimulatedEvaluator
from planner.evaluation.verdict import Verdict, judge
from planner.problem.request import PlanRequest
from planner.problem.slo import Slo, parse_slos

SLO = Slo("ttft", "mean", 2.0)

CAPACITY_PER_S = 10.0


def verdict(rate_per_s: float, slope: float, seeds: tuple[float, ...]) -> Verdict:
    """The mean is the limit at the capacity, rises with a power of the rate, and has a factor for each seed."""
    values_s = [SLO.limit_s * (rate_per_s / CAPACITY_PER_S) ** slope * seed for seed in seeds]
    loads = [Load(rate_per_s, 4, number) for number in range(len(seeds))]
    runs = [Observation(load, {"ttft": np.full(4, v)}, 4, 0.0) for load, v in zip(loads, values_s, strict=True)]
    return judge(runs, [SLO])


def noise_of(slope: float, seeds: tuple[float, ...]) -> float:
    around = [verdict(CAPACITY_PER_S * k, slope, (1.0, 1.0)) for k in (0.3, 0.7, 0.88, 1.0, 1.08)]
    return capacity_noise(SLO, verdict(CAPACITY_PER_S, slope, seeds), around)


@pytest.mark.parametrize("slope", [0.4, 1.0, 5.0])
def test_the_noise_of_the_value_over_the_slope(slope: float) -> None:
    """Two seeds at factors e^-0.05 and e^0.05: a standard error of 0.05, with one degree of freedom."""
    found = noise_of(slope, (math.exp(-0.05), math.exp(0.05)))
    assert found == pytest.approx(student_t_quantile(1, (1 + RANGE_LEVEL) / 2) * 0.05 / slope)


def test_equal_seeds_and_one_seed_have_no_noise() -> None:
    assert noise_of(0.4, (1.0, 1.0, 1.0)) == 0.0
    assert noise_of(0.4, (1.1,)) == 0.0


def test_a_value_that_does_not_rise_tells_nothing_about_the_capacity() -> None:
    assert noise_of(0.0, (0.99, 1.01)) == math.inf


def test_the_notice_names_the_objective_where_the_capacity_is_uncertain() -> None:
    seeds = (0.9, 0.97, 1.03, 1.1)
    for slope in (0.3, 3.0):
        around = [verdict(CAPACITY_PER_S * k, slope, (1.0, 1.0)) for k in (0.7, 1.08)]
        found = capacity_notices(SLO, verdict(CAPACITY_PER_S, slope, seeds), around)
        assert bool(found) == (noise_of(slope, seeds) > LEAST_NOTICED) == (slope < 1)
        assert all(notice.startswith("ttft.mean rises slowly") for notice in found)


def details(values_s: tuple[float, ...], pieces: tuple[TracePiece | None, ...]) -> Any:
    loads = [Load(1.0, 4, number) for number in range(len(values_s))]
    seen = [Observation(load, {"ttft": np.full(4, v)}, 4, 0.0) for load, v in zip(loads, values_s, strict=True)]
    return [SimpleNamespace(observation=o, piece=piece) for o, piece in zip(seen, pieces, strict=True)]


CALM, BUSY = TracePiece(1000.0, 200.0, 1.5), TracePiece(1500.0, 210.0, 4.0)


@pytest.mark.parametrize(
    ("values_s", "said"),
    [((1.0, 2.0), True), ((1.9, 2.0), False), ((0.1, 0.3), False), ((1.0, math.inf), False)],
    ids=["differ", "alike", "far below the limit", "no value"],
)
def test_pieces_of_a_trace_that_differ_are_stated(values_s: tuple[float, ...], said: bool) -> None:
    found = piece_notices(SLO, details(values_s, (CALM, BUSY)))
    assert bool(found) == said
    for notice in found:
        assert notice.startswith(
            "the 2 runs replay different pieces of the trace, between which ttft.mean is 1 s to 2 s"
        )
        assert "1,000 to 1,500 tokens in and 200 to 210 out" in notice
        assert "has 1.5 to 4 times its mean rate" in notice


def test_draws_that_are_no_pieces_of_a_trace_have_no_such_notice() -> None:
    assert piece_notices(SLO, details((1.0, 2.0), (None, None))) == []


def test_runs_of_a_trace_know_their_piece(tmp_path: Path) -> None:
    """Ten bursts of fifty requests with longer and longer prompts; a run of the whole trace is no piece of it."""
    path = tmp_path / "trace.csv"
    rows = "".join(f"{100 * (k // 50) + k % 50 * 0.01},{10 + k},{5}\n" for k in range(500))
    path.write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    request = PlanRequest(model="llama3.2-1b", hardware="l4", slos=parse_slos(["ttft.p90=1s"]), workload=str(path))
    evaluator = SimulatedEvaluator.of(request, parse_hardware("l4"))
    candidate = evaluator.space()[0]
    pieces = [evaluator.detail(candidate, Load(0.5, 250, seed, patient=False)).piece for seed in range(3)]
    for piece in pieces:  # of five bursts, the first and the last in part, one has between half and all of its requests
        assert piece is not None
        assert 25 * 20 / 250 <= piece.burst <= 50 * 20 / 250
    assert evaluator.detail(candidate, Load(0.5, 500, 0)).piece is None
