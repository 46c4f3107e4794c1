"""Estimators are compared on unseen shapes: folds share no group, laws are found, forests do not reach out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from calibration.cli.main import app
from calibration.estimators.compare import compare_family, engine_rows, held_out_seconds, splits
from calibration.estimators.estimator import SHIPPED, Fit, Predict, estimators, fit_linear_physics
from calibration.estimators.page import verdict
from calibration.estimators.row_encoding import Encoder, physics
from calibration.estimators.score import score
from calibration.fitting.cross_validation import GROUPS
from calibration.fitting.scores import r_squared
from calibration.operators.operators import Gemm
from calibration.operators.roofline import compute_s, memory_s, roofline_s
from calibration.rows.dataset import write_rows
from catalogs.hardware.specs import Accelerator
from tests.calibration.invented_accelerator import decode_rows, gemm_rows, law

ACC = Accelerator("h100", "invented", 80e9, 3e12, {"bf16": 1e15, "fp8": 2e15}, 700.0, 100.0, cache_bytes=50 * 2**20)


@pytest.fixture(scope="module")
def gemms() -> pd.DataFrame:
    sizes = [256.0, 1024.0, 4096.0, 8192.0, 16384.0]
    m, n, k = (a.ravel() for a in np.meshgrid([1.0, 16.0, 256.0, 2048.0], sizes, sizes, indexing="ij"))
    seconds = law(roofline_s(Gemm(m, n, k, "bf16"), ACC))
    rows = pd.DataFrame({"m": m, "n": n, "k": k, "dtype": "bf16", "seconds": seconds, "source": "invented@0 toy"})
    return engine_rows("gemm", rows, ACC)


@pytest.mark.parametrize(("family", "make"), [("gemm", gemm_rows), ("decode_attention", decode_rows)])
def test_no_group_is_on_both_sides_of_a_fold(family: str, make: object) -> None:
    rows = make(ACC)  # type: ignore[operator]
    names = rows[list(GROUPS[family])].astype(str).agg("/".join, axis=1)
    tested = np.zeros(len(rows), dtype=int)
    for region, train, test in splits(family, rows):
        assert not (train & test).any()
        if region == "inside":
            assert not set(names[train]) & set(names[test])
            tested += test
    assert (tested == 1).all()


def _memoriser(leak: dict[tuple[float, ...], float]) -> Fit:
    """Answers what it was trained on exactly and all else with 1 s: good only if tested on its own rows."""

    def fit(_family: str, rows: pd.DataFrame, _accelerator: Accelerator) -> Predict:
        known = leak | dict(zip(map(tuple, rows[["m", "n", "k"]].to_numpy()), rows.seconds, strict=True))
        return lambda unseen: np.array([known.get(tuple(r), 1.0) for r in unseen[["m", "n", "k"]].to_numpy()])

    return fit


def test_a_memoriser_scores_nothing_unless_rows_leak(gemms: pd.DataFrame) -> None:
    (inside, _) = compare_family("gemm", gemms, ACC, {"memory": _memoriser({})})
    assert inside.median_abs > 10
    every = dict(zip(map(tuple, gemms[["m", "n", "k"]].to_numpy()), gemms.seconds, strict=True))
    (leaked, _) = compare_family("gemm", gemms, ACC, {"memory": _memoriser(every)})
    assert leaked.median_abs == 0.0


def test_linear_physics_recovers_a_planted_law() -> None:
    rows = gemm_rows(ACC)
    op = Gemm(*(rows[c].to_numpy(float) for c in ("m", "n", "k")), "bf16")
    rows["seconds"] = 1.4 * compute_s(op, ACC) + 1.1 * memory_s(op, ACC) + 2e-9 * rows.m + 5e-6
    predict = fit_linear_physics("gemm", rows, ACC)
    unseen = pd.DataFrame({"m": [100.0, 9000.0], "n": [3000.0, 50000.0], "k": [700.0, 20000.0], "dtype": "bf16"})
    op = Gemm(*(unseen[c].to_numpy(float) for c in ("m", "n", "k")), "bf16")
    want = 1.4 * compute_s(op, ACC) + 1.1 * memory_s(op, ACC) + 2e-9 * unseen.m.to_numpy() + 5e-6
    assert predict(unseen) == pytest.approx(want, rel=1e-3)


def test_a_forest_cannot_reach_beyond_its_rows_and_physics_can(gemms: pd.DataFrame) -> None:
    fits = estimators()
    scores = compare_family("gemm", gemms, ACC, {n: fits[n] for n in (SHIPPED, "random forest")})
    beyond = {s.estimator: s for s in scores if s.region == "beyond"}
    assert beyond[SHIPPED].median_abs < 0.05
    assert beyond[SHIPPED].r2 > 0.99
    assert beyond["random forest"].p90_abs > 0.3 > 3 * beyond[SHIPPED].p90_abs
    worst = beyond["random forest"].worst[0]
    assert worst["predicted_s"] < 0.6 * worst["measured_s"]  # the largest it has seen is the most it can say


def test_a_residual_learns_what_physics_misses_and_stays_out_of_what_it_has_not_seen() -> None:
    rows = decode_rows(ACC)
    rows["seconds"] *= np.where(rows.n_heads == rows.n_kv_heads, 1.0, 1.6)  # by group, as if another kernel ran
    rows = engine_rows("decode_attention", rows, ACC)
    fits = estimators()
    physical, corrected = (
        held_out_seconds("decode_attention", rows, ACC, fits[n]) for n in (SHIPPED, "physics + residual")
    )
    assert (np.isfinite(physical["inside"]) == np.isfinite(corrected["inside"])).all()
    far = rows.context_tokens / rows.sequences > 2**12
    train = rows[~far].reset_index(drop=True)
    test = rows[far].reset_index(drop=True)
    base, own = (fits[n]("decode_attention", train, ACC)(test) for n in (SHIPPED, "physics + residual"))
    assert own == pytest.approx(base)


def test_words_that_were_not_trained_on_are_no_feature(gemms: pd.DataFrame) -> None:
    encoder = Encoder.of("gemm", gemms, ACC)
    assert encoder.names[-1] == "dtype bf16"
    assert encoder.encode(gemms.assign(dtype="fp8"))[:, -1].sum() == 0
    assert physics("gemm", gemms, ACC)[0, 0] == pytest.approx(2 * gemms.m[0] * gemms.n[0] * gemms.k[0])


def test_scores_by_hand(gemms: pd.DataFrame) -> None:
    rows = gemms.head(4).assign(seconds=[1.0, 2.0, 3.0, 4.0])
    s = score(("gemm", "x", "inside"), rows, np.array([1.1, 2.0, 3.0, 2.0]), np.array([True, False, False, False]))
    assert (s.mae_s, s.median_abs, s.median_streamed) == pytest.approx((0.525, 0.05, 0.1))
    assert s.rmse_s == pytest.approx(np.sqrt((0.01 + 4) / 4))
    assert s.r2 == pytest.approx(1 - 4.01 / 5)
    assert s.worst[0]["measured_s"] == 4.0
    assert np.isnan(r_squared(np.ones(3), np.ones(3)))


def test_the_verdict_names_the_winner_and_what_a_correction_gains() -> None:
    errors = {SHIPPED: (0.05, 0.02), "random forest": (0.03, 0.5), "physics + residual": (0.035, 0.02)}
    cells = {("gemm", n, r): e for n, pair in errors.items() for r, e in zip(("inside", "beyond"), pair, strict=True)}
    text = verdict("gemm", cells)
    assert "inside: random forest 3.0 % (physics 5.0 %)" in text
    assert "beyond: physics 2.0 %" in text
    assert "+1.5 points inside, over" in text


def test_compare_command_prints_every_estimator_and_writes_the_page(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows", {"decode_attention": decode_rows(ACC)})
    page, data = tmp_path / "e.md", tmp_path / "e.json"
    asked = ["compare", str(tmp_path / "rows"), "--hw", "h100", "--docs", str(page), "--json", str(data)]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    for name in estimators():
        assert name in done.output
        assert f"| decode_attention | inside | 540 | {name} |" in page.read_text()
    bad = CliRunner().invoke(app, ["compare", "--hw", "h100"])
    assert "either rows or public tables" in str(bad.exception)
