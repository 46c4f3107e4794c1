"""Stated errors: an interval learned on some runs holds for others, widens where less is known, and says what it rests
on."""

from __future__ import annotations

import math
import types
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.accuracy import stated_error
from calibration.accuracy.regime import UNKNOWN
from calibration.accuracy.spread_fit import LEAST_CONFORMAL, fit_group
from calibration.accuracy.stated_error import (
    COVERAGE,
    LEVELS,
    METRICS,
    Group,
    StatedError,
    in_words,
    load_file,
)
from catalogs.errors import InputError

ROOT = Path(__file__).resolve().parents[3]
RNG = np.random.default_rng(7)


def group(log_ratios: np.ndarray, operator_error: float = 0.05, metric: str = "tpot") -> Group:
    return fit_group("toy", metric, log_ratios, np.full(len(log_ratios), operator_error), "toy runs")


def stated(found: Group, operator_error: float = 0.05) -> StatedError:
    return StatedError(found.engine, operator_error, {found.metric: found})


def share_inside(interval: tuple[float, float] | None, log_ratios: np.ndarray) -> float:
    assert interval is not None
    return float(np.mean((math.log1p(interval[0]) <= log_ratios) & (log_ratios <= math.log1p(interval[1]))))


@pytest.mark.parametrize("n", [4, 19, 40, 200])
@pytest.mark.parametrize("shape", ["normal", "skewed"])
def test_an_interval_learned_on_some_runs_holds_for_others(n: int, shape: str) -> None:
    def draw(size: int) -> np.ndarray:
        normal = RNG.standard_normal(size)
        return 0.2 * normal - 0.1 if shape == "normal" or n < LEAST_CONFORMAL else np.expm1(0.5 * normal)

    shares = [share_inside(stated(group(draw(n))).interval("tpot"), draw(200)) for _ in range(800)]
    assert np.mean(shares) >= COVERAGE - 0.015


def test_nineteen_runs_reach_from_the_least_to_the_most() -> None:
    ratios = np.linspace(-0.3, 0.6, 19)
    interval = stated(group(ratios)).interval("tpot")
    assert interval is not None
    assert np.log1p(interval) == pytest.approx([-0.3, 0.6], abs=1e-3)


def test_errors_understated_by_half_are_caught() -> None:
    ratios = 0.2 * RNG.standard_normal(100)
    careless = stated(group(ratios / 2)).interval("tpot")
    assert share_inside(careless, 0.2 * RNG.standard_normal(400)) < 0.8


def test_four_runs_promise_less_than_their_range() -> None:
    ratios = np.array([-0.2, 0.0, 0.1, 0.3])
    interval = stated(group(ratios)).interval("tpot")
    assert interval is not None
    assert math.log1p(interval[0]) < -0.2
    assert math.log1p(interval[1]) > 0.3


def test_one_run_tells_no_spread() -> None:
    with pytest.raises(ValueError, match="too few to estimate"):
        group(np.array([0.1]))


def test_operators_that_are_known_worse_widen_every_interval() -> None:
    found = group(0.2 * RNG.standard_normal(60))
    widths = [np.diff(np.log1p(stated(found, e).interval("tpot") or (0, 0)))[0] for e in (0.0, 0.05, 0.3, 1.0)]
    assert widths == sorted(widths)
    assert widths[-1] > 3 * widths[0]


def test_runs_slower_than_simulated_give_an_interval_above_the_simulated_value() -> None:
    interval = stated(group(0.5 + 0.05 * RNG.standard_normal(60))).interval("tpot")
    assert interval is not None
    assert 0 < interval[0] < interval[1]


def test_the_one_number_covers_as_many_as_the_interval() -> None:
    ratios = 0.3 * RNG.standard_normal(400)
    limit = stated(group(ratios)).expected_error
    assert np.mean(np.abs(np.exp(-ratios) - 1) <= limit) == pytest.approx(COVERAGE, abs=0.02)


