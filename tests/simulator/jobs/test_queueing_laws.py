"""Laws of queues that hold for jobs: D/D/1, Lindley, M/D/1, M/D/c, conservation, work conservation and scaling."""

from __future__ import annotations

from heapq import heapreplace
from math import inf
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogs.arrays import FloatArray
from catalogs.deployments.network_deployment import NetworkEngine
from catalogs.workloads.arrivals import Poisson
from catalogs.workloads.jobs import JobWorkload
from simulator.core import outcomes
from simulator.jobs.accelerator import fair_speeds
from simulator.jobs.batchers.registry import BATCHERS
from simulator.jobs.compiled import BatchPrice
from simulator.jobs.run import JobRun
from tests.simulator.jobs.worlds import alone, batches, constant, job_set, run, table

ENGINES = sorted(BATCHERS)


def poisson(rate: float, n: int, seed: int = 1) -> FloatArray:
    return JobWorkload(arrivals=Poisson(requests_per_s=rate), n_jobs=n, seed=seed).draw().arrival_s


def test_without_overlap_nothing_waits_and_beyond_capacity_the_wait_grows_by_the_difference() -> None:
    """D/D/1: with a gap of 3 s and jobs of 2 s no job waits; with jobs of 4 s job k waits k seconds."""
    arrivals = [3.0 * k for k in range(20)]
    assert run(job_set(arrivals), constant(2.0)).queue_s.tolist() == [0.0] * 20
    assert run(job_set(arrivals), constant(4.0)).queue_s.tolist() == [float(k) for k in range(20)]


@pytest.mark.parametrize("utilisation", [0.3, 0.7, 0.95])
def test_one_server_follows_lindley(utilisation: float) -> None:
    """The wait of the next job is max(0, wait + service - gap) (Lindley 1952)."""
    arrivals, waits = poisson(utilisation, 2000), [0.0]
    for gap in np.diff(arrivals):
        waits.append(max(0.0, waits[-1] + 1.0 - gap))
    assert run(job_set(arrivals.tolist()), constant(1.0)).queue_s == pytest.approx(waits, abs=1e-9)


@pytest.mark.parametrize("utilisation", [0.4, 0.7])
def test_the_mean_wait_is_that_of_a_queue_with_constant_service(utilisation: float) -> None:
    """M/D/1: the mean wait is utilisation * service / 2 / (1 - utilisation) (Pollaczek and Khinchine)."""
    arrivals = poisson(utilisation, 12_000, seed=3)
    found = run(job_set(arrivals.tolist()), constant(1.0)).queue_s.mean()
    assert found == pytest.approx(utilisation / 2.0 / (1.0 - utilisation), rel=0.06)


@pytest.mark.parametrize("servers", [2, 5])
def test_instances_that_do_not_share_follow_kiefer_and_wolfowitz(servers: int) -> None:
    """A job starts when the first of c servers is free (Kiefer and Wolfowitz 1955): M/D/c."""
    arrivals, free, expected = poisson(0.9 * servers, 2000), [0.0] * servers, []
    for time in arrivals.tolist():
        start = max(time, free[0])
        expected.append(start - time)
        heapreplace(free, start + 1.0)
    found = run(job_set(arrivals.tolist()), lambda *_: alone(1.0), instances=servers)
    assert found.queue_s == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("router", ["round_robin", "least_outstanding", "random", "power_of_two"])
def test_replicas_wait_at_least_as_long_as_one_queue_for_all(router: str) -> None:
    """M/D/c with one queue is a lower bound of the mean wait of c replicas with a queue each (Wolff 1989, 11-9)."""
    arrivals = job_set(poisson(3.2, 4000).tolist())
    one_queue = run(arrivals, lambda *_: alone(1.0), instances=4).queue_s.mean()
    assert run(arrivals, constant(1.0), replicas=4, router=router).queue_s.mean() >= one_queue - 1e-9


def test_the_load_decides_between_routers() -> None:
    arrivals = job_set(poisson(3.2, 4000).tolist())
    waits = {
        name: run(arrivals, constant(1.0), replicas=4, router=name).queue_s.mean()
        for name in ("least_outstanding", "power_of_two", "random")
    }
    assert waits["least_outstanding"] < waits["power_of_two"] < waits["random"]


def random_run(engine: NetworkEngine, seed: int, factor: float = 1.0) -> JobRun:
    """Return a random run; `factor` stretches all its times."""
    draw = Random(seed)
    n, shapes = draw.randint(1, 40), draw.randint(1, 3)
    times, now = [], 0.0
    for _ in range(n):
        now += factor * draw.choice([0.0, 0.125, 0.5, 2.0])
        times.append(now)
    most = draw.choice([1, 2, 4])
    limits = [factor * draw.choice([1.0, 5.0]) if draw.random() < 0.2 else inf for _ in range(n)]
    own: dict[str, Any] = {"delay_s": factor * draw.choice([0.0, 0.5])} if engine != "torch" else {}
    seconds = {k: factor * (0.25 + 0.5 * k) for k in range(1, most + 1)}
    concurrency = draw.choice([None, None, 3])
    sessions = np.array([draw.randrange(5) for _ in range(n)]) if draw.random() < 0.3 else None
    jobs = job_set(times, [draw.randrange(shapes) for _ in range(n)], timeout_s=limits, sessions=sessions)
    if concurrency is not None:
        jobs = job_set([0.0] * n, jobs.kind.tolist(), timeout_s=limits, sessions=sessions, concurrency=concurrency)
    busy = draw.choice([0.25, 1.0])

    def price(_: int, items: int) -> BatchPrice:
        return BatchPrice(seconds[items], busy * seconds[items])

    kinds = [(1, i) for i in range(len(jobs.kinds))]
    replicas, instances = draw.randint(1, 3), draw.randint(1, 2)
    return run(jobs, price, engine, replicas, kinds, max_batch=most, instances=instances, **own)


