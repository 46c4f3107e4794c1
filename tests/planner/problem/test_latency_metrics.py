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
from planner.evaluation.steady_state import RequestWindow
from planner.problem.latency_metrics import LATENCY_METRICS
from planner.problem.metric_definition import ExpectedTimes, LatencyMetric, LeastTimes, not_reported
from planner.problem.slo import Slo
from simulator.cluster.simulate import run_rules
from tests.simulator.worlds import Linear, requests, rules

SOURCES = Path(planner.__file__).parent

#: The registry, and the files of metrics that it lists.
REGISTRY = {SOURCES / "problem" / name for name in ("latency_metrics.py", "normalized_latency.py")}

every_metric = pytest.mark.parametrize("metric", LATENCY_METRICS.values(), ids=list(LATENCY_METRICS))


def names_spelled(source: Path) -> set[str]:
    """Return the metric names that are string literals of a file."""
    nodes = ast.walk(ast.parse(source.read_text()))
    return {n.value for n in nodes if isinstance(n, ast.Constant) and n.value in LATENCY_METRICS}


def test_only_the_registry_spells_metric_names() -> None:
    assert set[str]().union(*map(names_spelled, REGISTRY)) == set(LATENCY_METRICS)
    assert {
        path.name: found for path in SOURCES.rglob("*.py") if path not in REGISTRY and (found := names_spelled(path))
    } == {
        "inference_result.py": {"task"},  # an inference task
        "measurement_records.py": {"session"},  # the requests between two starts of a server
    }


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
    least = LeastTimes(np.full(3, 0.5), 0.01, np.full(3, 200), np.full(3, 101))
    expected = ExpectedTimes(lambda _: 0.5, 0.01, 200.0, 101.0)
    assert metric.floor(least) == pytest.approx(np.full(len(metric.floor(least)), metric.guess(expected, None)))


@every_metric
def test_prefill_on_other_replicas_counts_where_it_is_part_of_the_latency(metric: LatencyMetric) -> None:
    alone = metric.guess(ExpectedTimes(lambda _: 0.5, 0.01, 200.0, 101.0), None)
    added = metric.guess(ExpectedTimes(lambda _: 0.5, 0.01, 200.0, 101.0, other_prefill_s=10.0), None) - alone
    assert (added > 0) == (len(metric.pools) == 2)


@every_metric
def test_measured_values_are_finite(metric: LatencyMetric) -> None:
    one, two = np.array([1.0, math.nan]), np.array([0.2, 0.3])
    run = MeasuredRun("toy", "toy", two, two, np.array([1.0, 2.0]), one, one, one, one, 1.0, 0)
    assert len(metric.measured(run)) == (metric.measured is not not_reported)


def test_normalised_latency_is_the_end_to_end_latency_over_the_tokens() -> None:
    e2e, normalized, total = (LATENCY_METRICS[name] for name in ("e2e", "normalized", "normalized_total"))
    run = run_rules(rules(), Linear(), requests([0.0, 0.5], [4, 12], [5, 2]))
    window = RequestWindow(run, run.completed)
    assert normalized.samples(window).tolist() == (e2e.samples(window) / [5, 2]).tolist()
    assert total.samples(window).tolist() == (e2e.samples(window) / [9, 14]).tolist()
    least = LeastTimes(np.array([0.5]), 0.1, np.array([5]), np.array([6]))
    assert normalized.floor(least) == pytest.approx([1.0 / 6])
    assert total.floor(least) == pytest.approx([1.0 / 11])


def test_a_condition_selects_requests_everywhere() -> None:
    """Samples, floors and measured values of a metric on a condition are those of the requests that fulfil it."""
    run = run_rules(rules(), Linear(), requests([0.0, 0.5, 0.5], [4, 12, 5], [5, 2, 1]))
    window = RequestWindow(run, run.completed)
    short = LATENCY_METRICS["e2e[in<12]"]
    assert short.samples(window).tolist() == run.e2e_s[[0, 2]].tolist()
    assert short.of_same_requests(window, run.queue_s).tolist() == run.queue_s[[0, 2]].tolist()
    assert LATENCY_METRICS["tpot[in<12]"].samples(window).tolist() == run.tpot_s[[0]].tolist()
    least = LeastTimes(np.array([0.5, 0.7]), 0.1, np.array([5, 50]), np.array([6, 1]))
    assert LATENCY_METRICS["e2e[in>=12]"].floor(least).tolist() == [0.7]
    two = np.array([1.0, 2.0])
    measured = MeasuredRun("toy", "toy", two, np.array([5.0, 50.0]), two, two, two, two, two, 1.0, 0)
    assert LATENCY_METRICS["e2e[in>=12]"].measured(measured).tolist() == [2.0]
    assert short.involves("prefill")
    assert short.histograms == ()
    assert list(LATENCY_METRICS) == ["ttft", "tpot", "itl", "e2e", "normalized", "normalized_total", "session", "task"]


@pytest.mark.parametrize("name", ["lunch", "lunch[in<5]", "e2e[in<5", "e2e[]", "e2e[in<0]", "itl[in<5]", ""])
def test_names_that_are_no_metric(name: str) -> None:
    assert name not in LATENCY_METRICS
