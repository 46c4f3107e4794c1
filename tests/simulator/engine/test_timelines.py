"""Whole timelines worked out by hand, compared without tolerance. Steps take 1 s unless said."""

from __future__ import annotations

from dataclasses import replace
from math import isnan

import pytest

from catalogs.engines.model_defaults import ReceiveIntervals
from catalogs.errors import InputError
from simulator.cluster.cluster import RunOptions
from simulator.cluster.run import Run
from simulator.cluster.simulate import run_rules
from simulator.core.outcomes import STATUS
from simulator.schedulers.llama_cpp import count_passes
from simulator.schedulers.rules import EngineRules
from tests.simulator.worlds import Linear, host_times, requests, rules

BOTH = pytest.mark.parametrize("fast", [True, False])


def simulate(
    engine: EngineRules, work: object, fast: bool = True, timer: Linear | None = None, **options: object
) -> Run:
    chosen = RunOptions(fast_forward=fast, check_invariants=True, **options)  # type: ignore[arg-type]
    return run_rules(engine, timer or Linear(), work, 1, chosen)  # type: ignore[arg-type]


@BOTH
def test_one_request_without_lag(fast: bool) -> None:
    run = simulate(rules(), requests([2.0], [5], [4]), fast)
    assert run.started_s.tolist() == [2.0]
    assert run.first_token_s.tolist() == [3.0]  # the prompt's step gives the first token
    assert run.last_token_s.tolist() == [6.0]  # and three decodes follow
    assert run.tpot_s.tolist() == [1.0]


@BOTH
def test_the_client_path_is_part_of_every_latency(fast: bool) -> None:
    host = host_times(
        step_s=0.25,
        step_s_per_sequence=0.125,
        request_s=0.5,
        request_s_per_input_token=0.0625,
        output_s=2.0,
    )
    run = simulate(rules(host=host, lag=1), requests([1.0], [4], [2]), fast)
    # hand-over 0.5 + 4 x 0.0625, then the idle engine's own step time 0.25 + 0.125 before the device starts
    assert run.started_s.tolist() == [2.125]
    assert run.first_token_s.tolist() == [5.125]
    assert run.last_token_s.tolist() == [6.125]
    without = simulate(rules(host=host, lag=0), requests([1.0], [4], [2]), fast)
    assert without.started_s.tolist() == [1.75]  # without lag the host's time is inside the cycle


@BOTH
def test_async_scheduling_costs_a_whole_cycle(fast: bool) -> None:
    """An arrival during step i runs in step i + 2: the rest of i, all of i + 1, its own step."""
    work = requests([0.0, 5.25], [4, 4], [20, 2])
    run = simulate(rules(lag=1), work, fast)
    assert run.first_token_s.tolist() == [1.0, 8.0]  # rest of [5, 6), [6, 7), own [7, 8)
    assert simulate(rules(lag=0), work, fast).first_token_s.tolist() == [1.0, 7.0]
    assert run.last_token_s.tolist() == [20.0, 9.0]


@BOTH
def test_a_finished_request_keeps_its_seat_until_its_output_is_processed(fast: bool) -> None:
    work = requests([0.0, 0.5], [4, 4], [3, 1])
    run = simulate(rules(max_num_seqs=1, lag=1), work, fast)
    # Its last step is [2, 3). Its seat is free at 3; nothing was scheduled ahead, so the second runs [3, 4).
    assert run.last_token_s.tolist() == [3.0, 4.0]
    run = simulate(rules(max_num_seqs=2, lag=1), requests([0.0, 0.0, 0.5], [4, 4, 4], [3, 6, 1]), fast)
    # Seat free at 3, seen by the schedule at 3 for the step [4, 5).
    assert run.last_token_s.tolist() == [3.0, 6.0, 5.0]


@BOTH
def test_arrivals_at_the_end_of_a_step_wait_for_the_next_schedule(fast: bool) -> None:
    run = simulate(rules(lag=0), requests([0.0, 4.0], [4, 4], [9, 1]), fast)
    assert run.first_token_s.tolist() == [1.0, 6.0]


@BOTH
def test_simultaneous_arrivals_share_a_step(fast: bool) -> None:
    run = simulate(rules(), requests([1.0, 1.0, 1.0], [4, 4, 4], [1, 1, 1]), fast)
    assert run.last_token_s.tolist() == [2.0, 2.0, 2.0]


@BOTH
def test_a_long_prompt_is_cut_around_the_decodes(fast: bool) -> None:
    """Budget 8: one decode, so chunks of 7, 7 and 2 of 16 tokens; the third request shares the last of these steps."""
    timer = Linear(prompt_token_s=1.0)
    work = requests([0.0, 0.5, 0.6], [1, 16, 2], [6, 1, 1])
    run = simulate(rules(max_num_batched_tokens=8), work, fast, timer)
    # [0,2) prompt 1; [2,10) decode + 7; [10,18) decode + 7; [18,23) decode + 2 + 2
    assert run.first_token_s.tolist() == [2.0, 23.0, 23.0]
    assert run.last_token_s.tolist() == [25.0, 23.0, 23.0]
    log = run.logs[0]
    assert log.prefill_tokens.tolist()[:4] == [1, 7, 7, 4]
    assert log.prefill_pairs.tolist()[:4] == [0.5, 7 * 3.5, 7 * (7 + 3.5), 2 * (14 + 1) + 2 * 1.0]
    assert log.prefill_chunks.tolist()[:4] == [1, 1, 1, 2]


