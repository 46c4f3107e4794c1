"""The front that is found is the front there is, at a fifth of the simulations; faults that must be noticed."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.search import pareto_sampler as front_module
from planner.search.optuna_study import Params, SearchSettings
from planner.search.pareto_sampler import ParetoSample, ParetoSampler, best_balance, members
from planner.search.pareto_search import ParetoResult, ParetoSearchSpace, search_front

SHARE = 0.2


@dataclass
class Toy:
    """Kinds x loads: cost falls with load and is known, latency rises with it by a law that the guess half knows."""

    seed: int
    bias: float = 1.5
    calls: list[int] = field(default_factory=list)
    names: tuple[str, ...] = ("kind", "load")

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        kinds, loads = np.arange(16), np.linspace(0.1, 1.0, 6)
        kind, load = (a.ravel() for a in np.meshgrid(kinds, loads, indexing="ij"))
        speed = rng.uniform(0.5, 2.0, 16)[kind]
        busy = load / speed
        guess = 1 / speed / np.clip(1 - 0.6 * busy, 0.05, None)
        true = self.bias * guess * np.exp(0.1 * np.sin(kind) + 0.2 * busy**2)
        self.params: list[Params] = [(int(k), float(x)) for k, x in zip(kind, load, strict=True)]
        self.looks = [
            ParetoSample((float(c), float(t)), float(b - 0.9), 100)
            for c, t, b in zip(1 / load, true, busy, strict=True)
        ]
        self.guesses = np.column_stack([1 / load, guess])
        self.holds = np.clip((0.8 - busy) * 4, -1, 1)
        self.features = np.column_stack([kind, np.log(guess), busy, np.sin(kind)])

    def guide(self, seed: int) -> ParetoSampler:
        return ParetoSampler(self.guesses, self.features, self.holds, (True, False), seed)

    def simulate(self, index: int, front: list[tuple[float, ...]]) -> ParetoSample:  # noqa: ARG002
        self.calls.append(index)
        return self.looks[index]

    @property
    def truth(self) -> set[tuple[float, ...]]:
        looks = dict(enumerate(self.looks))
        return {self.looks[i].values for i in members(looks)}

    def settings(self, seed: int = 0, share: float = SHARE) -> SearchSettings:
        return SearchSettings(int(share * len(self.looks)), seed)


def found(result: ParetoResult) -> set[tuple[float, ...]]:
    return {result.samples[i].values for i in result.members}


def within(result: ParetoResult, wanted: set[tuple[float, ...]], tie: float = 1.02) -> bool:
    return all(any(all(a <= tie * b for a, b in zip(f, w, strict=True)) for f in found(result)) for w in wanted)


@pytest.mark.parametrize(("seeds", "least"), [(5, 4), pytest.param(20, 19, marks=pytest.mark.slow)])
def test_a_fifth_of_the_simulations_finds_the_front_in_nearly_every_seed(seeds: int, least: int) -> None:
    hits = 0
    for seed in range(seeds):
        toy = Toy(seed)
        result = search_front(toy, toy.settings(seed))
        assert len(result.samples) <= SHARE * len(toy.looks)
        hits += within(result, toy.truth)
    assert hits >= least


def test_no_point_is_simulated_twice_and_all_are_where_there_is_room() -> None:
    toy = Toy(1)
    result = search_front(toy, replace(toy.settings(), n_trials=1000))
    assert result.exhausted
    assert set(Counter(toy.calls).values()) == {1}
    assert within(result, toy.truth)


def test_what_does_not_hold_is_on_no_front_and_of_equals_one_is() -> None:
    values = [(1.0, 9.0), (2.0, 3.0), (2.0, 3.0), (3.0, 1.0), (3.0, 2.0), (0.5, math.inf)]
    looks = {i: ParetoSample(v, 1.0 if i == 0 else 0.0, 10) for i, v in enumerate(values)}
    assert members(looks) == [1, 3]
    assert members(looks | {3: replace(looks[3], pruned=True)}) == [1, 4]


@pytest.mark.parametrize(
    ("front", "position"),
    [
        ([], None),
        ([(3.0, 4.0)], 0),
        ([(1.0, 100.0), (2.0, 10.0), (100.0, 9.0)], 1),  # 0.15 and 0.04 of the way from best to worst
        ([(1.0, 100.0), (10.0, 10.0), (100.0, 1.0)], 1),  # half of the way on both axes: 0.71 against 1
        (
            [(1.0, 100.0), (50.0, 95.0), (100.0, 1.0)],
            0,
        ),  # hardly better than the ends on either axis: both ends are at 1
        ([(1.0, 4.0), (2.0, 2.0), (4.0, 1.0)], 1),
        ([(1.0, 7.0, 100.0), (10.0, 7.0, 10.0), (100.0, 7.0, 1.0)], 1),  # all points are equal on the second axis
        ([(0.0, 9.0), (1.0, 1.0)], 0),  # a value of zero counts as the least value
    ],
)
def test_the_best_balance_of_fronts_solved_by_hand(front: list[tuple[float, ...]], position: int | None) -> None:
    assert best_balance(front) == position


@given(
    st.lists(st.tuples(*[st.floats(1e-3, 1e3)] * 3), min_size=1, max_size=12),
    st.tuples(*[st.floats(0.01, 100)] * 3),
    st.permutations(range(3)),
)
def test_the_best_balance_depends_on_neither_units_nor_order_of_axes(
    front: list[tuple[float, ...]], factors: tuple[float, ...], order: list[int]
) -> None:
    found = best_balance(front)
    assert found is not None
    logs = [[math.log(v) for v in row] for row in front]
    best, worst = [min(c) for c in zip(*logs, strict=True)], [max(c) for c in zip(*logs, strict=True)]

    def distance(row: list[float]) -> float:
        shares = ((x - b) / (w - b) if w > b else 0.0 for x, b, w in zip(row, best, worst, strict=True))
        return math.hypot(*shares)

    least = min(map(distance, logs))
    assert distance(logs[found]) == pytest.approx(least, abs=1e-9)
    if all(w == b or w - b > 1e-6 for b, w in zip(best, worst, strict=True)):  # rounding of nearly equal values matters
        scaled = [tuple(front_row[i] * factors[i] for i in order) for front_row in front]
        again = best_balance(scaled)
        assert again is not None
        assert distance(logs[again]) == pytest.approx(least, abs=1e-6)


def test_ctrl_c_keeps_what_was_found() -> None:
    class Interrupted(Toy):
        def simulate(self, index: int, front: list[tuple[float, ...]]) -> ParetoSample:
            if len(self.calls) == 3:
                raise KeyboardInterrupt
            return super().simulate(index, front)

    toy = Interrupted(2)
    result = search_front(toy, toy.settings())
    assert list(result.samples) == toy.calls
    assert len(toy.calls) == 3
    assert result.interrupted
    assert not result.exhausted


def test_a_guess_that_lies_about_order_costs_the_front_and_is_not_reported() -> None:
    """The planted fault: guesses and features of nothing. The front reported still only has simulated values on it."""
    toy, other = Toy(3), Toy(4)
    rng = np.random.default_rng(0)
    toy.guesses = np.column_stack([toy.guesses[:, 0], rng.permutation(other.guesses[:, 1])])
    toy.features = rng.standard_normal(toy.features.shape)
    result = search_front(toy, toy.settings(share=0.1))
    assert all(result.samples[i] == toy.looks[i] for i in result.samples)
    assert not within(result, toy.truth)


@pytest.mark.parametrize("seed", [0, 7])
def test_equal_seeds_give_equal_searches(seed: int) -> None:
    once, again = (list(search_front(Toy(5), Toy(5).settings(seed)).samples) for _ in range(2))
    assert once == again


def test_a_space_larger_than_the_short_list_is_searched_by_its_most_promising(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_module, "SHORT_LIST", 20)
    assert sum(within(search_front(Toy(s), Toy(s).settings(s)), Toy(s).truth) for s in range(5)) >= 4


def test_three_objectives_and_one_that_is_guessed_twice() -> None:
    toy = Toy(6)
    toy.looks = [ParetoSample((*look.values, look.values[1] ** 0.5), look.slack, 100) for look in toy.looks]
    third = toy.guesses[:, 1:] ** 0.5
    guide = ParetoSampler(np.column_stack([toy.guesses, third]), toy.features, toy.holds, (True, False, False))
    toy.guide = lambda seed: replace(guide, seed=seed)  # type: ignore[method-assign]
    result = search_front(toy, toy.settings())
    assert within(result, toy.truth)


def test_a_study_is_resumed_where_it_was_interrupted(tmp_path: Path) -> None:
    whole = search_front(Toy(8), Toy(8).settings())
    kept = replace(Toy(8).settings(), journal=tmp_path / "study.log")
    first = search_front(Toy(8), replace(kept, n_trials=10))
    toy = Toy(8)
    rest = search_front(toy, kept)
    assert rest.n_resumed == len(first.samples) == 10
    assert list(first.samples) + toy.calls == list(whole.samples)
    assert found(rest) == found(whole)


def test_the_sampler_serves_any_optuna_study() -> None:
    import optuna

    from planner.search.pareto_sampler import ParetoOptunaSampler

    toy: ParetoSearchSpace = Toy(9)
    assert isinstance(toy, Toy)
    sampler = ParetoOptunaSampler(toy.guide(0), toy.names, toy.params)
    study = optuna.create_study(directions=["minimize"] * 2, sampler=sampler)

    def objective(trial: optuna.Trial) -> tuple[float, ...]:
        loads = sorted({p[1] for p in toy.params})
        point = (trial.suggest_categorical("kind", list(range(16))), trial.suggest_categorical("load", loads))
        look = toy.looks[toy.params.index(point)]
        trial.set_constraint("holds", look.slack)
        return look.values

    study.optimize(objective, n_trials=20)
    assert len({tuple(t.params.values()) for t in study.trials}) == 20
    best = {tuple(t.values) for t in study.best_trials}
    assert all(any(all(a <= 1.02 * b for a, b in zip(f, w, strict=True)) for f in best) for w in toy.truth)
