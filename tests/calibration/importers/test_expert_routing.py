"""Experts at the routing of service: streams of those touched, loads where they cost extra, noise."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.importers.expert_routing import (
    DEEPSEEK,
    as_served,
    busiest_rank,
    touched_by_power_law,
    touched_in_groups,
)
from calibration.operators.expert_loads import reach_share, reached
from calibration.operators.flops_and_bytes import distinct_experts

TOKENS = (1, 2, 4, 8, 16, 32, 64, 128)
N, TOP = 16, 2
FLOOR_S, PER_EXPERT_S = 10e-6, 5e-6


def table(**seconds: list[float]) -> pd.DataFrame:
    """Rows of one architecture, by routing."""
    sizes = {"moe_dtype": "bf16", "hidden_size": 64, "inter_size": 64, "topk": TOP, "num_experts": N}
    parts = [
        pd.DataFrame({"num_tokens": TOKENS, "seconds": s, "distribution": d}).assign(**sizes)
        for d, s in seconds.items()
    ]
    return pd.concat(parts).assign(moe_tp_size=1, moe_ep_size=1, kernel_source="k", source="s")


def streamed(experts: np.ndarray) -> np.ndarray:
    return FLOOR_S + PER_EXPERT_S * np.asarray(experts, dtype=np.float64)


EVEN = list(streamed(np.minimum(np.array(TOKENS) * TOP, N)))
DRAWN = list(streamed(np.array([touched_by_power_law(t, TOP, N) for t in TOKENS])))
OWN_CHOICE = streamed(distinct_experts(np.array(TOKENS, dtype=np.float64), N, TOP))
USUAL = streamed(reached(np.array(TOKENS), (N, TOP, 1)))


def served(**seconds: list[float]) -> np.ndarray:
    names = {"even": "balanced", "mild": "power_law_1.01", "steep": "power_law_1.2"}
    return as_served(table(**{names[k]: v for k, v in seconds.items()})).seconds.to_numpy()


def test_where_only_streaming_costs_time_follows_the_experts_touched() -> None:
    """A kernel that costs a floor and a price per expert: those of the usual router, whatever the rows touched."""
    assert served(even=EVEN, mild=DRAWN, steep=DRAWN) == pytest.approx(USUAL, rel=1e-6)
    assert (USUAL <= OWN_CHOICE * (1 + 1e-9)).all()
    assert USUAL[3] < 0.95 * OWN_CHOICE[3]  # eight tokens


def test_a_balanced_router_streams_the_experts_of_equally_likely_choices() -> None:
    found = as_served(table(**{"balanced": EVEN, "power_law_1.01": DRAWN, "power_law_1.2": DRAWN}))
    assert found.even_seconds.to_numpy() == pytest.approx(np.maximum(OWN_CHOICE, USUAL), rel=1e-6)


def test_without_balanced_rows_a_straight_line() -> None:
    assert served(mild=DRAWN) == pytest.approx(USUAL, rel=0.06)


def test_uneven_loads_cost_extra_where_they_did_in_the_rows() -> None:
    slow = [1.5 * s for s in DRAWN]
    found = served(even=EVEN, mild=slow, steep=slow)
    assert found[-1] == pytest.approx(slow[-1] - (DRAWN[-1] - USUAL[-1]))
    assert found[-1] > 1.4 * USUAL[-1]
    assert (found >= USUAL - 1e-12).all()


def test_even_loads_take_the_time_of_the_balanced_rows_once_every_expert_has_rows() -> None:
    slow = [1.5 * s for s in DRAWN]
    found = as_served(table(**{"balanced": EVEN, "power_law_1.01": slow, "power_law_1.2": slow}))
    few = np.array(TOKENS) * TOP < N
    even, uneven = found.even_seconds.to_numpy(), found.seconds.to_numpy()
    assert even[few] == pytest.approx(np.maximum(uneven, OWN_CHOICE)[few])
    assert even[-1] == pytest.approx(EVEN[-1])
    assert (even <= np.maximum(uneven, OWN_CHOICE) * (1 + 1e-12)).all()
    alone = as_served(table(**{"power_law_1.01": slow})).even_seconds.to_numpy()
    assert (alone >= served(mild=slow)).all()
    untuned = as_served(table(**{"balanced": EVEN, "power_law_1.01": [9 * s for s in EVEN]}))
    assert untuned.even_seconds.iloc[-1] == pytest.approx(0.5 * untuned.seconds.iloc[-1])


def test_a_row_outside_the_other_two_routings_is_noise() -> None:
    """Planted: the mild routing 40 % slow at 64 tokens, where both others say the same."""
    noisy = [s * (1.4 if t == 64 else 1.0) for s, t in zip(DRAWN, TOKENS, strict=True)]
    assert served(even=EVEN, mild=noisy, steep=DRAWN) == pytest.approx(USUAL, rel=1e-6)


def test_balanced_rows_that_take_longer_than_uneven_ones_are_not_balanced() -> None:
    longer = [1.5 * s for s in EVEN]
    assert list(served(even=longer, mild=DRAWN, steep=DRAWN)) == list(served(mild=DRAWN))
    within_noise = [1.04 * s for s in EVEN]
    assert list(served(even=within_noise, mild=DRAWN, steep=DRAWN)) != list(served(mild=DRAWN))


def test_the_busiest_rank_touches_more_than_the_mean_and_no_more_than_it_has() -> None:
    tokens = np.array([1.0, 8.0, 64.0, 4096.0])
    mean = distinct_experts(tokens, 128, 8) / 8
    most = busiest_rank(tokens, (8, 128, 8))
    assert (most >= mean).all()
    assert (most <= 16.0).all()
    assert most[-1] == pytest.approx(16.0)


@pytest.mark.parametrize(("top", "n_experts", "ranks"), [(8, 256, 8), (4, 128, 8), (8, 128, 4), (1, 16, 4), (2, 8, 2)])
def test_experts_reached_are_the_expectation_over_draws(top: int, n_experts: int, ranks: int) -> None:
    rng, n_draws = np.random.default_rng(0), 200
    for tokens in (2 * ranks, 8 * ranks):  # below two tokens a rank, the largest of a few counts is up to 24 % too low
        order = np.argsort(rng.random((n_draws, tokens, n_experts)), axis=2)[:, :, :top]
        reached = np.zeros((n_draws, n_experts), dtype=bool)
        reached[np.arange(n_draws)[:, None], order.reshape(n_draws, -1)] = True
        count = np.array([float(tokens)])
        assert distinct_experts(count, n_experts, top)[0] == pytest.approx(reached.sum(axis=1).mean(), rel=0.02)
        drawn = reached.reshape(n_draws, ranks, -1).sum(axis=2).max(axis=1).mean()
        assert busiest_rank(count, (top, n_experts, ranks))[0] == pytest.approx(drawn, rel=0.05)


@pytest.mark.parametrize(("top", "n_experts", "ranks"), [(8, 256, 8), (4, 128, 1), (2, 8, 2)])
def test_experts_that_a_router_reaches_are_those_of_draws_token_by_token(top: int, n_experts: int, ranks: int) -> None:
    """Other draws of the places of popular experts, and each token's experts drawn without a formula for the misses."""
    rng = np.random.default_rng(5)
    for tokens in (2, 16, 64):
        chances = np.arange(1.0, n_experts + 1.0) ** -0.7
        while (high := chances * top / chances.sum()).max() > 1.0 + 1e-9:
            chances = np.minimum(high, 1.0)
        drawn = rng.random((400, tokens, n_experts)) < rng.permuted(np.tile(high, (400, 1)), axis=1)[:, None, :]
        hit = drawn.any(axis=1).reshape(400, ranks, -1).sum(axis=2).max(axis=1).mean()
        found = reached(np.array([tokens]), (n_experts, top, ranks), 0.7)[0]
        assert found == pytest.approx(min(hit, tokens * top), rel=0.05)
        assert found <= busiest_rank(np.array([float(tokens)]), (top, n_experts, ranks))[0] * 1.05


