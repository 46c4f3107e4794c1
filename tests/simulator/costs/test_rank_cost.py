"""What a step costs when data-parallel ranks hold unequal shares, and what deployments make of their ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogs.deployments.resolve import resolve
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from simulator.analysis.bottleneck import bottleneck
from simulator.analysis.metrics import summarise
from simulator.analysis.request_phases import phases
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import CompiledDeployment, compile_deployment
from simulator.cluster.run import Run
from simulator.cluster.simulate import simulate
from simulator.core.batch import Batch, BatchShape, together
from simulator.core.step_timer import slowest
from simulator.costs.compile import compile_step_cost
from simulator.costs.step_cost import StepCost
from simulator.costs.tables import graph_limit
from simulator.engine.event_log import EventLog
from tests.simulator.plants import ToySource, resolved
from tests.simulator.worlds import requests

KEYS: dict[str, Any] = {"model": "mixtral-8x7b", "hardware": "h100x8", "tensor_parallel": 2, "max_num_seqs": 256}
LAYOUTS = ({"data_parallel": 4}, {"data_parallel": 2, "context_parallel": 2, "max_num_batched_tokens": 600})


def cost(host_s: float = 0.0, **keys: Any) -> tuple[ResolvedDeployment, StepCost]:
    made = resolved(**(KEYS | {"expert_parallel": True} | LAYOUTS[0] | keys))
    host = replace(made.engine.host, step_s=host_s)
    made = replace(made, engine=replace(made.engine, host=host))
    return made, compile_step_cost(made, ToySource(made.hardware.accelerator))


@st.composite
def shares(draw: st.DrawFn) -> Batch:
    """What one rank may hold."""
    n, contexts = draw(st.integers(0, 200)), st.integers(1, 3000)
    mean = draw(contexts)
    batch = Batch(decodes=n, decode_context_sum=n * mean, decode_context_max=n and mean + draw(st.integers(0, 900)))
    batch.logits = n
    if draw(st.booleans()) or not n:
        chunk, prior = draw(st.integers(1, 700)), draw(st.integers(0, 900))
        batch.prefill_tokens, batch.prefill_chunks, batch.prefill_pairs = chunk, 1, chunk * (prior + chunk / 2)
        batch.logits += 1
    return batch


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(LAYOUTS), shares())
def test_equal_shares_cost_what_an_even_split_does(layout: dict[str, Any], share: Batch) -> None:
    made, price = cost(**layout)
    whole = together([share] * made.layout.data_parallel)
    assert price.cycle_s(whole) == pytest.approx(price.cycle_s(whole.with_counts(ranks=())), rel=1e-12)
    if not share.prefill_tokens:
        even = price.decode_segment(whole.decodes, whole.decode_context_sum, whole.decode_context_max)
        first_s, slope_s, steps = price.ranks_segment(whole.ranks)
        assert (first_s, slope_s) == pytest.approx(even[:2], rel=1e-12)
        assert steps == even[2]


@settings(max_examples=60, deadline=None)
@given(st.lists(shares(), min_size=4, max_size=4), st.integers(0, 3))
def test_a_group_waits_for_its_slowest_rank_and_no_longer(parts: list[Batch], idle: int) -> None:
    """A dummy batch in place of a share never makes a step longer, unless the rest then fits in a graph and is padded
    to it; and no order of ranks matters."""
    made, price = cost()
    whole = price.ranks_segment(parts)[0]
    assert price.ranks_segment(parts[::-1])[0] == pytest.approx(whole, rel=1e-12)
    fewer: list[BatchShape | None] = [None if i == idle else part for i, part in enumerate(parts)]
    graphed = [max(part.tokens for part in held if part) <= graph_limit(made) for held in (parts, fewer)]
    assert price.ranks_segment(fewer)[0] <= whole * (1 + 1e-12) or graphed == [False, True]


@settings(max_examples=60, deadline=None)
@given(st.lists(shares().filter(lambda b: not b.prefill_tokens) | st.none(), min_size=4, max_size=4).filter(any))
def test_a_segment_is_what_its_steps_cost(parts: list[Batch | None]) -> None:
    _, price = cost(host_s=0.011)
    first_s, slope_s, steps = price.ranks_segment(parts)
    for step in {0, 1, steps // 2, steps - 1} & set(range(min(steps, 5000))):
        grown = [None if part is None else part.with_counts() for part in parts]
        for part in grown:
            if part is not None:
                part.grow(step)
        assert price.ranks_segment(grown)[0] == pytest.approx(first_s + slope_s * step, rel=1e-9)


def test_the_longest_line_until_another_crosses_it() -> None:
    assert slowest([(4.0, 1.0, 100), (2.0, 2.0, 100), (4.0, 0.0, 100)]) == (4.0, 1.0, 3)  # 6 = 6 at step 2
    assert slowest([(4.0, 1.0, 2), (2.0, 2.0, 100)]) == (4.0, 1.0, 2)
    assert slowest([(1.0, 0.0, 7)]) == (1.0, 0.0, 7)


def test_one_long_prompt_holds_up_all_ranks_but_only_once() -> None:
    """Beyond the graphs every rank runs its own tokens: attention and dense parts are the slowest rank's, experts all
    tokens'. By hand from the tables."""
    made, price = cost(max_num_batched_tokens=4096, max_num_seqs=64)
    prompt = Batch(prefill_tokens=3000, prefill_chunks=1, prefill_pairs=3000 * 1500.0, logits=1)
    decodes = Batch(decodes=10, decode_context_sum=5000, decode_context_max=500, logits=10)
    assert graph_limit(made) < 3000
    tables = price.tables
    expected = (
        tables.seconds("rank")[3000]
        + price._prefill_attention_s(1, 3000.0, 0.0)
        + tables.seconds("logits")[10]
        + tables.seconds("group")[3030]
        + made.engine.host.step_gap_s
    )
    assert price.ranks_segment([prompt, decodes, decodes, decodes])[0] == pytest.approx(expected, rel=1e-12)
    balanced = together([prompt, decodes, decodes, decodes]).with_counts(ranks=())
    assert price.cycle_s(balanced) == pytest.approx(expected, rel=0.02)  # a single prompt sits on one rank there, too