@BOTH
def test_without_chunked_prefill_a_prompt_waits_for_room(fast: bool) -> None:
    engine = rules(max_num_batched_tokens=8, chunked_prefill=False)
    run = simulate(engine, requests([0.0, 0.0], [6, 4], [2, 2]), fast)
    assert run.first_token_s.tolist() == [1.0, 2.0]


@BOTH
def test_preemption_takes_the_newest_and_recovers_its_prefix(fast: bool) -> None:
    """4 blocks of 4; two prompts of 7 fill them with their first decode (8 tokens); at 9 tokens one must go."""
    run = simulate(rules(kv_blocks=4), requests([0.0, 0.0], [7, 7], [6, 6]), fast)
    # [0,1) both prompts; [1,2) both decode to 8 tokens. Then B loses its blocks and A decodes on, [2,6), taking 1 block
    # of B's two (its second). A ends at 6. B hits its first block (4 tokens), recomputes 5 in [6,7) which gives its
    # third token, and decodes [7,10).
    assert run.last_token_s.tolist() == [6.0, 10.0]
    assert run.preemptions.tolist() == [0, 1]
    log = run.logs[0]
    again = log.prefill_tokens.tolist().index(5)
    assert log.start_s[again] == 6.0
    assert log.prefill_pairs[again] == 5 * (4 + 2.5)
    assert run.gaps_s.tolist() == [5.0]  # B's second token came at 2, its third at 7
    without = simulate(rules(kv_blocks=4, prefix_caching=False), requests([0.0, 0.0], [7, 7], [6, 6]), fast)
    assert 9 in without.logs[0].prefill_tokens.tolist()


@BOTH
def test_a_preempted_request_is_served_before_those_that_wait(fast: bool) -> None:
    """As above, and a third of one block that waits from 0.5 on: a block is free from 2 on, but B is before it."""
    run = simulate(rules(kv_blocks=4), requests([0.0, 0.0, 0.5], [7, 7, 4], [6, 6, 1]), fast)
    assert run.preemptions.tolist() == [0, 1, 0]
    assert run.last_token_s.tolist() == [6.0, 10.0, 7.0]


@BOTH
def test_no_more_requests_run_than_there_are_seats(fast: bool) -> None:
    run = simulate(rules(max_num_seqs=2), requests([0.0, 0.0, 0.0], [4, 4, 4], [3, 3, 1]), fast)
    assert run.last_token_s.tolist() == [3.0, 3.0, 4.0]


@BOTH
def test_preempted_with_its_last_token_in_flight(fast: bool) -> None:
    """With lag 1 a request can lose its blocks when nothing is left to schedule; it still finishes."""
    run = simulate(rules(kv_blocks=4, lag=1), requests([0.0, 0.0], [7, 7], [6, 2]), fast)
    assert run.last_token_s.tolist() == [6.0, 2.0]
    assert run.preemptions.tolist() == [0, 1]


@BOTH
def test_prefix_hits_leave_the_last_token_to_compute(fast: bool) -> None:
    """Blocks of 4. The first prompt of 8 is cached when scheduled; the same prompt hits one block, a longer one two."""
    work = requests([0.0, 0.0, 3.0], [8, 8, 10], [1, 1, 1], hashes=[[1, 2], [1, 2], [1, 2]])
    run = simulate(rules(), work, fast)
    assert run.cached_tokens.tolist() == [0, 4, 8]
    assert run.logs[0].prefill_tokens.tolist() == [8 + 4, 2]
    assert simulate(rules(prefix_caching=False), work, fast).cached_tokens.tolist() == [0, 0, 0]


@BOTH
def test_generated_blocks_are_hit_by_the_next_turn(fast: bool) -> None:
    """Prompt 6 + 6 generated leave 11 tokens in the cache: two full blocks, the second partly generated."""
    work = requests([0.0, 20.0], [6, 15], [6, 1], hashes=[[1, 2, 3], [1, 2, 3]])
    assert simulate(rules(), work, fast).cached_tokens.tolist() == [0, 8]


@BOTH
def test_cached_blocks_are_forgotten_oldest_first(fast: bool) -> None:
    """6 blocks. A caches 2, B caches 2 and one more; C takes 4 fresh blocks: the 3 unused, then A's second; D hits A's
    first block only."""
    work = requests([0, 10, 20, 30], [8, 8, 16, 12], [1, 1, 1, 1], hashes=[[1, 2], [3, 4], [], [1, 2, 5]])
    run = simulate(rules(kv_blocks=6), work, fast)
    # free order after B: 2 untouched, A's 2nd, A's 1st, B's 2nd, B's 1st; C takes the first four: all of A is gone
    assert run.cached_tokens.tolist() == [0, 0, 0, 0]
    run = simulate(rules(kv_blocks=7), work, fast)
    assert run.cached_tokens.tolist() == [0, 0, 0, 4]


