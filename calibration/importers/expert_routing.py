"""Derive the times of experts as real requests are routed, from rows timed at balanced and at skewed routing.

The public collectors time three routings: balanced (round robin: min(N, k T) experts receive tokens, with loads as
even as can be) and two power laws (`power_law_1.01`, `power_law_1.2`: exponents of the expert loads). Two times are
read from the rows, and the longer one counts:

- The time to stream the weights of the experts that a router reaches, read off the balanced rows as a function of the
  experts reached. Where no balanced rows were timed, it is linear from k experts (one token) to all of them. The router
  is that of models of which nothing is published (calibration/operators/expert_loads.py, which also says which routers
  are known): it reaches 67 of 128 experts with 16 tokens and 8 experts each, a balanced one 82.
- The time of the mild power law, since uneven loads cost extra in some kernels; where the timed draws reached more
  experts, less by the difference of the streams. It lies between the other two routings by construction, so a row that
  does not is noise, and the nearer of them replaces it.

A row also has the time under a balanced router with even loads (`even_seconds`): that of the balanced rows once every
expert has rows, and no less than the stream of the experts that equally likely choices reach. With few tokens it is the
longer time, because such a router reads more weights.

Some collectors choose experts as DeepSeek-V3 does (`_chosen_by_groups`): the 4 of 8 groups with the best pairs of
experts, and the best 8 experts of these groups. Round robin puts one expert into every group, so the same four groups
win the tie for every token, and rows labelled balanced reach half of the experts. The time of all experts then lies on
the line from one token through those rows, or through the mild power law at ALL_TOUCHED_ROWS and the experts that its
draws reach in the chosen groups, whichever is less, since uneven loads only add to both. The collector of SGLang 0.5.9
did not group and timed the same kernel: with 32 tokens, quarters and eighths of DeepSeek-V3's experts took 738 and 458
us on H200 and 1,000 and 572 us on H100. Those of 0.5.14 took 401, 250, 515 and 301 us, and the line says 766, 468, 996
and 566 us.

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

from functools import lru_cache
from statistics import NormalDist
from typing import Final, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from calibration.families.grouped_gemm import ONE_TILE_ROWS
from calibration.operators.expert_loads import SEED, reached, table_law
from calibration.operators.flops_and_bytes import distinct_experts
from catalogs.arrays import FloatArray

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

#: Rows per expert at which a power law reaches nearly all experts. A judgement: it then reaches all of 8, 95 % of 64
#: and 82 % of 256 experts, and with twice as many rows at most 5 points more (`touched_by_power_law`).
ALL_TOUCHED_ROWS: Final = 4.0

#: Even loads take at least this share of the time of uneven ones. The busiest of 8 ranks has 1.5 times the mean load,
#: and tiles that are half empty twice the work; rows that differ by more are of a kernel that was not tuned.
LEAST_EVEN: Final = 0.5

#: Rows per expert from which balanced loads are compared with uneven ones. A judgement: both then reach all experts.
COMPARED_ROWS: Final = 16.0

#: Ratio of the times of balanced and uneven loads that is noise. A judgement: a few per cent between two measurements
#: of one kernel.
NOISE: Final = 1.05


#: Groups of experts and groups that each token may choose from, in DeepSeek-V3 (arXiv 2412.19437, section 2.1.2).
GROUPS, CHOSEN_GROUPS = 8, 4

#: Releases whose collectors choose experts by groups, by a pattern of their source: (hidden size, intermediate size,
#: experts per token, experts) of the models that they do it for, or None for all models (aiconfigurator, collector:
#: `use_grouped_topk` in vllm/collect_moe.py, DeepseekV3ForCausalLM_cases.yaml for SGLang, and `min_latency_mode` in
#: trtllm/collect_moe.py, here by the name of its kernel).
DEEPSEEK: Final = (7168, 2048, 8, 256)
GROUPED_SOURCES: Final = r" vllm 0\.(?:2[4-9]|[3-9]\d)\.| sglang 0\.5\.(?:1[4-9]|[2-9]\d)"
GROUPED_KERNEL: Final = "_min_latency"

#: Tokens from which the experts reached in groups hardly grow. A judgement of cost: of DeepSeek-V3's 256 experts, 1,024
#: tokens reach 215 and 4,096 tokens 224 (`touched_in_groups`), which takes four times as long to draw.
MOST_GROUPED_TOKENS: Final = 1024

#: Draws of the power law for the experts that it reaches in the chosen groups (the collectors average five).
GROUPED_DRAWS: Final = 8


def as_served(raw: pd.DataFrame) -> pd.DataFrame:
    """Return one row per architecture, split and number of tokens, with `distribution` "expected" and `even_seconds`.

    Of several rows of one routing the first counts.
    """
    keys = [*ARCHITECTURE, "num_tokens"]
    first = raw.drop_duplicates([*keys, "distribution"])
    wide = first.pivot(index=keys, columns="distribution", values="seconds").sort_index()
    wide = wide.reindex(columns=[BALANCED, MILD, STEEP])
    grouped = set(first.loc[_chosen_by_groups(first), list(ARCHITECTURE)].itertuples(index=False, name=None))
    parts = wide.groupby(level=list(ARCHITECTURE))
    found = np.hstack([_served(part, key in grouped) for key, part in parts])
    texts = [c for c in ("kernel_source", "source") if c in first]
    times = wide.assign(seconds=found[0], even_seconds=found[1])[["seconds", "even_seconds"]]
    rows = first.drop_duplicates(keys).set_index(keys)[texts].join(times)
    return rows[rows.seconds.notna()].reset_index().assign(distribution="expected")


def _chosen_by_groups(rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Return whether the collector of each row chose experts by groups and so left some out.

    It does not where a token has no more experts than groups, nor where a rank has experts of some groups alone.
    """
    kernel, source = (rows[c] if c in rows else pd.Series("", index=rows.index) for c in ("kernel_source", "source"))
    shape = [
        (rows[c] == n) for c, n in zip(("hidden_size", "inter_size", "topk", "num_experts"), DEEPSEEK, strict=True)
    ]
    deepseek = np.logical_and.reduce(shape) & source.str.contains(GROUPED_SOURCES)
    many = (rows.topk > CHOSEN_GROUPS) & (rows.moe_ep_size == 1)
    return np.asarray((deepseek | kernel.str.endswith(GROUPED_KERNEL)) & many, dtype=bool)


