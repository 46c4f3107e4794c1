"""First in first out, and merging of equal shapes, against references of a few lines, and by hand."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from catalogs.deployments.network_deployment import NetworkEngine
from tests.simulator.jobs.worlds import alone, batches, job_set, run, table


def reference(
    times: list[float], shapes: list[int], most: int, delay_s: float, seconds: dict[int, float], skips: bool
) -> list[tuple[float, list[int]]]:
    """Return (start, jobs) of each batch of one server; `skips`: jobs of other shapes do not end a batch."""
    waiting, free_s, found = list(range(len(times))), 0.0, []
    while waiting:
        head = waiting[0]
        now = max(free_s, times[head])
        while True:
            here = [job for job in waiting if times[job] < now or (times[job] == now and now > free_s)]
            here = here or [job for job in waiting if times[job] <= now]
            batch = []
            for job in here:
                if shapes[job] == shapes[head]:
                    batch.append(job)
                elif not skips:
                    break
            batch = batch[:most]
            later = [times[job] for job in waiting if job not in here and times[job] > now]
            if len(batch) == most or now >= times[head] + delay_s:
                break
            now = min([*later, *(times[job] for job in waiting if job not in here), times[head] + delay_s])
            free_s = min(free_s, now - 1e-9)  # no batch ends now, so arrivals at this time are seen
        found.append((now, batch))
        waiting = [job for job in waiting if job not in batch]
        free_s = now + seconds[len(batch)]
    return found


@pytest.mark.parametrize(("engine", "skips"), [("torch", False), ("sglang-diffusion", True)])
def test_equals_a_reference_on_300_random_traces(engine: NetworkEngine, skips: bool) -> None:
    for seed in range(300):
        draw = Random(seed)
        n, most = draw.randint(1, 20), draw.choice([1, 2, 4])
        times = np.cumsum([0.125 * draw.choice([0, 1, 2, 8]) for _ in range(n)]).tolist()
        shapes = [draw.randrange(2) for _ in range(n)]
        seconds = {k: 0.3 + 0.17 * k for k in range(1, most + 1)}
        delay_s = draw.choice([0.0, 0.4]) if skips else 0.0
        found = run(job_set(times, shapes), table(seconds), engine, max_batch=most, delay_s=delay_s)
        expected = reference(times, shapes, most, delay_s, seconds, skips)
        assert [jobs for _, _, jobs in batches(found)] == [jobs for _, jobs in expected], seed
        assert [s for s, _, _ in batches(found)] == pytest.approx([s for s, _ in expected]), seed


def members(engine: NetworkEngine, times: list[float], shapes: list[int], **rules: Any) -> list[list[int]]:
    found = run(job_set(times, shapes), lambda *_: alone(10.0), engine, max_batch=4, **rules)
    return [jobs for _, _, jobs in batches(found)]


def test_equal_shapes_are_merged_across_others_and_the_oldest_job_goes_first() -> None:
    times, shapes = [0.0, 1.0, 2.0, 3.0, 4.0], [0, 1, 0, 1, 0]
    assert members("sglang-diffusion", times, shapes) == [[0], [1, 3], [2, 4]]
    assert members("torch", times, shapes) == [[0], [1], [2], [3], [4]]


def test_a_batch_that_is_not_full_waits_for_the_delay_of_its_head() -> None:
    found = run(job_set([0.0, 1.0, 3.0]), lambda *_: alone(10.0), "sglang-diffusion", max_batch=4, delay_s=2.0)
    assert [(start, jobs) for start, _, jobs in batches(found)] == [(2.0, [0, 1]), (12.0, [2])]


def test_jobs_of_sessions_are_not_merged_by_sglang_diffusion() -> None:
    jobs = job_set([0.0, 1.0, 2.0], sessions=np.array([0, 1, 2]))
    found = run(jobs, lambda *_: alone(10.0), "sglang-diffusion", max_batch=4)
    assert [jobs for _, _, jobs in batches(found)] == [[0], [1], [2]]


def test_a_job_counts_with_its_items() -> None:
    jobs = job_set([0.0, 1.0, 2.0, 3.0], kind=[0, 1, 0, 0])
    for engine in ("torch", "triton", "sglang-diffusion"):
        found = run(jobs, lambda *_: alone(10.0), engine, kinds=[(1, 0), (3, 0)], max_batch=4)
        assert [jobs for _, _, jobs in batches(found)] == [[0], [1, 2], [3]]