@BOTH
def test_requests_that_can_never_run_are_rejected(fast: bool) -> None:
    run = simulate(rules(max_model_len=20, kv_blocks=4), requests([0.0, 0.0, 0.0], [18, 12, 4], [3, 6, 1]), fast)
    assert [STATUS[s] for s in run.status] == [
        "rejected: longer than max_model_len",
        "rejected: larger than the KV cache",
        "completed",
    ]
    assert isnan(run.first_token_s[0])
    assert run.last_token_s[2] == 1.0


@BOTH
def test_closed_loop_sends_when_the_last_answer_is_there(fast: bool) -> None:
    host = host_times(request_s=0.5, output_s=0.25)
    run = simulate(rules(host=host), requests([0.0] * 3, [4] * 3, [2] * 3, concurrency=1), fast)
    assert run.arrival_s.tolist() == [0.0, 2.75, 5.5]  # 0.5 + two steps + 0.25 each
    rejected = simulate(rules(max_model_len=8), requests([0.0] * 2, [9, 4], [2, 1], concurrency=1), fast)
    assert rejected.last_token_s[1] == 1.0  # a refusal is an answer too


@BOTH
def test_whole_prompt_admission_waits_for_blocks(fast: bool) -> None:
    """A holds 2 of 5 blocks; B's first chunk would fit, its whole prompt (4 blocks) does not until A is gone."""
    work = requests([0.0, 0.5], [8, 16], [3, 1])
    eager = simulate(rules(kv_blocks=5, max_num_batched_tokens=9), work, fast)
    whole = simulate(rules(kv_blocks=5, max_num_batched_tokens=9, admit_whole_prompt=True), work, fast)
    assert eager.started_s.tolist() == [0.0, 1.0]
    assert whole.started_s.tolist() == [0.0, 3.0]


@BOTH
@pytest.mark.parametrize("horizon_s", [4.5, 4.0, 3.5])
def test_a_horizon_cuts_the_run(fast: bool, horizon_s: float) -> None:
    run = simulate(rules(), requests([0.0, 0.0, 9.0], [4, 4, 4], [2, 20, 1]), fast, horizon_s=horizon_s)
    assert [STATUS[s] for s in run.status] == ["completed", "unfinished", "not sent"]
    assert float(run.logs[0].steps.sum()) == int(horizon_s)  # steps that have ended by then


def test_round_robin_and_least_outstanding() -> None:
    work = requests([0.0, 0.1, 0.2, 0.3], [4] * 4, [50, 1, 50, 1])
    turns = run_rules(rules(), Linear(base_s=0.0625), work, 2, RunOptions(router="round_robin"))
    assert turns.replica.tolist() == [0, 1, 0, 1]
    fewest = run_rules(rules(), Linear(base_s=0.0625), work, 2, RunOptions(router="least_outstanding"))
    assert fewest.replica.tolist() == [0, 1, 1, 0]
    with pytest.raises(InputError, match="nearest valid choice: round_robin"):
        run_rules(rules(), Linear(), work, 2, RunOptions(router="round-robin"))


def test_requests_need_tokens() -> None:
    with pytest.raises(InputError, match="at least one input and one output token"):
        run_rules(rules(), Linear(), requests([0.0], [4], [0]))


@BOTH
def test_coarse_content_keys_cover_several_blocks(fast: bool) -> None:
    """Keys name 8 tokens, blocks hold 4: a fully known prompt of 16 leaves its last block to compute."""
    work = replace(requests([0.0, 0.0, 5.0], [16, 16, 15], [1, 1, 1], hashes=[[1, 2]] * 3), hash_block_tokens=8)
    run = simulate(rules(), work, fast)
    assert run.cached_tokens.tolist() == [0, 12, 8]
    fine = replace(requests([0.0, 0.0, 5.0], [16, 16, 15], [1, 1, 1], hashes=[[1, 2, 3, 4]] * 3), hash_block_tokens=4)
    assert simulate(rules(), fine, fast).cached_tokens.tolist() == [0, 12, 12]
    uneven = replace(work, hash_block_tokens=6)  # neither divides the other: block by block, never a false hit
    assert simulate(rules(), uneven, fast).cached_tokens.tolist() == [0, 12, 12]


@BOTH
def test_sglang_prefills_before_it_decodes(fast: bool) -> None:
    """Chunks of 8, no step holds both. A's prompt of 4 runs [0, 1). B (12) and C (4) come at 1.5, during A's first
    decode [1, 2): B's first 8 tokens run [2, 3), its last 4 with all of C [3, 4). A waits; A and B decode from 4."""
    engine = rules(policy="sglang", max_num_batched_tokens=8)
    run = simulate(engine, requests([0.0, 1.5, 1.5], [4, 12, 4], [4, 3, 1]), fast)
    assert run.first_token_s.tolist() == [1.0, 4.0, 4.0]
    assert run.last_token_s.tolist() == [6.0, 6.0, 4.0]
    log = run.logs[0].table()
    assert log[:4, 2].tolist() == [4, 0, 8, 8]  # prompt tokens
    assert log[:4, 5].tolist() == [0, 1, 0, 0]  # decodes
    assert log[3, 3] == 4 * (8 + 2) + 4 * 2.0  # pairs: the end of B behind its 8, then C
    # one step ahead: B and C miss the schedule at 1 for [2, 3), and run [3, 4), [4, 5)
    ahead = simulate(replace(engine, lag=1), requests([0.0, 1.5, 1.5], [4, 12, 4], [4, 3, 1]), fast)
    assert ahead.first_token_s.tolist() == [1.0, 5.0, 5.0]
    assert ahead.last_token_s.tolist() == [6.0, 7.0, 5.0]


