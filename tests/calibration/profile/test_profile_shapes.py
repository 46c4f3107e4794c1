"""Which shapes are measured, in which order: those real models run, corners first, held-out ones never fitted."""

from __future__ import annotations

import numpy as np
import pytest

from calibration.profile.kernels.registry import SHARES
from calibration.profile.run import profile
from calibration.profile.session.session import Session
from calibration.profile.session.shape import FIT, HELD_OUT, Shape
from calibration.profile.session.tables import tables
from calibration.profile.shapes.next_shape import Queue, ShapeQueues
from calibration.profile.shapes.queue import candidates
from calibration.profile.shapes.size_limits import CPU, CUDA
from calibration.profile.shapes.sizes import catalog_sizes, spread
from calibration.rows.physics_check import gate
from catalogs.models.catalog import load_model
from tests.calibration.roofline_measurer import QUIET, UNIT, RooflineMeasurer, all_shapes, job


def test_products_of_a_known_model_are_among_the_sizes() -> None:
    sizes = catalog_sizes(16e9, (1, 2))
    model = load_model("qwen2.5-0.5b")
    assert model.hidden_size == 896
    assert {(1152, 896), (896, 896), (9728, 896), (896, 4864), (151936, 896)} <= sizes.products.keys()
    assert {(576, 896), (896, 448), (4864, 896), (896, 2432)} <= sizes.products.keys()  # two ranks
    assert (14, 2, 64) in sizes.heads
    assert (7, 1, 64) in sizes.heads
    assert (53248, 16384) not in sizes.products  # of a model that does not fit


def test_shapes_are_reproducible_and_none_is_both_fitted_and_held_out() -> None:
    shapes = all_shapes()
    assert [s.key for s in shapes] == [s.key for s in all_shapes()]
    assert len({s.key for s in shapes}) == len(shapes)
    assert {s.key for s in shapes} != {s.key for s in all_shapes(seed=1)}
    fitted = {s.fields for s in shapes if s.role == FIT}
    held = {s.fields for s in shapes if s.role == HELD_OUT}
    assert len(held) > 100
    assert not fitted & held
    pairs = {(s["n"], s["k"]) for s in shapes if s.family == "gemm" and s.role == FIT}
    unseen = {(s["n"], s["k"]) for s in shapes if s.family == "gemm" and s.role == HELD_OUT}
    assert len(pairs) == CPU.products
    assert not pairs & unseen


def test_every_shape_is_an_operator_with_work_to_do() -> None:
    for shape in candidates(catalog_sizes(80e9, (1, 8)), CUDA, ("bf16", "fp8"), 3):
        assert shape.operator is not None
        assert shape.roofline_s(UNIT) > 0
        assert shape.queue in SHARES


def test_context_of_a_chunk_comes_back_from_its_pairs() -> None:
    for s in all_shapes():
        if s.family == "prefill_attention":
            q = s["tokens"] // s["chunks"]
            context = s["pairs"] / s["tokens"] - q / 2
            assert context == pytest.approx(round(context))
            assert context >= 0


def test_spread_takes_the_common_one_then_the_extremes() -> None:
    from collections import Counter

    sizes = Counter({(8, 8): 5, (9, 9): 4, (1024, 8): 1, (8, 1024): 1})
    assert spread(sizes, 1) == [(8, 8)]
    assert spread(sizes, 3) == [(8, 8), (8, 1024), (1024, 8)]


def line_of(m: int) -> Shape:
    return Shape.of("gemm", m=m, n=4096, k=4096, dtype="bf16")


def test_corners_first_then_the_middle() -> None:
    queue = Queue([line_of(2**i) for i in range(9)], 1.0)
    order = []
    for _ in range(3):
        i = queue.next()
        assert i is not None
        order.append(queue.shapes[i]["m"])
        queue.done[i] = 0.0
    assert set(order[:2]) == {1, 256}
    assert order[2] == 16


def test_where_neighbours_disagree_comes_before_where_they_agree() -> None:
    queue = Queue([line_of(2**i) for i in range(17)], 1.0)
    for i, value in {0: 0.0, 4: 0.0, 8: 0.0, 12: 2.0, 16: 0.0}.items():
        queue.done[i] = value
    chosen = queue.next()
    assert chosen is not None
    assert chosen in (10, 14, 6)  # next to the place where efficiency jumps
    queue.done |= {12: 0.0}
    assert queue.next() in (2, 6, 10, 14)


def test_time_is_shared_among_families() -> None:
    shapes = [s for s in all_shapes() if s.family != "moe"]
    choice = ShapeQueues.of(shapes, SHARES)
    for _ in range(200):
        shape = choice.next()
        assert shape is not None
        choice.observe(shape.key, 1.0, 0.0)
    spent = {n: q.spent_s for n, q in choice.queues.items()}
    shares = {n: SHARES[n] for n in spent}
    for name, seconds in spent.items():
        assert seconds / 200 == pytest.approx(shares[name] / sum(shares.values()), abs=0.02)


def test_held_out_rows_never_reach_the_fit(tmp_path) -> None:  # type: ignore[no-untyped-def]
    session = Session.open(tmp_path, QUIET.line)
    profile(job(300.0), session, RooflineMeasurer(), QUIET)
    found = tables(session.rows, "invented", True)
    assert set(found.fit) == {"gemm", "prefill_attention", "decode_attention", "elementwise", "moe"}
    for family, rows in found.held_out.items():
        columns = [c for c in rows.columns if c not in ("seconds", "source", "kernel")]
        both = found.fit[family].merge(rows, on=columns)
        assert both.empty
        assert len(rows) > 1


def test_contended_rows_are_left_out_while_enough_are_clean(tmp_path) -> None:  # type: ignore[no-untyped-def]
    session = Session.open(tmp_path, QUIET.line)
    profile(job(300.0), session, RooflineMeasurer(), QUIET)
    gemms = [r for r in session.rows if r["family"] == "gemm" and r["role"] == FIT]
    for row in gemms[::10]:
        row["contended"] = True
    found = tables(session.rows, "invented", True)
    assert len(found.fit["gemm"]) == len(gemms) - len(gemms[::10])
    assert found.contended_families == ()
    for row in gemms:
        row["contended"] = True
    found = tables(session.rows, "invented", True)
    assert len(found.fit["gemm"]) == len(gemms)
    assert found.contended_families == ("gemm",)


def test_rows_within_the_peaks_pass_the_gate(tmp_path) -> None:  # type: ignore[no-untyped-def]
    session = Session.open(tmp_path, QUIET.line)
    profile(job(200.0), session, RooflineMeasurer(), QUIET)
    for family, rows in tables(session.rows, "invented", True).fit.items():
        kept, report = gate(family, rows, UNIT)
        assert report.n_rejected == 0
        fast = rows.assign(seconds=rows.seconds / 1000)
        assert gate(family, fast, UNIT)[1].n_rejected > 0.8 * len(rows)
        assert len(kept) == len(rows)
    assert np.isfinite(session.spent_s)