def test_an_engine_nobody_compared_says_so_and_keeps_what_the_operators_expect() -> None:
    unknown = StatedError.of("nobody", 0.07, UNKNOWN)
    block = unknown.block()
    assert (block["coverage"], block["n"]) == (None, {})
    assert "unknown" in block["source"]
    assert in_words(block) == block["source"]
    assert unknown.interval("tpot") is None
    assert unknown.expected_error == 0.07
    assert unknown.factors("ttft", np.array([0.25, 0.5, 0.75])) == pytest.approx(
        [math.exp(-0.07), 1.0, math.exp(0.07)], rel=1e-3
    )


def test_gaps_are_read_as_the_time_per_token_where_no_run_tells_them() -> None:
    told = stated(group(0.2 * RNG.standard_normal(60)))
    assert told.interval("itl") == told.interval("tpot")
    assert told.interval("power") is None


def test_a_version_of_an_engine_is_the_engine() -> None:
    assert StatedError.of("vllm-0.15", 0.05, UNKNOWN).block() == StatedError.of("vllm", 0.05, UNKNOWN).block()


def test_the_shipped_file_covers_the_engines_that_public_tables_measured() -> None:
    told = {(g.engine, g.metric): g for g in load_file().groups}
    assert {(e, m) for e in ("vllm", "sglang", "trtllm") for m in ("ttft", "tpot", "e2e")} <= set(told)
    for found in told.values():
        assert list(found.scores) == sorted(found.scores)
        assert len(LEVELS) == len(found.scores)
    block = StatedError.of("vllm", 0.05, UNKNOWN).block()
    assert set(METRICS) <= set(block)
    assert all(block[m][0] < block[m][1] for m in METRICS)
    words, itl = in_words(block), block["itl"]
    assert "90 % of cases" in words
    assert f"{1 + itl[0]:.2g} to {1 + itl[1]:.2g} (itl)" in words


def test_a_damaged_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "calibrations").mkdir()
    monkeypatch.setattr(stated_error, "DATA", tmp_path)
    load_file.cache_clear()
    try:
        assert load_file().groups == ()
        load_file.cache_clear()
        (tmp_path / "calibrations" / stated_error.FILE_NAME).write_text('{"groups": [{"engine": "vllm"}]}')
        with pytest.raises(InputError, match="not valid"):
            load_file()
    finally:
        load_file.cache_clear()


def test_folds_are_stable_and_of_about_equal_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from measured_points import FOLDS, fold_of

    found = np.bincount([fold_of(f"point {i}") for i in range(4000)], minlength=FOLDS)
    assert len(found) == FOLDS
    assert found / 4000 == pytest.approx(np.full(FOLDS, 1 / FOLDS), abs=0.02)
    assert fold_of("point 4") == fold_of("point 4")


def test_a_point_is_predicted_without_the_points_of_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of one model are twice as long as simulated: no other model shows that, so no interval may cover them."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from measured_points import Compared
    from stated_error import left_out

    ratios = 0.05 * RNG.standard_normal(60)
    points = [
        Compared(
            "closed loop", f"{i}", "vllm", "h100", model, "tpot", "mean", math.exp(r + more), 1.0, 0.01, 0.0, i % 10
        )
        for model, more in (("plain", 0.0), ("odd", math.log(2)))
        for i, r in enumerate(ratios)
    ]
    inside = {
        model: np.mean(
            [
                low <= p.measured - 1 <= high
                for p, error in left_out(points, "model")
                if p.model == model
                for low, high in [error.interval("tpot") or (0.0, 0.0)]
            ]
        )
        for model in ("plain", "odd")
    }
    assert inside == {"plain": 0.0, "odd": 0.0}
    tenths = [error.interval("tpot") for _, error in left_out(points, "fold")]
    assert all(found is not None and found[1] > 0.9 for found in tenths)


