"""Loads of experts: draws by hand, and what a router's skew must and must not change."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from calibration.operators.expert_loads import MOST, capped, imbalance, imbalance_share, router_loads, table_loads

SIZES = [(256, 8, 1), (256, 8, 8), (128, 8, 4), (8, 2, 1), (128, 1, 8)]
TOKENS = 2.0 ** np.arange(0, 15)


def test_imbalance_by_hand() -> None:
    loads = np.array([[1.0, 3.0, 2.0, 2.0]])
    assert imbalance(np.full((3, 4), 5.0), 1) == 0.0
    assert imbalance(loads, 1) == pytest.approx(np.sqrt(0.5) / 2.0)
    assert imbalance(loads, 2) == 0.0  # both ranks have 4 rows
    assert imbalance(loads, 4) == pytest.approx(0.5)


def test_no_expert_is_chosen_twice_for_a_token() -> None:
    chances = capped(np.array([100.0, 1.0, 1.0, 2.0]), 2)
    assert chances == pytest.approx([1.0, 0.25, 0.25, 0.5])
    assert capped(np.ones(8), 8) == pytest.approx(np.ones(8))


@pytest.mark.parametrize("skew", [0.0, 0.7])
def test_every_choice_loads_one_expert(skew: float) -> None:
    loads = router_loads(1000, (64, 4), skew, np.random.default_rng(3))
    assert loads.sum(axis=1).mean() == pytest.approx(4000.0, rel=0.01)
    assert loads.max() <= 1000.0 + 1e-6
    assert table_loads(1000, (64, 4), np.random.default_rng(3)).sum(axis=1) == pytest.approx(np.full(64, 4000.0))


@pytest.mark.parametrize("sizes", SIZES)
def test_more_skew_is_more_imbalance_and_a_balanced_router_evens_out(sizes: tuple[int, int, int]) -> None:
    shares = [imbalance_share(TOKENS, sizes, skew) for skew in (0.0, 0.5, 1.0)]
    assert all((more >= less - 0.05).all() for less, more in pairwise(shares))
    assert shares[0][-1] < 0.1
    assert shares[2][-1] > 0.5
    assert max(share.max() for share in shares) <= MOST
    assert (imbalance_share(TOKENS, sizes, 0.0) == shares[0]).all()  # expectations have fixed draws
