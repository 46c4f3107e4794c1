"""How unevenly tokens load experts, as an expectation over draws: of a model's router, and of the public tables' rows.

The measure is the imbalance. Where ranks share the experts, it is the load of the busiest rank divided by the mean,
minus one, because the other ranks wait for the busiest. On a single rank it is the coefficient of variation of the
experts' loads, since kernels compute whole tiles of each expert. Perfectly even loads have an imbalance of zero.

A router is described by the skew s of its experts' popularity: the i-th most popular expert is chosen in proportion to
i ** -s (Zipf), at most once for each token. A skew of zero is a balanced router: every choice is equally likely, and
its loads are still uneven because they are drawn.

A row of the public tables labelled `power_law_1.01` is the mean over five draws that are not published. The law of the
collectors is (aiconfigurator, collector/helper.py, `power_law_logits_v3`): loads in proportion to draws from a power
law of that exponent between 1 and 0.8 times the tokens (0.01 and 2 where there are fewer choices than experts), each at
most the number of tokens, and the rank with the most is the timed one. The row stands for the mean of that law.

A skewed router also reaches fewer experts with few tokens, whose weights are then not read: N (1 - (1 - k/N)^T) of N
experts are those of a balanced one. The law cannot say how many: popularity is a fact of the router, not of the number
of tokens, but the law spreads the loads 200-fold up to N/k tokens, 13-fold just above and 800-fold at 1,000. Where no
figure of a model's own router is published, its reach is that of DEFAULT_SKEW. Loads of many tokens stay those of the
law: 8,000 tokens of one domain spread the experts of Qwen3-30B-A3B about 150-fold, as the law does at 190 tokens.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from catalogs.arrays import FloatArray

#: Exponent of the tables' milder power law, which rows of experts carry (calibration/importers/expert_routing.py).
TABLE_EXPONENT: Final = 1.01

#: Skew of a router of which nothing is published: about the median of the three whose loads are, each by the statistic
#: that was published. Granite-3.0-1B-A400M 0.68 and OLMoE-1B-7B 0.71 (the middle of Gini coefficients of 0.285 to 0.409
#: and 0.271 to 0.558 over corpora: MakazhanAlpamys/Soup, pull request 992). Qwen3-30B-A3B 0.78 (1,000 tokens of prose,
#: code and mathematics have an entropy 11.1 % below that of equal loads: handbook of mcp-tool-shop-org/gpu-container,
#: "Routing De-risk"; by its other figure, 90 % of the choices in 65 of 128 experts, it would be 1.1).
DEFAULT_SKEW: Final = 0.7

#: Draws of an expectation: the standard error of the imbalance is then below a tenth.
DRAWS: Final = 64

#: Seed of these draws, so that equal sizes have equal imbalances.
SEED: Final = 1

#: Draws of the experts that tokens reach for each draw of the loads, where the busiest of several ranks counts. A
#: judgement of cost.
RANK_DRAWS: Final = 16

#: Tokens at which expectations are drawn; between them the imbalance is interpolated on logarithmic axes.
NODES: Final = 2.0 ** np.arange(0, 15)

#: The largest share of the tables' imbalance that is priced. A judgement: larger ones would be far from what was timed.
MOST_IMBALANCE_SHARE: Final = 1.5


def imbalance_share(tokens: FloatArray, sizes: tuple[int, int, int], skew: float) -> FloatArray:
    """Return the imbalance under a router over that of the tables' power law, in the shape of `tokens`.

    It is at most MOST_IMBALANCE_SHARE. A skewed router never has less than a balanced one. `sizes` are the experts,
    the experts per token and the ranks.
    """
    shares = np.maximum(_shares(sizes, skew), _shares(sizes, 0.0))
    found = np.interp(np.log(np.maximum(tokens, 1.0)), np.log(NODES), shares)
    return np.asarray(found, dtype=np.float64)


def reached(tokens: FloatArray, sizes: tuple[int, int, int], skew: float = DEFAULT_SKEW) -> FloatArray:
    """Return the experts that any of `tokens` tokens reaches under a router with this skew, in expectation.

    The result has the shape of `tokens`. With several ranks these are the experts of the rank with most of them.
    `sizes` are the experts, the experts per token and the ranks; `tokens` are whole numbers if there are several ranks.
    """
    n_experts, top, ranks = sizes
    popular = capped(np.arange(1, n_experts + 1, dtype=np.float64) ** -skew, top)
    flat = np.ravel(np.asarray(tokens, dtype=np.float64))
    if ranks == 1:
        found = n_experts - ((1.0 - popular) ** flat[:, None]).sum(axis=1)
    else:
        found = np.array([_reached_on_busiest(int(each), sizes, skew) for each in flat])
    return np.reshape(found, np.shape(tokens))


@lru_cache(maxsize=8192)
def _reached_on_busiest(tokens: int, sizes: tuple[int, int, int], skew: float) -> float:
    """Return the experts reached on the rank with most of them, over draws of where popular experts are."""
    n_experts, top, ranks = sizes
    rng = np.random.default_rng(SEED)
    popular = capped(np.arange(1, n_experts + 1, dtype=np.float64) ** -skew, top)
    missed = (1.0 - rng.permuted(np.tile(popular, (DRAWS, 1)), axis=1)) ** tokens
    first = np.linspace(0, n_experts, ranks, endpoint=False).astype(int)
    drawn = (rng.random((RANK_DRAWS, *missed.shape)) >= missed).astype(np.float64)
    return min(float(np.add.reduceat(drawn, first, axis=2).max(axis=2).mean()), float(tokens * top))


def reached_by_both(tokens: FloatArray, sizes: tuple[int, int, int], skew: float) -> tuple[FloatArray, FloatArray]:
    """Return the experts that tokens reach under the default router and under one with more skew.

    Both have the shape of `tokens` and never decrease; the second is at most the first. Between NODES they are
    interpolated over the logarithm of the tokens. `sizes` are the experts, the experts per token and the ranks.
    """
    usual, own = _reached_at_nodes(sizes, DEFAULT_SKEW), _reached_at_nodes(sizes, skew)
    at = np.log(np.maximum(tokens, 1.0))
    return np.interp(at, np.log(NODES), usual), np.interp(at, np.log(NODES), np.minimum(own, usual))


@lru_cache(maxsize=256)
def _reached_at_nodes(sizes: tuple[int, int, int], skew: float) -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = np.maximum.accumulate(reached(np.asarray(NODES, dtype=np.float64), sizes, skew))
    return found


def reach_share(tokens: FloatArray, sizes: tuple[int, int], skew: float) -> FloatArray:
    """Return by how much of the way from the default router to a balanced one a router reaches more experts.

    0 is the router of DEFAULT_SKEW and 1 a balanced one. A router with more skew than the default, which reaches fewer
    experts (`reached_by_both`), has 0 here. The result has the shape of `tokens`; `sizes` are the experts and the
    experts per token.
    """
    return np.asarray(np.interp(np.log(np.maximum(tokens, 1.0)), np.log(NODES), _reach_shares(sizes, skew)))


@lru_cache(maxsize=256)
def _reach_shares(sizes: tuple[int, int], skew: float) -> npt.NDArray[np.float64]:
    nodes = np.asarray(NODES, dtype=np.float64)
    usual, even, own = (reached(nodes, (*sizes, 1), s) for s in (DEFAULT_SKEW, 0.0, skew))
    apart = even - usual
    share = np.divide(own - usual, apart, out=np.ones_like(apart), where=apart > 1e-6 * sizes[0])
    return np.asarray(np.clip(share, 0.0, 1.0), dtype=np.float64)


@lru_cache(maxsize=256)
def _shares(sizes: tuple[int, int, int], skew: float) -> npt.NDArray[np.float64]:
    n_experts, top, ranks = sizes
    found = []
    for tokens in NODES.astype(int):
        rng = np.random.default_rng(SEED)
        router = imbalance(router_loads(int(tokens), (n_experts, top), skew, rng), ranks)
        table = imbalance(table_loads(int(tokens), (n_experts, top), rng), ranks)
        found.append(min(router / table, MOST_IMBALANCE_SHARE) if table > 0.0 else 1.0)
    return np.array(found)


def imbalance(loads: npt.NDArray[np.float64], ranks: int) -> float:
    """Return the mean imbalance of draws of loads, shape (draws, experts), with consecutive experts on a rank."""
    mean = loads.mean(axis=1)
    if ranks == 1:
        return float((loads.std(axis=1) / mean).mean())
    by_rank = loads.reshape(len(loads), ranks, -1).mean(axis=2)
    return float((by_rank.max(axis=1) / mean).mean()) - 1.0


def router_loads(tokens: int, sizes: tuple[int, int], skew: float, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return draws of the rows of each expert under a router, shape (DRAWS, experts); popularity is in random order.

    `sizes` are the experts and the experts per token.
    """
    n_experts, top = sizes
    popular = capped(np.arange(1, n_experts + 1, dtype=np.float64) ** -skew, top)
    order = rng.permuted(np.tile(popular, (DRAWS, 1)), axis=1)
    return rng.binomial(tokens, order).astype(np.float64) + 1e-9