def drawn(n: int, typical: float, waiting: float) -> tuple[np.ndarray, np.ndarray]:
    """Waiting shares, and log ratios whose spread grows with them."""
    shares = RNG.uniform(0.1, 0.95, n)
    return shares, 0.1 + (typical + waiting * shares) * RNG.laplace(size=n)


def waits(shares: np.ndarray, log_ratios: np.ndarray, know: bool = True) -> Group:
    return fit_group("toy", "ttft", log_ratios, np.full(len(shares), 0.01), "toy runs", shares if know else None)


def shares_right(found: Group, shares: np.ndarray, log_ratios: np.ndarray) -> list[float]:
    """How often a limit said to be met with 90 % was met, in each third of the waiting share."""
    highest = np.array([found.log_factor(0.9, 0.01, share) for share in shares])
    order = np.argsort(shares)
    return [float(np.mean(log_ratios[third] <= highest[third])) for third in np.array_split(order, 3)]


def test_an_error_that_grows_with_waiting_is_right_at_every_load() -> None:
    """One spread for all loads is too cautious where nothing waits, and too sure where everything does."""
    known, fresh = drawn(3000, 0.03, 0.4), drawn(3000, 0.03, 0.4)
    found = waits(*known)
    assert found.typical + found.waiting == pytest.approx(0.43, abs=0.04)
    assert shares_right(found, *fresh) == pytest.approx([0.9] * 3, abs=0.025)
    low, _, high = shares_right(waits(*known, know=False), *fresh)
    assert low > 0.94
    assert high < 0.87


def test_an_error_that_falls_with_waiting_never_makes_a_longer_queue_surer() -> None:
    shares = RNG.uniform(0.1, 0.95, 400)
    assert waits(shares, (1.0 - shares) * RNG.laplace(size=400)).waiting == 0.0


def test_less_waiting_than_in_any_run_is_not_surer_and_unknown_waiting_is_the_least_sure() -> None:
    shares, log_ratios = drawn(400, 0.03, 0.4)
    found = waits(shares, log_ratios)
    assert found.least_waiting == pytest.approx(np.quantile(shares, 0.05), abs=1e-3)
    at_least = found.log_factor(0.9, 0.01, found.least_waiting)
    assert found.log_factor(0.9, 0.01, 0.0) == at_least < found.log_factor(0.9, 0.01, 0.5)
    error = StatedError("toy", 0.01, {"ttft": found})
    levels = np.array([0.1, 0.9])
    assert error.factors("ttft", levels) == pytest.approx(error.factors("ttft", levels, 1.0))
    assert fit_group("toy", "ttft", log_ratios[:18], shares[:18] * 0, "few", shares[:18]).waiting == 0.0


def test_the_shipped_error_of_the_first_token_grows_with_waiting_and_no_other_does() -> None:
    for found in load_file().groups:
        if found.metric not in stated_error.WAITING_METRICS:
            assert found.waiting == 0.0
        if found.waiting == 0.0:
            continue
        for level in (0.5, 0.75, 0.9, 0.98):
            factors = [found.log_factor(level, 0.05, share) for share in np.linspace(0, 1, 21)]
            assert factors == sorted(factors)


def test_an_error_that_depends_on_waiting_is_stated_at_the_share_of_the_run() -> None:
    """Runs whose error grows with their waiting share, from 2 to 50 %."""
    shares = np.linspace(0.1, 1.0, 60)
    log_ratios = 0.5 * shares**2 * np.where(np.arange(60) % 2, 1.0, -1.0)
    group = fit_group("sglang", "ttft", log_ratios, np.zeros(60), "planted", shares)
    light, full = (StatedError("sglang", 0.05, {"ttft": group}, share) for share in (0.25, 0.95))
    assert light.waits("ttft")
    assert "25 % of it waiting" in in_words(light.block())
    near, wide = (found.interval("ttft") or (0.0, 0.0) for found in (light, full))
    assert wide[0] < near[0] < near[1] < wide[1]


