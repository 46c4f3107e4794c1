"""The KV pool that replicas share: transfers by hand, its part of the network, and laws of hits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogs.deployments.resolve import resolve_pools
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.workloads.request_set import RequestSet
from simulator.cache.offload import OffloadRules
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import Pool, compile_deployment, offload_rules
from simulator.cluster.run import Run
from simulator.cluster.simulate import run_pools, run_rules
from simulator.schedulers.rules import EngineRules
from tests.simulator.cluster.test_session_clients import drawn
from tests.simulator.worlds import Linear, requests, rules

TEXTS = [[1, 2, 3, 4], [1, 2, 3, 4]]

KEYS: dict[str, Any] = {"model": "llama3.1-8b", "hardware": "2*h100x8", "replicas": 2, "tensor_parallel": 8}


def serve(work: RequestSet, engine: EngineRules, replicas: int, router: str = "round_robin", fast: bool = True) -> Run:
    """Serve requests and check every invariant."""
    options = RunOptions(check_invariants=True, router=router, fast_forward=fast)
    return run_rules(engine, Linear(base_s=0.125, prompt_token_s=1 / 64), work, replicas, options)


def hits(run: Run) -> int:
    """Return the prompt tokens that were found in a cache."""
    return int(np.maximum(run.cached_tokens, 0).sum())


@pytest.mark.parametrize("fast", [True, False])
def test_a_replica_finds_what_another_one_has_stored_once_it_has_arrived(fast: bool) -> None:
    """The first request ends its prompt at 3 s; its four blocks reach the pool at 4 s. A block takes 1/4 s."""
    engine = rules(kv_blocks=8, offload=OffloadRules(50, 0.25, shared=True), admit_whole_prompt=True)
    options = RunOptions(check_invariants=True, fast_forward=fast)
    for second_s, cached, first_token_s in ((20.0, 16, 22.125), (3.5, 0, 6.625)):
        work = requests([0.0, second_s], [16, 17], [1, 1], TEXTS)
        run = run_rules(engine, Linear(prompt_token_s=0.125), work, 2, options)
        assert run.replica.tolist() == [0, 1]
        # Four blocks over the link in 1 s, then one token in 1 s + 1/8 s; or 17 tokens in 1 s + 17/8 s.
        assert run.cached_tokens.tolist() == [0, cached]
        assert run.first_token_s[1] == first_token_s
        private = replace(engine, offload=OffloadRules(50, 0.25))
        assert run_rules(private, Linear(prompt_token_s=0.125), work, 2, options).cached_tokens[1] == 0


def test_prefill_replicas_find_the_outputs_that_decode_replicas_have_stored() -> None:
    """Turn 2 begins with turn 1 and its output of eight tokens, which only the decode replica has computed."""
    engine = rules(kv_blocks=100, offload=OffloadRules(100, 0.0, shared=True), admit_whole_prompt=True)
    work = requests([0.0, 50.0], [16, 25], [9, 1], [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]])
    found = []
    for shared in (True, False):
        own = replace(engine, offload=OffloadRules(100, 0.0, shared=shared))
        pools = [Pool(own, Linear(), role="prefill"), Pool(own, Linear(), role="decode")]
        run = run_pools(pools, work, RunOptions(check_invariants=True))
        assert run.completed.all()
        found.append(run.cached_tokens.tolist())
    assert found == [[0, 24], [0, 16]]


@given(st.integers(0, 99), st.sampled_from(["round_robin", "session_affinity"]))
@settings(max_examples=15, deadline=None)
def test_a_pool_never_hits_less_than_private_tiers_of_the_same_size_together(seed: int, router: str) -> None:
    work = drawn(seed, 40)
    engine = rules(kv_blocks=80, prefix_caching=True, admit_whole_prompt=True)
    one, shared = (
        hits(serve(work, replace(engine, offload=OffloadRules(5_000, 0.0, shared=shared)), 2, router))
        for shared in (False, True)
    )
    assert shared >= one


@given(st.integers(0, 99), st.booleans())
@settings(max_examples=15, deadline=None)
def test_a_larger_tier_never_hits_less(seed: int, shared: bool) -> None:
    """One client: its requests come in the same order whatever the tier holds."""
    work = replace(drawn(seed, 30), concurrency=1)
    engine = rules(kv_blocks=80, prefix_caching=True, admit_whole_prompt=True)
    found = [
        hits(serve(work, replace(engine, offload=OffloadRules(blocks, 0.0, shared=shared)), 2))
        for blocks in (0, 100, 2_000)
    ]
    assert found == sorted(found)


def test_blocks_of_other_nodes_pass_the_network() -> None:
    def rules_of(**offload: object) -> OffloadRules:
        written = Deployment.model_validate({**KEYS, "kv_offload": {"host_gib": 64, "host_gib_per_s": 50, **offload}})
        compiled = compile_deployment(written)
        found = offload_rules(compiled.resolved, compiled.memory)
        assert found is not None
        return found

    private, shared, slow = rules_of(), rules_of(shared=True), rules_of(shared=True, pool_gib_per_s=1)
    assert (private.shared, shared.shared) == (False, True)
    assert private.host_blocks == shared.host_blocks
    assert private.host_s_per_block == shared.host_s_per_block  # the network is faster than half of the link
    assert slow.host_s_per_block == pytest.approx(25 * private.host_s_per_block)  # half of the blocks at 1 GiB/s


def test_a_pool_needs_replicas_that_stay_and_a_rate_needs_a_pool() -> None:
    for keys, match in (
        ({"kv_offload": {"host_gib": 8, "pool_gib_per_s": 1}}, "pool_gib_per_s needs a pool"),
        (
            {"kv_offload": {"host_gib": 8, "shared": True}, "faults": [{"replica": 0, "at_s": 1}]},
            "together with faults",
        ),
        (
            {"kv_offload": {"host_gib": 8, "shared": True}, "autoscaling": {"min_replicas": 1, "max_replicas": 2}},
            "together with autoscaling",
        ),
    ):
        with pytest.raises(InputError, match=match):
            resolve_pools(Deployment.model_validate(KEYS | keys))


def test_a_pool_needs_one_block_size_and_one_age_of_blocks() -> None:
    tiers = OffloadRules(50, 0.25, shared=True)
    engine = rules(offload=tiers)
    for other, match in (
        (replace(engine, block_size=8), "same block_size"),
        (replace(engine, offload=replace(tiers, expire_s=60.0)), "same kv_offload.expire_s: got '60.0'"),
    ):
        with pytest.raises(InputError, match=match):
            run_pools([Pool(engine, Linear()), Pool(other, Linear())], requests([0.0], [8], [1]))
