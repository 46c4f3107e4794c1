"""One step taken apart: adds up, obeys the roofline, reproduces the published table, refuses nonsense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from catalogs.command import run_command
from catalogs.console import PIPED
from catalogs.deployment import Deployment, resolve
from catalogs.errors import InputError
from planner.analyze import Question, analyze, cut, document
from planner.cli import app
from planner.operators import FIXED, LINK, MEMORY, together
from simulator.batch import BatchShape
from simulator.plant import build_plant


def asked(**changes: Any) -> Question:
    return Question(**({"model": "llama3.1-8b", "hardware": "h100", "batch": 16, "context": 1024} | changes))


def test_operators_add_up_and_none_of_much_work_beats_its_roofline() -> None:
    a = analyze(asked())
    assert sum(r.seconds for r in a.rows) == pytest.approx(a.time.device_s)
    assert sum(r.roofline_s for r in a.rows) == pytest.approx(a.time.roofline_s)
    assert a.time.roofline_s < a.time.device_s <= 1.01 * a.time.engine_s  # the engine's is read between nodes
    for r in a.rows:
        if r.seconds > 0.05 * a.time.device_s:
            assert r.efficiency <= 1.0, r.name
        assert r.measured_s + r.interpolated_s <= r.seconds * (1 + 1e-9)


def test_the_device_time_is_the_simulators() -> None:
    """Up to what padding to a graph and interpolation between nodes add: batch 16 is a captured size."""
    plant = build_plant(Deployment(model="llama3.1-8b", hardware="h100"))
    shape = asked().shape
    host = plant.resolved.engine.host
    device = plant.cost.cycle_s(shape) - host.step_gap_s
    assert analyze(asked()).time.device_s == pytest.approx(device, rel=0.02)


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
    assert a.question.shape == BatchShape(2048, 2 * 1024 * 512.0, 2, logits=2)


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
        (here,) = (s for s in rows if s.value == getattr(a.question, quantity))
        assert here.time == a.time


def test_a_batch_that_does_not_fit_says_so() -> None:
    a = analyze(asked(hardware="rtx4090", batch=512, context=8192))
    assert not a.held.fits
    assert any("does not fit" in n for n in a.notices)
    assert any("does not fit" in n for n in analyze(asked(model="llama3.1-70b")).notices)


def test_long_prompts_are_cut_as_the_engine_cuts_them() -> None:
    n, part = cut(BatchShape(65536, 65536.0 * 512, 64, logits=64), 8192)
    assert (n, part.prefill_tokens, part.prefill_chunks) == (8, 8192, 8)
    assert n * part.prefill_pairs == 65536.0 * 512
    assert cut(BatchShape(decodes=4, logits=4), 8192) == (1, BatchShape(decodes=4, logits=4))
    assert any("8 steps" in text for text in analyze(asked(stage="prefill", batch=64)).notices)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"stage": "decoding"}, "decode"),
        ({"batch": 0}, "batch"),
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