def _served(part: pd.DataFrame, grouped: bool) -> FloatArray:
    """Return the seconds of one architecture and split at its tokens, and those with even loads.

    `grouped` says whether the collector chose experts by groups. The shape is (2, n), with NaN where nothing was timed.
    """
    index = cast("pd.MultiIndex", part.index)
    tokens = index.get_level_values("num_tokens").to_numpy(dtype=np.float64)
    top, n_experts, ranks = (int(index.get_level_values(c)[0]) for c in ("topk", "num_experts", "moe_ep_size"))
    sizes = (top, n_experts, ranks)
    balanced, mild, steep = (part[c].to_numpy(dtype=np.float64) for c in (BALANCED, MILD, STEEP))
    by_round_robin = balanced
    if grouped or _mislabelled(tokens * top / n_experts, balanced, mild):
        balanced = np.full_like(balanced, np.nan)
    skewed = np.where(np.isnan(balanced + steep), mild, np.median([balanced, mild, steep], axis=0))
    touched = touched_in_groups if grouped else touched_by_power_law
    line = _stream(tokens, balanced, skewed, sizes)
    if line is not None and grouped:
        line = _grouped_stream(tokens, by_round_robin, skewed, sizes)
    if line is None:
        return np.array([skewed, skewed])
    stream = np.interp(reached(tokens, (n_experts, top, ranks)) * ranks, *line)
    balanced_stream = np.interp(busiest_rank(tokens, sizes) * ranks, *line)
    if ranks == 1:
        drawn = np.array([touched(int(t), top, n_experts) for t in tokens])
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


def _grouped_stream(
    tokens: FloatArray, balanced: FloatArray, skewed: FloatArray, sizes: tuple[int, int, int]
) -> tuple[FloatArray, FloatArray]:
    """Return (experts reached, seconds to read them once) where the collector chose experts by groups.

    There are skewed rows of one token and of ALL_TOUCHED_ROWS for each expert.
    """
    top, n_experts, _ = sizes
    first = float(skewed[tokens == 1.0][0])
    slopes = []
    for times, rows in ((balanced, 1.0), (skewed, ALL_TOUCHED_ROWS)):
        timed = np.flatnonzero(~np.isnan(times) & (tokens * top >= rows * n_experts))
        if len(timed):
            half = n_experts * CHOSEN_GROUPS / GROUPS
            most = half if times is balanced else touched_in_groups(int(tokens[timed[0]]), top, n_experts)
            slopes.append(max(float(times[timed[0]]) - first, 0.0) / max(most - top, 1.0))
    return np.array([top, n_experts], dtype=np.float64), np.array([first, first + min(slopes) * (n_experts - top)])


def touched_by_power_law(tokens: int, top: int, n_experts: int) -> int:
    """Return the number of experts with at least one row in the collectors' sampling.

    It follows aiconfigurator's power_law_logits_v3, at even quantiles of the law instead of random ones.
    """
    loads = table_law((np.arange(n_experts) + 0.5) / n_experts, tokens, (n_experts, top))
    counts = np.round(loads / loads.sum() * tokens * top)
    missing = int(tokens * top - counts.sum())
    return min(int((counts > 0).sum()) + max(min(missing, int((counts == 0).sum())), 0), n_experts)


@lru_cache(maxsize=1024)
def touched_in_groups(tokens: int, top: int, n_experts: int) -> float:
    """Return the number of experts with at least one row where the collectors' sampling meets a choice by groups.

    It is the mean over draws. The sampled experts of a token have equal scores, and so have all others; of equals the
    first ones are chosen.
    """
    rng = np.random.default_rng(SEED)
    few, found = min(tokens, MOST_GROUPED_TOKENS), []
    for _ in range(GROUPED_DRAWS):
        loads = table_law(rng.random(n_experts), few, (n_experts, top))
        counts = np.minimum(np.round(loads / loads.sum() * few * top), few).astype(int)
        while missing := few * top - int(counts.sum()):  # as the collectors, one by one to or from the extremes
            counts[np.argmin(counts) if missing > 0 else np.argmax(counts)] += np.sign(missing)
        order = np.argsort(-counts, kind="stable")
        chosen = np.repeat(order, counts[order]).reshape(top, few).T
        scores = np.zeros((few, n_experts))
        np.put_along_axis(scores, chosen, 1.0, axis=1)
        by_group = scores.reshape(few, GROUPS, -1)
        best = np.argsort(-np.sort(by_group, axis=2)[:, :, -2:].sum(axis=2), axis=1, kind="stable")
        np.put_along_axis(by_group, best[:, CHOSEN_GROUPS:, None], -1.0, axis=1)
        found.append(len(np.unique(np.argsort(-scores, axis=1, kind="stable")[:, :top])))
    return float(np.mean(found))


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
