"""Speculative decoding in time: rounds of several tokens, worked out by hand and held against their laws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogs.errors import InputError
from catalogs.workloads.service_classes import ServiceLevels
from simulator.analysis.time_series import edges, series
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import Pool
from simulator.cluster.run import Run
from simulator.cluster.simulate import run_pools, run_rules
from simulator.core.invariants import InvariantViolation
from simulator.core.speculation import AcceptedDrafts, SpeculationRules
from simulator.engine.event_log import EventLog
from simulator.schedulers.rules import EngineRules
from simulator.schedulers.speculative import SpeculativeSet
from tests.simulator.worlds import Linear, requests, rules

ALL, NONE, SOME = (1.0, 1.0, 1.0), (0.0, 0.0, 0.0), (0.8, 0.5, 0.3)
POLICIES = ("vllm-v1", "trtllm", "trtllm-max-utilization", "sglang")
WORK = requests([0.0, 0.5, 1.0, 1.0, 2.0, 7.5, 8.0, 9.0], [10, 20, 5, 33, 7, 50, 3, 9], [12, 1, 30, 5, 17, 2, 40, 3])


def speculating(rates: tuple[float, ...] = SOME, **changes: object) -> EngineRules:
    told = {"queries": len(rates) + 1, "rates": rates, "lookahead_tokens": len(rates)}
    own = ("seed", "recomputes_block", "lookahead_tokens", "draft_rate")
    told |= {key: changes.pop(key) for key in own if key in changes}
    return rules(**{"max_num_batched_tokens": 128, "speculation": SpeculationRules(**told), **changes})  # type: ignore[arg-type]


def simulate(engine: EngineRules, work: object = WORK, timer: Linear | None = None, **options: object) -> Run:
    chosen = RunOptions(check_invariants=True, **options)  # type: ignore[arg-type]
    replicas = 3 if "router" in options else 1
    return run_rules(engine, timer or Linear(), work, replicas, chosen)  # type: ignore[arg-type]


@pytest.mark.parametrize("lag", [0, 1])
def test_accepted_drafts_come_out_with_the_step_that_verifies_them(lag: int) -> None:
    run = simulate(speculating(ALL, lag=lag), requests([2.0], [5], [10]))
    assert run.first_token_s.tolist() == [3.0]  # of the prompt
    assert run.last_token_s.tolist() == [6.0]  # 4 + 4, and one of the last 4
    assert run.tpot_s.tolist() == [3.0 / 9]
    log = run.logs[0]
    assert log.accepted.tolist() == [0.0, 3.0, 3.0, 0.0]
    assert log.context_sum.tolist() == [0.0, 5.0, 9.0, 13.0]  # tokens in the cache before each round
    assert log.emitted.tolist() == [1.0, 4.0, 4.0, 1.0]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("lag", [0, 1])
def test_without_accepted_drafts_it_is_plain_decoding(policy: str, lag: int) -> None:
    timer = Linear(1.0, decode_s=0.0625, prompt_token_s=0.015625, context_s=0.0009765625)
    run = simulate(speculating(NONE, policy=policy, lag=lag), timer=timer)
    plain = simulate(replace(speculating(NONE, policy=policy, lag=lag), speculation=None), timer=timer)
    for name in ("started_s", "first_token_s", "last_token_s"):
        assert getattr(run, name).tolist() == getattr(plain, name).tolist()


def test_drafts_take_the_step_s_budget() -> None:
    """Two decodes bring four tokens each: of twelve, four are left for the prompt, which takes three steps."""
    engine = speculating(NONE, max_num_batched_tokens=12)
    run = simulate(engine, requests([0.0, 0.0, 0.5], [2, 2, 12], [9, 9, 1]))
    assert run.logs[0].prefill_tokens.tolist()[:4] == [4.0, 4.0, 4.0, 4.0]
    assert run.first_token_s.tolist() == [1.0, 1.0, 4.0]


@pytest.mark.parametrize(("lag", "blocks"), [(0, 4), (1, 5)])
def test_drafts_and_their_look_ahead_hold_blocks(lag: int, blocks: int) -> None:
    """A prompt of five, two rounds that accept nothing, blocks of four: 5 + 4 + 3 tokens are three blocks,
    6 + 4 + 3 are four. Scheduled ahead, the second round cannot know that the first one's three drafts
    fail: 6 + 3 + 4 + 3, four; the third holds 7 + 3 + 4 + 3, five."""
    outputs = 3 if lag == 0 else 4
    run = simulate(speculating(NONE, lag=lag, kv_blocks=100), requests([0.0], [5], [outputs]))
    assert run.replicas[0].kv_peak_fraction == blocks / 100


def test_a_request_whose_drafts_cannot_fit_is_refused() -> None:
    engine = speculating(NONE, kv_blocks=3, max_model_len=400)  # 12 slots
    run = simulate(engine, requests([0.0, 0.0], [5, 5], [2, 4]))
    assert run.completed.tolist() == [True, False]  # 5 + 2 - 1 + 3 + 3 slots, and two more
    assert run.rejected.tolist() == [False, True]


def test_the_last_block_of_a_cached_prefix_is_computed_again() -> None:
    """A drafter that reads hidden states needs those of the last block."""
    work = requests([0.0, 10.0], [13, 13], [2, 2], hashes=[(1, 2, 3), (1, 2, 3)])
    plain = simulate(speculating(NONE), work)
    head = simulate(speculating(NONE, recomputes_block=True), work)
    assert plain.cached_tokens.tolist() == [0, 12]
    assert head.cached_tokens.tolist() == [0, 8]


@pytest.mark.parametrize(("p", "k"), [(0.5, 1), (0.7, 3), (0.9, 5)])
def test_mean_advance_is_that_of_the_model(p: float, k: int) -> None:
    told = SpeculationRules(k + 1, tuple(p ** (i + 1) for i in range(k)))
    streams = [AcceptedDrafts(told, index) for index in range(400)]
    drawn = np.array([[stream.take() for _ in range(100)] for stream in streams])
    assert drawn.min() >= 1
    assert drawn.max() == k + 1
    assert drawn.mean() == pytest.approx((1 - p ** (k + 1)) / (1 - p), rel=0.02)
    for i in range(k):  # by position
        assert (drawn > i + 1).mean() == pytest.approx(p ** (i + 1), abs=0.02)


@pytest.mark.parametrize(("found", "p"), [(0.3, 0.7), (0.8, 0.4)])
def test_rounds_without_drafts_give_one_token(found: float, p: float) -> None:
    """A share `found` of rounds has drafts, and among these each position is accepted as often as stated."""
    told = SpeculationRules(4, (p, p**2, p**3), draft_rate=found)
    streams = [AcceptedDrafts(told, index) for index in range(400)]
    drawn = np.array([[(stream.take(), stream.drafted) for _ in range(100)] for stream in streams])
    tokens, drafted = drawn[:, :, 0], drawn[:, :, 1].astype(bool)
    assert drafted.mean() == pytest.approx(found, rel=0.02)
    assert (tokens[~drafted] == 1).all()
    assert (tokens[drafted] > 1).mean() == pytest.approx(p, rel=0.02)
    assert tokens.mean() == pytest.approx(1 + found * (p + p**2 + p**3), rel=0.02)


def test_rounds_without_drafts_leave_their_budget_to_prompts() -> None:
    """Two decodes bring four tokens each into a step of twelve, or one each where no drafts were found for them."""
    engine = speculating(NONE, max_num_batched_tokens=12, draft_rate=1e-9)
    log = simulate(engine, requests([0.0, 0.0, 0.5], [2, 2, 12], [9, 9, 1])).logs[0]
    assert log.prefill_tokens.tolist()[1] == 10
    assert log.undrafted.tolist()[1] == 2
    assert log.accepted.sum() == 0


def test_tpot_falls_by_the_mean_advance_where_steps_take_as_long() -> None:
    work = requests([0.0] * 8, [4] * 8, [4000] * 8)
    run = simulate(speculating(SOME, max_model_len=8192, kv_blocks=10_000), work)
    assert run.tpot_s.mean() == pytest.approx(1.0 / (1.0 + sum(SOME)), rel=0.02)


def test_what_is_accepted_depends_on_seed_and_request_alone() -> None:
    """Not on the replica, the policy, or how far ahead is scheduled."""
    accepted = [
        sum(log.accepted.sum() for log in simulate(speculating(policy=policy, lag=lag), **options).logs)  # type: ignore[arg-type]
        for policy in POLICIES
        for lag in (0, 1)
        for options in ({}, {"router": "random"}, {"router": "least_outstanding"})
    ]
    assert len(set(accepted)) == 1
    other = simulate(speculating(seed=1))
    assert sum(log.accepted.sum() for log in other.logs) != accepted[0]


def test_alone_a_request_takes_as_many_rounds_as_its_stream_says() -> None:
    engine = speculating(max_num_seqs=1, seed=7)
    run = simulate(engine, requests([0.0, 0.0, 0.0], [3, 3, 3], [50, 2, 31]))
    rounds = []
    for index, tokens in enumerate((50, 2, 31)):
        stream = AcceptedDrafts(engine.speculation, index)  # type: ignore[arg-type]
        made = n = 0
        while made < tokens - 1:
            made += stream.take()
            n += 1
        rounds.append(1 + n)
    assert run.last_token_s.tolist() == np.cumsum(rounds).tolist()


def test_decode_replicas_speculate_on_what_others_prefilled() -> None:
    """The first round after a hand-over has nothing drafted, and carries its padding (vLLM)."""
    engine = speculating(ALL)
    pools = [Pool(engine, Linear(), 1, "prefill"), Pool(engine, Linear(), 1, "decode")]
    run = run_pools(pools, requests([0.0], [5], [10]), RunOptions(check_invariants=True))
    assert run.completed.all()
    assert run.logs[1].accepted.tolist() == [0.0, 3.0, 3.0]
    assert run.logs[1].emitted.tolist() == [1.0, 4.0, 4.0]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("lag", [0, 1])
def test_ranks_in_lockstep_speculate_each_for_itself(policy: str, lag: int) -> None:
    """Each draws what its requests draw anywhere; a run of one rank after another has as many accepted drafts."""
    ranks = {"attention_ranks": 2, "rank_dispatch": "least_requests", "max_num_batched_tokens": 256, "kv_blocks": 2000}
    run = simulate(speculating(SOME, policy=policy, lag=lag, **ranks))
    alone = simulate(speculating(SOME, policy=policy, lag=lag))
    assert run.completed.all()
    assert run.logs[0].accepted.sum() == alone.logs[0].accepted.sum()
    assert run.logs[0].emitted.sum() == WORK.output_tokens.sum()


def test_tokens_over_time_are_those_that_came_out() -> None:
    done = simulate(speculating(SOME), event_log=EventLog())
    figures = list(series(done, edges(done, 2.0)))[-1].figures
    assert figures["output_tokens_per_s"].sum() * 2.0 == pytest.approx(WORK.output_tokens.sum())


def test_clients_that_give_up_leave_nothing_behind() -> None:
    n = WORK.n
    terms = ServiceLevels(
        np.zeros(n, dtype=np.int64), np.full(n, np.inf), np.array([3.0, 2.0, 9.0, 50.0, 4.5, 50.0, 6.0, 50.0])
    )
    for policy in POLICIES:
        for lag in (0, 1):
            run = simulate(speculating(NONE, policy=policy, lag=lag), replace(WORK, terms=terms))
            assert run.timed_out.sum() >= 3
            assert (run.completed | run.timed_out).all()


@pytest.mark.parametrize("policy", ["llama.cpp", "vllm-v0", "static", "sarathi"])
def test_a_policy_that_cannot_speculate_says_so(policy: str) -> None:
    with pytest.raises(InputError, match="speculative decoding is simulated only for"):
        simulate(speculating(policy=policy))


@pytest.mark.parametrize("fault", ["surplus", "blocks", "twice"])
def test_planted_faults_are_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    remove, rounds_for, advance = SpeculativeSet.remove, AcceptedDrafts.rounds_for, SpeculativeSet.advance
    if fault == "surplus":  # tokens beyond a request's end come out

        def all_out(self: AcceptedDrafts, tokens: int) -> int:
            rounds = rounds_for(self, tokens)
            self.surplus = 0
            return rounds

        monkeypatch.setattr(AcceptedDrafts, "rounds_for", all_out)
    elif fault == "blocks":  # those of drafts are not given back

        def keeping(self: SpeculativeSet, request: object) -> None:
            remove(self, request)  # type: ignore[arg-type]
            request.spare_blocks = 0  # type: ignore[attr-defined]

        monkeypatch.setattr(SpeculativeSet, "remove", keeping)
    else:

        def doubled(self: SpeculativeSet) -> None:
            advance(self)
            self.accepted *= 4

        monkeypatch.setattr(SpeculativeSet, "advance", doubled)
    with pytest.raises(InvariantViolation):
        simulate(speculating(ALL, block_size=4), requests([0.0, 0.0], [5, 6], [11, 15]))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_laws_hold_whatever_is_accepted(data: st.DataObject) -> None:
    draw = data.draw
    k = draw(st.integers(1, 5))
    rates = tuple(sorted(draw(st.lists(st.floats(0, 1), min_size=k, max_size=k)), reverse=True))
    told = SpeculationRules(
        k + 1,
        rates,
        lookahead_tokens=draw(st.integers(0, k)),
        budget_tokens=draw(st.integers(0, 1)),
        recomputes_block=draw(st.booleans()),
        seed=draw(st.integers(0, 5)),
        draft_rate=draw(st.sampled_from((0.01, 0.4, 1.0))),
    )
    ranks = draw(st.sampled_from((1, 1, 2, 3)))
    engine = rules(
        attention_ranks=ranks,
        rank_dispatch=draw(st.sampled_from(("round_robin", "least_requests", "queue_score", "least_tokens"))),
        policy=draw(st.sampled_from(POLICIES)),
        lag=draw(st.integers(0, 1)),
        block_size=draw(st.sampled_from((1, 4, 16))),
        kv_blocks=ranks * draw(st.integers(20, 120)),
        max_num_seqs=ranks * draw(st.integers(1, 6)),
        max_num_batched_tokens=ranks * draw(st.integers(48, 128)),
        max_model_len=draw(st.sampled_from((64, 256))),
        speculation=told,
    )
    n = draw(st.integers(1, 12))
    sizes = st.lists(st.integers(1, 40), min_size=n, max_size=n)
    inputs, outputs = draw(sizes), draw(sizes)
    shared = draw(st.booleans())
    hashes = [[100 + i // 2 * shared + i * (not shared) * 100 + b for b in range(x // 4)] for i, x in enumerate(inputs)]
    arrivals = np.cumsum(draw(st.lists(st.floats(0, 5), min_size=n, max_size=n))).tolist()
    loop = draw(st.sampled_from((None, 1, 3)))
    work = requests([0.0] * n if loop else arrivals, inputs, outputs, hashes, concurrency=loop)
    timer = Linear(1.0, 0.0625, 0.015625, 0.0009765625)
    run = simulate(engine, work, timer)
    assert (run.completed | run.rejected).all()
    assert sum(log.emitted.sum() for log in run.logs) == run.requests.output_tokens[run.completed].sum()
    again = simulate(engine, work, timer, fast_forward=False)
    np.testing.assert_array_equal(run.last_token_s, again.last_token_s)
