"""Limits in which an engine, or several behind a router, is a textbook queue: simulated means against theory, inside
their confidence interval, which has to be narrow itself.

A seat is a server where a step takes the same time however many run; a step that takes as long as it has requests
shares the processor. Service lasts as many steps as a request has output tokens, so lengths are service times.
"""

from __future__ import annotations

from math import factorial

import numpy as np
import numpy.typing as npt
import pytest
from scipy.optimize import brentq

from catalogs.deployments.queueing import Queueing
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.service_classes import ServiceLevels
from simulator.cluster.cluster import RunOptions
from simulator.cluster.run import Run
from simulator.cluster.simulate import run_rules
from tests.simulator.batch_means import half_width
from tests.simulator.worlds import Linear, rules

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

WARM_UP = 1000
MEAN_TOKENS = 2000.0
TOKEN_S = 1.0 / MEAN_TOKENS  # the mean service is one second


def assert_mean(values: FloatArray, theory: float, most: float = 0.12) -> None:
    """Theory lies in the interval of the mean, and the interval is at most this part of it."""
    kept = values[WARM_UP:]
    width = half_width(kept)
    assert width < most * theory, f"{kept.mean():.4g} +- {width:.2g} says little about {theory:.4g}"
    assert abs(kept.mean() - theory) < width, f"{kept.mean():.4g} +- {width:.2g}, theory {theory:.4g}"


def poisson(seed: int, n: int, per_s: float) -> FloatArray:
    return np.cumsum(np.random.default_rng(seed).exponential(1.0 / per_s, n))


def exponential_tokens(seed: int, n: int) -> IntArray:
    drawn = np.random.default_rng([seed, 1]).exponential(MEAN_TOKENS, n)
    return np.maximum(1, np.rint(drawn)).astype(np.int64)


def two_sizes(seed: int, n: int) -> IntArray:
    """Nine short for one long: mean 2000, squared coefficient of variation 4."""
    long = np.random.default_rng([seed, 2]).random(n) < 0.1
    return np.where(long, 14_000, 667).astype(np.int64)


LENGTHS = {"exponential": exponential_tokens, "two sizes": two_sizes}


def serve(
    arrivals: FloatArray,
    tokens: IntArray,
    seats: int,
    n_replicas: int = 1,
    router: str = "round_robin",
    **engine: object,
) -> Run:
    """Every step takes one token's time."""
    limits: dict[str, object] = {
        "max_num_seqs": seats,
        "max_num_batched_tokens": max(64, seats),
        "kv_blocks": 10**7,
        "max_model_len": 10**6,
    }
    work = RequestSet(arrivals, np.ones(len(tokens), dtype=np.int64), tokens)
    timer = Linear(base_s=TOKEN_S)
    return run_rules(rules(**limits | engine), timer, work, n_replicas, RunOptions(router=router))


def test_a_short_queue_is_m_m_1_k() -> None:
    """One seat and two places to wait: the share turned away is (1 - rho) rho^3 / (1 - rho^4)."""
    n, rho = 40_000, 0.9
    run = serve(poisson(11, n, rho), exponential_tokens(11, n), 1, queueing=Queueing(max_waiting=2))
    assert_mean(run.rejected.astype(float), (1.0 - rho) * rho**3 / (1.0 - rho**4))


def test_priorities_are_cobhams() -> None:
    """M/G/1 whose server takes the most urgent next: the class with loads a before it and b with it waits
    R / ((1 - a) (1 - b)) on average, R = arrival rate E[S^2] / 2 (Cobham 1954)."""
    n, rho = 60_000, 0.7
    urgent = np.random.default_rng(12).random(n) < 0.4
    endless = np.full(n, np.inf)
    work = RequestSet(
        poisson(12, n, rho),
        np.ones(n, dtype=np.int64),
        exponential_tokens(12, n),
        terms=ServiceLevels(np.where(urgent, 0, 1), endless, endless),
    )
    engine = rules(max_num_seqs=1, kv_blocks=10**7, max_model_len=10**6, queueing=Queueing(order="priority"))
    run = run_rules(engine, Linear(base_s=TOKEN_S), work)
    assert_mean(run.queue_s[urgent], rho / (1.0 - 0.4 * rho), most=0.15)
    assert_mean(run.queue_s[~urgent], rho / ((1.0 - 0.4 * rho) * (1.0 - rho)), most=0.25)