def test_a_router_reaches_experts_between_the_usual_one_and_equal_choices() -> None:
    tokens = np.array([4.0, 16.0, 64.0])
    assert (reach_share(tokens, (128, 8), 0.0) == 1.0).all()
    shares = [reach_share(tokens, (128, 8), skew) for skew in (0.0, 0.3, 0.6, 1.0, 3.0)]
    assert (np.diff(shares, axis=0) <= 0.0).all()
    assert (shares[-1] == 0.0).all()


@given(st.integers(1, 4096), st.sampled_from([(8, 256, 8), (4, 128, 1), (1, 16, 4), (1, 1, 1)]))
def test_experts_reached_grow_with_the_tokens(tokens: int, sizes: tuple[int, int, int]) -> None:
    top, n_experts, _ = sizes
    fewer, more = distinct_experts(np.array([tokens, tokens + 1.0]), n_experts, top)
    assert top <= fewer * (1 + 1e-12)
    assert fewer <= more <= n_experts
    if n_experts == 1:  # a dense layer: one expert, which every token reaches
        assert fewer == more == 1.0


def test_power_laws_touch_fewer_experts_at_a_few_rows_each() -> None:
    """What the docstring says of the sampler: about a fifth fewer than all at four rows per expert."""
    assert touched_by_power_law(1, 8, 128) == 8
    assert touched_by_power_law(128, 4, 128) == pytest.approx(0.8 * 128, rel=0.05)
    assert touched_by_power_law(8, 2, 8) == 8  # few experts: all of them, where own choice leaves one in ten out