@BOTH
def test_outputs_wait_until_the_next_prompt_is_launched(fast: bool) -> None:
    """Prompts of 4 tokens take 2 s, of which their launch takes 1.5 s; decodes take 1 s and are launched at once."""
    timer, engine = Linear(prompt_token_s=0.25), rules(policy="sglang", lag=1, max_num_seqs=4, max_num_batched_tokens=4)
    held = replace(engine, held_launch_s=1.5)
    two = requests([0.0, 0.0], [4, 4], [3, 3])
    # Prompts [0, 2) and [2, 4), then decodes. The second prompt is launched in [1.5, 3), after the first.
    assert simulate(engine, two, fast, timer).first_token_s.tolist() == [2.0, 4.0]
    run = simulate(held, two, fast, timer)
    assert run.first_token_s.tolist() == [3.0, 4.0]  # a decode follows the second
    assert run.prefilled_s.tolist() == [2.0, 4.0]
    assert run.last_token_s.tolist() == [6.0, 6.0]
    # The last token of the first request is computed in [2, 3), while the prompt that follows is launched in [2, 3.5).
    late = requests([0.0, 1.0], [4, 4], [2, 1])
    run = simulate(held, late, fast, timer)
    assert run.last_token_s.tolist() == [3.5, 5.0]
    assert run.decoded_s.tolist() == [3.0, 5.0]
    assert simulate(engine, late, fast, timer).last_token_s.tolist() == [3.0, 5.0]


@BOTH
def test_sglang_looks_for_new_requests_every_so_many_decodes(fast: bool) -> None:
    """Every 4 decodes, every 2 with two requests. A's prompt runs [0, 1); the look after it, at 1, finds nothing. B
    comes at 1.5, during the first decode, and is seen with the fourth, at 5: it runs [5, 6). C, at 5.5, is seen right
    after that prompt and runs [6, 7); D comes at 7.5 and is seen two decodes after the look at 7, at 9."""
    engine = rules(policy="sglang", receiving=ReceiveIntervals(4, 2, 2))
    work = requests([0.0, 1.5, 5.5, 7.5], [4, 4, 4, 4], [12, 8, 8, 1])
    run = simulate(engine, work, fast)
    assert run.first_token_s.tolist() == [1.0, 6.0, 7.0, 10.0]
    assert simulate(replace(engine, receiving=None), work, fast).first_token_s.tolist() == [1.0, 3.0, 7.0, 9.0]


@BOTH
def test_sglang_tries_no_prefill_between_a_refusal_and_the_step_after_a_release(fast: bool) -> None:
    """One seat. B is refused at 1 and the batch is full; A ends at 3. B would start at 3 in vLLM; here too, because
    nothing else runs. With a second seat taken by C until 9, the step [3, 4) notices that A left, and B runs [4, 5)."""
    alone = simulate(rules(policy="sglang", max_num_seqs=1), requests([0.0, 0.5], [4, 4], [3, 1]), fast)
    assert alone.last_token_s.tolist() == [3.0, 4.0]
    work = requests([0.0, 0.0, 0.5], [4, 4, 4], [3, 8, 1])
    run = simulate(rules(policy="sglang", max_num_seqs=2), work, fast)
    assert run.last_token_s.tolist() == [3.0, 9.0, 5.0]
    assert simulate(rules(max_num_seqs=2), work, fast).last_token_s.tolist() == [3.0, 8.0, 4.0]


@BOTH
def test_sglang_admits_by_what_is_declared(fast: bool) -> None:
    """Both declare 40 tokens. A takes [0, 1) and, alone, ends at 40. B comes at 4.5; at 5, A holds 8 tokens, 35 of its
    output are to come, and 0.7 of them less four steps' decay are 24.36. B asks for 4 + 40 + one block = 48 tokens: not
    less than 20 x 4 - 8 - 24.36 = 47.64, so it waits for A. With 21 blocks it runs [5, 6), and A ends a step later."""
    work = requests([0.0, 4.5], [4, 4], [40, 40])
    assert simulate(rules(policy="sglang", kv_blocks=20), work, fast).started_s.tolist() == [0.0, 40.0]
    run = simulate(rules(policy="sglang", kv_blocks=21), work, fast)
    assert run.started_s.tolist() == [0.0, 5.0]
    assert run.last_token_s.tolist() == [41.0, 45.0]


