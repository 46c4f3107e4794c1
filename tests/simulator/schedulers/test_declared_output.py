"""SGLang's sum of declared output equals the plain sum over the decoding requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import Pool
from simulator.cluster.simulate import run_pools
from simulator.schedulers import declared_output
from simulator.schedulers.declared_output import CLIP_TOKENS, DeclaredOutput
from simulator.schedulers.sglang import Sglang
from tests.simulator.engine.test_fast_forward import EXACT, World, crowds, simulate, worlds
from tests.simulator.worlds import Linear, rules

ROUNDS = st.sampled_from([0, 1, 1, 2, 30, CLIP_TOKENS - 1, CLIP_TOKENS, CLIP_TOKENS + 1, 3 * CLIP_TOKENS])


@given(st.data())
def test_equals_the_plain_sum(data: st.DataObject) -> None:
    """Requests come and go in any order, with ends before, at and after the limit, several of them with the same."""
    output, rounds, ends = DeclaredOutput(rules()), 0, Counter[int]()
    for _ in range(data.draw(st.integers(1, 40))):
        if ends and data.draw(st.booleans()):
            end = data.draw(st.sampled_from(sorted(ends)))
            output.remove(end)
            ends -= Counter([end])
        else:
            end = rounds + data.draw(ROUNDS) - 1
            output.add(end)
            ends[end] += 1
        if data.draw(st.booleans()):
            rounds += data.draw(ROUNDS)
            plain = sum(n * min(max(end - rounds, 0), CLIP_TOKENS) for end, n in ends.items())
            assert output.tokens_after(rounds) == plain


@contextmanager
def compared(limit: int = CLIP_TOKENS) -> Iterator[list[int]]:
    """Compare the sum of every attempt to prefill with the plain sum, and yield these sums.

    Args:
        limit: The value of CLIP_TOKENS, which few requests of small worlds reach.
    """
    sums: list[int] = []
    declared = Sglang._declared_by_decodes

    def noted(self: Sglang) -> int:
        sums.append(declared(self))
        assert sums[-1] == self._declared(self._decoding())
        return sums[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sglang, "_declared_by_decodes", noted)
        patch.setattr(declared_output, "CLIP_TOKENS", limit)
        yield sums


@st.composite
def of_sglang(draw: st.DrawFn, drawn: st.SearchStrategy[World]) -> World:
    """Worlds of SGLang, some of them with a short context window, or with a pipeline, whose batches share the cache."""
    world = draw(drawn)
    engine = replace(world.rules, policy="sglang", max_model_len=draw(st.sampled_from([84, 4096])))
    if draw(st.booleans()):
        engine = replace(engine, pipeline_stages=2, lag=0, held_launch_s=0.0, attention_ranks=1, receiving=None)
    return replace(world, rules=engine)


@EXACT
@given(of_sglang(worlds() | crowds()), st.sampled_from([CLIP_TOKENS, 20]))
def test_equals_the_plain_sum_in_every_attempt_to_prefill(world: World, limit: int) -> None:
    """Chunks, retractions, pipelines and prompts that return, also where requests fall below the limit in a run."""
    with compared(limit) as sums:
        simulate(world, fast_path=False)
    assert sums


@EXACT
@given(crowds(), st.sampled_from([CLIP_TOKENS, 20]))
def test_equals_the_plain_sum_where_requests_bring_their_blocks(world: World, limit: int) -> None:
    engine = replace(world.rules, policy="sglang", attention_ranks=1, receiving=None)
    pools = [Pool(engine, Linear(), role="prefill"), Pool(engine, Linear(), role="decode")]
    with compared(limit) as sums:
        run_pools(pools, replace(world.requests, block_hashes=None), RunOptions())
    assert any(sums)
