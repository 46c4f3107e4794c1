"""Every kind of mixer and of feed-forward block has its class in every registry; nothing else tells kinds apart."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from calibration.operators.operators import Gemm
from calibration.profile.shapes.sizes import KINDS
from catalogs.deployments.layout import Layout
from catalogs.models.catalog import list_models, load_model
from catalogs.models.layers import FeedForward
from catalogs.models.mixers import Mixer
from simulator.layers.attention import MIXERS, sharded_mixer
from simulator.layers.feed_forward import FEED_FORWARDS, sharded_feed_forward
from simulator.layers.operator_flow import flow
from simulator.layers.shard import Shard
from simulator.layers.step import StepCalls

ROOT = Path(__file__).resolve().parents[3]
NAMES = {kind.__name__ for kind in (*MIXERS, *FEED_FORWARDS)}
#: Where the kinds may be told apart by type: the accessors of LayerGroup, and the writer of a config.json.
ALLOWED = {"catalogs/models/layers.py": 2, "calibration/whole_models/subjects.py": 1}


def test_no_kind_is_forgotten() -> None:
    # by name: a dataclass with slots is a second class of the same name
    assert {kind.__name__ for kind in MIXERS} == {kind.__name__ for kind in Mixer.__subclasses__()}
    assert {kind.__name__ for kind in FEED_FORWARDS} == {kind.__name__ for kind in FeedForward.__subclasses__()}
    assert set(KINDS) == set(MIXERS) | set(FEED_FORWARDS)


def kind_tests(source: str) -> list[ast.Call]:
    """Calls of isinstance with a kind of mixer or feed-forward block."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    tests = [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == "isinstance"]
    return [c for c in tests if NAMES & {n.id for n in ast.walk(c.args[1]) if isinstance(n, ast.Name)}]


def test_kinds_are_told_apart_by_their_classes() -> None:
    files = [f for p in ("catalogs", "calibration", "simulator", "planner") for f in (ROOT / p).rglob("*.py")]
    counts = {str(f.relative_to(ROOT)): len(kind_tests(f.read_text(encoding="utf-8"))) for f in files}
    assert {name: n for name, n in counts.items() if n} == ALLOWED


def test_a_test_of_a_kind_would_be_seen() -> None:
    assert len(kind_tests("isinstance(a, Attention | Moe) or isinstance(b, (Mlp, str))\nisinstance(c, int)")) == 2


def test_latent_attention_with_an_output_gate_projects_and_multiplies_it_after_attention() -> None:
    """Kimi-K3: the gate of 96 heads with 128 values is divided over tensor ranks, as the heads are."""
    shard = Shard(load_model("kimi-k3"), Layout(8), "fp4", "bf16")
    found = {call.name: call for call in StepCalls(shard).rank(16.0) if "gate" in call.name}
    assert found["output_gate"].count == found["gate_proj"].count == 24
    assert found["gate_proj"].op == Gemm(16.0, 96 * 128 // 8, 7168, "bf16")
    inputs = flow(("input_norm", "mla_decode", "gate_proj", "output_gate", "mixer_all_reduce"))
    assert inputs["output_gate"] == {"mla_decode", "gate_proj"}
    assert inputs["mixer_all_reduce"] == {"output_gate"}


def test_partial_outputs_of_latent_attention_are_merged_after_it() -> None:
    assert flow(("input_norm", "mla_decode", "output_merge"))["output_merge"] == {"mla_decode"}


@pytest.mark.parametrize("tp", [1, 2])
def test_ranks_hold_what_the_model_has(tp: int) -> None:
    """What all ranks hold is what the model counts, but for copies: never less, and the same on one rank."""
    for model in map(load_model, list_models()):
        shard = Shard(model, Layout(tp), "bf16", "bf16")
        for group in model.groups:
            mixer, block = sharded_mixer(shard, group), sharded_feed_forward(shard, group)
            held = {group.mixer.part: group.n_mixers * mixer.linear_params()} if group.mixer and mixer else {}
            held |= block.part_params() if block else {}
            for part, n in group.part_params(model.hidden_size).items():
                assert tp * held.get(part, 0) >= n, (model.name, part)
                assert tp > 1 or held.get(part, 0) == n, (model.name, part)
