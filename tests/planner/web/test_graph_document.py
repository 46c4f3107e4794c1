"""The graph of a step: node times add up to the step time, the work is that of the analysis, and data flows one way."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from graphlib import TopologicalSorter
from typing import Any

import pytest

from catalogs.deployments.encoder_decoders import default_engine
from catalogs.errors import InputError
from catalogs.models.catalog import list_models, load_model
from planner.studies.step_analysis import PricedReplica, StepQuery, analyze
from planner.web.documents.graph import HOST, Graph, graph_document, graph_of
from planner.web.documents.memory import memory_document
from simulator.layers.operator_flow import BEFORE, flow, inputs_of

WIDE = ("llama3.1-405b", "deepseek-v3", "deepseek-v3.2", "gpt-oss-120b", "nemotron-h-56b", "qwen3.5-397b-a17b")


def check(graph: Graph) -> None:
    """Check what must hold of every graph."""
    nodes = {node["id"]: node for node in graph["nodes"]}
    assert len(nodes) == len(graph["nodes"])
    assert sum(n["count"] * n["seconds"] for n in nodes.values()) == pytest.approx(graph["step_s"], rel=1e-9)
    assert graph["device_s"] + graph["host_s"] == pytest.approx(graph["step_s"], rel=1e-9)
    assert sum(g["total_s"] for g in graph["groups"]) == pytest.approx(graph["step_s"], rel=1e-9)
    assert all(n["seconds"] > 0 and n["count"] >= 1 for n in nodes.values() if n["id"] != HOST)
    assert all(n["origin"] in ("measured", "interpolated", "roofline") for n in nodes.values() if n["id"] != HOST)
    assert {n["parent"] for n in nodes.values()} == {g["id"] for g in graph["groups"]}
    assert all(n["bound"] in graph["bounds"] for n in nodes.values())
    # data flows one way, from one start (and the encoder's) to the host, and no operator is left out
    before: dict[str, set[str]] = {name: set() for name in nodes}
    for edge in graph["edges"]:
        before[edge["to"]].add(edge["from"])
    list(TopologicalSorter(before).static_order())
    read = Counter(edge["from"] for edge in graph["edges"])
    assert [name for name in nodes if not read[name]] == [HOST]
    starts = {name for name, inputs in before.items() if not inputs}
    assert starts <= {"input.embedding", "encoder1.encoder_norm", "encoder1.encoder_patch_embed"}
    json.dumps(graph, allow_nan=False)


@pytest.mark.parametrize("model", list_models())
def test_the_nodes_of_every_model_add_up_to_its_step(model: str) -> None:
    context = min(512, load_model(model).max_position_tokens)
    query = StepQuery(model, "h200", 4, context, tensor_parallel=1, engine=default_engine(model, "h200"))
    replica = PricedReplica.of(query)
    for stage in ("decode", "prefill"):
        graph = graph_of(replica, replace(query, stage=stage))
        check(graph)
        spec = load_model(model)
        kinds = {g["id"]: g["layers"] for g in graph["groups"] if g["id"].startswith(("layers", "encoder"))}
        layers = spec.n_layers + (spec.n_encoder_layers if stage == "prefill" else 0)
        assert sum(kinds.values()) == layers


@pytest.mark.parametrize("model", WIDE)
def test_the_nodes_of_ranks_add_up_to_the_step_of_plan_analyze(model: str) -> None:
    for stage, batch, context in (("decode", 64, 2048), ("prefill", 3, 6000)):
        query = StepQuery(model, "h200x8", batch, context, stage)
        graph, analysis = graph_document(query), analyze(query)
        check(graph)
        assert graph["step_s"] == pytest.approx(analysis.time.engine_s, rel=1e-9)
        # The graph divides what the simulator reads from its tables; the analysis prices the operators themselves.
        assert graph["device_s"] == pytest.approx(analysis.time.device_s, rel=0.03)
        for key in ("flops", "bytes"):
            total = sum(n["count"] * float(n[key]) for n in graph["nodes"])  # type: ignore[literal-required]
            assert total == pytest.approx(sum(getattr(row, key) for row in analysis.rows), rel=1e-9)


def test_a_text_encoder_is_refused_on_an_engine_that_does_not_serve_it() -> None:
    with pytest.raises(InputError, match="vllm does not serve T5ForConditionalGeneration"):
        graph_document(StepQuery("t5-small", "h200", 1, 128))


@pytest.mark.parametrize(
    ("model", "hardware"), [("qwen2.5-vl-7b", "h200"), ("qwen3-vl-32b", "h200x4"), ("llama4-scout", "h200x8")]
)
def test_the_nodes_of_a_vision_language_model_add_up_to_its_step(model: str, hardware: str) -> None:
    """The tower's operators and those of the language model, in one step and over several."""
    query = StepQuery(model, hardware, 3, 6000, "prefill", images=2, resolution="1024x768")
    graph, analysis = graph_document(query), analyze(query)
    check(graph)
    assert graph["step_s"] == pytest.approx(analysis.time.engine_s, rel=1e-9)
    assert graph["device_s"] == pytest.approx(analysis.time.device_s, rel=0.06)
    encoder = [node for node in graph["nodes"] if node["parent"].startswith("encoder")]
    assert sum(node["total_s"] for node in encoder) > 0
    text = graph_document(replace(query, images=0))
    assert graph["step_s"] > text["step_s"]
    assert not [node for node in text["nodes"] if node["parent"].startswith("encoder")]
    into = {edge["from"] for edge in graph["edges"] if edge["to"] == "input.embedding"}
    assert {name.partition(".")[0] for name in into} == {encoder[-1]["parent"]}
    vision = load_model(model).vision
    assert vision is not None
    layers = {g["id"]: g["layers"] for g in graph["groups"] if g["id"].startswith("encoder")}
    assert sum(layers.values()) == vision.n_layers


