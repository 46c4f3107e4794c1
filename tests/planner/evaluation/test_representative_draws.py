"""Representative draws resemble the average of many, and the runs that they give differ less between seeds."""

from __future__ import annotations

import numpy as np
import pytest

from catalogs.deployments.schema import Deployment
from catalogs.workloads.synthetic import SyntheticWorkload
from catalogs.workloads.workload import load_workload
from planner.evaluation.observation import Load
from planner.evaluation.representative_draws import BLOCK, balanced, queue_measures, representative_seed
from planner.evaluation.runs import RunCache
from planner.evaluation.varied_workload import VariedWorkload
from simulator.cluster.compiled import compile_deployment
from simulator.cluster.simulate import simulate

TALKS = "{arrivals: {poisson: {}}, input_tokens: 40, output_tokens: 4, turns: {per_session: 2, think_time_s: 10}}"


def content_of(text: str) -> SyntheticWorkload:
    content = load_workload(text).content
    assert isinstance(content, SyntheticWorkload)
    return content


def test_the_queues_are_those_of_lindley() -> None:
    """Three requests, by hand: the second waits for the first, and the third for none."""
    arrival_s = np.array([[1.0, 1.5, 5.0], [1.0, 2.0, 3.0]])
    inputs = np.array([[2.0, 0.5, 0.5], [1.0, 1.0, 1.0]])
    found = queue_measures(arrival_s, inputs, np.ones((2, 3)))
    assert found[:, 0].tolist() == [6.0 / 5.0, 6.0 / 3.0]
    assert found[:, 1].tolist() == [1.0, 1.0]
    for busy, mean, *above in zip((0.2, 0.5, 0.8), *found[0, 2:].reshape(3, 3).T, strict=True):
        assert mean == pytest.approx((2 * busy + max(2 * busy - 0.5, 0.0) + busy / 2 + busy / 2) / 3)
        assert above == [1 / 3, 1 / 3]  # the longest time of all six
    np.testing.assert_allclose(found[1, 2:], [0.2, 0.0, 0.0, 0.5, 0.0, 0.0, 0.8, 0.0, 0.0])


def test_the_mean_time_in_a_queue_is_that_of_theory() -> None:
    """M/M/1: a server that is busy for a share u of the time has a mean time in the system of u / (1 - u)."""
    gaps, inputs = np.random.default_rng(1).exponential(size=(2, 1, 400_000))
    found = queue_measures(np.cumsum(gaps, axis=1), inputs, np.ones_like(inputs))[0, 2:].reshape(3, 3)
    np.testing.assert_allclose(found[:, 0], [0.25, 1.0, 4.0], rtol=0.06)
    np.testing.assert_allclose(found[:, 1:], [[0.05, 0.01]] * 3, rtol=0.01)


def test_a_block_is_balanced() -> None:
    """The first draw is the most typical one, and the others make up for each other."""
    measures = np.array([[-5.0], [-1.1], [0.1], [1.0], [5.0], [0.0]])
    chosen = balanced(measures, 4)
    assert chosen[0] == 5
    assert set(chosen) == {5, 2, 3, 1}


def test_draws_without_differences_keep_their_order() -> None:
    assert balanced(np.ones((8, 3)), 4) == [0, 1, 2, 3]


def test_many_measures_are_closer_to_their_means_than_those_of_plain_draws() -> None:
    measures = np.random.default_rng(3).normal(size=(50, 64, 8))
    chosen = np.array([draws[balanced(draws, BLOCK)].mean(axis=0) for draws in measures])
    plain = measures[:, :BLOCK].mean(axis=1)
    assert np.sqrt((chosen**2).mean()) < 0.5 * np.sqrt((plain**2).mean())


def test_seeds_and_blocks_share_no_draw() -> None:
    content = content_of("azure-conv")
    found = [representative_seed(content, seed, i, 200) for seed in (0, 1, 2) for i in range(2 * BLOCK)]
    assert len(set(found)) == len(found)
    assert found == [representative_seed(content, seed, i, 200) for seed in (0, 1, 2) for i in range(2 * BLOCK)]


def test_short_runs_have_the_seed_of_their_number() -> None:
    assert representative_seed(content_of("azure-conv"), 7, 2, 99) == 9


def test_a_varied_workload_has_the_draws_of_the_original() -> None:
    """Longer prompts would otherwise be compared with other requests."""
    workload = load_workload("azure-conv")
    load, part = Load(2.0, 200, seed=1), compile_deployment(Deployment(model="llama3.2-1b", hardware="l40s"))
    plain, longer, smoother = (
        RunCache(each, 0).simulate(part, 1, load, 200).requests
        for each in (
            workload,
            VariedWorkload.of(workload, input_factor=2.0),
            VariedWorkload.of(workload, burstiness=0.5),
        )
    )
    np.testing.assert_array_equal(longer.input_tokens, 2 * plain.input_tokens)
    np.testing.assert_array_equal(longer.arrival_s, plain.arrival_s)
    np.testing.assert_array_equal(smoother.input_tokens, plain.input_tokens)


def test_sessions_have_the_seed_of_the_load() -> None:
    """Turns that follow each other do not come faster at a higher rate, as the arrivals of the queues do."""
    workload = load_workload(TALKS)
    part = compile_deployment(Deployment(model="llama3.2-1b", hardware="l40s"))
    found = RunCache(workload, 3).simulate(part, 1, Load(2.0, 200, seed=5), 200).requests
    drawn = workload.materialise(5, found.n, 2.0)
    np.testing.assert_array_equal(found.input_tokens, drawn.input_tokens)


def test_runs_of_representative_draws_differ_less() -> None:
    """The 99th percentile and the mean of four runs together, on a GPU that seldom queues."""
    part = compile_deployment(Deployment(model="llama3.1-8b", hardware="l40s"))
    workload, content = load_workload("azure-conv"), content_of("azure-conv")

    def values_s(seeds: list[int]) -> list[float]:
        found = [simulate(part, workload.materialise(seed, 400, 5.0)) for seed in seeds]
        ttft_s = np.concatenate([(run.first_token_s - run.arrival_s)[40:] for run in found])
        return [float(ttft_s.mean()), float(np.quantile(ttft_s, 0.99))]

    chosen = [[representative_seed(content, 1000 * b, i, 400) for i in range(BLOCK)] for b in range(10)]
    plain = [[1000 * b + i for i in range(BLOCK)] for b in range(10)]
    spreads = [np.log([values_s(seeds) for seeds in blocks]).std(axis=0) for blocks in (chosen, plain)]
    assert (spreads[0] < 0.75 * spreads[1]).all(), spreads
