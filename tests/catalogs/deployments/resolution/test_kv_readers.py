"""Which prefill replicas a decode replica can read KV blocks from, by engine and version."""

from __future__ import annotations

import pytest

from catalogs.deployments.layout import Layout
from catalogs.deployments.resolution.parallelism import transfer_refusal
from catalogs.deployments.resolve import CatalogLookup, resolve_pools
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from planner.evaluation.closed_forms.disaggregated import ratios, refused_pairs
from planner.problem.request import PlanRequest

#: Llama-3.1-8B has 8 KV heads, Qwen3-30B-A3B has 4, and DeepSeek-V3 a latent that every rank holds.
LLAMA, QWEN, DEEPSEEK = "llama3.1-8b", "qwen3-30b-a3b", "deepseek-v3"


@pytest.mark.parametrize(
    ("engine", "model", "prefill", "decode", "reason"),
    [
        ("vllm", LLAMA, 2, 4, None),
        ("vllm", LLAMA, 4, 2, None),
        ("vllm-0.11", LLAMA, 2, 4, None),
        ("vllm-0.11", LLAMA, 4, 2, "at least as wide"),
        ("vllm-0.11", DEEPSEEK, 8, 1, "at least as wide"),
        ("vllm-v0", LLAMA, 4, 2, "at least as wide"),
        ("vllm-0.15", LLAMA, 4, 2, None),
        ("vllm", QWEN, 8, 4, "copies of 4 KV heads"),
        ("vllm", QWEN, 4, 8, None),
        ("vllm", DEEPSEEK, 8, 1, None),
        ("sglang", QWEN, 8, 4, None),
        ("trtllm", QWEN, 8, 4, None),
        ("vllm", LLAMA, 3, 2, "a multiple of the other"),
        ("sglang", LLAMA, 2, 3, "a multiple of the other"),
    ],
)
def test_rules_by_engine_and_version(engine: str, model: str, prefill: int, decode: int, reason: str | None) -> None:
    names = CatalogLookup.of(model, engine, "h200x8")
    found = transfer_refusal(names.model, names.engine, Layout(prefill), Layout(decode))
    assert (found is None) == (reason is None)
    assert reason is None or reason in str(found)


def test_a_refused_deployment_names_the_nearest_prefill_size() -> None:
    split = {"prefill_replicas": 1, "decode_replicas": 1, "prefill": {"tensor_parallel": 8}}
    keys = {"model": QWEN, "hardware": "a100-80gbx16", "tensor_parallel": 2, "disaggregation": split}
    with pytest.raises(InputError, match=r"copies of 4 KV heads.*prefill: \{tensor_parallel: 4\}"):
        resolve_pools(Deployment(**keys))  # type: ignore[arg-type]
    assert len(resolve_pools(Deployment(**keys, engine="sglang"))) == 2  # type: ignore[arg-type]


def test_the_search_leaves_out_pairs_and_says_so() -> None:
    """On eight H100, vLLM 0.11 reads from prefill replicas that are no wider; 0.33 reads from wider ones too."""
    pairs, notices = {}, {}
    for engine in ("vllm", "vllm-0.11"):
        request = PlanRequest(model=LLAMA, hardware="h100x8", slos="ttft.p99=1s", engine=engine)
        names = CatalogLookup.of(LLAMA, engine, "h100x8")
        found = list(ratios(request, names))
        pairs[engine] = {(c.split.layout.tensor_parallel, c.layout.tensor_parallel) for c in found}
        notices[engine] = refused_pairs(request, names)
    assert {wrote > reads for wrote, reads in pairs["vllm-0.11"]} == {False}
    assert pairs["vllm"] - pairs["vllm-0.11"] == {(w, r) for w, r in pairs["vllm"] if w > r} != set()
    assert notices["vllm"] == []
    assert "at least as wide, not from TP2 to TP1" in notices["vllm-0.11"][0]