def test_experts_run_beside_the_shared_ones_and_both_are_added() -> None:
    graph = graph_document(StepQuery("deepseek-v3", "h200x8", 16, 1024))
    into: dict[str, set[str]] = {}
    for edge in graph["edges"]:
        into.setdefault(edge["to"], set()).add(edge["from"])
    moe = next(g["id"] for g in graph["groups"] if "experts" in g["label"])
    assert into[f"{moe}.add_shared"] == {f"{moe}.experts", f"{moe}.shared_down_proj"}
    assert into[f"{moe}.router"] == into[f"{moe}.shared_gate_up_proj"] == {f"{moe}.post_norm"}


def test_absent_operators_are_skipped_and_implied_inputs_left_out() -> None:
    assert flow(["qkv_proj", "o_proj", "prefill_attention"]) == {
        "qkv_proj": {BEFORE},
        "prefill_attention": {"qkv_proj"},
        "o_proj": {"prefill_attention"},
    }
    assert inputs_of("post_norm", frozenset({"post_norm"})) >= {BEFORE}
    with pytest.raises(KeyError):
        flow(["an operator without a place"])


@pytest.mark.parametrize(
    ("model", "hardware"),
    [("llama3.1-405b", "h100x8"), ("deepseek-v3", "h200x8"), ("gemma-3-27b", "h100"), ("whisper-large-v3", "h100")],
)
def test_memory_of_layers_adds_up_to_the_memory_of_the_accelerator(model: str, hardware: str) -> None:
    context = min(4096, load_model(model).max_position_tokens)
    found: dict[str, Any] = memory_document(StepQuery(model, hardware, 7, context))
    layers, totals = found["layers"], found["totals"]
    outside = sum(part["weights_bytes"] for part in found["outside_layers"])
    weights = outside + sum(kind["layers"] * kind["weights_bytes"] for kind in layers)
    assert weights == pytest.approx(totals["weights_bytes"], rel=1e-12)
    held = sum(kind["layers"] * kind["kv_bytes"] for kind in layers)
    assert held == pytest.approx(totals["kv_batch_bytes"], rel=1e-12)
    assert held == pytest.approx(7 * found["sequences"]["bytes_each"], rel=1e-12)
    json.dumps(found, allow_nan=False)
