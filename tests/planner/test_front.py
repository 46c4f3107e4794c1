"""The front that is found is the front there is, at a fraction of the simulations; faults that must be noticed."""

from __future__ import annotations

import math

import numpy as np

from planner.front import Front, FrontSearch, Objectives


class Toy:
    """Kinds x loads: cost falls with load and is known, latency rises with it by a law that the guess half knows."""

    def __init__(self, seed: int, bias: float = 1.5) -> None:
        rng = np.random.default_rng(seed)
        kinds, loads = np.arange(20), np.linspace(0.1, 1.0, 8)
        self.kind, self.load = (a.ravel() for a in np.meshgrid(kinds, loads, indexing="ij"))
        speed = rng.uniform(0.5, 2.0, 20)[self.kind]
        busy = self.load / speed
        guess = 1 / speed / np.clip(1 - 0.6 * busy, 0.05, None)
        true = bias * guess * np.exp(0.1 * np.sin(self.kind) + 0.2 * busy**2)
        self.cost = 1 / self.load
        self.guesses = np.column_stack([self.cost, guess])
        self.values = [
            (float(c), float(t) if b < 0.9 else math.inf) for c, t, b in zip(self.cost, true, busy, strict=True)
        ]
        self.holds = np.clip((0.8 - busy) * 4, -1, 1)
        self.features = np.column_stack([self.kind, np.log(guess), busy])

    def search(self, share: float, seed: int = 0) -> FrontSearch:
        most = int(share * len(self.values))
        return FrontSearch(self.guesses, self.features, self.holds, (True, False), most, seed)

    @property
    def truth(self) -> set[Objectives]:
        full = Front(dict(enumerate(self.values)))
        return {self.values[i] for i in full.members}


def test_a_fifth_of_the_simulations_finds_the_front_nearly_always() -> None:
    exact = 0
    for seed in range(20):
        toy = Toy(seed)
        found = toy.search(0.2, seed).run(lambda i, toy=toy: toy.values[i])
        exact += {found.measured[i] for i in found.members} == toy.truth
        assert len(found.measured) <= 0.2 * len(toy.values)
    assert exact >= 16


def test_no_point_is_simulated_twice_and_all_are_where_there_is_room() -> None:
    toy, calls = Toy(1), list[int]()

    def measure(i: int) -> Objectives:
        calls.append(i)
        return toy.values[i]

    found = toy.search(1.0).run(measure)
    assert found.exhausted
    assert len(calls) == len(set(calls))
    assert {found.measured[i] for i in found.members} == toy.truth


def test_what_does_not_hold_is_on_no_front_and_of_equals_one_is() -> None:
    front = Front({0: (1.0, math.inf), 1: (2.0, 3.0), 2: (2.0, 3.0), 3: (3.0, 1.0), 4: (3.0, 2.0)})
    assert front.members == [1, 3]


def test_ctrl_c_keeps_what_was_found() -> None:
    toy, done = Toy(2), list[int]()

    def measure(i: int) -> Objectives:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(i)
        return toy.values[i]

    found = toy.search(0.5).run(measure)
    assert list(found.measured) == done
    assert not found.exhausted


def test_a_guess_that_lies_about_order_is_noticed() -> None:
    """The planted fault: guesses of another toy. The front reported still only has simulated values on it."""
    toy, other = Toy(3), Toy(4)
    lying = FrontSearch(other.guesses, other.features, other.holds, (True, False), 16)
    found = lying.run(lambda i: toy.values[i])
    assert all(found.measured[i] == toy.values[i] for i in found.members)
    assert {found.measured[i] for i in found.members} != toy.truth


def test_equal_seeds_give_equal_searches() -> None:
    toy = Toy(5)
    once, again = (list(toy.search(0.2, 7).run(lambda i: toy.values[i]).measured) for _ in range(2))
    assert once == again
