"""Speculative decoding of real deployments: what its steps cost, what it takes in memory, what a run tells of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.schema import Deployment
from catalogs.deployments.speculation import Speculative
from catalogs.errors import InputError
from catalogs.io.yaml_files import validate_as
from catalogs.workloads.request_set import RequestSet
from simulator.analysis.metrics import summarise
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import compile_deployment, compile_fleet
from simulator.cluster.simulate import simulate
from simulator.cluster.transfer_paths import RankPath
from simulator.core.batch import BatchShape
from simulator.core.step_log import StepLog
from simulator.costs.compile import compile_step_cost
from simulator.costs.pricing import N_CLASSES
from simulator.costs.speculative import SpeculativeCost
from simulator.costs.step_cost import StepCost
from simulator.costs.totals import speculative_seconds, total
from simulator.layers.shard import Shard
from simulator.memory.cache_groups import even_blocks
from simulator.memory.plan import cache_bytes, size_memory, weight_bytes
from tests.simulator.plants import ToySource, resolved

EAGLE = {"method": "eagle", "model": "head", "num_speculative_tokens": 3, "acceptance": 0.7}
DRAFT = {"method": "draft_model", "model": "tinyllama", "num_speculative_tokens": 3, "acceptance": 0.7}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "acceptance": 0.7}


def speculating(asked: dict[str, object] | None, **keys: object) -> ResolvedDeployment:
    return resolved(speculative=Speculative(**asked) if asked else None, **keys)  # type: ignore[arg-type]


def costing(asked: dict[str, object] | None, **keys: object) -> StepCost:
    there = speculating(asked, **keys)
    return compile_step_cost(there, ToySource(there.hardware.accelerator))


def shape(decodes: int, context: int = 500, prompts: int = 0, tokens: int = 0) -> BatchShape:
    pairs = tokens * tokens / (2 * max(prompts, 1))
    held = decodes * context
    return BatchShape(tokens, pairs, prompts, decodes, held, context if decodes else 0, decodes + prompts)


def logged(cost: StepCost, shapes: list[BatchShape]) -> StepLog:
    log, start_s = StepLog(), 0.0
    for each in shapes:
        step_s = cost.cycle_s(each)
        log.add(start_s, 1, each, step_s, 0.0, step_s)
        start_s += step_s
    return log


def without_drafts(shape: BatchShape, undrafted: int) -> BatchShape:
    """Return the shape with some decodes that bring no drafts."""
    return shape.with_counts(queries=4, undrafted=undrafted)


SHAPES = [shape(1), shape(7), shape(40, 1500), shape(0, prompts=2, tokens=300), shape(5, 800, 1, 200), shape(64, 3000)]


@pytest.mark.parametrize(
    "asked", [NGRAM, EAGLE, EAGLE | {"method": "eagle3"}, EAGLE | {"num_speculative_tokens": 1}, None]
)
@pytest.mark.parametrize("tp", [1, 2])
def test_both_readings_of_a_step_agree(asked: dict[str, object] | None, tp: int) -> None:
    """What a run is timed with, step by step, and what its log is priced at afterwards."""
    cost = costing(asked, model="llama-2-7b", hardware=f"h100x{tp}", tensor_parallel=tp)
    log = logged(cost, SHAPES)
    totals = total(cost.tables, log)
    assert totals.busy_s == pytest.approx(log.total_s.sum(), rel=1e-9)
    assert totals.seconds["host"] < 0.5 * totals.busy_s
    if asked is not None:
        assert isinstance(cost, SpeculativeCost)
        drafted = [cost.drafting_s(each) for each in SHAPES]
        if asked["method"] == "ngram":
            host = cost.tables.engine.host
            drafted = [
                s.decodes * host.ngram_s_per_sequence + s.decode_context_sum * host.ngram_s_per_token for s in SHAPES
            ]
        np.testing.assert_allclose(speculative_seconds(cost.tables, log), drafted, rtol=1e-9)
        assert min(drafted[:3]) > 0


def test_decodes_without_drafts_are_priced_at_one_token() -> None:
    """Both readings price the tokens that the step has: n + 3 for each decode with drafts, and logits for them."""
    shapes = [without_drafts(shape(40, 1500, 1, 200), undrafted) for undrafted in (0, 13, 40)]
    for keys in ({}, {"model": "deepseek-v3", "hardware": "h200x4", "data_parallel": 4, "expert_parallel": True}):
        cost = costing(NGRAM, **keys, **({"weight_dtype": "fp8"} if keys else {}))
        log = logged(cost, shapes)
        assert log.undrafted.tolist() == [0, 13, 40]
        assert total(cost.tables, log).busy_s == pytest.approx(log.total_s.sum(), rel=1e-9)
        assert (np.diff(log.total_s) < 0).all()
    cost, plain = costing(NGRAM, model="llama-2-7b"), costing(None, model="llama-2-7b")
    tokens = [cost.tables.partition.rank_counts(without_drafts(shape(40), n))[:3] for n in (0, 13, 40)]
    assert tokens == [(160, 160, 160), (121, 121, 121), (40, 40, 40)]
    assert plain.tables.partition.rank_counts(shape(40))[:3] == (40, 40, 40)


def test_lookup_that_finds_nothing_costs_and_gains_nothing() -> None:
    """Such steps are as wide as those of plain decoding, but for the look-up, and are not scheduled ahead."""
    tpot_s = {}
    for name, asked in (("plain", None), ("never", NGRAM | {"draft_rate": 0.001}), ("always", NGRAM)):
        plant = compile_deployment(plant_of(asked, max_num_seqs=48))  # type: ignore[arg-type]
        found = summarise(simulate(plant, work(64, 32), RunOptions(check_invariants=True)))["metrics"]
        tpot_s[name] = found["tpot_s"]["mean"]
        if name == "never":
            assert found["speculative"]["mean_acceptance_length"] == pytest.approx(1.0, abs=0.02)
            assert found["speculative"]["drafted_tokens"] < 0.02 * 3 * found["speculative"]["rounds"]
    assert 1.0 < tpot_s["never"] / tpot_s["plain"] < 1.3
    assert tpot_s["always"] < tpot_s["plain"]


def test_only_lookup_may_find_no_drafts() -> None:
    with pytest.raises(InputError, match="draft_rate is for n-gram lookup"):
        speculating(EAGLE | {"draft_rate": 0.5})
    assert speculating(NGRAM | {"draft_rate": 0.5}).speculation.draft_rate == 0.5  # type: ignore[union-attr]
    assert any("draft_rate" in notice for notice in speculating(NGRAM).speculation.notices)  # type: ignore[union-attr]


MTP = {"method": "mtp", "num_speculative_tokens": 2, "acceptance": 0.8}


@pytest.mark.parametrize("asked", [MTP, NGRAM])
def test_both_readings_agree_of_ranks_with_unequal_shares(asked: dict[str, object]) -> None:
    keys = {"model": "deepseek-v3", "hardware": "h200x4", "data_parallel": 4, "expert_parallel": True}
    cost = costing(asked, **keys, weight_dtype="fp8")
    steps = [
        [shape(3), shape(20, 900), None, shape(1)],
        [shape(3, 700, 1, 200), shape(20, 900), shape(0, prompts=1, tokens=60), None],
        [None, None, shape(2), None],
        [shape(0, prompts=2, tokens=300), None, None, None],
        [shape(5), shape(5), shape(5), shape(5)],
    ]
    log, start_s = StepLog(4), 0.0
    for ranks in steps:
        step_s = cost.ranks_segment(ranks)[0]
        whole = shape(0)
        for part in (part for part in ranks if part):
            for name in ("prefill_tokens", "prefill_pairs", "prefill_chunks", "decodes", "logits"):
                setattr(whole, name, getattr(whole, name) + getattr(part, name))
            whole.decode_context_sum += part.decode_context_sum
        whole.ranks = tuple(ranks)
        log.add(start_s, 1, whole, step_s, 0.0, step_s)
        start_s += step_s
    assert total(cost.tables, log).busy_s == pytest.approx(start_s, rel=1e-9)
    assert cost.ranks_segment([shape(5)] * 4)[0] == pytest.approx(cost.cycle_s(shape(20)), rel=1e-9)
    if asked is MTP:
        assert 0.0 < speculative_seconds(cost.tables, log).sum() < 0.3 * start_s


def test_ranks_of_a_deployment_speculate() -> None:
    told = plant_of(MTP, model="deepseek-v3", hardware="h200x8", data_parallel=8, expert_parallel=True)
    done = simulate(compile_deployment(told), work(24, 12), RunOptions(check_invariants=True))  # type: ignore[arg-type]
    found = summarise(done)["metrics"]
    assert done.completed.all()
    assert found["ranks"]["dispatch"] == "least_requests"
    assert found["speculative"]["mean_acceptance_length"] == pytest.approx(2.44, rel=0.05)


def test_verifying_costs_what_so_many_tokens_cost_and_one_look_at_the_cache() -> None:
    plain, spec = costing(None), costing(NGRAM)
    n, q, context = 8, 4, 4000
    one, wide = shape(n, context), shape(n * q, context)
    verified = spec._batch_s(one)
    assert plain._batch_s(one) < verified < plain._batch_s(wide)  # the cache is read once, not four times
    attention = [c._decode_attention_s(n, context, context, False) for c in (plain, spec)]
    assert attention[0] < attention[1] < 1.5 * attention[0]  # bytes bind it
    others = verified - attention[1]
    sixteen = replace(spec.tables.resolved, limits=replace(spec.tables.resolved.limits, max_num_seqs=64))
    tokens = compile_step_cost(replace(sixteen, speculation=None), ToySource(sixteen.hardware.accelerator))
    rows = shape(n * q, context)
    dense = tokens._batch_s(rows) - tokens._decode_attention_s(n * q, context, context, False)
    assert others == pytest.approx(dense, rel=0.02)


def test_drafting_is_a_pass_over_the_step_and_one_for_each_further_draft() -> None:
    found = [costing(EAGLE | {"num_speculative_tokens": k}).drafting_s(shape(4)) for k in (2, 3, 4)]  # type: ignore[attr-defined]
    assert found[1] - found[0] == pytest.approx(found[2] - found[1], rel=0.05)
    prompts = costing(EAGLE), costing(EAGLE, engine="sglang")
    both = [cost.drafting_s(shape(0, prompts=1, tokens=256)) for cost in prompts]  # type: ignore[attr-defined]
    assert both[0] > both[1] > 0  # SGLang only extends the drafter's cache with a prompt


def test_looking_drafts_up_is_not_hidden_behind_the_device() -> None:
    cost, there = costing(NGRAM), speculating(NGRAM)
    assert not there.engine.async_scheduling
    host = there.engine.host
    look_up_s = 8 * host.ngram_s_per_sequence + 8 * 500 * host.ngram_s_per_token
    step_s = host.step_s + 8 * host.step_s_per_sequence + host.step_gap_s
    assert cost.cycle_s(shape(8)) == pytest.approx(cost._batch_s(shape(8)) + step_s + look_up_s)


def test_the_drafter_shares_the_memory() -> None:
    """70B with 8B: weights of both, and blocks that hold keys and values of both."""
    keys = {"model": "llama3.1-70b", "hardware": "h100x4", "tensor_parallel": 4}
    asked = {"method": "draft_model", "model": "llama3.1-8b", "num_speculative_tokens": 3, "acceptance": 0.7}
    alone, beside = size_memory(speculating(None, **keys)), size_memory(speculating(asked, **keys))
    small = Shard.of(resolved("llama3.1-8b", "h100x4", tensor_parallel=4))
    assert beside.draft_bytes == weight_bytes(small)
    assert beside.weights_bytes == alone.weights_bytes + beside.draft_bytes
    per_token = cache_bytes([small], 2048) / 2048
    assert beside.kv_bytes_per_token == pytest.approx(alone.kv_bytes_per_token + per_token)
    assert beside.kv_blocks < alone.kv_blocks
    assert "of them the drafter" in beside.equation
    lookup = size_memory(speculating(NGRAM, **keys))
    assert (lookup.weights_bytes, lookup.kv_blocks) == (alone.weights_bytes, alone.kv_blocks)


def test_a_head_is_a_layer_and_what_joins_its_inputs() -> None:
    there = speculating(EAGLE)
    layer = there.model.groups[0].part_params(4096)
    norms = there.model.groups[0].small_params(4096, 4096)
    expected = 2.0 * (sum(layer.values()) + norms + 2 * 4096 * 4096)
    assert size_memory(there).draft_bytes == pytest.approx(expected)


def plant_of(asked: dict[str, object] | None, **keys: object) -> object:
    told = {"model": "llama3.1-8b", "hardware": "h100", "max_model_len": 4096, "speculative": asked}
    return validate_as(Deployment, told | keys, "deployment")


def work(n: int = 40, concurrency: int = 4, seed: int = 0) -> RequestSet:
    return RequestSet(np.zeros(n), np.full(n, 200), np.full(n, 150), concurrency=concurrency, seed=seed)


def test_tokens_come_faster_by_what_is_accepted_and_slower_by_what_a_step_takes_longer() -> None:
    plant, plain = (compile_deployment(plant_of(asked)) for asked in (EAGLE, None))  # type: ignore[arg-type]
    found = summarise(simulate(plant, work(), RunOptions(check_invariants=True)))["metrics"]
    other = summarise(simulate(plain, work()))["metrics"]
    told = found["speculative"]
    assert told["mean_acceptance_length"] == pytest.approx(2.533, rel=0.03)
    assert told["acceptance_rate"] == pytest.approx((told["mean_acceptance_length"] - 1) / 3)
    assert 0.05 < told["drafting_fraction"] < 0.5
    assert told["drafting_fraction"] + told["target_fraction"] <= 1.0 + 1e-9
    ratio = found["itl_s"]["p50"] / other["itl_s"]["p50"]  # of rounds to steps
    assert found["tpot_s"]["mean"] / other["tpot_s"]["mean"] == pytest.approx(ratio / 2.533, rel=0.05)
    assert found["output_tokens_per_s"] * found["duration_s"] == pytest.approx(40 * 150)
    assert "speculative" not in other


def test_seeds_draw_other_acceptances_and_one_seed_the_same() -> None:
    plant = compile_deployment(plant_of(EAGLE))  # type: ignore[arg-type]
    ends = [simulate(plant, work(seed=seed)).last_token_s.tolist() for seed in (0, 0, 1)]
    assert ends[0] == ends[1] != ends[2]


def test_decode_pools_speculate() -> None:
    apart = {"prefill_replicas": 1, "decode_replicas": 1}
    told = plant_of(EAGLE, hardware="h100x2", disaggregation=apart)
    done = simulate(compile_fleet(told), work(), RunOptions(check_invariants=True))  # type: ignore[arg-type]
    assert done.completed.all()
    assert summarise(done)["metrics"]["speculative"]["mean_acceptance_length"] > 2.2


def test_what_travels_and_what_hybrid_caches_hold_counts_the_drafter() -> None:
    apart = {"prefill_replicas": 1, "decode_replicas": 1}
    wire_s = []
    for asked in (None, EAGLE):
        fleet = compile_fleet(plant_of(asked, hardware="h100x2", disaggregation=apart))  # type: ignore[arg-type]
        wire_s.append(RankPath.between(*fleet.deployments, fleet).load(1000).out_s)
    assert wire_s[1] / wire_s[0] == pytest.approx(33 / 32)  # a head of one layer beside 32
    keys = {"model": "gemma-3-12b", "speculative": EAGLE}
    plant = compile_deployment(plant_of(EAGLE, **keys))  # type: ignore[arg-type]
    tokens = np.full(10, 3000)
    long = RequestSet(np.zeros(10), tokens, np.full(10, 10), concurrency=1)
    with_drafter = even_blocks(plant.resolved, plant.memory, long)
    without = even_blocks(replace(plant.resolved, speculation=None), plant.memory, long)
    assert 0.7 * without < with_drafter < without


def test_pools_of_one_request_draft_alike() -> None:
    apart = {"prefill_replicas": 1, "decode_replicas": 1, "decode": {"speculative": EAGLE}}
    with pytest.raises(InputError, match="must use the same drafter"):
        compile_fleet(plant_of(None, hardware="h100x2", disaggregation=apart))  # type: ignore[arg-type]
    apart["decode"] = {"speculative": NGRAM}  # looks at the host's tokens only
    assert compile_fleet(plant_of(None, hardware="h100x2", disaggregation=apart)).deployments  # type: ignore[arg-type]


def test_the_command_tells_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from simulator.cli.main import main

    file, out = tmp_path / "d.yaml", tmp_path / "o.json"
    file.write_text(
        json.dumps({"model": "llama3.1-8b", "hardware": "h100", "max_model_len": 4096, "speculative": NGRAM})
    )
    load = tmp_path / "w.yaml"
    load.write_text("arrivals: {closed_loop: {concurrency: 2}}\nrequests: 8\ninput_tokens: {constant: 64}\n"
                    "output_tokens: {constant: 40}\n")  # fmt: skip
    with pytest.raises(SystemExit) as ended:
        main([str(file), "--workload", str(load), "--json", str(out), "--explain"])
    assert ended.value.code == 0
    found = json.loads(out.read_text())
    assert found["metrics"]["speculative"]["rounds"] > 0
    assert found["explain"]["speculative"] == found["metrics"]["speculative"]
    assert found["deployment"]["speculative"]["method"] == "ngram"
    assert capsys.readouterr().out.count("speculation (ngram x 3): ") == 2


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_laws_hold_for_random_deployments(data: st.DataObject) -> None:
    draw = data.draw
    engine = draw(st.sampled_from(("vllm", "vllm-0.15", "sglang", "trtllm", "trtllm-max-utilization")))
    method = draw(st.sampled_from(("eagle3", "draft_model", "ngram") if engine.startswith("vllm") else ("eagle3",)))
    k = draw(st.integers(1, 5))
    rates = sorted(draw(st.lists(st.floats(0, 1), min_size=k, max_size=k)), reverse=True)
    asked: dict[str, object] = {"method": method, "num_speculative_tokens": k, "acceptance": rates}
    asked |= {"model": {"eagle3": "head", "draft_model": "llama3.2-1b"}.get(method)}
    if engine == "sglang" and draw(st.booleans()):
        asked |= {"topk": 2, "num_draft_tokens": k + 2}
    tp = draw(st.sampled_from((1, 2)))
    told = plant_of(
        asked,
        engine=engine,
        hardware=f"h100x{tp}",
        tensor_parallel=tp,
        max_num_seqs=draw(st.integers(1, 16)),
        max_num_batched_tokens=512,
        max_model_len=1024,
        kv_blocks=draw(st.sampled_from((None, 2000, 1200))),
        prefix_caching=draw(st.booleans()),
    )
    n = draw(st.integers(1, 15))
    sizes = st.lists(st.integers(1, 300), min_size=n, max_size=n)
    requests = RequestSet(
        np.zeros(n), np.array(draw(sizes)), np.array(draw(sizes)), concurrency=draw(st.integers(1, n))
    )
    plant = compile_deployment(told)  # type: ignore[arg-type]
    done = simulate(plant, requests, RunOptions(check_invariants=True))
    assert (done.completed | done.rejected).all()
    log = StepLog.merged(done.logs)
    device_s = sum(p.device[:, :N_CLASSES].sum() for p in _priced(plant, log))
    assert device_s <= log.total_s.sum() * (1 + 1e-9)


def _priced(plant: object, log: StepLog) -> object:
    from simulator.costs.totals import priced

    return priced(plant.cost.tables, log)  # type: ignore[attr-defined]
