"""Speculative decoding with LoRA adapters: a timeline by hand, and laws at random."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.workloads.request_set import RequestSet
from simulator.cache.lora_slots import LoraRules
from simulator.cluster.cluster import RunOptions
from simulator.cluster.run import Run
from simulator.cluster.simulate import run_rules
from simulator.core.speculation import SpeculationRules
from simulator.schedulers.rules import EngineRules
from tests.simulator.worlds import Linear, requests, rules

#: 1/64 s a token with an adapter, 1/8 s for each further adapter; adapters load in no time.
ADDED = LoraRules(2, 2, 4, 0.0, 0.0, (0.0, 64.0), (0.0, 1.0), 0.125)


def simulate(engine: EngineRules, work: RequestSet) -> Run:
    return run_rules(engine, Linear(), work, 1, RunOptions(check_invariants=True))


def drafting(rates: tuple[float, ...], draft_rate: float = 1.0, **more: object) -> EngineRules:
    told = SpeculationRules(len(rates) + 1, rates, draft_rate)
    return rules(**{"speculation": told, "lora": ADDED, "max_num_batched_tokens": 64, **more})  # type: ignore[arg-type]


def asking(work: RequestSet, adapters: list[int]) -> RequestSet:
    return replace(work, adapters=np.array(adapters, dtype=np.int64))


@pytest.mark.parametrize(("draft_rate", "each"), [(1.0, 4), (1e-9, 1)])
def test_drafts_are_verified_with_the_adapter_of_their_request(draft_rate: float, each: int) -> None:
    """A prompt of 8 tokens and three rounds that accept nothing: 8 tokens with the adapter, then 1 + 3 or 1 a round."""
    work = asking(requests([0.0], [8], [4]), [0])
    run = simulate(drafting((0.0, 0.0, 0.0), draft_rate), work)
    plain = simulate(drafting((0.0, 0.0, 0.0), draft_rate), replace(work, adapters=np.array([-1])))
    extra_s = float(run.last_token_s[0] - plain.last_token_s[0])
    assert extra_s == pytest.approx((8 + 3 * each) / 64)


def test_an_adapter_is_free_again_when_its_last_round_is_scheduled() -> None:
    """One adapter at a time: the second request, with another one, starts after the first has ended."""
    engine = drafting((1.0, 1.0, 1.0), lora=replace(ADDED, max_loras=1))
    run = simulate(engine, asking(requests([0.0, 0.0], [4, 4], [9, 9]), [0, 1]))
    assert run.completed.all()
    assert run.started_s[1] >= run.last_token_s[0]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_laws_hold(data: st.DataObject) -> None:
    draw = data.draw
    n = draw(st.integers(1, 10))
    sizes = st.lists(st.integers(1, 30), min_size=n, max_size=n)
    arrivals = np.cumsum(draw(st.lists(st.floats(0, 4), min_size=n, max_size=n))).tolist()
    work = asking(
        requests(arrivals, draw(sizes), draw(sizes)), draw(st.lists(st.integers(-1, 3), min_size=n, max_size=n))
    )
    engine = drafting(
        tuple(sorted(draw(st.lists(st.floats(0, 1), min_size=3, max_size=3)), reverse=True)),
        draw(st.sampled_from((0.3, 1.0))),
        lag=draw(st.integers(0, 1)),
        kv_blocks=draw(st.integers(20, 60)),
        max_num_seqs=draw(st.integers(1, 5)),
    )
    run = simulate(engine, work)
    assert (run.completed | run.rejected).all()
    assert sum(log.emitted.sum() for log in run.logs) == run.requests.output_tokens[run.completed].sum()


def test_only_vllm_drafts_for_adapters() -> None:
    """And not on prefill replicas: adapters are not decoded for them."""
    block = {"adapters": 4, "max_loras": 2}
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "acceptance": 0.5}
    found = resolve(Deployment.model_validate({"model": "llama3.1-8b", "hardware": "h100", "lora": block,
                                               "speculative": drafts}))  # fmt: skip
    assert found.lora is not None
    assert found.speculation is not None
    with pytest.raises(InputError, match="LoRA is not simulated for sglang"):
        resolve(Deployment.model_validate({"model": "llama3.1-8b", "hardware": "h100", "lora": block,
                                           "engine": "sglang"}))  # fmt: skip
