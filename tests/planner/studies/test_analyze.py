"""One step taken apart: adds up, obeys the roofline, reproduces the published table, refuses nonsense."""

from __future__ import annotations

import json
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.bundles.bundle import load_bundle
from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.models.media_items import MediaLayout
from catalogs.ui.entry_point import run_command
from catalogs.ui.terminal import PIPED
from planner.cli.main import app
from planner.studies import step_analysis
from planner.studies.analyzed_steps import PromptItems, PromptLimits, decode_step, prefill_steps
from planner.studies.step_analysis import StepQuery, analyze, document
from simulator.analysis.operators import FIXED, LINK, MEMORY, together
from simulator.cluster.compiled import compile_deployment
from simulator.core.batch import Batch, BatchShape


def asked(**changes: Any) -> StepQuery:
    return StepQuery(**({"model": "llama3.1-8b", "hardware": "h100", "batch": 16, "context": 1024} | changes))


def test_operators_add_up_and_none_of_much_work_beats_its_roofline() -> None:
    a = analyze(asked())
    assert sum(r.seconds for r in a.rows) == pytest.approx(a.time.device_s)
    assert sum(r.roofline_s for r in a.rows) == pytest.approx(a.time.roofline_s)
    assert a.time.roofline_s < a.time.device_s <= 1.01 * a.time.engine_s  # the engine's is read between nodes
    for r in a.rows:
        if r.seconds > 0.05 * a.time.device_s:
            assert r.efficiency <= 1.0, r.name
        assert r.measured_s + r.interpolated_s + r.borrowed_s <= r.seconds * (1 + 1e-9)


def test_an_operator_faster_than_its_roofline_is_explained() -> None:
    """Sampling reads the logits many times, which the cache serves once they are much; few of them cost a launch."""
    few, many = (document(analyze(asked(batch=batch))) for batch in (1, 256))
    assert not any("faster than at the roofline" in notice for notice in few["notices"])
    (text,) = [notice for notice in many["notices"] if "faster than at the roofline" in notice]
    faster = [row["name"] for row in many["operators"] if row["seconds"] < row["roofline_s"]]
    assert "sampling" in faster
    assert f"roofline: {', '.join(faster)}." in text


def test_a_question_has_the_same_answer_after_others() -> None:
    """What one question computes for the next changes no figure."""
    step_analysis._step_cost.cache_clear()
    alone = document(analyze(asked(batch=17)))
    for batch in (1, 256):
        analyze(asked(batch=batch, stage="prefill"))
        analyze(asked(batch=batch, kv_dtype="fp8"))
    assert document(analyze(asked(batch=17))) == alone


def test_a_changed_calibration_is_priced_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    before = analyze(asked()).time
    bare = replace(
        load_bundle(resolve(Deployment(model="llama3.1-8b", hardware="h100")).hardware.accelerator), models={}
    )
    monkeypatch.setattr(step_analysis, "load_bundle", lambda *_, **__: bare)
    after = analyze(asked()).time
    assert after.roofline_s == pytest.approx(before.roofline_s, rel=0.01)
    assert after.engine_s != pytest.approx(before.engine_s, rel=0.005)


@pytest.mark.parametrize("batch", [16, 17])
def test_the_device_time_is_the_simulators(batch: int) -> None:
    """Up to interpolation between nodes: 16 is a captured size, and 17 sequences are padded to one."""
    plant = compile_deployment(Deployment(model="llama3.1-8b", hardware="h100"))
    (shape,) = decode_step(batch, 1024).shapes
    host = plant.resolved.engine.host
    device = plant.cost.cycle_s(shape) - host.step_gap_s
    found = analyze(asked(batch=batch))
    assert found.time.device_s == pytest.approx(device, rel=0.02)
    tokens = {row.flops / (2 * 4096 * 6144 * 32) for row in found.rows if row.name == "qkv_proj"}
    assert tokens == {16 if batch == 16 else 24}


def test_prompts_beyond_the_graphs_are_launched_one_by_one() -> None:
    """Their collectives take what NCCL takes outside of graphs, as in the simulator."""
    a = analyze(asked(hardware="h100x2", stage="prefill", batch=8, context=2000))
    assert 0.97 * a.time.engine_s < a.time.device_s <= 1.01 * a.time.engine_s


def test_weights_are_read_once_whatever_the_batch() -> None:
    rows = {r.name: r for r in analyze(asked(batch=1)).rows}
    assert rows["down_proj"].bytes == pytest.approx(32 * 2 * 4096 * 14336, rel=0.01)
    assert rows["down_proj"].flops == 32 * 2 * 4096 * 14336
    assert rows["down_proj"].bound == MEMORY
    assert rows["input_norm"].bound == FIXED


