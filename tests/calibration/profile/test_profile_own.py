"""`--model`: what one's own model runs is measured before the catalog's sizes, at every size it has."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from calibration.families.prefill_attention import PrefillAttentionModel
from calibration.operators.operators import PrefillAttention
from calibration.profile.kernels.registry import SHARES
from calibration.profile.run import ProfileJob, profile
from calibration.profile.session.session import Session
from calibration.profile.session.shape import FIT, HELD_OUT, Shape
from calibration.profile.shapes.next_shape import ShapeQueues
from calibration.profile.shapes.queue import deduplicated, user_model_shapes
from calibration.profile.shapes.size_limits import CPU
from calibration.profile.shapes.sizes import SMALL_MODELS, catalog_sizes, small_model, user_model_sizes
from catalogs.models.catalog import load_model
from tests.calibration.roofline_measurer import MACHINE, QUIET, UNIT, RooflineMeasurer, all_shapes

SMALL = small_model(512, 8192)


def writable_random(dtypes: tuple[str, ...] = ("fp32",)) -> list[Shape]:
    return user_model_shapes(user_model_sizes([SMALL], 16e9, (1,)), CPU, dtypes)


def test_everything_a_small_model_runs_is_there() -> None:
    shapes = writable_random()
    assert {(s["n"], s["k"]) for s in shapes if s.family == "gemm"} == {
        (768, 512),
        (512, 512),
        (2816, 512),
        (512, 1408),
        (8192, 512),
    }
    assert {s["dtype"] for s in shapes if s.family == "gemm"} == {"fp32"}
    heads = {(s["n_heads"], s["n_kv_heads"], s["head_dim"], s["kv_dtype"]) for s in shapes if "attention" in s.family}
    assert heads == {(8, 2, 64, "fp32")}
    widths = {(s["kind"], s["bytes_per_token"]) for s in shapes if s.family == "elementwise"}
    assert {("norm", 4096.0), ("activation", 8448.0), ("rotary", 2560.0), ("kv_write", 1024.0)} <= widths
    assert ("sampling", 26.0 * 8192) in widths
    assert {s.role for s in shapes if s.family == "gemm"} == {FIT, HELD_OUT}


def test_own_shapes_come_first_and_the_catalog_after_them() -> None:
    mine = writable_random()
    shapes = deduplicated([*mine, *all_shapes()])
    first = {s.key for s in mine if s.key in {t.key for t in shapes}}
    choice = ShapeQueues.of(shapes, SHARES, first)
    order: list[str] = []
    for _ in range(len(first) + 40):
        shape = choice.next()
        assert shape is not None
        choice.observe(shape.key, 1.0, 0.0)
        order.append(shape.key)
    assert set(order[: len(first)]) == first
    assert not set(order[len(first) :]) & first
    head = [s.split("/")[0] for s in order[:60]]
    assert len(set(head)) >= 4  # families take turns among the own shapes too


def test_a_job_with_a_model_measures_it_first(tmp_path: Path) -> None:
    mine = writable_random()
    shapes = deduplicated([*mine, *all_shapes()])
    first = frozenset(s.key for s in mine)
    session = Session.open(tmp_path, QUIET.line)
    profile(ProfileJob(UNIT, MACHINE, shapes, 50.0, 0.0, first=first), session, RooflineMeasurer(), QUIET)
    assert {r["key"] for r in session.rows[len(MACHINE) :] if r["family"] != "drift"} <= first


def test_an_encoder_decoder_has_products_of_both_stacks_and_of_its_cross_attention() -> None:
    """T5-small: queries, keys and values together, output, both of the block, and apart keys and values of a prompt."""
    found = user_model_sizes([load_model("t5-small")], 16e9, (1,))
    assert set(found.products) == {(1536, 512), (512, 512), (2048, 512), (512, 2048), (1024, 512), (32128, 512)}
    assert set(found.heads) == {(8, 8, 64)}


def test_small_models_widen_what_a_cpu_covers() -> None:
    without, found = (catalog_sizes(16e9, (1,), small) for small in (False, True))
    assert (256, 256) not in without.products
    assert {(256, 256), (768, 512), (512, 1408), (8192, 512)} <= found.products.keys()
    assert {(h,) for h, _ in SMALL_MODELS} <= found.hidden.keys()
    pairs = {(s["n"], s["k"]) for s in all_shapes() if s.family == "gemm" and s.role == FIT}
    assert min(n * k for n, k in pairs) == 256 * 256


def test_every_group_size_up_to_eight_is_fitted_on_a_cpu() -> None:
    shapes = [s for s in all_shapes() if s.family == "decode_attention" and s.role == FIT]
    for dtype in ("bf16", "fp32"):
        for size in (64, 128):
            of_size = [s for s in shapes if s["head_dim"] == size and s["kv_dtype"] == dtype]
            assert {s["n_heads"] // s["n_kv_heads"] for s in of_size} >= set(range(1, 9))
            assert 1 in {s["n_kv_heads"] for s in of_size}


def test_chunks_after_context_cost_what_was_measured_for_them() -> None:
    """A planted world: prompts at half of the peak, the rectangle over the context at a quarter."""
    import pandas as pd

    peak, heads = UNIT.peak_flops["bf16"], 8
    rows = []
    for q in (16.0, 64.0, 256.0, 1024.0):
        for context in (0.0, 256.0, 1024.0, 4096.0):
            flops = 4.0 * heads * 64 * np.array([q * q / 2, q * context])
            seconds = float(flops[0] / peak / 0.5 + flops[1] / peak / 0.25)
            head = {"n_heads": heads, "n_kv_heads": 2, "head_dim": 64, "kv_dtype": "bf16", "window_tokens": 0}
            rows.append({"chunks": 1, "tokens": q, "pairs": q * (context + q / 2), **head, "seconds": seconds})
    table = pd.DataFrame(rows)
    whole = table.pairs * 2 == table.tokens**2
    plain = PrefillAttentionModel.fit(table[whole].reset_index(drop=True), UNIT)
    model = plain.with_context(table[~whole].reset_index(drop=True), UNIT)
    q, context = 128.0, 2048.0
    op = PrefillAttention(1, q, q * (context + q / 2), heads, 2, 64, "bf16")
    want = 4.0 * heads * 64 * (q * q / 2 / 0.5 + q * context / 0.25) / peak
    assert float(model.cost(op, UNIT)[0]) == pytest.approx(want, rel=0.02)
    assert abs(float(plain.cost(op, UNIT)[0]) / want - 1) > 0.2
    facts, arrays = model.to_parts()
    again = PrefillAttentionModel.from_parts(facts, arrays)
    assert float(again.cost(op, UNIT)[0]) == pytest.approx(want, rel=0.02)
    assert "context" not in plain.to_parts()[0]


def test_few_shapes_in_fp32_are_not_replaced_by_those_of_bf16() -> None:
    """A small model has five products; bf16 has been measured for more, at another utilisation."""
    import pandas as pd

    from calibration.families.gemm import GemmModel
    from calibration.operators.operators import Gemm
    from calibration.operators.roofline import roofline_s

    rows = []
    for dtype, u, pairs in (
        ("bf16", 0.9, [(256 * i, 512) for i in range(1, 13)]),
        ("fp32", 0.3, [(768, 512), (512, 512)]),
    ):
        for n, k in pairs:
            for m in (1, 8, 64, 512):
                seconds = float(roofline_s(Gemm(m, n, k, dtype), UNIT)) / u
                rows.append({"m": m, "n": n, "k": k, "dtype": dtype, "seconds": seconds})
    model = GemmModel.fit(pd.DataFrame(rows), UNIT)
    op = Gemm(64, 768, 512, "fp32")
    assert float(model.cost(op, UNIT)[0]) == pytest.approx(float(roofline_s(op, UNIT)) / 0.3, rel=0.02)


def test_a_kv_write_that_was_measured_is_not_taken_for_a_rotary() -> None:
    import pandas as pd

    from calibration.families.elementwise import ElementwiseModel
    from calibration.operators.operators import Elementwise

    rows = [
        {"kind": kind, "tokens": t, "bytes_per_token": 1024.0, "seconds": floor + t * 1e-8}
        for kind, floor in (("rotary", 1e-5), ("kv_write", 2e-6))
        for t in (1, 16, 256)
    ]
    model = ElementwiseModel.fit(pd.DataFrame(rows), UNIT)
    assert float(model.cost(Elementwise("kv_write", 1, 1024.0), UNIT)[0]) == pytest.approx(2.01e-6)
    without = ElementwiseModel.fit(pd.DataFrame(rows[:3]), UNIT)
    assert float(without.cost(Elementwise("kv_write", 1, 1024.0), UNIT)[0]) == pytest.approx(1.001e-5)


def test_rows_too_short_to_judge_do_not_outvote_the_contended_long_ones(tmp_path: Path) -> None:
    """Else a fit on a busy machine keeps the shortest shapes only and guesses all others."""
    from calibration.profile.session.tables import tables

    session = Session.open(tmp_path, QUIET.line)
    profile(ProfileJob(UNIT, MACHINE, all_shapes(), 300.0, 0.0), session, RooflineMeasurer(), QUIET)
    mine = [r for r in session.rows if r["family"] == "elementwise" and r["role"] == FIT]
    mine.sort(key=lambda r: r["seconds"])
    for i, row in enumerate(mine):
        is_long = i >= 0.75 * len(mine)
        row |= {"others_share": 0.6 if is_long else -1.0, "contended": is_long}
    found = tables(session.rows, "invented", True)
    assert len(found.fit["elementwise"]) == len(mine)
    assert "elementwise" in found.contended_families


def test_plain_torch_is_measured_in_its_own_layout_on_a_cpu() -> None:
    """The engines of an encoder-decoder on a CPU run torch's linear layer; others lay weights out in advance."""
    from calibration.profile.local_run import _by_engine

    t5, small = load_model("t5-small"), SMALL
    cpu, gpu = SimpleNamespace(is_cuda=False), SimpleNamespace(is_cuda=True)
    assert list(_by_engine([t5, small], cpu)) == [([small], False), ([t5], True)]  # type: ignore[arg-type]
    assert list(_by_engine([t5, small], gpu)) == [([t5, small], False)]  # type: ignore[arg-type]
    shapes = user_model_shapes(user_model_sizes([t5], 16e9, (1,)), CPU, ["fp32"], is_plain=True)
    assert {s.family for s in shapes} >= {"matmul", "prefill_attention", "decode_attention", "elementwise"}
    assert "gemm" not in {s.family for s in shapes}
    assert {(s["dtype"], s["shared"]) for s in shapes if s.family == "matmul"} == {("fp32", 1)}
    assert {s["kv_dtype"] for s in shapes if "attention" in s.family} == {"fp32"}