@BOTH
def test_sglang_retracts_to_the_end_of_the_queue_and_keeps_the_prompt(fast: bool) -> None:
    """20 blocks. B comes at 0.5 and is let in at 1: 48 < 80 - 4 - 0.7 x 39. Both decode from 2 and hold 40 tokens each,
    all blocks, at 38. As far as each other, the later goes: B. A ends at 41. At 39 B asked for 37 + 3 + 4 of 30 tokens.
    It hits the block of its prompt, computes 37 tokens in [41, 42) for its 38th, and ends at 44."""
    run = simulate(rules(policy="sglang", kv_blocks=20), requests([0.0, 0.5], [4, 4], [40, 40]), fast)
    assert run.preemptions.tolist() == [0, 1]
    assert run.last_token_s.tolist() == [41.0, 44.0]
    log = run.logs[0]
    again = log.prefill_tokens.tolist().index(37)
    assert log.start_s[again] == 41.0
    assert log.prefill_pairs[again] == 37 * (4 + 18.5)
    assert run.gaps_s.tolist() == [4.0]  # B's 37th token came at 38, its 38th at 42


@BOTH
def test_trtllm_ranks_wait_for_each_other_to_start_prompts(fast: bool) -> None:
    """Two ranks, at most 5 steps. A and B start at 0, together. C comes at 1.5 and waits: both ranks generate. The
    count runs from step [1, 2) on, and in the fifth, [5, 6), C starts alone. D (6.5) and E (7.5) start at 8."""
    engine = rules(policy="trtllm", attention_ranks=2, balance_steps=5)
    work = requests([0.0, 0.0, 1.5, 6.5, 7.5], [4] * 5, [20, 20, 9, 4, 4])
    assert simulate(engine, work, fast).first_token_s.tolist() == [1.0, 1.0, 6.0, 9.0, 9.0]
    unbalanced = replace(engine, balance_steps=0)
    assert simulate(unbalanced, work, fast).first_token_s.tolist() == [1.0, 1.0, 3.0, 8.0, 9.0]
    single = requests([0.0, 1.5], [4, 4], [20, 4])  # a rank with nothing to generate does not wait
    assert simulate(engine, single, fast).first_token_s.tolist() == [1.0, 3.0]


@BOTH
def test_trtllm_starts_a_request_only_if_its_worst_case_fits(fast: bool) -> None:
    """10 blocks of 4; all declare 12 tokens of output: 4 blocks each. Two run, the third waits for a release though
    blocks are free; A ends at 3 and gives back its 4, so C runs [3, 4). vLLM takes all three at once."""
    work = requests([0.0, 0.0, 0.0], [4, 4, 4], [3, 12, 3])
    run = simulate(rules(policy="trtllm", kv_blocks=10), work, fast)
    assert run.started_s.tolist() == [0.0, 0.0, 3.0]
    assert run.last_token_s.tolist() == [3.0, 12.0, 6.0]
    assert run.preemptions.tolist() == [0, 0, 0]
    assert simulate(rules(kv_blocks=10), work, fast).started_s.tolist() == [0.0, 0.0, 0.0]
    declared = simulate(rules(policy="trtllm", kv_blocks=10, max_output_tokens=24), work, fast)
    assert declared.started_s.tolist() == [0.0, 3.0, 15.0]  # 7 blocks each: one at a time


@BOTH
def test_trtllm_refuses_prompts_beyond_a_step_and_waits_for_whole_ones(fast: bool) -> None:
    engine = rules(policy="trtllm", chunked_prefill=False, max_num_batched_tokens=8)
    run = simulate(engine, requests([0.0] * 3, [9, 6, 4], [1, 20, 2]), fast)
    refused = "rejected: longer than a step without chunked prefill"
    assert [STATUS[s] for s in run.status] == [refused, "completed", "completed"]
    assert run.first_token_s.tolist()[1:] == [1.0, 2.0]


def slots(n: int, **changes: object) -> EngineRules:
    """llama.cpp with n slots of 100 tokens each."""
    return rules(policy="llama.cpp", max_num_seqs=n, max_model_len=100, kv_blocks=25 * n, **changes)


@BOTH
def test_llama_cpp_fills_prompts_in_the_order_of_slots(fast: bool) -> None:
    """Slots are taken from the highest: A has slot 2, B 1, C 0. A batch holds 8 tokens, so [0, 1) is all of C's prompt
    of 5 and 3 tokens of B's 6, whoever came first; [1, 2) C's decode, B's last 3 and 4 of A's; [2, 3) both decodes and
    A's other 2. B and A are unfinished at once."""
    run = simulate(slots(3, max_num_batched_tokens=8), requests([0.0, 0.0, 0.0], [6, 6, 5], [2, 3, 4]), fast)
    assert run.started_s.tolist() == [1.0, 0.0, 0.0]
    assert run.first_token_s.tolist() == [3.0, 2.0, 1.0]
    assert run.last_token_s.tolist() == [4.0, 4.0, 4.0]
    log = run.logs[0]
    assert log.prefill_tokens.tolist() == [8, 7, 2, 0]
    assert log.prefill_chunks.tolist() == [2, 2, 1, 0]
    assert log.decodes.tolist() == [0, 1, 2, 3]
    # [0,1): C and B side by side for 3 tokens each, then C's other 2. [1,2): C's decode beside one token of B and of A;
    # two of B beside two of A; A's last. [2,3): one token of each; A's last.
    assert log.passes.tolist() == [2, 3, 2, 1]