def plant(**keys: Any) -> CompiledDeployment:
    given_keys = KEYS | {"expert_parallel": True, "data_parallel": 4, "max_num_seqs": 16, "max_model_len": 4096} | keys
    return compile_deployment(Deployment(**given_keys), measured_host=False)


def served(made: CompiledDeployment, n: int = 60, clients: int = 24) -> Run:
    rng = np.random.default_rng(3)
    inputs, outputs = rng.integers(10, 900, n).tolist(), rng.integers(2, 120, n).tolist()
    work = requests([0.0] * n, inputs, outputs, concurrency=clients)
    return simulate(made, work, RunOptions(check_invariants=True, event_log=EventLog()))


def test_ranks_of_sglang_share_its_default_limits() -> None:
    """chunked_prefill_size and max_running_requests are those of all ranks; other engines have them per rank."""
    for engine, ratio in (("sglang", 4), ("vllm", 1)):
        keys = KEYS | {"engine": engine, "expert_parallel": True, "max_model_len": 4096}
        keys = {key: value for key, value in keys.items() if key not in ("max_num_seqs", "max_num_batched_tokens")}
        one, ranks = (resolve(Deployment(**keys | {"data_parallel": n})).limits for n in (1, 4))
        assert one.max_num_batched_tokens == ratio * ranks.max_num_batched_tokens
        assert one.max_num_seqs == ratio * ranks.max_num_seqs


@pytest.mark.parametrize("engine", ["vllm", "vllm-0.15", "sglang", "trtllm", "trtllm-max-utilization"])
def test_a_deployment_runs_in_lockstep_and_its_time_adds_up(engine: str) -> None:
    made = plant(engine=engine)
    assert made.resolved.rank_dispatch == made.resolved.engine.rank_dispatch != "balanced"
    done = served(made)
    (log,) = done.logs
    assert log.n_ranks == 4
    assert all(len(part) for part in log.parts)
    found = summarise(done)
    assert 0.0 < found["metrics"]["ranks"]["wait_fraction"] < 0.5
    busy = sum(seconds for kind, seconds in found["time_breakdown"].items() if kind != "idle")
    assert busy == pytest.approx(log.total_s.sum(), rel=1e-6)
    assert found["metrics"]["n_completed"] == 60
    assert sum(bottleneck(done).steps.values()) == pytest.approx(1.0)
    lives = phases(done)
    np.testing.assert_allclose(lives.ttft_s.sum(axis=1), done.ttft_s[lives.requests], rtol=1e-9)
    np.testing.assert_allclose(lives.e2e_s.sum(axis=1), done.e2e_s[lives.requests], rtol=1e-9)
    gaps = (done.requests.output_tokens - 1).sum()
    spent = (done.last_token_s - done.first_token_s).sum()
    assert found["metrics"]["itl_s"]["mean"] == pytest.approx(spent / gaps, rel=0.01)