@pytest.mark.parametrize("engine", ENGINES)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_every_job_is_answered_once_in_a_batch_of_its_shape(engine: NetworkEngine, seed: int) -> None:
    """The contract of batchers: conservation, sizes, shapes, causality, and order within a shape of one replica."""
    found = random_run(engine, seed)
    served = [job for _, _, jobs in batches(found) for job in jobs]
    assert sorted(served) == np.flatnonzero(found.completed).tolist()
    assert set(found.status.tolist()) <= {outcomes.COMPLETED, outcomes.TIMED_OUT}
    assert (found.batches.items <= found.serving.rules.max_batch).all()
    done = found.completed
    assert (found.started_s[done] >= found.arrival_s[done]).all()
    for _, _, jobs in batches(found):
        assert len({(found.jobs.kind[job], found.replica[job]) for job in jobs}) == 1
    if found.jobs.sessions is None and found.jobs.concurrency is None:
        for replica in range(found.serving.replicas):
            for kind in range(len(found.jobs.kinds)):
                mine = done & (found.replica == replica) & (found.jobs.kind == kind)
                assert (np.diff(found.started_s[mine]) >= 0.0).all()


@pytest.mark.parametrize("engine", ENGINES)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_times_scale(engine: NetworkEngine, seed: int) -> None:
    """All times twice as long give a run twice as long."""
    once, twice = random_run(engine, seed), random_run(engine, seed, 2.0)
    assert (2.0 * once.ended_s).tolist() == pytest.approx(twice.ended_s.tolist(), nan_ok=True)
    assert once.status.tolist() == twice.status.tolist()


@given(seed=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_first_in_first_out_conserves_work(seed: int) -> None:
    """A job that waits starts when a batch of its replica ends: no instance is idle while a job waits."""
    found = random_run("torch", seed)
    if found.jobs.sessions is not None:
        return
    ends = {(r, t) for r, t in zip(found.batches.replica.tolist(), found.batches.end_s.tolist(), strict=True)}
    for job in np.flatnonzero(found.completed & (found.queue_s > 0.0)).tolist():
        assert (int(found.replica[job]), float(found.started_s[job])) in ends


@given(seed=st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_another_instance_never_makes_a_job_wait_longer(seed: int) -> None:
    """With one queue, constant service and an accelerator that is not shared."""
    draw = Random(seed)
    arrivals = job_set(sorted(draw.uniform(0.0, 30.0) for _ in range(40)))
    few, more = (run(arrivals, lambda *_: alone(1.0), instances=n).queue_s for n in (2, 3))
    assert (more <= few + 1e-9).all()


def test_instances_that_keep_the_accelerator_busy_gain_nothing() -> None:
    """Six jobs of 2 s whose kernels fill the time take 12 s with one instance and with three."""
    burst = job_set([0.0] * 6)
    assert run(burst, constant(2.0)).ended_s.max() == 12.0
    assert run(burst, constant(2.0), instances=3).ended_s.max() == pytest.approx(12.0)


def test_instances_hide_the_host_of_each_other() -> None:
    """Kernels run half of the time, so two instances finish in half the time, and a third one gains nothing."""
    burst = job_set([0.0] * 12)
    ends = [run(burst, constant(2.0, busy=0.5), instances=n).ended_s.max() for n in (1, 2, 3)]
    assert ends == pytest.approx([24.0, 12.0, 12.0])


def test_a_batch_slows_down_while_another_one_runs() -> None:
    """Both need 3/4 of the accelerator, so each gets 1/2 while both run: 2/3 of its speed.

    The second begins at 2 s. The first has 2 s left, which take 3 s: it ends at 5 s. The second has done 2 of its 4
    seconds by then, and ends at 7 s.
    """
    found = run(job_set([0.0, 2.0]), constant(4.0, busy=0.75), instances=2)
    assert found.ended_s.tolist() == pytest.approx([5.0, 7.0])


@given(shares=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6))
def test_the_accelerator_is_divided_max_min_fairly(shares: list[float]) -> None:
    speeds = fair_speeds(shares)
    given_shares = [share * speed for share, speed in zip(shares, speeds, strict=True)]
    assert all(0.0 < speed <= 1.0 for speed in speeds)
    assert sum(given_shares) == pytest.approx(min(1.0, sum(shares)))
    slowed = [given for given, speed in zip(given_shares, speeds, strict=True) if speed < 1.0 - 1e-9]
    assert all(given == pytest.approx(max(given_shares)) for given in slowed)


def test_a_horizon_leaves_jobs_open() -> None:
    found = run(job_set([0.0, 1.0, 50.0]), constant(4.0), horizon_s=6.0)
    assert found.status.tolist() == [outcomes.COMPLETED, outcomes.UNFINISHED, outcomes.NOT_SENT]
    assert found.span_s == (0.0, 6.0)


def test_clients_of_a_closed_loop_wait_for_their_answer() -> None:
    found = run(job_set([0.0] * 6, concurrency=2), table({1: 3.0, 2: 5.0}), max_batch=2)
    assert found.arrival_s.tolist() == [0.0, 0.0, 5.0, 5.0, 10.0, 10.0]
    waits = run(job_set([0.0] * 3, concurrency=1, think_s=np.array([1.0, 2.0, 0.5])), table({1: 3.0}))
    assert waits.arrival_s.tolist() == [1.0, 6.0, 9.5]