@BOTH
def test_llama_cpp_reads_its_weights_once_for_each_row_of_neighbouring_slots(fast: bool) -> None:
    """Slots 2, 1, 0 decode together: one pass. When B in the middle is done, A and C take two passes a step."""
    timer = Linear(pass_s=0.5)
    run = simulate(slots(3), requests([0.0, 0.0, 0.0], [4, 4, 4], [5, 3, 5]), fast, timer)
    assert run.last_token_s.tolist() == [6.0, 3.0, 6.0]  # three steps of 1 s, then two of 1.5
    # D comes at 2.75 into B's slot 1. Decodes go in before prompts, so slot 1 follows 2 and the step [3, 5) has three
    # passes: C's decode beside D's first token, A's decode, D's other 3. Then the three slots are neighbours again.
    run = simulate(slots(3), requests([0.0, 0.0, 0.0, 2.75], [4, 4, 4, 4], [6, 3, 6, 3]), fast, timer)
    assert run.first_token_s[3] == 5.0
    assert run.last_token_s.tolist() == [7.0, 3.0, 7.0, 7.0]


@BOTH
def test_llama_cpp_defers_without_a_slot_and_never_for_memory(fast: bool) -> None:
    """A's prompt of 90 takes [0, 2) in batches of 64; its slot is free at 4, B has it until 5, then C."""
    run = simulate(slots(1), requests([0.0, 0.5, 0.6], [90, 4, 4], [3, 1, 2]), fast)
    assert run.first_token_s.tolist() == [2.0, 5.0, 6.0]
    assert run.last_token_s.tolist() == [4.0, 5.0, 7.0]
    too_long = simulate(slots(1), requests([0.0], [90], [20]), fast)
    assert STATUS[too_long.status[0]] == "rejected: longer than max_model_len"


@BOTH
def test_llama_cpp_takes_up_the_deferred_of_one_step_in_reverse(fast: bool) -> None:
    """A and B end at 2 and give back slots 0 and 1. C and D were deferred: D, popped last, is in front and has slot 0,
    whose prompt goes first. E comes at 1.5, was not deferred before 2 and stays behind, but gets slot 0 from D at 3:
    its prompt goes before C's in slot 1, which has waited longer."""
    engine = slots(2, max_num_batched_tokens=4)
    run = simulate(engine, requests([0.0, 0.0, 0.25, 0.5, 1.5], [2, 2, 4, 4, 4], [2, 2, 1, 1, 1]), fast)
    assert run.first_token_s.tolist() == [1.0, 1.0, 5.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("rows", "most", "passes"),
    [
        ([(3, 1), (4, 1), (6, 1)], 0, 2),  # 3 and 4 together, 6 alone
        ([(4, 1), (6, 1), (5, 9)], 0, 3),  # the prompt's first token with slot 4, slot 6, the other 8
        ([(0, 7)], 4, 1),  # 4 fill a pass, the rest is one
        ([(0, 8)], 4, 1),
        ([(0, 3), (1, 3)], 4, 1),  # 2 of each fill a pass
    ],
)
def test_physical_batches(rows: list[tuple[int, int]], most: int, passes: int) -> None:
    assert count_passes(rows, most) == passes


@BOTH
def test_transformers_stops_prompts_when_blocks_run_low(fast: bool) -> None:
    """19 blocks of 4, margin 2.85. A holds 16 with its prompt and 17 from its first decode at 1: 2 are free, so B waits
    though its one block would fit, until A ends at 4. Of 20 blocks 3 are free at 1, the margin, and B runs [1, 2)."""
    work = requests([0.0, 0.5], [64, 2], [4, 1])
    engine = rules(policy="transformers-cb", kv_blocks=19)
    assert simulate(engine, work, fast).first_token_s.tolist() == [1.0, 5.0]
    assert simulate(replace(engine, kv_blocks=20), work, fast).first_token_s.tolist() == [1.0, 2.0]


@BOTH
def test_transformers_passes_over_who_does_not_fit(fast: bool) -> None:
    """10 blocks: A holds 5, then 6. B needs 6 for its 22 tokens, C needs 1 and starts before it."""
    run = simulate(
        rules(policy="transformers-cb", kv_blocks=10), requests([0.0, 0.5, 0.5], [20, 22, 4], [4, 1, 1]), fast
    )
    assert run.started_s.tolist() == [0.0, 4.0, 1.0]


@BOTH
def test_transformers_computes_a_rectangle_of_all_tokens_and_all_keys(fast: bool) -> None:
    """A's 5 tokens against 5 keys; then B's 4 and A's decode, 5 tokens, against 4 + 6 keys. A reads 5 as ever."""
    log = simulate(rules(policy="transformers-cb"), requests([0.0, 0.5], [5, 4], [4, 1]), fast).logs[0]
    assert log.prefill_pairs.tolist()[:2] == [25.0, 45.0]


