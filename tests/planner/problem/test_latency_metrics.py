"""The registry of latency metrics: each one is complete, and only the registry spells their names."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import numpy as np
import pytest

import planner
from calibration.accuracy.measured_run import MeasuredRun
from calibration.accuracy.stated_error import METRICS as STATED
from catalogs.deployments.layout import ROLES
from planner.problem.latency_metrics import LATENCY_METRICS, ExpectedTimes, LatencyMetric, LeastTimes
from planner.problem.slo import Slo

SOURCES = Path(planner.__file__).parent

REGISTRY = SOURCES / "problem" / "latency_metrics.py"

every_metric = pytest.mark.parametrize("metric", LATENCY_METRICS.values(), ids=list(LATENCY_METRICS))


def names_spelled(source: Path) -> set[str]:
    """Return the metric names that are string literals of a file."""
    nodes = ast.walk(ast.parse(source.read_text()))
    return {n.value for n in nodes if isinstance(n, ast.Constant) and n.value in LATENCY_METRICS}


def test_only_the_registry_spells_metric_names() -> None:
    assert names_spelled(REGISTRY) == set(LATENCY_METRICS)
    assert {
        path.name: found for path in SOURCES.rglob("*.py") if path != REGISTRY and (found := names_spelled(path))
    } == {}


@every_metric
def test_every_metric_has_a_stated_error_and_a_role(metric: LatencyMetric) -> None:
    assert metric.stated_error in STATED
    assert metric.involves("both")
    assert metric.is_only_of("both")
    assert [role for role in ROLES[1:] if metric.involves(role)] == list(metric.pools)
    assert sum(metric.is_only_of(role) for role in ROLES[1:]) == (len(metric.pools) == 1)


@every_metric
def test_a_limit_is_described_in_words(metric: LatencyMetric) -> None:
    described = Slo(metric.name, "p99", 0.25).words
    assert described.startswith("99 % of ")
    assert (metric.words if metric.is_per_request else metric.samples_called) in described


@every_metric
def test_the_floor_of_an_idle_engine_is_its_guess_at_a_light_load(metric: LatencyMetric) -> None:
    """Equal requests on an engine without queues: the least times are the expected ones."""
    least = LeastTimes(np.full(3, 0.5), 0.01, np.full(3, 101))
    expected = ExpectedTimes(lambda _: 0.5, 0.01, 101.0)
    assert metric.floor(least) == pytest.approx(np.full(len(metric.floor(least)), metric.guess(expected, None)))


@every_metric
def test_prefill_on_other_replicas_counts_where_it_is_part_of_the_latency(metric: LatencyMetric) -> None:
    alone = metric.guess(ExpectedTimes(lambda _: 0.5, 0.01, 101.0), None)
    added = metric.guess(ExpectedTimes(lambda _: 0.5, 0.01, 101.0, other_prefill_s=10.0), None) - alone
    assert (added > 0) == (len(metric.pools) == 2)


@every_metric
def test_measured_values_are_finite(metric: LatencyMetric) -> None:
    one, two = np.array([1.0, math.nan]), np.array([0.2, 0.3])
    run = MeasuredRun("toy", "toy", two, two, np.array([1.0, 2.0]), one, one, one, one, 1.0, 0)
    assert len(metric.measured(run)) == 1