def table_loads(tokens: int, sizes: tuple[int, int], rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return draws of the rows of each expert under the tables' milder power law, shape (DRAWS, experts)."""
    n_experts, top = sizes
    drawn = table_law(rng.random((DRAWS, n_experts)), tokens, sizes)
    return tokens * np.array([capped(row, top) for row in drawn])


def table_law(quantiles: npt.NDArray[np.float64], tokens: int, sizes: tuple[int, int]) -> npt.NDArray[np.float64]:
    """Return the tables' milder power law at quantiles in 0..1, in their shape: loads up to a common factor.

    `sizes` are the experts and the experts per token.
    """
    n_experts, top = sizes
    low, high = (1.0, 0.8 * tokens) if tokens * top > n_experts else (0.01, 2.0)
    power = 1.0 - TABLE_EXPONENT
    drawn: npt.NDArray[np.float64] = ((high**power - low**power) * quantiles + low**power) ** (1.0 / power)
    return drawn


def capped(weights: npt.NDArray[np.float64], top: int) -> npt.NDArray[np.float64]:
    """Return the chance of each expert to be among the `top` of a token, in proportion to weights and at most one.

    Both have the shape (experts,). The chances sum to `top`; what experts at one cannot take goes to the others.
    """
    chances = np.zeros_like(weights)
    free = np.ones(len(weights), dtype=bool)
    while True:
        left = top - float(len(weights) - free.sum())
        chances[free] = weights[free] / weights[free].sum() * left
        over = free & (chances >= 1.0)
        if not over.any():
            return chances
        chances[over] = 1.0
        free &= ~over
        if not free.any():
            return chances