def test_prompts_compute_and_tensor_parallel_ranks_talk() -> None:
    a = analyze(asked(hardware="h100x4", stage="prefill", batch=2))
    rows = {r.name: r for r in together(a.rows)}
    assert rows["gate_up_proj"].limit == "compute"
    assert rows["mixer_all_reduce"].limit == LINK
    assert a.resolved.layout.tensor_parallel == 4
    assert a.steps.shapes == (BatchShape(2048, 2 * 1024 * 512.0, 2, logits=2),)


def test_narrower_weights_are_less_to_read() -> None:
    by_bits = {p.bits: p for p in analyze(asked()).precisions}
    assert set(by_bits) == {16, 8, 4}
    assert by_bits[16].held.weights_bytes > 1.6 * by_bits[8].held.weights_bytes > 2.2 * by_bits[4].held.weights_bytes
    assert by_bits[16].held.kv_batch_bytes == 2 * by_bits[8].held.kv_batch_bytes
    assert by_bits[16].time.roofline_s > by_bits[8].time.roofline_s > by_bits[4].time.roofline_s
    assert by_bits[16].flops == by_bits[8].flops == by_bits[4].flops


def test_scaling_grows_with_batch_and_context() -> None:
    a = analyze(asked())
    for quantity in ("batch", "context"):
        rows = [s for s in a.scaling if s.quantity == quantity]
        times = [s.time.roofline_s for s in rows]
        assert len(rows) == 5
        assert times == sorted(times)
        (here,) = (s for s in rows if s.value == getattr(a.query, quantity))
        assert here.time == a.time


@pytest.mark.parametrize("stage", ["decode", "prefill"])
def test_a_row_of_scaling_is_the_analysis_of_that_step(stage: str) -> None:
    for row in analyze(asked(model="gpt-oss-120b", stage=stage)).scaling:
        alone = analyze(asked(model="gpt-oss-120b", stage=stage, **{row.quantity: row.value}))
        assert astuple(row.time) == pytest.approx(astuple(alone.time), rel=1e-12)
        assert row.tokens_per_s == pytest.approx(alone.tokens_per_s, rel=1e-12)


def test_a_batch_that_does_not_fit_says_so() -> None:
    a = analyze(asked(hardware="rtx4090", batch=512, context=8192))
    assert not a.held.fits
    assert any("does not fit" in n for n in a.notices)
    assert any("does not fit" in n for n in analyze(asked(model="llama3.1-70b")).notices)


def test_prompts_are_cut_by_hand() -> None:
    """Three prompts of 10 tokens, 8 a step: 8 | 2 and 6 | 4 and 4 | 6. Pairs of a chunk: q * (before + q / 2)."""
    cut = prefill_steps(3, 10, PromptLimits(8, seats=9))
    assert cut.shapes == (
        BatchShape(8, 8 * 4.0, 1, logits=0),
        BatchShape(8, 2 * 9.0 + 6 * 3.0, 2, logits=1),
        BatchShape(8, 4 * 8.0 + 4 * 2.0, 2, logits=1),
        BatchShape(6, 6 * 7.0, 1, logits=1),
    )
    assert (cut.n, cut.tokens) == (4, 30)
    whole = prefill_steps(3, 10, PromptLimits(8, 9, chunked=False))
    assert (whole.shapes, whole.counts) == ((BatchShape(10, 50.0, 1, logits=1),), (3,))
    assert prefill_steps(5, 2, PromptLimits(100, seats=2)).counts == (2, 1)  # seats, not tokens, are short


@given(st.integers(1, 40), st.integers(1, 300), st.integers(1, 200), st.integers(1, 9), st.booleans())
def test_no_token_is_lost_when_prompts_are_cut(n: int, tokens: int, budget: int, seats: int, chunked: bool) -> None:
    cut = prefill_steps(n, tokens, PromptLimits(budget, seats, chunked))
    several = list(zip(cut.shapes, cut.counts, strict=True))
    assert cut.tokens == n * tokens
    assert sum(s.logits * k for s, k in several) == n
    assert sum(s.prefill_pairs * k for s, k in several) == pytest.approx(n * tokens * tokens / 2)
    assert all(s.prefill_tokens <= (budget if chunked else max(budget, tokens)) for s in cut.shapes)
    assert all(s.prefill_chunks <= seats for s in cut.shapes)


