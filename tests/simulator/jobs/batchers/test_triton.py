"""Triton's dynamic batcher against the reference written the long way, and its documented rules by hand."""

from __future__ import annotations

from math import inf
from random import Random
from typing import Any

import pytest

from simulator.core import outcomes
from tests.simulator.jobs.reference_batcher import RefJob, RefOptions, serve
from tests.simulator.jobs.worlds import alone, batches, job_set, run, table

#: Times are multiples of this, so that events often coincide and all sums are exact.
TICK = 0.125

STATUS = {"done": outcomes.COMPLETED, "expired": outcomes.TIMED_OUT, "full": outcomes.QUEUE_FULL}


def random_trace(seed: int) -> tuple[list[RefJob], RefOptions, dict[int, float]]:
    """Return jobs, options and seconds by batch size, from light load to overload."""
    draw = Random(seed)
    most = draw.choice([1, 2, 4, 4, 8, 8])
    kinds = draw.sample(range(1, most + 1), draw.randint(0, min(3, most)))
    limited = draw.random() < 0.4  # otherwise batches are formed ahead
    levels = draw.choice([0, 2, 3]) if limited else 0
    some_time_out = limited and draw.random() < 0.4
    options = RefOptions(
        max_batch=most,
        preferred=tuple(sorted(kinds)),
        delay_s=draw.choice([0.0, 0.0, TICK, 4 * TICK, 16 * TICK]),
        instances=draw.choice([1, 1, 2, 3]),
        priorities=levels,
        default_priority=draw.randint(1, levels) if levels else 0,
        timeout_s=draw.choice([inf, 8 * TICK, 40 * TICK]) if limited else inf,
        timeout_action=draw.choice(["reject", "delay"]),
        max_waiting=draw.choice([None, 3, 6]) if limited else None,
    )
    shapes, gap = draw.choice([1, 1, 1, 2]), draw.choice([0, 1, 2, 4])
    jobs, now = [], 0.0
    for index in range(draw.randint(1, 30)):
        now += TICK * draw.randint(0, gap)
        timeout_s = TICK * draw.randint(1, 30) if some_time_out and draw.random() < 0.5 else inf
        items = draw.choice([1, 1, 1, min(2, most)])
        jobs.append(RefJob(index, now, items, draw.randrange(shapes), draw.randint(0, levels + 1), timeout_s))
    seconds = {n: TICK * (draw.randint(1, 9) + n * draw.choice([0, 1, 3])) for n in range(1, 2 * most + 1)}
    return jobs, options, seconds


@pytest.mark.parametrize("first", range(0, 500, 50))
def test_equals_the_reference_on_500_random_traces(first: int) -> None:
    for seed in range(first, first + 50):
        jobs, options, seconds = random_trace(seed)
        combinations = sorted({(job.items, job.shape) for job in jobs})
        found = run(
            job_set(
                [job.arrival_s for job in jobs],
                [combinations.index((job.items, job.shape)) for job in jobs],
                [job.priority for job in jobs],
                [job.timeout_s for job in jobs],
            ),
            table(seconds),
            "triton",
            kinds=combinations,
            max_batch=options.max_batch,
            preferred=options.preferred,
            delay_s=options.delay_s,
            instances=options.instances,
            priorities=options.priorities,
            default_priority=options.default_priority,
            timeout_s=options.timeout_s,
            timeout_action=options.timeout_action,
            max_waiting=options.max_waiting,
        )
        expected = serve(jobs, options, seconds)
        assert [(s, e, sorted(js)) for s, e, js in expected] == batches(found), seed
        assert [STATUS[job.state] for job in jobs] == found.status.tolist(), seed
        assert sum(found.batches.jobs) == found.completed.sum()


def test_the_random_traces_reach_every_rule() -> None:
    """Traces that never wait, never merge or never expire would prove little."""
    traces = [random_trace(seed) for seed in range(500)]
    waits = merged = delayed = expired = full = mixed = 0
    for jobs, options, seconds in traces:
        for start, _, members in serve(jobs, options, seconds):
            waits += start > max(jobs[i].arrival_s for i in members)
            merged += len(members) > 1
            mixed += 1 < sum(jobs[i].items for i in members) < options.max_batch
        delayed += options.timeout_action == "delay" and options.timeout_s < inf
        expired += sum(job.state == "expired" for job in jobs)
        full += sum(job.state == "full" for job in jobs)
    assert min(waits, merged, delayed, expired, full, mixed) > 20


def starts(arrival_s: list[float], seconds: float = 10.0, **rules: Any) -> list[tuple[float, list[int]]]:
    found = run(job_set(arrival_s), lambda *_: alone(seconds), "triton", **rules)
    return [(start, jobs) for start, _, jobs in batches(found)]


def test_without_a_delay_an_idle_instance_starts_what_waits() -> None:
    assert starts([0.0, 1.0, 2.0, 3.0], max_batch=8) == [(0.0, [0]), (10.0, [1, 2, 3])]


def test_the_largest_preferred_size_starts_before_the_delay_ends() -> None:
    """Four wait at 3 s; sizes 2 and 4 are preferred, so the first two start at 1 s and the others join at 3 s."""
    found = starts([0.0, 1.0, 2.0, 3.0], seconds=1.0, max_batch=8, preferred=(2, 4), delay_s=5.0)
    assert found == [(1.0, [0, 1]), (3.0, [2, 3])]
    assert starts([0.0] * 5, seconds=1.0, max_batch=8, preferred=(2, 4), delay_s=5.0)[0] == (0.0, [0, 1, 2, 3])


def test_a_batch_that_reaches_no_preferred_size_starts_when_the_delay_of_its_oldest_job_ends() -> None:
    assert starts([0.0, 1.0, 2.0], max_batch=8, preferred=(4,), delay_s=5.0) == [(5.0, [0, 1, 2])]


def test_a_lower_level_joins_only_behind_the_levels_before_it() -> None:
    jobs = job_set([0.0, 1.0, 2.0, 3.0], priority=[1, 2, 1, 2])
    found = run(jobs, lambda *_: alone(10.0), "triton", max_batch=2, priorities=2, default_priority=2)
    assert [members for _, _, members in batches(found)] == [[0], [1, 2], [3]]


def test_a_job_is_rejected_when_its_timeout_ends() -> None:
    found = run(job_set([0.0, 1.0]), lambda *_: alone(10.0), "triton", timeout_s=4.0)
    assert found.status.tolist() == [outcomes.COMPLETED, outcomes.TIMED_OUT]


def test_a_delayed_job_is_served_after_the_others_of_its_level() -> None:
    jobs = job_set([0.0, 1.0, 9.0, 9.5])
    found = run(jobs, lambda *_: alone(10.0), "triton", timeout_s=4.0, timeout_action="delay")
    assert [members for _, _, members in batches(found)] == [[0], [2], [1], [3]]  # job 3 is late at 13.5 s


def test_another_shape_closes_a_batch() -> None:
    jobs = job_set([0.0, 1.0, 2.0, 3.0], kind=[0, 0, 1, 0])
    found = run(jobs, lambda *_: alone(10.0), "triton", max_batch=8)
    assert [members for _, _, members in batches(found)] == [[0], [1], [2], [3]]
