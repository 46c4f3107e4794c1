"""Derive rows of experts at the routing of service from rows timed at balanced and at skewed routing.

The public collectors time three routings: balanced (round robin: min(N, k T) experts receive tokens, with loads as even
as can be) and two power laws (`power_law_1.01`, `power_law_1.2`: exponents of the expert loads). The router of service
is the mild power law (calibration/operators/expert_loads.py says which routers are known better). Two times are read
from the rows, and the longer one counts:

- The time to stream the weights of the experts that the law reaches in expectation over its draws, read off the
  balanced rows as a function of the experts reached. Where no balanced rows were timed, it is linear from k experts
  (one token) to all of them. Independent, equally likely choices would reach N (1 - (1 - k/N)^T) experts, a skewed
  router fewer: the law 55 of 82 with 16 tokens, 8 of 128 experts each.
- The time of the mild power law, since uneven loads cost extra in some kernels; where the timed draws reached more
  experts, less by the difference of the streams. It lies between the other two routings by construction, so a row that
  does not is noise, and the nearer of them replaces it.

A row also has the time under a balanced router with even loads (`even_seconds`): that of the balanced rows once every
expert has rows, and no less than the stream of the experts that equally likely choices reach. With few tokens it is the
longer time, because such a router reads more weights.

Balanced loads cannot take longer than uneven ones once every expert has many rows. Where they do, the routing was not
the one in the label, and the balanced rows of that architecture and split are not used. This concerns kernels that
route by themselves (FlashInfer's and TensorRT-LLM's low-latency experts) over several ranks: of 256 experts on 8 ranks,
B200's block-scaled ones took 1.6 times as long "balanced" as under the power law, and 3.3 times as long as cut over the
same ranks.

Expert-parallel ranks wait for the rank that reads the most experts. Under equally likely choices, its number lies above
the mean by the expected largest of R standard normals (Blom's approximation) times the binomial spread of N/R experts.

The balanced router is checked against another project's profile that sets the number of experts reached
(tests/calibration/families/test_grouped_gemm.py): 2 % off in the median.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from calibration.operators.expert_loads import reached_by_table_law, table_law
from calibration.operators.roofline import distinct_experts
from catalogs.arrays import FloatArray

if TYPE_CHECKING:
    import pandas as pd


BALANCED, MILD, STEEP = "balanced", "power_law_1.01", "power_law_1.2"

ARCHITECTURE: Final = (
    "moe_dtype",
    "hidden_size",
    "inter_size",
    "topk",
    "num_experts",
    "moe_tp_size",
    "moe_ep_size",
)

#: Balanced rows up to this many rows per expert (half a tile) cost one stream: their median is the time of all experts.
ONE_TILE_ROWS: Final = 8.0

#: Rows per expert at which a power law reaches nearly all experts.
ALL_TOUCHED_ROWS: Final = 4.0

#: Even loads take at least this share of the time of uneven ones. The busiest of 8 ranks has 1.5 times the mean load,
#: and tiles that are half empty twice the work; rows that differ by more are of a kernel that was not tuned.
LEAST_EVEN: Final = 0.5

#: Rows per expert from which balanced loads are compared with uneven ones, and the ratio of their times that is noise.
COMPARED_ROWS: Final = 16.0
NOISE: Final = 1.05


def as_served(raw: pd.DataFrame) -> pd.DataFrame:
    """Return one row per architecture, split and number of tokens, with `distribution` "expected" and `even_seconds`.

    Of several rows of one routing the first counts.
    """
    keys = [*ARCHITECTURE, "num_tokens"]
    first = raw.drop_duplicates([*keys, "distribution"])
    wide = first.pivot(index=keys, columns="distribution", values="seconds").sort_index()
    wide = wide.reindex(columns=[BALANCED, MILD, STEEP])
    found = np.hstack([_served(part) for _, part in wide.groupby(level=list(ARCHITECTURE))])
    texts = [c for c in ("kernel_source", "source") if c in first]
    times = wide.assign(seconds=found[0], even_seconds=found[1])[["seconds", "even_seconds"]]
    rows = first.drop_duplicates(keys).set_index(keys)[texts].join(times)
    return rows[rows.seconds.notna()].reset_index().assign(distribution="expected")


def _served(part: pd.DataFrame) -> FloatArray:
    """Return the seconds of one architecture and split at its tokens, and those with even loads.

    The shape is (2, n), with NaN where nothing was timed.
    """
    index = cast("pd.MultiIndex", part.index)
    tokens = index.get_level_values("num_tokens").to_numpy(dtype=np.float64)
    top, n_experts, ranks = (int(index.get_level_values(c)[0]) for c in ("topk", "num_experts", "moe_ep_size"))
    sizes = (top, n_experts, ranks)
    balanced, mild, steep = (part[c].to_numpy(dtype=np.float64) for c in (BALANCED, MILD, STEEP))
    if _mislabelled(tokens * top / n_experts, balanced, mild):
        balanced = np.full_like(balanced, np.nan)
    skewed = np.where(np.isnan(balanced + steep), mild, np.median([balanced, mild, steep], axis=0))
    line = _stream(tokens, balanced, skewed, sizes)
    if line is None:
        return np.array([skewed, skewed])
    stream = np.interp(reached_by_table_law(tokens, (n_experts, top, ranks)) * ranks, *line)
    balanced_stream = np.interp(busiest_rank(tokens, sizes) * ranks, *line)
    if ranks == 1:
        drawn = np.array([touched_by_power_law(int(t), top, n_experts) for t in tokens])
        skewed = skewed - np.maximum(np.interp(drawn, *line) - stream, 0.0)
    served = np.fmax(stream, skewed)
    all_reached = (tokens * top >= n_experts) & ~np.isnan(balanced)
    most = np.fmax(balanced_stream, served)
    even = np.where(all_reached, np.fmax(np.fmax(balanced_stream, balanced), LEAST_EVEN * served), most)
    return np.array([served, np.fmin(even, most)])


def _mislabelled(rows_per_expert: FloatArray, balanced: FloatArray, mild: FloatArray) -> bool:
    """Return whether the rows labelled balanced took longer than those of the mild power law, each shape (n,)."""
    both = (rows_per_expert >= COMPARED_ROWS) & ~np.isnan(balanced + mild)
    return bool(both.any()) and float(np.median(balanced[both] / mild[both])) > NOISE


def _stream(
    tokens: FloatArray, balanced: FloatArray, skewed: FloatArray, sizes: tuple[int, int, int]
) -> tuple[FloatArray, FloatArray] | None:
    """Return (experts reached, seconds to read them once), ascending; None where too little was timed."""
    top, n_experts, _ = sizes
    chosen, known = tokens * top, ~np.isnan(balanced)
    full = known & (chosen >= n_experts) & (chosen <= ONE_TILE_ROWS * n_experts)
    if full.any():
        few, all_s = known & (chosen < n_experts), float(np.median(balanced[full]))
        cost = np.where(tokens == 1.0, np.fmin(skewed, balanced), balanced)[few]
        return np.append(chosen[few], n_experts), np.maximum.accumulate(np.append(np.minimum(cost, all_s), all_s))
    one = ~np.isnan(skewed) & (tokens == 1.0)
    every = ~np.isnan(skewed) & (chosen >= ALL_TOUCHED_ROWS * n_experts)
    if not (one.any() and every.any()):
        return None
    return np.array([top, n_experts], dtype=np.float64), np.array([skewed[one][0], skewed[every][0]])


def touched_by_power_law(tokens: int, top: int, n_experts: int) -> int:
    """Return the number of experts with at least one row in the collectors' sampling.

    It follows aiconfigurator's power_law_logits_v3, at even quantiles of the law instead of random ones.
    """
    loads = table_law((np.arange(n_experts) + 0.5) / n_experts, tokens, (n_experts, top))
    counts = np.round(loads / loads.sum() * tokens * top)
    missing = int(tokens * top - counts.sum())
    return min(int((counts > 0).sum()) + max(min(missing, int((counts == 0).sum())), 0), n_experts)


def busiest_rank(tokens: FloatArray, sizes: tuple[int, int, int]) -> FloatArray:
    """Return the experts that a balanced router reaches on the rank with the most of them, in the shape of `tokens`.

    `sizes` are the experts per token, the experts and the ranks.
    """
    top, n_experts, ranks = sizes
    mean = distinct_experts(tokens, n_experts, top) / ranks
    if ranks == 1:
        return mean
    here = n_experts / ranks
    spread = np.sqrt(np.maximum(mean * (1.0 - mean / here), 0.0))
    largest = NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))
    return np.minimum(mean + largest * spread, np.minimum(here, tokens * top))
