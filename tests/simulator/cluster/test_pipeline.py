"""Pipelines: batches in flight by hand, laws, and what the stages' time adds up to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.workloads.request_set import RequestSet
from simulator.analysis.metrics import output_tokens, summarise
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import compile_deployment
from simulator.cluster.run import Run
from simulator.cluster.simulate import run_rules
from simulator.cluster.simulate import simulate as run
from simulator.core.batch import BatchShape
from tests.simulator.worlds import Linear, requests, rules


def simulate(stages: int, work: RequestSet, timer: Linear | None = None, **changes: object) -> Run:
    chosen = rules(pipeline_stages=stages, **changes)
    return run_rules(chosen, timer or Linear(), work, 1, RunOptions(check_invariants=True))


def test_two_batches_are_in_flight_half_a_step_apart() -> None:
    # a step takes 1, each of two stages half of it: B arrives while A is in the first stage and enters it at 0.5
    done = simulate(2, requests([0.0, 0.25, 1.25], [4, 4, 4], [3, 3, 1]))
    assert [log.start_s.tolist() for log in done.logs] == [[0.0, 1.0, 2.0], [0.5, 1.5, 2.5]]
    assert done.first_token_s[:2].tolist() == [1.0, 1.5]
    assert done.last_token_s[:2].tolist() == [3.0, 3.5]
    # C is taken in by the batch that is scheduled next, the second, and leaves with it
    assert done.last_token_s[2] == 2.5
    assert done.logs[1].prefill_tokens.tolist() == [4.0, 4.0, 0.0]


def test_the_slowest_stage_sets_the_pace() -> None:
    # a step takes 1, three quarters of it in the first or in the last of two stages: B enters 0.75 after A
    for layers in ((3, 1), (1, 3)):
        done = simulate(2, requests([0.0, 0.25], [4, 4], [3, 3]), stage_layers=layers)
        assert [log.start_s.tolist() for log in done.logs] == [[0.0, 1.5, 3.0], [0.75, 2.25, 3.75]]
        assert done.last_token_s.tolist() == [4.0, 4.75]  # the latency of a step is that of all stages together


class WithOutput(Linear):
    """A quarter of every step follows the layers."""

    def output_s(self, shape: BatchShape) -> float:
        return 0.25 * self.cycle_s(shape)


def test_the_output_projection_is_in_the_last_stage() -> None:
    work = requests([0.0, 0.25], [4, 4], [2, 2])
    # of a step of 1: 0.375 in the first stage, 0.375 + 0.25 in the last
    assert simulate(2, work, WithOutput()).logs[1].start_s[0] == 0.625
    # one layer of three in the last stage: 0.5 and 0.25 + 0.25, so nothing is lost
    assert simulate(2, work, WithOutput(), stage_layers=(2, 1)).logs[1].start_s[0] == 0.5


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=5), st.floats(0.0, 1.0))
def test_no_division_is_faster_than_equal_work(layers: list[int], output: float) -> None:
    class Timer(Linear):
        def output_s(self, shape: BatchShape) -> float:
            return output * self.cycle_s(shape)

    n = len(layers)
    work = requests([0.0] * n, [4] * n, [3] * n)
    done = simulate(n, work, Timer(), stage_layers=tuple(layers), max_num_seqs=n)
    starts = np.sort([log.start_s[0] for log in done.logs])
    assert (np.diff(starts) >= 1.0 / n - 1e-9).all()


def test_a_single_request_gains_nothing_and_many_gain_the_stages() -> None:
    alone = requests([0.0], [4], [5])
    assert simulate(4, alone).last_token_s.tolist() == simulate(1, alone).last_token_s.tolist()
    crowd = requests([0.0] * 8, [4] * 8, [50] * 8)
    one, four = (simulate(n, crowd, max_num_seqs=4) for n in (1, 4))
    assert one.last_token_s.max() == 100.0  # two rounds of four seats, 50 steps each
    assert four.last_token_s.max() == pytest.approx(
        100.75
    )  # each seat is a batch of its own: steps are no cheaper here
    dear = Linear(base_s=0.0, decode_s=1.0, prompt_token_s=0.25)
    one, four = (simulate(n, crowd, dear, max_num_seqs=4) for n in (1, 4))
    assert one.last_token_s.max() / four.last_token_s.max() == pytest.approx(4.0, rel=0.02)


def test_one_stage_is_the_replica_without_a_pipeline() -> None:
    work = requests([0.0, 0.5, 0.75, 4.0], [8, 40, 12, 30], [9, 3, 1, 5])
    assert simulate(1, work).last_token_s.tolist() == run_rules(rules(), Linear(), work).last_token_s.tolist()


def test_only_schedulers_that_share_have_several_batches() -> None:
    for policy in ("vllm-v0", "sarathi", "llama.cpp"):
        with pytest.raises(InputError, match="allows only one batch in flight"):
            simulate(2, requests([0.0], [4], [2]), policy=policy)


def test_a_cut_prompt_of_sglang_moves_on_to_the_next_batch() -> None:
    # three parts of four tokens, half a step apart: each enters while the part before it is in the second stage
    work = requests([0.0], [12], [2])
    sglang = simulate(2, work, max_num_batched_tokens=4, max_num_seqs=4, policy="sglang")
    assert np.sort(np.concatenate([log.start_s for log in sglang.logs])).tolist() == [0.0, 0.5, 1.0, 2.0]
    assert (sglang.first_token_s[0], sglang.last_token_s[0]) == (2.0, 3.0)
    # in TensorRT-LLM a request in flight is in no other batch: its parts are whole steps apart
    trtllm = simulate(2, work, max_num_batched_tokens=4, max_num_seqs=4, policy="trtllm")
    assert (trtllm.first_token_s[0], trtllm.last_token_s[0]) == (3.0, 4.0)


def test_nothing_else_starts_while_a_prompt_of_sglang_is_cut() -> None:
    work = requests([0.0, 0.25], [12, 4], [1, 1])
    done = simulate(2, work, max_num_batched_tokens=4, max_num_seqs=4, policy="sglang")
    assert done.first_token_s.tolist() == [2.0, 2.5]


def test_batches_of_trtllm_reserve_worst_cases_together() -> None:
    # each request needs 3 blocks in the end, and two of them leave one of 7: the third waits until the first has ended
    work = requests([0.0, 0.25, 0.25], [4, 4, 4], [8, 8, 8])
    options = {"policy": "trtllm", "kv_blocks": 7, "max_num_seqs": 8}
    done = simulate(2, work, **options)
    assert done.preemptions.sum() == 0
    assert done.last_token_s[:2].tolist() == [8.0, 8.5]
    assert done.first_token_s[2] == 9.0
    assert simulate(2, work, **options | {"kv_blocks": 9}).first_token_s[2] < 3.0


@st.composite
def workloads(draw: st.DrawFn) -> RequestSet:
    n = draw(st.integers(1, 16))
    arrivals = np.cumsum(draw(st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.0]), min_size=n, max_size=n)))
    inputs = draw(st.lists(st.integers(1, 60), min_size=n, max_size=n))
    outputs = draw(st.lists(st.integers(1, 20), min_size=n, max_size=n))
    hashes = [[draw(st.integers(0, 2))] * (i // 4) for i in inputs] if draw(st.booleans()) else None
    return requests(arrivals.tolist(), inputs, outputs, hashes)


@settings(max_examples=80, deadline=None)
@given(
    workloads(),
    st.integers(1, 4),
    st.sampled_from([22, 30, 1000]),
    st.sampled_from([16, 64]),
    st.sampled_from(["vllm-v1", "sglang", "trtllm", "trtllm-max-utilization"]),
)
def test_laws_hold_in_every_pipeline(work: RequestSet, stages: int, blocks: int, budget: int, policy: str) -> None:
    timer = Linear(base_s=0.25, decode_s=0.125, prompt_token_s=0.0625, context_s=2.0**-10)
    done = simulate(stages, work, timer, kv_blocks=blocks, max_num_batched_tokens=budget, policy=policy)
    assert done.completed.all()
    assert output_tokens(done) == work.output_tokens.sum()
    starts = np.sort(np.concatenate([log.start_s for log in done.logs]))
    for log in done.logs:  # a batch in flight is one at a time
        assert (log.start_s[1:] >= (log.start_s + log.total_s)[:-1] - 1e-9).all()
    assert stages == 1 or (np.diff(starts) >= 0.25 / stages - 1e-9).all()


def test_stages_share_layers_and_time() -> None:
    keys = {"model": "llama3.1-8b", "max_model_len": 4096, "max_num_seqs": 64, "max_num_batched_tokens": 1024}
    whole = compile_deployment(Deployment(hardware="h100", **keys))  # type: ignore[arg-type]
    piped = compile_deployment(Deployment(hardware="h100x4", pipeline_parallel=4, **keys))  # type: ignore[arg-type]
    shape = BatchShape(decodes=8, decode_context_sum=8000, decode_context_max=1000, logits=8)
    extra = piped.cost.cycle_s(shape) - whole.cost.cycle_s(shape)
    assert 0.0 < extra < 3 * 50e-6  # three sends
    assert (
        piped.memory.weights_bytes < 0.4 * whole.memory.weights_bytes
    )  # a quarter of the layers, all of the vocabulary
    rng = np.random.default_rng(0)
    work = RequestSet(np.cumsum(rng.exponential(0.02, 300)), np.full(300, 300), np.full(300, 100))
    metrics = summarise(run(piped, work))
    seconds = metrics["time_breakdown"]
    assert sum(seconds.values()) == pytest.approx(metrics["metrics"]["duration_s"], rel=1e-6)
    assert 0.0 < seconds["idle"] < sum(seconds.values())
