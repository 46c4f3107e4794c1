"""Errors of regimes: planted spreads are found again, few models change little, and intervals hold for new models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from calibration.accuracy.regime import UNKNOWN, Regime
from calibration.accuracy.spread_fit import RunSet, fit, fit_group, widening
from calibration.accuracy.stated_error import COVERAGE, Group, StatedError, in_words
from catalogs.hardware.catalog import parse_hardware
from catalogs.models.catalog import load_model

OTHER = Regime("cdna3", "other")
HOPPER, BLACKWELL = Regime("hopper", "dense"), Regime("blackwell", "dense")
RUNS = 12  # of each model in each regime


def runs(
    rng: np.random.Generator,
    spreads: dict[Regime, float],
    models: int,
    engine: str = "toy",
    metric: str = "tpot",
    of_models: float = 0.0,
) -> RunSet:
    """Runs of `models` models in each regime, with its planted spread and with a bias for each model."""
    about = [(regime, f"model {i}", i) for regime in spreads for i in range(models) for _ in range(RUNS)]
    biases = of_models * rng.standard_normal(models)
    logs = np.array([biases[i] + spreads[regime] * rng.standard_normal() for regime, _, i in about])
    return RunSet(
        engine,
        metric,
        "toy runs",
        logs,
        np.full(len(logs), 1e-3),
        regimes=tuple(regime for regime, _, _ in about),
        models=tuple(model for _, model, _ in about),
    )


def width(group: Group, regime: Regime) -> float:
    interval = StatedError("toy", 1e-3, {group.metric: group}, regime=regime).interval(group.metric)
    assert interval is not None
    return math.log1p(interval[1]) - math.log1p(interval[0])


def covered(group: Group, found: RunSet) -> float:
    ends = np.array([[group.log_factor(level, 1e-3, regime=r) for level in (0.05, 0.95)] for r in found.regimes])
    return float(np.mean((ends[:, 0] <= found.log_ratios) & (found.log_ratios <= ends[:, 1])))


@pytest.mark.parametrize("metric", ["tpot", "ttft", "power"])
def test_planted_spreads_of_generations_are_found_and_each_is_covered(metric: str) -> None:
    rng = np.random.default_rng(1)
    spreads = {HOPPER: 0.04, BLACKWELL: 0.2}
    found = runs(rng, spreads, 40, metric=metric)
    group = fit([found])[0]
    assert width(group, BLACKWELL) / width(group, HOPPER) == pytest.approx(5.0, rel=0.25)
    careless = fit([replace(found, regimes=())])[0]
    for regime, spread in spreads.items():
        fresh = runs(rng, {regime: spread}, 100, metric=metric)
        assert covered(group, fresh) == pytest.approx(COVERAGE, abs=0.035)
        assert abs(covered(careless, fresh) - COVERAGE) > 0.05


def test_an_answer_counts_the_runs_of_its_own_regime() -> None:
    (group,) = fit([runs(np.random.default_rng(4), {HOPPER: 0.05, BLACKWELL: 0.2}, 5)])
    assert group.n == 10 * RUNS
    assert group.n_by_regime == {"hopper dense": 5 * RUNS, "blackwell dense": 5 * RUNS}
    stated = {r: StatedError("toy", 0.0, {"tpot": group}, regime=r).block() for r in (HOPPER, OTHER, UNKNOWN)}
    assert stated[HOPPER]["n_of_regime"]["tpot"] == 5 * RUNS
    assert in_words(stated[HOPPER]).endswith("120 measured runs of this engine, 60 of them with dense models on Hopper")
    assert in_words(stated[OTHER]).endswith(
        ", none of them with models that have experts, latent attention or linear attention on CDNA3"
    )
    assert in_words(stated[UNKNOWN]).endswith("120 measured runs of this engine")


def test_layers_have_factors_beside_those_of_generations() -> None:
    rng = np.random.default_rng(2)
    spreads = {
        Regime(generation, layers): 0.05 * a * b
        for generation, a in (("hopper", 1.0), ("blackwell", 2.0))
        for layers, b in (("dense", 1.0), ("other", 3.0))
    }
    group = fit([runs(rng, spreads, 60)])[0]  # type: ignore[arg-type]
    assert group.by_generation["blackwell"] / group.by_generation["hopper"] == pytest.approx(2.0, rel=0.2)
    assert group.by_layers["other"] / group.by_layers["dense"] == pytest.approx(3.0, rel=0.2)


def test_the_fewer_models_a_regime_has_the_nearer_it_is_to_all_runs() -> None:
    ratios = []
    for models in (1, 3, 10, 100):
        group = fit([runs(np.random.default_rng(3), {HOPPER: 0.04, BLACKWELL: 0.2}, models)])[0]
        ratios.append(group.by_generation["blackwell"] / group.by_generation["hopper"])
    assert ratios == sorted(ratios)
    assert 1.0 < ratios[0] < 2.0 < ratios[-1]


def test_a_regime_without_runs_has_the_spread_of_all_runs() -> None:
    group = fit([runs(np.random.default_rng(4), {HOPPER: 0.04, BLACKWELL: 0.2}, 8)])[0]
    assert group.factor(UNKNOWN) == 1.0
    assert group.factor(Regime("volta", "other")) == 1.0
    assert width(group, HOPPER) < width(group, UNKNOWN) == width(group, Regime("volta")) < width(group, BLACKWELL)


def test_generations_that_do_not_matter_change_no_interval_much() -> None:
    rng = np.random.default_rng(5)
    found = runs(rng, {HOPPER: 0.1, BLACKWELL: 0.1}, 40)
    group = fit([found])[0]
    assert [group.factor(r) for r in (HOPPER, BLACKWELL)] == pytest.approx([1.0, 1.0], abs=0.06)
    assert widening([found]) == pytest.approx(1.0, abs=0.03)
    fresh = runs(rng, {HOPPER: 0.1, BLACKWELL: 0.1}, 100)
    assert covered(group, fresh) == pytest.approx(COVERAGE, abs=0.025)


def test_what_other_engines_show_of_a_generation_counts_for_an_engine_without_runs_on_it() -> None:
    rng = np.random.default_rng(6)
    both = runs(rng, {HOPPER: 0.04, BLACKWELL: 0.2}, 10, "both")
    one = runs(rng, {HOPPER: 0.04}, 10, "one")
    alone = fit([one])[0]
    assert alone.factor(BLACKWELL) == 1.0
    other = fit([both, one])[1]
    assert other.engine == "one"
    assert other.factor(BLACKWELL) > 1.2 * other.factor(HOPPER)
    unlike = fit([both, runs(rng, {HOPPER: 0.04}, 10, "one", "ttft")])[1]  # another kind of statistic
    assert unlike.factor(BLACKWELL) == 1.0


def test_intervals_are_widened_until_they_hold_for_models_that_were_left_out() -> None:
    shares: dict[str, list[float]] = {"learned": [], "widened": []}
    for seed in range(40):
        rng = np.random.default_rng(seed)
        found = runs(rng, {HOPPER: 0.03}, 8, of_models=0.1)
        fresh = runs(rng, {HOPPER: 0.03}, 40, of_models=0.1)
        factor = widening([found])
        assert factor >= 1.0
        for name, widen in (("learned", 1.0), ("widened", factor)):
            shares[name].append(covered(fit([found], widen)[0], fresh))
    assert np.mean(shares["learned"]) < COVERAGE - 0.05
    assert np.mean(shares["widened"]) > np.mean(shares["learned"]) + 0.04
    assert np.mean(shares["widened"]) == pytest.approx(COVERAGE, abs=0.04)


def test_half_of_the_runs_lie_above_the_centre_in_every_regime_together() -> None:
    """Biased runs of unequal regimes: the median of all of them has the score 0, so no operator error moves it."""
    found = runs(np.random.default_rng(10), {HOPPER: 0.04, BLACKWELL: 0.2}, 40)
    biased = replace(found, log_ratios=np.where(np.array(found.values("generation")) == "hopper", 0.05, 0.3))
    biased = replace(biased, log_ratios=biased.log_ratios + found.log_ratios)
    group = fit([biased], 1.2)[0]
    middle = [[group.log_factor(0.5, error, regime=r) for r in biased.regimes] for error in (1e-3, 0.3)]
    assert middle[0] == middle[1]
    assert np.mean(biased.log_ratios > middle[0]) == pytest.approx(0.5, abs=0.01)


def test_without_names_of_models_nothing_is_widened() -> None:
    found = runs(np.random.default_rng(7), {HOPPER: 0.03}, 8, of_models=0.1)
    assert widening([]) == 1.0
    assert widening([RunSet("toy", "tpot", "", found.log_ratios, found.operator_errors)]) == 1.0


def test_runs_of_unknown_regimes_are_those_of_a_group_alone() -> None:
    found = runs(np.random.default_rng(8), {HOPPER: 0.05}, 4)
    plain = RunSet("toy", "tpot", "toy runs", found.log_ratios, found.operator_errors)
    assert fit([plain])[0] == fit_group("toy", "tpot", found.log_ratios, found.operator_errors, "toy runs")
    assert fit([plain])[0].by_generation == {}


@pytest.mark.parametrize("few", [2, 18])
def test_too_few_runs_learn_no_factor_and_are_not_widened(few: int) -> None:
    found = runs(np.random.default_rng(9), {HOPPER: 0.04, BLACKWELL: 0.2}, 8)
    kept = np.zeros(found.n, dtype=bool)
    kept[:: found.n // few][:few] = True
    kept &= np.cumsum(kept) <= few
    assert fit([found.picked(kept)], 3.0) == fit([found.picked(kept)])
    assert fit([found.picked(kept)])[0].by_generation == {}


def names(model: str, hardware: str) -> Sequence[str]:
    regime = Regime.of(load_model(model), parse_hardware(hardware).accelerator)
    return regime.generation, regime.layers


def test_the_regime_of_a_deployment() -> None:
    assert names("llama-3.1-8b", "h100") == ("hopper", "dense")
    assert names("mixtral-8x7b", "b200x8") == ("blackwell", "other")
    assert names("deepseek-r1", "h200x8") == ("hopper", "other")
    assert names("llama-3.1-8b", "a100-80gb") == ("ampere", "dense")
    assert names("llama-3.1-8b", "rtxpro6000") == ("", "dense"), "kernels of cards without HBM are others"
    assert Regime.read(HOPPER.block()) == HOPPER
    assert Regime.read({"tpot": [-0.1, 0.1]}) == UNKNOWN
    assert UNKNOWN.block() == {}