def test_the_waiting_share_is_what_would_be_missing_without_waiting() -> None:
    first_s, queue_s = np.array([1.0, 2.0, 5.0]), np.array([0.0, 1.0, 3.0])
    assert stated_error.waiting_share(first_s, queue_s, np.mean) == pytest.approx(4 / 8)
    assert stated_error.waiting_share(first_s, queue_s, np.max) == pytest.approx(3 / 5)
    assert stated_error.waiting_share(first_s, 0 * queue_s, np.mean) == 0.0
    assert stated_error.waiting_share(np.empty(0), np.empty(0), np.mean) == stated_error.ALL_WAITING
    unserved = np.array([1.0, math.inf])
    assert stated_error.waiting_share(unserved, np.array([0.5, math.inf]), np.mean) == stated_error.ALL_WAITING
    assert stated_error.waiting_share(unserved, np.array([0.5, math.inf]), np.min) == pytest.approx(0.5)


def test_own_comparisons_are_read_from_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from measured_points import verified

    page = tmp_path / "page.md"
    page.write_text(
        "<!-- verify llama.cpp -->\n| 1.7/s | tpot mean | 7.15 ms | 4.6% | +25.0% **missed** | -1.2% | 15% |\n"
        "| 1.7/s | tpot p99 | 17.6 ms | 2.8% | +90.0% | +6.1% | 35% |\n<!-- /verify -->\n"
    )
    assert verified(page) == {("llama.cpp", "tpot"): [pytest.approx(math.log(1 / 1.25))]}


def test_what_was_fitted_is_what_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from stated_error import write

    shipped = load_file()
    write(shipped, tmp_path / "copy.json")
    assert stated_error.StatedErrorFile.model_validate_json((tmp_path / "copy.json").read_bytes()) == shipped


STATIC_HEAD = "gpu,n_gpus,engine,model,input_tokens,output_tokens,batch,latency_s,weight_dtype,kv_dtype,source\n"


def planted_score() -> types.ModuleType:
    """A scorer with a table of static batches: every row becomes one all-at-once batch on the engine named trtllm."""
    score = types.ModuleType("score")

    def known_rows(path: Path, n: int, seed: int, keep: object, *_: object, **__: object) -> list[dict[str, str]]:
        found: list[dict[str, str]] = score.sample(path, n, seed, keep)
        return [r for r in found if r["gpu"] in score.catalog("hardware") and score.known("model", r["model"])]

    def static_batch(args: Any) -> None:
        for r in score.known_rows(args.data / "static_batch.csv", args.static_batch, args.seed, None):
            keys = {"model": r["model"], "engine": "trtllm", "hardware": r["gpu"], "tensor_parallel": 1}
            lengths = {key: {"constant": int(r[key])} for key in ("input_tokens", "output_tokens")}
            work = {"arrivals": "all_at_once", "requests": int(r["batch"]), **lengths}
            want = [("duration_s", None, float(r["latency_s"]))]
            score.point(args, f"{r['engine']} {r['latency_s']}", keys, work, want)

    score.__dict__.update(known_rows=known_rows, static_batch=static_batch, sample=None, catalog=None, known=None)
    return score


