"""Users simulated as they wait and think: against the finite-source queue, and what slower steps would do."""

from __future__ import annotations

import json
from math import perm
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from calibration.accuracy.stated_error import StatedError
from catalogs.engines.profile import HostTimes
from catalogs.ui.entry_point import run_command
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.workload import Workload, load_workload
from planner.answer.plan_schema import Plan
from planner.cli.main import app
from planner.evaluation.observation import Load, Observation
from planner.problem.slo import parse_slos
from planner.sections.users import (
    ClosedLoopEvaluator,
    Users,
    UsersInClosedLoop,
    UsersSection,
    closed_loop,
    slo_row,
)
from simulator.cluster.run import Run
from simulator.cluster.simulate import run_rules
from simulator.core.batch import BatchShape
from simulator.schedulers.rules import EngineRules
from tests.planner.screen_intervals import unlabelled_intervals

TOKEN_S = 1e-3
MEAN_TOKENS = 1000
FREE = HostTimes(**dict.fromkeys((f for f in HostTimes.__dataclass_fields__ if f != "source"), 0.0))  # type: ignore[arg-type]
ONE_SEAT = EngineRules(
    max_num_seqs=1,
    max_num_batched_tokens=64,
    max_model_len=10**6,
    kv_blocks=10**7,
    host=FREE,
    block_size=4,
    lag=0,
)


class Steady:
    """Every step takes TOKEN_S."""

    def __init__(self, factor: float = 1.0) -> None:
        self.step_s = TOKEN_S * factor

    def cycle_s(self, shape: BatchShape) -> float:  # noqa: ARG002
        return self.step_s

    def decode_segment(self, decodes: int, context_sum: int, context_max: int) -> tuple[float, float, int]:  # noqa: ARG002
        return self.step_s, 0.0, 1 << 40


class Exponential(Workload):
    """Service times are exponential with a mean of a second."""

    def materialise(
        self, seed: int | None = None, n_requests: int | None = None, requests_per_s: float | None = None
    ) -> RequestSet:
        n = n_requests or 1
        drawn = np.random.default_rng([seed or 0, 3]).exponential(MEAN_TOKENS, n)
        tokens = np.maximum(1, np.rint(drawn)).astype(np.int64)
        return RequestSet(np.arange(n) / (requests_per_s or 1.0), np.ones(n, dtype=np.int64), tokens)


def desk(factor: float = 1.0, n: int = 3000) -> ClosedLoopEvaluator:
    plain = load_workload("lmsys-turns")

    def serve(requests: RequestSet) -> Run:
        return run_rules(ONE_SEAT, Steady(factor), requests)

    return ClosedLoopEvaluator(
        serve, Exponential(plain.name, plain.source, plain.content), parse_slos(["e2e.mean=3s"]), n, 0
    )


def throughput(users: int, think_s: float) -> float:
    """M/M/1 with a finite source, a mean service of a second."""
    empty = 1.0 / sum(perm(users, k) * think_s**-k for k in range(users + 1))
    return 1.0 - empty


@pytest.mark.parametrize(("users", "think_s"), [(4, 4.0), (3, 12.0)])
def test_a_few_users_of_one_server(users: int, think_s: float) -> None:
    block = closed_loop(desk(), Users(users, think_s), 0.9, StatedError("none", 0.05, {}), 0.9)
    expected = throughput(users, think_s)
    assert block.requests_per_s == pytest.approx(expected, rel=0.04)
    assert block.ci_low_per_s is not None
    assert block.ci_high_per_s is not None
    assert block.ci_low_per_s < expected < block.ci_high_per_s
    mean_s = block.slo[0].value_s
    assert mean_s is not None
    assert mean_s == pytest.approx(users / expected - think_s, rel=0.12)  # interactive response time law
    assert block.slo[0].met is (mean_s <= 3.0)
    caveat = UsersSection().caveat(block, cast("Plan", None))
    missed = f"In a closed loop of {users} users, e2e.mean is missed at the required confidence."
    assert caveat == ("" if block.slo[0].met else missed)


def test_slower_steps_are_the_same_run_rescaled() -> None:
    """Steps that take 1.5 times as long: users who think Z / 1.5 at the original speed, the clock rescaled."""
    slow = desk(1.5, 500).observe(Users(4, 6.0))
    same = desk(1.0, 500).observe(Users(4, 6.0 / 1.5))
    assert slow.load.requests_per_s == pytest.approx(same.load.requests_per_s / 1.5, rel=1e-6)
    assert slow.samples_s["e2e"] == pytest.approx(1.5 * same.samples_s["e2e"], rel=1e-6)


def span(block: UsersInClosedLoop) -> tuple[float, float, float]:
    """Return (low, value, high) of the first objective in seconds."""
    row = block.slo[0]
    found = row.ci_low_s, row.value_s, row.ci_high_s
    assert None not in found
    return cast(tuple[float, float, float], found)


def test_the_greater_the_error_the_wider_the_interval() -> None:
    narrow, wide = (
        closed_loop(desk(n=500), Users(4, 4.0), 0.9, StatedError("none", error, {}), 0.9) for error in (0.01, 0.3)
    )
    for block in (narrow, wide):
        low, value, high = span(block)
        assert low < value < high
    assert span(wide)[2] > span(narrow)[2]
    assert wide.ci_low_per_s is not None
    assert narrow.ci_low_per_s is not None
    assert wide.ci_low_per_s < narrow.ci_low_per_s


def test_the_chance_of_the_first_seed_does_not_move_the_interval() -> None:
    """Only the first seed is repeated with slower steps; what it has more or less than all seeds is no such effect."""

    def loop(value_s: float) -> Observation:
        return Observation(Load(1.0, 10, 0), {"e2e": np.full(10, value_s)}, 10, 0.0)

    (slo,), exact = parse_slos(["e2e.mean=3.3s"]), StatedError("none", 0.0, {})
    found = []
    for seeds_s in ((2.5, 3.0, 3.5), (3.5, 3.0, 2.5)):
        slower = [loop(seeds_s[0] * factor) for factor in (0.9, 0.95, 1.0, 1.05, 1.2)]
        found.append(slo_row(slo, [loop(value_s) for value_s in seeds_s], slower, exact, 0.9))
    low, high = found
    assert low.value_s == high.value_s == pytest.approx(3.0)
    assert (low.ci_low_s, low.ci_high_s) == pytest.approx((high.ci_low_s, high.ci_high_s))
    assert low.probability_met == pytest.approx(high.probability_met)


def test_an_answer_for_users_is_checked_by_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "a.json"
    asked = [
        "--model",
        "llama3.2-1b",
        "--slo",
        "ttft.p90=1s",
        "--hw",
        "l4",
        "--set",
        "search.trials=2",
        "--precision",
        "native",
    ]
    assert run_command("plan", app, [*asked, "--users", "30", "--set", "think_s=20", "--json", str(target)]) == 0
    loop = json.loads(target.read_text())["closed_loop"]
    assert loop["requests_per_s"] == pytest.approx(loop["open_requests_per_s"], rel=0.1)
    shown = capsys.readouterr().out
    assert "Users       30 users simulated in a closed loop" in shown
    assert unlabelled_intervals(shown) == []