def test_totals_read_the_same_tables_as_steps() -> None:
    """With a free host a step is its device time and the gap."""
    made = plant(engine="vllm")
    host = replace(made.resolved.engine.host, step_s=1e-9, step_s_per_sequence=0.0, kernel_launch_s=0.0)
    freed = replace(made.resolved, engine=replace(made.resolved.engine, host=host))
    made = replace(made, resolved=freed, cost=compile_step_cost(freed, made.bundle))
    done = served(made)
    (log,) = done.logs
    totals = made.cost.totals(log)
    assert totals.seconds["host"] == pytest.approx(host.step_gap_s * log.steps.sum(), abs=1e-4 * log.total_s.sum())
    assert totals.joules_per_accelerator > 0.0
    assert 0.0 < totals.rank_wait_s < totals.busy_s


@pytest.mark.parametrize("engine", ["vllm", "vllm-0.15", "sglang", "trtllm"])
def test_ranks_that_hold_the_same_are_balanced(engine: str) -> None:
    """Eight requests that are alike, two a rank: no step differs from one shared evenly."""
    work = requests([0.0] * 8, [500] * 8, [90] * 8)
    runs = [simulate(plant(engine=engine, rank_dispatch=asked), work) for asked in (None, "balanced")]
    for name in ("started_s", "first_token_s", "last_token_s"):
        np.testing.assert_allclose(getattr(runs[0], name), getattr(runs[1], name), rtol=1e-12, err_msg=name)
    found, even = (summarise(each)["metrics"] for each in runs)
    assert found["ranks"]["wait_fraction"] == pytest.approx(0.0, abs=1e-12)
    assert found["energy"]["gpu_j"] == pytest.approx(even["energy"]["gpu_j"], rel=1e-9)
    assert found["itl_s"] == pytest.approx(even["itl_s"], rel=1e-9)


def test_one_scheduler_for_all_where_it_is_asked_for() -> None:
    even = served(plant(rank_dispatch="balanced"))
    assert not even.logs[0].n_ranks
    assert "ranks" not in summarise(even)["metrics"]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"model": "llama-2-7b", "expert_parallel": False, "tensor_parallel": 1}, "rank_dispatch: null"),
        ({"data_parallel": 1}, "rank_dispatch: null"),
        ({"pipeline_parallel": 2, "tensor_parallel": 1}, "balanced"),
        ({"engine": "vllm-v0"}, "balanced"),
        ({"rank_dispatch": "round-robin"}, "round_robin"),
    ],
)
def test_ranks_that_cannot_schedule_for_themselves_are_refused(keys: dict[str, Any], words: str) -> None:
    from catalogs.io.yaml_files import validate_as

    asked = KEYS | {"expert_parallel": True, "data_parallel": 4, "rank_dispatch": "round_robin"} | keys
    with pytest.raises(InputError) as refused:
        resolve(validate_as(Deployment, asked, "deployment.yaml"))
    assert words in str(refused.value)


@pytest.mark.parametrize("keys", [{"engine": "vllm-v0"}, {"pipeline_parallel": 2, "tensor_parallel": 1}])
def test_the_rest_stays_balanced_unasked(keys: dict[str, Any]) -> None:
    found = resolve(Deployment(**(KEYS | {"expert_parallel": True, "data_parallel": 4} | keys)))
    assert found.rank_dispatch == "balanced"
    for asked in (None, "balanced"):
        assert resolve(Deployment(model="llama-2-7b", hardware="h100x8", rank_dispatch=asked)).rank_dispatch is None
