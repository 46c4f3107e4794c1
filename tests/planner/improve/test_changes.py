"""Differences between deployments as changes with flags, and what they save."""

from __future__ import annotations

from typing import Any

from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import Deployment
from planner.improve.changes import KEPT, SINGLE, changes_between, flag_changes
from planner.improve.document import Figures, accelerators_of, savings


def filled(**keys: Any) -> dict[str, Any]:
    written = Deployment(**{"model": "llama3.1-8b", "hardware": "h100x8", **keys})
    return resolve(written).filled_in(written)


def test_equal_deployments_have_no_changes() -> None:
    assert changes_between(filled(), filled()) == []


def test_the_layout_is_one_change_and_every_limit_is_its_own() -> None:
    today = filled(tensor_parallel=8, max_num_seqs=64, enforce_eager=True)
    best = filled(tensor_parallel=2, replicas=4, max_num_seqs=256, kv_dtype="fp8")
    found = {change.what: dict(change.after) for change in changes_between(today, best)}
    assert found == {
        "parallelism": {"replicas": 4, "tensor_parallel": 2},
        "kv_dtype": {"kv_dtype": "fp8"},
        "max_num_seqs": {"max_num_seqs": 256},
        "enforce_eager": {"enforce_eager": None},
    }


def test_layers_of_stages_change_with_their_number() -> None:
    today = filled(pipeline_parallel=2, pipeline_layers=[17, 15])
    (change,) = changes_between(today, filled())
    assert change.what == "parallelism"
    assert change.after == {"pipeline_parallel": 1, "pipeline_layers": None}


def test_a_share_of_memory_that_follows_from_others_is_no_change() -> None:
    today, best = filled(engine="sglang"), filled(engine="sglang", max_num_batched_tokens=2048)
    assert today["gpu_memory_utilization"] != best["gpu_memory_utilization"]
    assert [change.what for change in changes_between(today, best)] == ["max_num_batched_tokens"]
    assert not set(KEPT) & set(SINGLE)


def test_flags_of_a_change() -> None:
    before = Deployment(model="llama3.1-8b", hardware="h100x8", max_num_seqs=64, enforce_eager=True)
    after = before.model_copy(update={"max_num_seqs": 256, "enforce_eager": None, "tensor_parallel": 2})
    found = flag_changes(before, after)
    expected = ["---max-num-seqs 64", "---enforce-eager", "+--tensor-parallel-size 2", "+--max-num-seqs 256"]
    assert sorted(found) == sorted(expected)
    assert flag_changes(before, before) == []


def test_every_pool_counts_its_accelerators() -> None:
    own = {"model": "llama3.1-8b", "hardware": "h100x8", "tensor_parallel": 2}
    assert accelerators_of({**own, "replicas": 3}) == 6
    split = {"prefill_replicas": 2, "decode_replicas": 1, "prefill": {"tensor_parallel": 1}}
    assert accelerators_of({**own, "disaggregation": split}) == 2 * 1 + 1 * 2
    encoders = {"model": "qwen2.5-vl-7b", "multimodal": {}, "encoder_pool": {"replicas": 3}}
    assert accelerators_of({**own, **encoders, "replicas": 2}) == 3 + 2 * 2


def figures(**values: Any) -> Figures:
    usual: dict[str, Any] = {
        "words": "", "hardware": "h100", "accelerators": 4, "requests_per_s": 1.0, "capacity_requests_per_s": 10.0,
        "meets": True, "probability_met": 0.95, "latencies_s": {"ttft.p99": 1.0}, "usd_per_hour": 8.0,
        "usd_per_million_output_tokens": 2.0, "j_per_output_token": 1.0,
    }  # fmt: skip
    return Figures(**{**usual, **values})


def test_savings() -> None:
    better = figures(accelerators=2, usd_per_hour=4.0, usd_per_million_output_tokens=0.5, capacity_requests_per_s=15.0,
                     j_per_output_token=0.75, latencies_s={"ttft.p99": 0.4})  # fmt: skip
    found = savings(figures(), better, with_load=True)
    assert (found.usd_per_hour, found.share_of_cost, found.accelerators) == (4.0, 0.5, 2)
    assert (found.share_of_energy_per_token, found.capacity) == (0.25, 0.5)
    assert found.latencies_s == {"ttft.p99": 0.6}
    assert savings(figures(), better, with_load=False).share_of_cost == 0.75
    unknown = savings(figures(usd_per_hour=None), better, with_load=True)
    assert (unknown.usd_per_hour, unknown.share_of_cost) == (None, None)