def test_static_batches_are_learned_from_without_fitted_and_impossible_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import measured_points

    line = "{gpu},1,{engine},{model},128,32,1,{latency},,,planted\n"
    plain = {"gpu": "h100", "engine": "vLLM", "model": "llama-2-7b"}
    rows = [plain | {"latency": str(float(i + 1))} for i in range(6)]
    rows += [
        plain | {"engine": "TensorRT-LLM", "latency": "9.0"},
        plain | {"engine": "TensorRT-LLM", "latency": "0.01"},  # 32 times 6.7 GB of weights at 3.35 TB/s: 64 ms
        plain | {"engine": "llama.cpp", "latency": "9.0"},
        plain | {"model": "no-such-model", "latency": "9.0"},
        plain | {"gpu": "mi250", "latency": "9.0"},
    ]
    (tmp_path / "static_batch.csv").write_text(STATIC_HEAD + "".join(line.format(**row) for row in rows))
    monkeypatch.setattr(measured_points, "FITTED", {"vllm-v0": 2})
    monkeypatch.setattr(measured_points, "SOURCES", {"static batch": "planted static batches"})
    refused: list[str] = []
    found = list(measured_points.tables(planted_score(), tmp_path, refused))
    assert Counter(p.engine for p in found) == {"vllm-v0": 4, "trtllm-tensorrt": 1}
    assert not refused
    for p in found:
        assert (p.metric, p.part) == ("e2e", "static batch")
        assert 0.05 < p.simulated < p.measured
    impossible = {"gpu": "h100", "n_gpus": "1", "model": "llama-2-7b", "output_tokens": "32"}
    assert measured_points.least_static_s(impossible) == pytest.approx(32 * 6.6e9 / 3.35e12, rel=0.05)


def test_engines_of_2024_state_an_error_of_their_own() -> None:
    told = {(g.engine, g.metric): g for g in load_file().groups}
    for engine in ("vllm-v0", "trtllm-tensorrt"):
        found = told[engine, "e2e"]
        assert found.n >= 300
        assert "static batches" in found.source
        assert StatedError.of(engine, 0.05, UNKNOWN).interval("tpot") is None
    new, old = (StatedError.of(engine, 0.05, UNKNOWN).interval("e2e") for engine in ("trtllm", "trtllm-tensorrt"))
    assert new is not None
    assert old is not None
    assert max(abs(a - b) for a, b in zip(new, old, strict=True)) > 0.01
    assert "e2e" in in_words(StatedError.of("vllm-v0", 0.05, UNKNOWN).block())


def weighed(depends: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[float, list[float]]:
    """The learned weight of the operators' error, and the widths of the intervals of certain and uncertain operators.

    Operators are expected to be wrong by 2 or by 20 %; runs are, if it `depends`, and otherwise all by about 8 %.
    """
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from measured_points import Compared
    from stated_error import best_form, left_out

    points = []
    for i in range(160):
        expected = 0.02 if i % 2 else 0.2
        ratio = math.exp((expected if depends else 0.08) * RNG.standard_normal())
        about = ("closed loop", f"{i}", "vllm", f"gpu {i % 3}", f"model {i % 8}", "tpot", "mean")
        points.append(Compared(*about, ratio, 1.0, expected, 0.0, i % 10))
    found = list(left_out(points, "model"))
    assert np.mean(
        [low <= p.measured - 1 <= high for p, e in found for low, high in [e.interval("tpot") or (0, 0)]]
    ) > (0.85)
    widths = {p.operator_error: e.factors("tpot", np.array([0.05, 0.95])) for p, e in found}
    return best_form(points).operator_weight, [float(np.log(high / low)) for _, (low, high) in sorted(widths.items())]


def test_the_operators_error_widens_intervals_as_far_as_runs_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, (certain, uncertain) = weighed(True, monkeypatch)
    assert weight >= 1.0
    assert uncertain > 3 * certain
    weight, (certain, uncertain) = weighed(False, monkeypatch)
    assert weight < 1.0
    assert certain < uncertain < 2 * certain


@given(st.floats(0.05, 2.0), st.floats(0.0, 0.3), st.floats(0.001, 0.3), st.integers(2, 60))
def test_less_certain_operators_never_narrow_an_interval(weight: float, error: float, more: float, n: int) -> None:
    log_ratios = np.random.default_rng(n).normal(0.0, 0.05, n)
    found = fit_group("toy", "tpot", log_ratios, np.full(n, 0.05), "toy runs", operator_weight=weight)
    low, high = (found.log_factor(level, error) for level in (0.05, 0.95))
    lower, higher = (found.log_factor(level, error + more) for level in (0.05, 0.95))
    assert lower <= low <= high <= higher