def grouped_table(source: str, kernel: str = "k") -> pd.DataFrame:
    """Rows of DeepSeek-V3's experts whose time is a floor and a price for each expert that the collector reached."""
    hidden, inter, top, n_experts = DEEPSEEK
    sizes = {
        "moe_dtype": "fp8_block",
        "hidden_size": hidden,
        "inter_size": inter,
        "topk": top,
        "num_experts": n_experts,
    }
    tokens = np.array([1, 4, 16, 32, 128, 512])
    half = np.minimum(4 * tokens + 4, 128)  # four of the eight experts of round robin, and the first of all others
    laws = np.array([touched_in_groups(int(t), top, n_experts) for t in tokens])
    parts = [
        pd.DataFrame({"num_tokens": tokens, "seconds": streamed(experts), "distribution": routing}).assign(**sizes)
        for routing, experts in (("balanced", half), ("power_law_1.01", laws))
    ]
    return pd.concat(parts).assign(moe_tp_size=8, moe_ep_size=1, kernel_source=kernel, source=source)


@pytest.mark.parametrize(
    ("source", "kernel"),
    [("a@1 h200_sxm vllm 0.24.0", "k"), ("a@1 h200_sxm sglang 0.5.14", "k"), ("a@1 b200 trtllm 1.3", "x_min_latency")],
)
def test_rows_of_chosen_groups_are_read_at_the_experts_that_they_reached(source: str, kernel: str) -> None:
    """The same times without a choice by groups would make all experts as cheap as half of them."""
    found = as_served(grouped_table(source, kernel)).set_index("num_tokens")
    for tokens in (16, 32, 128):
        experts = reached(np.array([tokens]), (256, 8, 1))[0]
        assert found.seconds[tokens] == pytest.approx(streamed(experts), rel=0.02)
        assert found.even_seconds[tokens] >= found.seconds[tokens]
    plain = as_served(grouped_table("a@1 h200_sxm vllm 0.22.0")).set_index("num_tokens")
    assert plain.seconds[128] < 0.85 * found.seconds[128]
    one_each = grouped_table(source, kernel).assign(topk=4)  # as many experts as groups: none is left out
    with_four, without = as_served(one_each), as_served(one_each.assign(source="s", kernel_source="k"))
    assert list(with_four.seconds) == list(without.seconds)


def test_a_choice_by_groups_reaches_fewer_experts() -> None:
    assert touched_in_groups(1, 8, 256) == 8.0
    for tokens in (16, 64, 256):
        assert touched_in_groups(tokens, 8, 256) < 0.95 * touched_by_power_law(tokens, 8, 256)
