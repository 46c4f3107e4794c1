"""Laws of the study: a planted law is recovered, nothing held out is trained on, nothing is scored in-sample."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from calibration.fitting.scores import score
from calibration.whole_models import predictor, table
from calibration.whole_models.estimators import LinearPhysics, UtilisationEstimator, estimator
from calibration.whole_models.folds import LeakError, check, grouped_folds, groups
from calibration.whole_models.study import CHOSEN, TARGETS, WholeModelStudy, choose_estimator, study
from calibration.whole_models.workloads import Point
from catalogs.errors import InputError
from tests.calibration import whole_model_rows as invented

FAST = ("linear physics", "utilisation")


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    """Two models, three batches, 3 % noise."""
    return invented.rows(0.03, ("opt-350m", "t5-small"), keep=lambda p: p.batch < 128)


@pytest.fixture(scope="module")
def found(rows: pd.DataFrame) -> WholeModelStudy:
    return study(rows, FAST, [t for t in TARGETS if t.name != "total_s" and not t.name.startswith("decode")])


# ---- the planted law


def test_weights_of_the_planted_law_are_recovered() -> None:
    exact = invented.rows(0.0)
    model = LinearPhysics("prefill_s")
    model.fit(exact, exact["prefill_s"].to_numpy())
    weights = model.facts()["weights"]
    assert weights["prefill_flops"] == pytest.approx(1 / 80e9, rel=1e-3)
    assert weights["layers"] == pytest.approx(5e-5, rel=1e-2)
    assert np.allclose(model.predict(exact), exact["prefill_s"], rtol=1e-4)


def test_held_out_error_is_that_of_the_noise(found: WholeModelStudy) -> None:
    for t in found.targets:
        mine = t.by_configuration.score()
        assert mine.r2 > 0.97
        assert 0.015 < mine.mape < 0.045  # less than the noise would mean it was seen
        assert t.met in (True, None)


def test_smooth_deviations_from_physics_are_learned(rows: pd.DataFrame) -> None:
    """Seconds that fall with the batch as no physical term does: the utilisation model must find it, physics cannot."""
    bent = rows.assign(prefill_s=rows["prefill_s"] * (1.0 + 1.0 / np.sqrt(rows["batch"])))
    assert choose_estimator(bent, "prefill_s", FAST) == "utilisation"
    train, test = grouped_folds(bent, "configuration", 4)[0]
    errors = {}
    for model in (LinearPhysics("prefill_s"), UtilisationEstimator("prefill_s")):
        model.fit(bent.iloc[train], bent.iloc[train]["prefill_s"].to_numpy())
        actual = bent.iloc[test]["prefill_s"].to_numpy()
        errors[type(model).__name__] = score("", actual, model.predict(bent.iloc[test])).mape
    assert errors["UtilisationEstimator"] < 0.5 * errors["LinearPhysics"]


@pytest.mark.parametrize("name", ["random forest", "gradient boosting"])
def test_trees_learn_and_do_not_extrapolate(rows: pd.DataFrame, name: str) -> None:
    model, actual = estimator(name, "total_s"), rows["total_s"].to_numpy()
    model.fit(rows, actual)
    assert score(name, actual, model.predict(rows)).mape < 0.15  # in-sample: that it learns at all
    small = rows[rows["total_s"] < np.median(actual)]
    model.fit(small, small["total_s"].to_numpy())
    assert model.predict(rows).max() < 1.2 * small["total_s"].max()


# ---- nothing leaks


@pytest.mark.parametrize("by", ["configuration", "model"])
def test_groups_are_held_out_whole_and_rows_once(rows: pd.DataFrame, by: str) -> None:
    labels = np.array(groups(rows, by))
    folds = grouped_folds(rows, by, 6)
    for train, test in folds:
        assert not set(labels[train]) & set(labels[test])
    assert sorted(np.concatenate([t for _, t in folds]).tolist()) == list(range(len(rows)))


def test_random_rows_as_folds_are_caught(rows: pd.DataFrame) -> None:
    order = np.random.default_rng(0).permutation(len(rows))
    parts = np.array_split(order, 5)
    leaky = [(np.setdiff1d(order, part), np.sort(part)) for part in parts]
    with pytest.raises(LeakError, match="both sides"):
        check(rows, leaky, "configuration")


def test_the_same_work_under_another_name_is_caught(rows: pd.DataFrame) -> None:
    twin = rows.iloc[[0]].assign(workload="generation" if rows.iloc[0]["workload"] != "generation" else "translation")
    both = pd.concat([rows, twin], ignore_index=True)
    last = len(both) - 1
    labels = np.array(groups(both, "configuration"))
    test = np.flatnonzero(labels == labels[last])
    with pytest.raises(LeakError, match="work on both sides"):
        check(both, [(np.setdiff1d(np.arange(last + 1), test), test)], "configuration")


def test_a_row_held_out_twice_is_caught(rows: pd.DataFrame) -> None:
    folds = grouped_folds(rows, "configuration", 4)
    with pytest.raises(LeakError, match="exactly once"):
        check(rows, [*folds, folds[0]], "configuration")


def test_a_secret_of_each_group_cannot_be_predicted(rows: pd.DataFrame) -> None:
    """A factor drawn per configuration: were rows of a group on both sides, smooth models would learn it."""
    rng = np.random.default_rng(1)
    labels = groups(rows, "configuration")
    secret = {g: rng.lognormal(0.0, 0.5) for g in sorted(set(labels))}
    hidden = rows.assign(total_s=rows["total_s"] * [secret[g] for g in labels])
    result = study(hidden, ("utilisation",), TARGETS[:1]).targets[0]
    assert result.by_configuration.score().mape > 0.25


# ---- the study as a report reads it


def test_every_used_row_is_predicted_once_by_every_estimator(found: WholeModelStudy, rows: pd.DataFrame) -> None:
    for t in found.targets:
        for held in (t.by_configuration, t.by_model):
            assert held is not None
            assert list(held.predictions.index) == list(rows.index)
            assert (held.predictions[[*FAST, CHOSEN]] > 0).all().all()
            assert {s.estimator for s in held.scores} == {*FAST, CHOSEN}
        assert t.winner in FAST
        assert len(t.by_configuration.worst) == 10


def test_importance_names_what_the_law_depends_on(found: WholeModelStudy) -> None:
    importance = next(t.importance for t in found.targets if t.target.name == "prefill_s")
    assert importance[0].feature == "prefill_flops"
    assert importance[-1].added_error < 0.05


def test_skipped_and_disturbed_rows_are_kept_but_not_fitted(rows: pd.DataFrame) -> None:
    some = rows.assign(contended=[i % 10 == 0 for i in range(len(rows))])
    lost = rows.iloc[:7].assign(status="skipped", reason="too long", total_s=np.nan, key="x")
    result = study(pd.concat([some, lost], ignore_index=True), ("linear physics",), TARGETS[:1])
    assert len(result.rows) == len(rows) + 7
    assert not result.used["contended"].any()
    assert set(result.used["status"]) == {"ok"}
    assert any("disturbed" in n for n in result.notes)
    assert any(n.startswith("7 of") for n in result.notes)
    all_bad = study(rows.assign(contended=True), ("linear physics",), TARGETS[:1])
    assert len(all_bad.used) == len(rows)
    assert any("too many to leave out" in n for n in all_bad.notes)


def test_too_few_rows_are_one_line(rows: pd.DataFrame) -> None:
    with pytest.raises(InputError, match="at least 20"):
        study(rows.iloc[:10])
    with pytest.raises(InputError, match="column is missing"):
        study(rows.drop(columns="batch"))


def test_scores_by_hand() -> None:
    s = score("x", np.array([1.0, 2.0, 4.0]), np.array([1.1, 2.0, 3.0]))
    assert s.mae == pytest.approx(1.1 / 3)
    assert s.mape == pytest.approx((0.1 + 0.25) / 3)
    assert s.worst == pytest.approx(0.25)
    assert s.r2 == pytest.approx(1 - 1.01 / (16 / 9 + 1 / 9 + 25 / 9))


# ---- the predictor


def test_the_predictor_is_saved_as_json_and_refitted_to_the_same(found: WholeModelStudy, tmp_path: Path) -> None:
    table.write(found.rows.to_dict("records"), tmp_path)
    predictor.save(found, tmp_path)
    new = pd.DataFrame([invented.work(Point("opt-350m", "generation", 16, 40, 12))])
    first, second = predictor.load(tmp_path).predict(new), predictor.load(tmp_path).predict(new)
    law = invented.law(new.iloc[0].to_dict())
    for name, value in first.items():
        assert value == second[name]
        assert value[0] == pytest.approx(law[name], rel=0.06)
    with pytest.raises(InputError, match="lack a column"):
        predictor.load(tmp_path).predict(new.drop(columns="batch"))


def test_a_predictor_beside_other_rows_is_refused(found: WholeModelStudy, tmp_path: Path) -> None:
    predictor.save(found, tmp_path)
    table.write(found.rows.iloc[:50].to_dict("records"), tmp_path)
    with pytest.raises(InputError, match="changed since"):
        predictor.load(tmp_path)
    with pytest.raises(InputError, match="no predictor"):
        predictor.load(tmp_path / "nowhere")
