"""A run that kept clear of its limits is the run under others that it keeps clear of, too: to the last bit."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from catalogs.engines.files import load_engine
from catalogs.workloads.request_set import RequestSet
from simulator.cluster.compiled import Pool
from simulator.cluster.run import Run
from simulator.cluster.run_reuse import reusable_run
from simulator.cluster.simulate import run_pools
from simulator.schedulers.rules import EngineRules

HOST = replace(load_engine("vllm").host, request_s=0.0, api_request_s=0.0, request_s_per_input_token=0.0)
BASE = EngineRules(64, 512, 4096, kv_blocks=400, host=HOST)
ARRAYS = ("arrival_s", "started_s", "first_token_s", "last_token_s", "cached_tokens", "preemptions", "status", "gaps_s")


class Timer:
    """Linear in the counts."""

    def cycle_s(self, shape: object) -> float:
        tokens = shape.prefill_tokens + shape.decodes  # type: ignore[attr-defined]
        return 0.01 + 1e-5 * tokens + 1e-8 * shape.decode_context_sum  # type: ignore[attr-defined, no-any-return]

    def decode_segment(self, decodes: int, context_sum: int, context_max: int) -> tuple[float, float, int]:  # noqa: ARG002
        return 0.01 + 1e-5 * decodes + 1e-8 * context_sum, 1e-8 * decodes, 1 << 30


TIMER = Timer()


def requests(n: int, requests_per_s: float) -> RequestSet:
    rng = np.random.default_rng(3)
    arrivals = np.cumsum(rng.exponential(1 / requests_per_s, n))
    return RequestSet(arrivals, rng.integers(1, 300, n), rng.integers(1, 60, n))


def pool(max_num_seqs: int = 64, max_num_batched_tokens: int = 512, kv_blocks: int = 400) -> Pool:
    limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens, "kv_blocks": kv_blocks}
    return Pool(replace(BASE, **limits), TIMER)  # type: ignore[arg-type]


def assert_same(a: Run, b: Run) -> None:
    for name in ARRAYS:
        assert getattr(a, name).tobytes() == getattr(b, name).tobytes(), name
    assert [log.table().tobytes() for log in a.logs] == [log.table().tobytes() for log in b.logs]
    assert a.pools == b.pools
    assert a.kv_peak_fraction == b.kv_peak_fraction


@pytest.mark.parametrize("requests_per_s", [2.0, 20.0, 60.0])
@pytest.mark.parametrize("whole", [False, True])
def test_what_is_not_simulated_is_what_a_simulation_gives(requests_per_s: float, whole: bool) -> None:
    asked, found = requests(150, requests_per_s), 0
    choices = product((8, 16, 64), (128, 400, 600), (120, 250, 400))
    pools = [
        replace(p, rules=replace(p.rules, admit_whole_prompt=whole))
        for p in (pool(max_num_seqs=s, max_num_batched_tokens=t, kv_blocks=k) for s, t, k in choices)
    ]
    runs = [run_pools([p], asked) for p in pools]
    for done, (p, true) in product(runs, zip(pools, runs, strict=True)):
        same = reusable_run(done, p)
        if same is not None:
            found += 1
            assert_same(same, true)
    different = len({run.last_token_s.tobytes() for run in runs})
    assert found > len(runs)  # not only each its own
    assert different == 1 or found < len(runs) ** 2  # and not everything is the same


@pytest.mark.parametrize("dispatch", ["least_requests", "queue_score", "round_robin"])
@pytest.mark.parametrize("requests_per_s", [5.0, 60.0])
def test_so_for_ranks_that_step_together(dispatch: str, requests_per_s: float) -> None:
    asked, found = requests(150, requests_per_s), 0
    choices = product((8, 32, 128), (200, 512, 1024), (120, 400, 800))
    bases = [pool(max_num_seqs=s, max_num_batched_tokens=t, kv_blocks=k) for s, t, k in choices]
    pools = [replace(p, rules=replace(p.rules, attention_ranks=2, rank_dispatch=dispatch)) for p in bases]
    runs = [run_pools([p], asked) for p in pools]
    for done, (p, true) in product(runs, zip(pools, runs, strict=True)):
        same = reusable_run(done, p)
        if same is not None:
            found += 1
            assert_same(same, true)
    assert found > len(runs)
    assert len({run.last_token_s.tobytes() for run in runs}) == 1 or found < len(runs) ** 2


def test_a_limit_that_was_reached_counts() -> None:
    """One seat, one after the other: four are another run. So is a budget below what a step held."""
    asked = RequestSet(np.zeros(3), np.array([100, 100, 100]), np.array([10, 10, 10]))
    alone = run_pools([pool(max_num_seqs=1)], asked)
    assert reusable_run(alone, pool(max_num_seqs=4)) is None
    roomy = run_pools([pool(max_num_seqs=8)], asked)  # three at once, 300 tokens in the first step, 7 blocks each
    assert reusable_run(roomy, pool(max_num_seqs=4)) is not None
    assert reusable_run(roomy, pool(max_num_seqs=3)) is None
    assert reusable_run(roomy, pool(max_num_seqs=8, max_num_batched_tokens=301)) is not None
    assert reusable_run(roomy, pool(max_num_seqs=8, max_num_batched_tokens=300)) is None
    assert reusable_run(roomy, pool(max_num_seqs=8, kv_blocks=21)) is not None
    assert reusable_run(roomy, pool(max_num_seqs=8, kv_blocks=20)) is None


def test_other_rules_costs_or_engines_are_other_runs() -> None:
    asked = requests(20, 5.0)
    done = run_pools([pool()], asked)
    assert reusable_run(done, pool(max_num_seqs=100)) is not None
    assert reusable_run(done, replace(pool(), timer=Timer())) is None
    assert reusable_run(done, replace(pool(), rules=replace(BASE, lag=0))) is None
    assert reusable_run(done, replace(pool(), replicas=2)) is None
    sglang = replace(pool(), rules=replace(BASE, policy="sglang"))
    assert reusable_run(run_pools([sglang], asked), sglang) is None
    shared = replace(asked, block_hashes=((1, 2),) * asked.n, hash_block_tokens=16)
    caching = replace(pool(), rules=replace(BASE, prefix_caching=True))
    assert reusable_run(run_pools([caching], shared), caching) is None