def erlang_c(servers: int, load: float) -> float:
    """Probability to wait in M/M/k with `load` servers busy on average."""
    waits = load**servers / factorial(servers) * servers / (servers - load)
    return waits / (sum(load**i / factorial(i) for i in range(servers)) + waits)


def test_one_seat_and_constant_service_is_m_d_1() -> None:
    """Pollaczek-Khinchine: mean wait = rho S / (2 (1 - rho)), S = 1 s."""
    n, rho = 30_000, 0.7
    ones = np.ones(n, dtype=np.int64)
    run = run_rules(rules(max_num_seqs=1), Linear(), RequestSet(poisson(1, n, rho), 8 * ones, ones))
    assert_mean(run.queue_s, rho / (2.0 * (1.0 - rho)))


@pytest.mark.parametrize("lengths", LENGTHS)
def test_one_seat_is_m_g_1(lengths: str) -> None:
    """Pollaczek-Khinchine: mean wait = arrival rate E[S^2] / (2 (1 - rho)), the moments those of the lengths."""
    n, rho = 40_000, 0.5
    second_moment_s2 = {"exponential": 2.0, "two sizes": (0.1 * 14_000**2 + 0.9 * 667**2) * TOKEN_S**2}[lengths]
    run = serve(poisson(3, n, rho), LENGTHS[lengths](3, n), seats=1)
    assert_mean(run.queue_s, rho * second_moment_s2 / (2.0 * (1.0 - rho)), most=0.15)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_steps_proportional_to_the_batch_are_processor_sharing(lengths: str) -> None:
    """M/G/1-PS: the mean sojourn is S / (1 - rho), whatever the distribution of lengths."""
    n, rho = 30_000, 0.6
    engine = rules(max_num_seqs=500, max_num_batched_tokens=4096, kv_blocks=10**7, max_model_len=10**6)
    timer = Linear(base_s=0.0, decode_s=TOKEN_S, prompt_token_s=TOKEN_S)
    work = RequestSet(poisson(2, n, rho), np.ones(n, dtype=np.int64), LENGTHS[lengths](2, n))
    assert_mean(run_rules(engine, timer, work).e2e_s, 1.0 / (1.0 - rho))


def test_in_processor_sharing_a_request_waits_in_proportion_to_its_length() -> None:
    """M/G/1-PS: a request of length x takes x / (1 - rho)."""
    n, rho = 30_000, 0.6
    engine = rules(max_num_seqs=500, max_num_batched_tokens=4096, kv_blocks=10**7, max_model_len=10**6)
    timer = Linear(base_s=0.0, decode_s=TOKEN_S, prompt_token_s=TOKEN_S)
    tokens = two_sizes(5, n)
    run = run_rules(engine, timer, RequestSet(poisson(5, n, rho), np.ones(n, dtype=np.int64), tokens))
    for size, most in ((667, 0.1), (14_000, 0.15)):
        own = run.e2e_s[tokens == size]
        width = half_width(own[100:])
        assert width < most * size * TOKEN_S / (1.0 - rho)
        assert abs(own[100:].mean() - size * TOKEN_S / (1.0 - rho)) < width


@pytest.mark.parametrize(("seats", "rho"), [(2, 0.8), (4, 0.8)])
def test_seats_are_servers_of_m_m_k(seats: int, rho: float) -> None:
    """Erlang C: mean wait = P(wait) S / (k (1 - rho))."""
    n = 40_000
    run = serve(poisson(4, n, rho * seats), exponential_tokens(4, n), seats)
    assert_mean(run.queue_s - TOKEN_S / 2.0, erlang_c(seats, rho * seats) / (seats * (1.0 - rho)), most=0.25)


