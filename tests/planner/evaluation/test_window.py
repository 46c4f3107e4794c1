"""The steady window of runs whose steady part is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogs.deployments.schema import Deployment
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.workload import load_workload
from planner.economics.rack_power import most_w
from planner.evaluation.steady_state import (
    MOST_DRAIN,
    MOST_WARM_UP,
    WARM_UP,
    RequestWindow,
    WindowStatistics,
    finish_s,
    joules_per_output_token,
    seat_share,
    steady_window,
)
from planner.problem.latency_metrics import LATENCY_METRICS
from planner.problem.slo import parse_slos
from simulator.analysis.energy import joules_drawn, pool_uses
from simulator.analysis.metrics import summarise
from simulator.cluster.compiled import compile_deployment
from simulator.cluster.simulate import simulate


def test_a_filling_system_is_measured_after_two_residence_times() -> None:
    arrival_s = np.arange(1000.0)
    window = steady_window(arrival_s, arrival_s + 150)
    assert np.flatnonzero(window.measured)[0] == 300
    assert np.flatnonzero(window.measured)[-1] == 899
    assert window.growth_fraction == pytest.approx(0, abs=0.003)


def test_an_overloaded_server_grows_by_its_overload() -> None:
    arrival_s = np.arange(2000.0)
    finish_s = 1.25 * np.arange(1, 2001)
    assert steady_window(arrival_s, finish_s).growth_fraction == pytest.approx(0.2, abs=0.01)


def test_a_rejected_request_stays_in_the_system() -> None:
    arrival_s = np.arange(1000.0)
    finish_s = np.where(np.arange(1000) % 5 == 0, np.inf, arrival_s + 1)
    assert steady_window(arrival_s, finish_s).growth_fraction == pytest.approx(0.2, abs=0.01)


@given(st.integers(2, 300), st.floats(0, 1000), st.integers(0, 99))
def test_some_requests_are_measured_and_never_the_first_tenth(n: int, stay_s: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(size=n))
    measured = steady_window(arrival_s, arrival_s + stay_s * rng.random(n)).measured
    assert measured.any()
    assert not measured[: int(WARM_UP * n)].any()
    assert measured.sum() >= int(n * (1 - MOST_WARM_UP - MOST_DRAIN)) - 1


def test_energy_of_a_short_run_leaves_filling_and_draining_out() -> None:
    plant = compile_deployment(Deployment(model="llama3.1-8b", hardware="h100"))
    done = simulate(plant, load_workload("lmsys-turns").materialise(1, 400, 20.0))
    seen = steady_window(done.arrival_s, finish_s(done)).measured
    steady = joules_per_output_token(done, seen, stable=True)
    whole = joules_per_output_token(done, seen, stable=False)
    assert whole == summarise(done)["metrics"]["energy"]["total_j_per_output_token"]
    assert steady < whole
    tokens_per_s = 20.0 * done.requests.output_tokens[seen].mean()
    assert steady * tokens_per_s < most_w(plant.resolved.hardware)


def test_the_parts_of_a_run_draw_what_the_whole_draws() -> None:
    plant = compile_deployment(Deployment(model="llama3.1-8b", hardware="h100", replicas=1))
    done = simulate(plant, load_workload("lmsys-turns").materialise(1, 100, 5.0))
    first_s, last_s = done.span_s
    half_s = (first_s + last_s) / 2
    parts = sum(joules_drawn(pool_uses(done, within_s)) for within_s in ((first_s, half_s), (half_s, last_s)))
    drawn = joules_drawn(pool_uses(done, done.span_s))
    assert parts == pytest.approx(drawn, rel=1e-2)
    whole = summarise(done)["metrics"]["energy"]["total_j_per_output_token"] * done.requests.output_tokens.sum()
    assert drawn == pytest.approx(whole, rel=1e-3)


def test_a_window_counts_requests_with_enough_tokens_and_lost_ones_as_infinite() -> None:
    done = simulate(
        compile_deployment(Deployment(model="llama3.1-8b", hardware="h100")),
        RequestSet(np.zeros(4), np.full(4, 100), np.array([1, 5, 5, 5])),
    )
    mask = np.array([True, True, True, False])
    window = RequestWindow(done, mask)
    assert window.per_request(np.array([1.0, np.nan, 3.0, 4.0])).tolist() == [1.0, np.inf, 3.0]
    assert LATENCY_METRICS["tpot"].samples(window).tolist() == done.tpot_s[1:3].tolist()
    lost = RequestWindow(done, mask, lost=np.array([False, False, True, True]))
    assert LATENCY_METRICS["tpot"].samples(lost).tolist() == [done.tpot_s[1], np.inf]


def test_gaps_between_tokens_are_collected_only_for_an_objective_on_them() -> None:
    plain = WindowStatistics.of(parse_slos(["ttft.p99=1s"]))
    assert plain == WindowStatistics()
    assert set(WindowStatistics.of(parse_slos(["itl.p99=1s"])).metrics) - set(plain.metrics) == {"itl"}


def test_the_share_of_seats_in_use_is_that_of_the_fullest_batch() -> None:
    """Ten requests at once take ten of the seats; more than the seats, or a full KV cache, count as all of them."""
    n = 10
    alike = RequestSet(np.zeros(n), np.full(n, 200), np.full(n, 50))

    def share(**limits: object) -> float:
        given = {"model": "llama3.1-8b", "hardware": "h100", "max_model_len": 512, **limits}
        return seat_share(simulate(compile_deployment(Deployment.model_validate(given)), alike))

    assert share(max_num_seqs=64) == pytest.approx(10 / 64)
    assert share(max_num_seqs=16) == pytest.approx(10 / 16)
    assert share(max_num_seqs=8) == 1.0
    assert share(max_num_seqs=64, kv_blocks=60) == 1.0  # each request needs 16 blocks
    assert share(max_num_seqs=64, engine="transformers") == 1.0  # its scheduler does not tell