@BOTH
def test_transformers_evicts_the_newest_that_finds_no_block(fast: bool) -> None:
    """4 blocks of 4. Prompts of 7 fill them with their first decode; at 9 tokens both need a block and B, the newer, is
    evicted. A ends at 6; B computes all 9 tokens it knows in [6, 7), for its third, and ends at 10. Before that nothing
    is admitted: C, 1 token, comes at 2.5 and would have found a block."""
    run = simulate(rules(policy="transformers-cb", kv_blocks=4), requests([0.0, 0.0, 2.5], [7, 7, 1], [6, 6, 1]), fast)
    assert run.preemptions.tolist() == [0, 1, 0]
    assert run.started_s.tolist() == [0.0, 0.0, 6.0]
    assert run.last_token_s.tolist() == [6.0, 10.0, 7.0]
    log = run.logs[0]
    assert log.start_s[log.prefill_tokens.tolist().index(9 + 1)] == 6.0  # with C's one
    assert run.gaps_s.tolist() == [5.0]


@BOTH
def test_a_static_batch_is_padded_and_leaves_together(fast: bool) -> None:
    """A (2 tokens, 2 out) and B (6, 4 out) run as two rows of 6: [0, 1) 12 prompt tokens of 2 x 18 pairs, then three
    steps of two decodes over 6, 7 and 8 tokens each, though A is done at 2. Both have their answers at 4. C came at 0.5
    and waits for them; D joins it: two rows of 3, until C's two tokens are out at 6."""
    run = simulate(rules(policy="static"), requests([0.0, 0.0, 0.5, 3.5], [2, 6, 3, 1], [2, 4, 2, 1]), fast)
    assert run.started_s.tolist() == [0.0, 0.0, 4.0, 4.0]
    assert run.first_token_s.tolist() == run.last_token_s.tolist() == [4.0, 4.0, 6.0, 6.0]
    log = run.logs[0]
    assert log.prefill_tokens[[0, -2]].tolist() == [12, 6]
    assert log.prefill_pairs[[0, -2]].tolist() == [36.0, 9.0]
    decoding = log.decodes > 0
    assert (log.decodes @ log.steps, log.context_sum[decoding][0], log.context_max[decoding][0]) == (8, 12, 6)


@BOTH
def test_a_static_batch_is_what_fits_padded(fast: bool) -> None:
    """A step holds 10 tokens: A (2) and B (5) make 2 x 5, C (6) would make 3 x 6. Then C, then D (9): 2 x 9 > 10."""
    work = requests([0.0] * 4, [2, 5, 6, 9], [1, 1, 1, 1])
    run = simulate(rules(policy="static", max_num_batched_tokens=10), work, fast)
    assert run.last_token_s.tolist() == [1.0, 1.0, 2.0, 3.0]
    # All declare 7 tokens of output: a row of 2 + 7 takes 3 blocks, and of 5 + 7 three too: A and B together 6 of 5.
    short = rules(policy="static", kv_blocks=5, max_output_tokens=7)
    assert simulate(short, work, fast).last_token_s.tolist() == [1.0, 2.0, 3.0, 4.0]


@BOTH
def test_padding_costs_what_it_computes(fast: bool) -> None:
    """A second for 4 prompt tokens and for a decode: rows of 8 and 8 take 1 + 4, then 1 + 2 for each further token."""
    timer = Linear(prompt_token_s=0.25, decode_s=1.0)
    run = simulate(rules(policy="static"), requests([0.0, 0.0], [1, 8], [3, 1]), fast, timer)
    assert run.last_token_s.tolist() == [11.0, 11.0]


@BOTH
def test_one_at_a_time_streams_and_nobody_shares(fast: bool) -> None:
    run = simulate(rules(policy="one-at-a-time"), requests([0.0, 0.0, 9.0], [4, 4, 4], [3, 2, 1]), fast)
    assert run.first_token_s.tolist() == [1.0, 4.0, 10.0]
    assert run.last_token_s.tolist() == [3.0, 5.0, 10.0]


@BOTH
def test_vllm_v0_prefills_whole_prompts_before_it_decodes(fast: bool) -> None:
    """A's prompt runs [0, 1). B (12) and C (4) come at 1.5, during A's first decode: both prompts run [2, 3), whole,
    and A waits; D (60) does not fit beside them in 64 tokens and runs [3, 4). Then all decode."""
    work = requests([0.0, 1.5, 1.5, 1.5], [4, 12, 4, 60], [4, 3, 1, 2])
    run = simulate(rules(policy="vllm-v0"), work, fast)
    assert run.first_token_s.tolist() == [1.0, 3.0, 3.0, 4.0]
    assert run.last_token_s.tolist() == [6.0, 6.0, 3.0, 5.0]
    log = run.logs[0]
    assert log.prefill_tokens.tolist()[:4] == [4, 0, 16, 60]
    assert log.decodes.tolist()[:5] == [0, 1, 0, 0, 3]


