"""Loads of experts: draws by hand, and what a router's skew must and must not change."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from calibration.operators.expert_loads import (
    DEFAULT_SKEW,
    MOST_IMBALANCE_SHARE,
    capped,
    imbalance,
    imbalance_share,
    reached,
    router_loads,
    table_loads,
)
from catalogs.models.catalog import load_model
from catalogs.models.layers import Moe

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
    assert max(share.max() for share in shares) <= MOST_IMBALANCE_SHARE
    assert (imbalance_share(TOKENS, sizes, 0.0) == shares[0]).all()  # expectations have fixed draws


def shares_of_choices(n_experts: int, top: int, skew: float) -> np.ndarray:
    return capped(np.arange(1.0, n_experts + 1.0) ** -skew, top) / top


def gini(shares: np.ndarray) -> float:
    apart = np.abs(shares[:, None] - shares[None, :]).mean()
    return float(apart / (2.0 * shares.mean()))


def missing_entropy(shares: np.ndarray) -> float:
    return float(1.0 + (shares * np.log(shares)).sum() / np.log(len(shares)))


def test_the_default_skew_is_the_median_of_published_routers() -> None:
    published = [
        (32, 8, gini, (0.285 + 0.409) / 2),  # Granite-3.0-1B-A400M
        (64, 8, gini, (0.271 + 0.558) / 2),  # OLMoE-1B-7B
        (128, 8, missing_entropy, 0.111),  # Qwen3-30B-A3B
    ]
    skews = np.arange(0.0, 2.0, 0.01)
    found = [
        skews[np.argmin([abs(of(shares_of_choices(n, top, s)) - value) for s in skews])]
        for n, top, of, value in published
    ]
    assert np.median(found) == pytest.approx(DEFAULT_SKEW, abs=0.02)


def rarely_chosen(skew: float) -> tuple[float, float]:
    """(the share of 128 experts with less than 1 % of the choices of 79 tokens, what the others have), expected."""
    rng = np.random.default_rng(1)
    popular = np.log(np.arange(1.0, 129.0) ** -skew)
    counts = np.zeros((200, 128))
    for _ in range(79):
        chosen = np.argsort(-(popular + rng.gumbel(size=counts.shape)), axis=1)[:, :4]
        np.add.at(counts, (np.arange(200)[:, None], chosen), 1.0)
    often = counts >= 0.01 * 79 * 4
    return float(1.0 - often.mean()), float((counts * often).sum() / counts.sum())


def test_the_skew_of_gpt_oss_is_the_middle_of_what_its_published_figures_say() -> None:
    skews = np.arange(0.4, 1.7, 0.1)
    figures = np.array([rarely_chosen(skew) for skew in skews])
    found = [float(np.interp(value, figures[:, i], skews)) for i, value in enumerate((0.806, 0.787))]
    stated = {g.ffn.routing_skew for g in load_model("gpt-oss-120b").groups if isinstance(g.ffn, Moe)}
    assert len(stated) == 1
    assert stated.pop() == pytest.approx(np.mean(found), abs=0.1)
    # One text is more skewed: 512 tokens of code reach 83 of 128 experts.
    assert reached(np.array([512.0]), (128, 4, 1), 1.8)[0] == pytest.approx(83.0, abs=2.0)


def test_experts_reached_by_hand() -> None:
    assert reached(np.array([1.0]), (4, 1, 1), 1.0) == pytest.approx([1.0])
    chances = np.array([12.0, 6.0, 4.0, 3.0]) / 25.0
    assert reached(np.array([2.0]), (4, 1, 1), 1.0) == pytest.approx([(1.0 - (1.0 - chances) ** 2).sum()])
    assert reached(np.array([1.0, 3.0]), (8, 2, 2), 0.0)[0] == pytest.approx(1.5, abs=0.3)  # both on one rank, or not