def test_long_prompts_take_the_time_of_their_chunks() -> None:
    a = analyze(asked(stage="prefill", batch=64))
    assert a.steps.n == 8
    assert any("8 steps" in text for text in a.notices)
    plant = compile_deployment(Deployment(model="llama3.1-8b", hardware="h100"))
    assert a.time.engine_s == pytest.approx(a.steps.seconds(plant.cost.cycle_s))
    assert 0.9 * a.time.engine_s < a.time.device_s <= 1.01 * a.time.engine_s
    once = analyze(asked(stage="prefill", batch=8))
    assert a.time.engine_s == pytest.approx(8 * once.time.engine_s)
    long = analyze(asked(stage="prefill", batch=1, context=65536))  # the same tokens, which attend to each other
    assert long.time.roofline_s > 1.2 * a.time.roofline_s


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"stage": "decoding"}, "decode"),
        ({"batch": 0}, "batch"),
        ({"batch": 10**9}, "65536"),
        ({"stage": "prefill", "batch": 65536}, "--batch 16384"),
        ({"context": 10**7}, "positions"),
        ({"model": "llama3.1-9b"}, "nearest"),
        ({"weight_dtype": "fp7"}, "dtype"),
    ],
)
def test_bad_questions_are_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        analyze(asked(**change))


def test_the_document_says_what_the_analysis_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, page = tmp_path / "a.json", tmp_path / "a.html"
    args = ["analyze", "--model", "llama3.1-8b", "--hw", "h100", "--batch", "16"]
    assert run_command("plan", app, [*args, "--json", str(out), "--html", str(page)]) == 0
    screen = capsys.readouterr().out
    assert max(map(len, screen.splitlines())) <= PIPED
    told, a = json.loads(out.read_text()), analyze(asked())
    assert told == json.loads(json.dumps(document(a)))
    assert told["step"]["device_s"] == pytest.approx(sum(r["seconds"] for r in told["operators"]))
    assert sum(told["bound_s"].values()) == pytest.approx(told["step"]["device_s"])
    text = page.read_text()
    assert "gate_up_proj" in text
    assert "FLOP/B" in text
    assert "https://" not in text.split("<script>")[0]


def test_the_published_table_is_one_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "published.json"
    args = ["analyze", "--model", "llama-2-7b", "--hw", "a6000", "--published", "--json", str(out)]
    assert run_command("plan", app, args) == 0
    sixteen, eight = json.loads(out.read_text())["published"]
    assert sixteen["operations"] == 13_627_555_840
    assert round(sixteen["seconds"] * 1e3, 6) == 17.926942
    assert round(eight["seconds"] * 1e3, 6) == 8.963471
    screen = capsys.readouterr().out
    assert "13,627,555,840" in screen
    assert "12,952,010,752" in screen
    assert run_command("plan", app, [*args, "--stage", "prefill"]) == 2


def test_resolved_defaults_are_the_engines() -> None:
    a = analyze(asked(hardware="h100x8"))
    own = resolve(Deployment(model="llama3.1-8b", hardware="h100x8", tensor_parallel=8))
    assert a.resolved.weight_dtype == own.weight_dtype
    assert a.resolved.layout == own.layout


def test_prompts_are_cut_where_the_encoder_budget_ends() -> None:
    """Three images of 10 tokens and 8 embeddings in a prompt of 40 tokens, and a budget of 16 embeddings a step."""
    images = PromptItems(MediaLayout(10, 8, 1, 32), 3, 16)
    cut = prefill_steps(1, 40, PromptLimits(100, seats=4), images)
    assert [(shape.tokens, _encoded(shape)) for shape in cut.shapes] == [(20, 2), (20, 1)]
    budget = prefill_steps(1, 40, PromptLimits(15, seats=4), images)
    assert [(shape.tokens, _encoded(shape)) for shape in budget.shapes] == [(15, 2), (15, 1), (10, 0)]
    two = prefill_steps(2, 40, PromptLimits(100, seats=4), images)
    assert sum(_encoded(shape) * n for shape, n in zip(two.shapes, two.counts, strict=True)) == 6
    assert two.tokens == 80
    plain = prefill_steps(2, 40, PromptLimits(100, seats=4))
    assert plain.n == 1


def _encoded(shape: BatchShape) -> int:
    moves = shape.moves if isinstance(shape, Batch) else None
    return moves.encoding.vision.items if moves is not None and moves.encoding is not None else 0


def test_images_are_a_part_of_a_prompt_that_holds_them() -> None:
    with pytest.raises(InputError, match="1 image of 1024x1024 has at least 1,371 tokens: got 1024"):
        analyze(asked(model="qwen2.5-vl-7b", stage="prefill", images=1))
    with pytest.raises(InputError, match="images are encoded with prompts"):
        asked(model="qwen2.5-vl-7b", images=1)
    with pytest.raises(InputError, match="knows no tower of this model"):
        analyze(asked(stage="prefill", images=1))