@BOTH
def test_vllm_v0_keeps_a_watermark_and_a_block_for_every_decode(fast: bool) -> None:
    """200 blocks of 4, watermark 2. A holds 100; B (392 tokens, 98 blocks) leaves 2 free and may start, C may not.
    With 393 tokens, 99 blocks, B waits until A, alone, has ended at 3."""
    engine = rules(policy="vllm-v0", kv_blocks=200, max_num_batched_tokens=500)
    assert simulate(engine, requests([0.0, 0.5, 0.5], [400, 392, 4], [3, 1, 1]), fast).started_s.tolist() == [0, 1, 2]
    assert simulate(engine, requests([0.0, 0.5], [397, 393], [3, 1]), fast).started_s.tolist() == [0, 3]
    # 4 blocks: A and B have 2 each, with room for a token. None is free, so B goes back at 1, though neither needs one.
    # A decodes alone; at 2 the two free blocks hold B's 8 tokens, which are computed [2, 3) for its second and last
    # token, and A waits: its last two come at 4 and 5.
    run = simulate(rules(policy="vllm-v0", kv_blocks=4), requests([0.0, 0.0], [7, 7], [4, 2]), fast)
    assert run.preemptions.tolist() == [0, 1]
    assert run.last_token_s.tolist() == [5.0, 3.0]
    assert simulate(rules(kv_blocks=4), requests([0.0, 0.0], [7, 7], [4, 2]), fast).preemptions.tolist() == [0, 0]


@BOTH
def test_sarathi_never_stalls_a_decode_and_fills_the_step(fast: bool) -> None:
    """Chunks of 8. A's prompt of 4 runs [0, 1); B (12) and C (4) come at 1.5. [2, 3): A's decode and 7 tokens of B;
    [3, 4): A's, B's other 5 and 2 of C; [4, 5): decodes of A and B, C's other 2. SGLang makes A wait 2 steps."""
    work = requests([0.0, 1.5, 1.5], [4, 12, 4], [5, 3, 1])
    run = simulate(rules(policy="sarathi", max_num_batched_tokens=8), work, fast)
    assert run.first_token_s.tolist() == [1.0, 4.0, 5.0]
    assert run.last_token_s.tolist() == [5.0, 6.0, 5.0]
    log = run.logs[0]
    assert log.prefill_tokens.tolist() == [4, 0, 7, 7, 2, 0]
    assert log.decodes.tolist() == [0, 1, 1, 1, 2, 1]


@BOTH
def test_sarathi_holds_the_blocks_of_a_whole_prompt(fast: bool) -> None:
    """10 blocks. A's decode has 2 at 1, B's 24 tokens take 6 at once and run in three steps, 8 beside each of A's
    decodes. Of 7 blocks 5 are free, so B waits for A's end at 6; vLLM V1 takes blocks chunk by chunk and starts it."""
    engine = rules(policy="sarathi", kv_blocks=10, max_num_batched_tokens=9)
    run = simulate(engine, requests([0.0, 0.5], [4, 24], [6, 1]), fast)
    assert run.kv_peak_fraction == 0.8
    assert run.last_token_s.tolist() == [6.0, 4.0]
    assert simulate(replace(engine, kv_blocks=7), requests([0.0, 0.5], [4, 24], [6, 1]), fast).started_s[1] == 6.0
    lazy = replace(engine, policy="vllm-v1", kv_blocks=7)
    assert simulate(lazy, requests([0.0, 0.5], [4, 24], [6, 1]), fast).started_s[1] == 1.0


@BOTH
def test_orca_reserves_the_longest_sequence(fast: bool) -> None:
    """60 slots, 20 for each request: three run at once. D waits for A, who ends at 2, and starts beside B and C."""
    engine = rules(policy="orca", kv_blocks=15, max_model_len=20)
    run = simulate(engine, requests([0.0] * 4, [4] * 4, [2, 5, 5, 2]), fast)
    assert run.started_s.tolist() == [0.0, 0.0, 0.0, 2.0]
    assert run.last_token_s.tolist() == [2.0, 5.0, 5.0, 4.0]
    log = run.logs[0]
    assert (log.prefill_tokens[2], log.decodes[2]) == (4, 2)  # selective batching: prompts beside decodes
    assert simulate(replace(engine, policy="vllm-v1"), run.requests, fast).started_s.tolist() == [0.0] * 4


@BOTH
def test_max_utilization_pauses_the_newest(fast: bool) -> None:
    """5 blocks. GUARANTEED_NO_EVICT starts B when A has ended at 9: each may need 4. MAX_UTILIZATION starts both, A and
    B with 2 blocks each; at 9 tokens A takes the fifth and B, without one, is paused. A ends at 9, B's 9 tokens are
    computed in [9, 10) for its third, and it ends at 16."""
    work = requests([0.0, 0.0], [7, 7], [9, 9])
    run = simulate(rules(policy="trtllm-max-utilization", kv_blocks=5), work, fast)
    assert run.preemptions.tolist() == [0, 1]
    assert run.started_s.tolist() == [0.0, 0.0]
    assert run.last_token_s.tolist() == [9.0, 16.0]
    safe = simulate(rules(policy="trtllm", kv_blocks=5), work, fast)
    assert safe.started_s.tolist() == [0.0, 9.0]
    assert safe.last_token_s.tolist() == [9.0, 18.0]
