"""LoRA adapters: sizes by hand, a timeline by hand, who is passed over, residency, laws and fast-forward at random."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.synthetic import Adapters
from catalogs.workloads.workload import load_workload
from simulator.cache.lora_slots import AdapterSlots, LoraRules
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import Pool, fit
from simulator.cluster.run import Run
from simulator.cluster.simulate import run_pools, run_rules
from simulator.core.invariants import InvariantViolation
from simulator.layers.shard import Shard
from simulator.memory.adapters import adapter_bytes, lora_bytes
from simulator.memory.plan import size_memory
from simulator.schedulers.registry import VARIANTS
from simulator.schedulers.rules import EngineRules
from simulator.schedulers.vllm.v1_lora import LoraV1
from tests.simulator.worlds import Linear, requests, rules

BOTH = pytest.mark.parametrize("fast", [True, False])
#: 1/4 s a step for one adapter, 1/8 s for each further one; 1/2 s to the device, 1 s from disk.
ONE = LoraRules(1, 1, 3, 0.5, 1.0, (0.0, 64.0), (0.25, 0.25), 0.125)


def simulate(engine: EngineRules, work: RequestSet, fast: bool = True, timer: Linear | None = None) -> Run:
    return run_rules(engine, timer or Linear(), work, 1, RunOptions(fast_forward=fast, check_invariants=True))


def asking(work: RequestSet, adapters: list[int]) -> RequestSet:
    return replace(work, adapters=np.array(adapters, dtype=np.int64))


def resolved(**lora: object) -> object:
    return resolve(Deployment.model_validate({"model": "llama-3.1-8b", "hardware": "h100x8", **lora}))


def test_parameters_of_an_adapter_by_hand() -> None:
    """Rank 16 on all linear layers of Llama-3.1-8B: 41,943,040, as fine-tuning logs of it print."""
    shard = Shard.of(resolved())  # type: ignore[arg-type]
    layer = 16 * (3 * 4096 + 6144) + 16 * (4096 + 4096) + 16 * (2 * 4096 + 2 * 14336) + 16 * (14336 + 4096)
    assert adapter_bytes(shard, 16) == 2 * 32 * layer == 2 * 41_943_040


def test_ranks_cut_one_of_the_two_matrices() -> None:
    whole, half = (Shard.of(resolved(tensor_parallel=tp)) for tp in (1, 2))  # type: ignore[arg-type]
    assert adapter_bytes(whole, 16) / 2 < adapter_bytes(half, 16) < adapter_bytes(whole, 16)


def test_slots_are_taken_from_the_cache() -> None:
    keys = {"model": "llama-3.1-8b", "hardware": "rtx4090", "max_model_len": 4096}
    plain = size_memory(resolve(Deployment.model_validate(keys)))
    asked = resolve(Deployment.model_validate({**keys, "lora": {"adapters": 9, "max_loras": 4, "max_rank": 64}}))
    served = size_memory(asked)
    assert served.weights_bytes - plain.weights_bytes == lora_bytes(asked) == 4 * 4 * 2 * 41_943_040
    assert plain.kv_bytes - served.kv_bytes == lora_bytes(asked)


def test_adapters_without_room_are_refused() -> None:
    lora = {"adapters": 64, "max_loras": 64, "max_rank": 64}
    with pytest.raises(InputError, match=r"of them LoRA slots"):
        fit(Deployment.model_validate({"model": "llama-3.1-8b", "hardware": "rtx4090", "lora": lora}))


@pytest.mark.parametrize(
    ("keys", "rule"),
    [
        ({"lora": {"adapters": 2, "max_rank": 20}}, "one of vLLM's ranks.*got 20.*choice: 16"),
        ({"lora": {"adapters": 2, "max_loras": 4, "max_cpu_loras": 2}}, "at least max_loras.*got 2.*choice: 4"),
        ({"lora": {"adapters": 2}, "engine": "trtllm"}, "LoRA is not simulated for trtllm"),
        ({"lora": {"adapters": 2}, "kv_offload": {"host_gib": 9.0}}, "LoRA is not simulated together with KV offload"),
    ],
)
def test_what_cannot_be_is_refused(keys: dict[str, object], rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        resolved(**keys)


def test_mixtures_of_experts_are_refused() -> None:
    keys = {"model": "mixtral-8x7b", "hardware": "h100x8", "tensor_parallel": 4, "lora": {"adapters": 2}}
    with pytest.raises(InputError, match="dense models"):
        fit(Deployment.model_validate(keys))


def test_adapters_are_not_decoded_for_prefill_replicas() -> None:
    pools = [Pool(rules(lora=ONE), Linear(), 1, role) for role in ("prefill", "decode")]
    with pytest.raises(
        InputError, match="cannot take over requests from a prefill replica yet: got 'vllm-v1 with LoRA"
    ):
        run_pools(pools, asking(requests([0.0], [4], [2]), [0]))


@BOTH
def test_a_second_adapter_waits_for_the_first_by_hand(fast: bool) -> None:
    """One slot. Adapter 0 comes from disk, 1.5 s; its steps take 1.25 s. The second request is passed over, the third
    asks for none and starts beside the first."""
    work = asking(requests([0.0, 0.0, 0.0], [4, 4, 4], [3, 2, 2]), [0, 1, -1])
    run = simulate(rules(lora=ONE), work, fast)
    # [0, 2.75) both prompts; [2.75, 4) both decode; [4, 5.25) the first alone; [5.25, 8) the second's prompt.
    assert run.first_token_s.tolist() == [2.75, 8.0, 2.75]
    assert run.last_token_s.tolist() == [5.25, 9.25, 4.0]
    two = replace(ONE, max_loras=2, in_host=2)
    together = simulate(rules(lora=two), work, fast)
    # 1 + 3/8 + twice 1.5; then 1.375 for the two, 1.25 for the first alone
    assert together.last_token_s.tolist() == [7.0, 5.75, 5.75]


@BOTH
def test_an_arrival_whose_adapter_is_there_passes_those_that_wait(fast: bool) -> None:
    work = asking(requests([0.0, 0.0, 9.5], [4, 4, 4], [20, 2, 2]), [0, 1, 0])
    run = simulate(rules(lora=ONE), work, fast)
    # Steps of 1.25 s from 2.75 on: one starts at 10.25, and the prompt runs in it.
    assert run.first_token_s[2] == 11.5
    assert run.last_token_s[0] < run.first_token_s[1]


@BOTH
def test_an_adapter_in_host_memory_is_not_read_again(fast: bool) -> None:
    work = asking(requests([0.0, 10.0, 20.0], [4, 4, 4], [1, 1, 1]), [0, 1, 0])
    cold = simulate(rules(lora=ONE), work, fast)
    assert (cold.first_token_s - cold.started_s).tolist() == [2.75, 2.75, 2.75]
    warm = simulate(rules(lora=replace(ONE, in_host=2)), work, fast)
    assert (warm.first_token_s - warm.started_s).tolist() == [2.75, 2.75, 1.75]


def test_slots_forget_the_longest_unused_but_none_in_use() -> None:
    slots = AdapterSlots(LoraRules(2, 3, 9))
    for adapter in (0, 1):
        assert slots.use(adapter, set()) == (1, 1)
    assert slots.use(2, {0}) == (1, 1)  # 1 goes from the device, and stays in the host
    assert slots.use(1, {2}) == (1, 0)  # 0 goes from the device, and is the longest unused in the host
    assert slots.use(3, {1}) == (1, 1)  # 2 goes from the device, 0 from the host
    assert slots.use(2, {1}) == (1, 0)  # 3 goes from the device
    assert slots.use(1, {2}) == (0, 0)
    assert slots.use(0, {1}) == (1, 1)


def test_prefixes_of_other_adapters_are_not_hit() -> None:
    work = requests([0.0, 10.0, 20.0], [9, 9, 9], [1, 1, 1], [[1, 2], [1, 2], [1, 2]])
    run = simulate(rules(lora=ONE), asking(work, [0, 1, 0]))
    assert run.cached_tokens.tolist() == [0, 0, 8]


def test_a_workload_that_asks_for_more_is_refused() -> None:
    work = asking(requests([0.0], [4], [1]), [3])
    with pytest.raises(InputError, match=r"serves 3 LoRA adapters.*adapters: 4"):
        simulate(rules(lora=ONE), work)
    with pytest.raises(InputError, match="serves 0 LoRA adapters"):
        simulate(rules(), work)


def test_a_trace_names_adapters_in_a_column(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens,adapter\n0,10,2,sql\n1,10,2,\n2,10,2,chat\n3,10,2,sql\n")
    drawn = load_workload(str(trace)).materialise()
    assert drawn.adapters is not None
    assert drawn.adapters.tolist() == [0, -1, 1, 0]
    assert drawn.every(2).adapters.tolist() == [0, 1]  # type: ignore[union-attr]


def test_popular_adapters_are_asked_for_more() -> None:
    drawn = Adapters(count=4, skew=1.0, base_fraction=0.5).draw(np.random.default_rng(0), 40_000)
    shares = np.bincount(drawn + 1) / len(drawn)
    assert shares == pytest.approx([0.5, 0.24, 0.12, 0.08, 0.06], abs=0.01)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[EngineRules, RequestSet, Linear]:
    seqs, n = draw(st.integers(1, 5)), draw(st.integers(2, 14))
    slots = draw(st.integers(1, 3))
    engine = rules(
        max_num_seqs=seqs,
        max_num_batched_tokens=draw(st.integers(seqs, 40)),
        kv_blocks=draw(st.integers(25, 60)),
        admit_whole_prompt=draw(st.booleans()),
        lag=draw(st.integers(0, 1)),
        lora=replace(ONE, max_loras=slots, in_host=slots + draw(st.integers(0, 1)), adapters=4),
    )
    inputs = draw(st.lists(st.integers(1, 24), min_size=n, max_size=n))
    outputs = draw(st.lists(st.integers(1, 60), min_size=n, max_size=n))
    gaps = draw(st.lists(st.sampled_from([0, 0, 1, 8, 70]), min_size=n, max_size=n))
    adapters = draw(st.lists(st.integers(-1, 3), min_size=n, max_size=n))
    hashes = draw(st.none() | st.just([list(range(i // 4)) for i in inputs]))
    timer = Linear(context_s=draw(st.sampled_from([0.0, 1 / 64])))
    return engine, asking(requests((np.cumsum(gaps) / 4).tolist(), inputs, outputs, hashes), adapters), timer


@settings(max_examples=120, deadline=None)
@given(worlds())
def test_fast_forward_changes_nothing(world: tuple[EngineRules, RequestSet, Linear]) -> None:
    slow, fast = (simulate(world[0], world[1], fast, world[2]) for fast in (False, True))
    assert fast.completed.all()
    for name in ("preemptions", "cached_tokens"):
        np.testing.assert_array_equal(getattr(slow, name), getattr(fast, name), err_msg=name)
    for name in ("started_s", "first_token_s", "last_token_s"):
        np.testing.assert_allclose(getattr(slow, name), getattr(fast, name), rtol=0, atol=1e-9, err_msg=name)


def test_a_scheduler_that_ignores_the_limit_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class IgnoresLimit(LoraV1):
        def __init__(self, engine: EngineRules) -> None:
            super().__init__(replace(engine, lora=replace(ONE, max_loras=2, in_host=2)))

    monkeypatch.setitem(VARIANTS["lora"].by_policy, "vllm-v1", IgnoresLimit)
    with pytest.raises(InvariantViolation, match="2 adapters in a batch of at most 1"):
        simulate(rules(lora=ONE), asking(requests([0.0, 0.0], [4, 4], [3, 2]), [0, 1]))