def test_endless_seats_are_m_g_infinity() -> None:
    """Nobody waits beyond the step in flight, and the mean number in service is arrival rate x S."""
    n, per_s = 20_000, 12.0
    run = serve(poisson(6, n, per_s), two_sizes(6, n), seats=400)
    assert run.queue_s.max() <= TOKEN_S + 1e-9
    log = run.logs[0]
    running = float((log.steps * (log.decodes + log.prefill_chunks)).sum()) * TOKEN_S / float(run.arrival_s[-1])
    assert running == pytest.approx(per_s, rel=0.03)


def test_random_routing_makes_independent_m_m_1() -> None:
    """A Poisson stream split at random is Poisson streams: mean wait = rho S / (1 - rho) at each of three."""
    n, rho = 45_000, 0.5
    run = serve(poisson(7, n, 3 * rho), exponential_tokens(7, n), 1, 3, "random")
    assert_mean(run.queue_s, rho / (1.0 - rho))


def test_round_robin_is_e_k_m_1() -> None:
    """Every second arrival of a Poisson stream: GI/M/1 with Erlang-2 gaps. With A* their Laplace transform and sigma
    the root below one of sigma = A*((1 - sigma) / S): mean wait = sigma S / (1 - sigma)."""
    n, rho, k = 60_000, 0.8, 2
    run = serve(poisson(8, n, k * rho), exponential_tokens(8, n), 1, k)
    sigma = float(brentq(lambda x: (k * rho / (k * rho + 1.0 - x)) ** k - x, 0.0, 1.0 - 1e-6))
    assert_mean(run.queue_s, sigma / (1.0 - sigma), most=0.2)


def shorter_of_two(rho: float, longest: int = 60) -> float:
    """Mean sojourn of two M/M/1 queues fed by joining the shorter one: the stationary distribution of (shorter,
    longer), solved numerically; S = 1."""
    states = [(a, b) for b in range(longest + 1) for a in range(b + 1)]
    place = {state: i for i, state in enumerate(states)}
    rates = np.zeros((len(states), len(states)))
    for (a, b), i in place.items():
        moves = [((a + 1, b), 2.0 * rho), ((a - 1, b), 1.0), ((a, b - 1), 1.0)]
        for to, rate in moves:
            ordered = (min(to), max(to))
            if ordered in place:
                rates[i, place[ordered]] += rate
    np.fill_diagonal(rates, rates.diagonal() - rates.sum(axis=1))
    system = np.vstack([rates.T[:-1], np.ones(len(states))])
    share = np.linalg.solve(system, np.append(np.zeros(len(states) - 1), 1.0))
    return float(share @ [a + b for a, b in states]) / (2.0 * rho)


def test_least_outstanding_is_joining_the_shorter_queue() -> None:
    """Two replicas with one seat each, against the Markov chain; better than a random choice (1 / (1 - rho)), worse
    than one queue before both (Erlang C)."""
    n, rho = 60_000, 0.8
    theory = shorter_of_two(rho)
    assert 1.0 + erlang_c(2, 2 * rho) / (2.0 * (1.0 - rho)) < theory < 1.0 / (1.0 - rho)
    run = serve(poisson(9, n, 2 * rho), exponential_tokens(9, n), 1, 2, "least_outstanding")
    assert_mean(run.e2e_s, theory, most=0.15)


def test_power_of_two_is_the_supermarket_model() -> None:
    """Of very many queues the longest-run share with i or more is rho^(2^i - 1) (Mitzenmacher 1996): the mean sojourn
    is the sum of rho^(2^i - 2), with 100 replicas within a few per cent of it."""
    n, rho, replicas = 60_000, 0.8, 100
    run = serve(poisson(10, n, rho * replicas), exponential_tokens(10, n), 1, replicas, "power_of_two")
    theory = sum(rho ** (2**i - 2) for i in range(1, 8))
    assert run.e2e_s[10_000:].mean() == pytest.approx(theory, rel=0.04)
