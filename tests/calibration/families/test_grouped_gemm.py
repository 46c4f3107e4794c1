"""Experts: own curves exactly, neighbours sensibly, units and the meaning of tokens under expert parallelism."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from calibration.families.curve import isotonic
from calibration.families.grouped_gemm import GroupedGemmModel
from calibration.importers.aiconfigurator import moe_rows, newest_table, read_family
from calibration.operators.expert_loads import DEFAULT_SKEW, reached
from calibration.operators.operators import GroupedGemm
from calibration.operators.roofline import roofline_s
from catalogs.hardware.catalog import parse_hardware

H100 = parse_hardware("h100").accelerator
TOKENS = np.array([1.0, 8.0, 64.0, 512.0, 4096.0])


def rows_at(efficiency: float, **changes: object) -> pd.DataFrame:
    """Rows of one architecture at a constant share of the roofline."""
    sizes = {
        "hidden_size": 4096,
        "intermediate_size": 1536,
        "n_experts": 128,
        "experts_per_token": 8,
        "expert_ranks": 1,
    }
    fields = {**sizes, "dtype": "bf16", **changes}
    op = GroupedGemm(tokens=TOKENS, **fields)  # type: ignore[arg-type]
    return pd.DataFrame({"tokens": TOKENS, "seconds": roofline_s(op, H100) / efficiency, **fields})


OP = GroupedGemm(64.0, 4096, 1536, 128, 8, 1, "bf16")


def test_own_curve_answers_exactly_and_says_measured() -> None:
    model = GroupedGemmModel.fit(pd.concat([rows_at(0.5), rows_at(0.1, hidden_size=2048)]), H100)
    seconds, origin = model.cost(OP, H100)
    assert float(seconds) == pytest.approx(float(roofline_s(OP, H100)) / 0.5)
    assert float(origin) == 0.0
    assert float(model.cost(replace(OP, tokens=100.0), H100)[1]) == 1.0
    assert float(model.cost(replace(OP, tokens=1e5), H100)[1]) == 2.0


def test_an_unseen_architecture_takes_its_nearest_neighbours_share() -> None:
    model = GroupedGemmModel.fit(pd.concat([rows_at(0.5), rows_at(0.1, hidden_size=512, intermediate_size=128)]), H100)
    near = replace(OP, hidden_size=5120)
    seconds, origin = model.cost(near, H100)
    assert float(roofline_s(near, H100) / seconds) == pytest.approx(0.5, rel=0.01)
    assert float(origin) == 1.0
    assert float(model.cost(replace(OP, n_experts=16, experts_per_token=1), H100)[1]) == 2.0  # far: transferred


def test_an_unseen_architecture_takes_the_chain_and_its_share_of_the_roofline() -> None:
    """Planted: 20 us and 0.1 us for each expert around products at half the roofline; sizes and experts unseen."""

    def chain_s(n_experts: int) -> float:
        return 20e-6 + 0.1e-6 * n_experts

    tables = []
    for n_experts in (64, 128, 512):
        rows = rows_at(0.5, n_experts=n_experts)
        few = rows_at(0.5, n_experts=n_experts).assign(tokens=2.0)[:1]
        few["seconds"] = float(roofline_s(replace(OP, tokens=2.0, n_experts=n_experts), H100)) / 0.5
        both = pd.concat([rows, few]).sort_values("tokens")
        tables.append(both.assign(seconds=both.seconds + chain_s(n_experts)))
    model = GroupedGemmModel.fit(pd.concat(tables), H100)
    assert model.chain_s("bf16", 256, H100) == pytest.approx(chain_s(256), rel=1e-3)
    unseen = replace(OP, tokens=np.array([1.0, 8.0, 512.0]), n_experts=256, hidden_size=1024, intermediate_size=256)
    found = model.cost(unseen, H100)[0]
    assert found == pytest.approx(roofline_s(unseen, H100) / 0.5 + chain_s(256), rel=0.02)
    assert found[0] > 5.0 * float(roofline_s(unseen, H100)[0]) / 0.5  # what ratios alone would say of one token


def test_rows_of_marlin_are_those_of_its_own_type() -> None:
    """MXFP4 in Triton's kernel and in Marlin's: two times, and INT4 rows of Marlin stand in where it was not timed."""
    tables = [rows_at(0.5, dtype="mxfp4"), rows_at(0.25, dtype="int4")]
    int4_only = GroupedGemmModel.fit(pd.concat(tables), H100)
    both = GroupedGemmModel.fit(pd.concat([*tables, rows_at(0.2, dtype="mxfp4_marlin")]), H100)
    marlin = replace(OP, dtype="mxfp4_marlin")
    least = float(roofline_s(marlin, H100))
    assert least / float(both.cost(marlin, H100)[0]) == pytest.approx(0.2)
    assert least / float(both.cost(replace(OP, dtype="mxfp4"), H100)[0]) == pytest.approx(0.5)
    assert float(int4_only.cost(marlin, H100)[0]) > 1.5 * least / 0.5


@pytest.mark.parametrize(
    ("dtype", "hidden_size", "utilisation"),
    [("fp8", 4096, 0.1), ("fp8_block", 4096, 0.5), ("fp8", 2048, 0.3), ("fp8", 1024, 0.4)],
)
def test_fp8_experts_use_their_own_scaling_where_measured_and_blocks_elsewhere(
    dtype: str, hidden_size: int, utilisation: float
) -> None:
    tables = [
        rows_at(0.5, dtype="fp8_block", hidden_size=4096),
        rows_at(0.1, dtype="fp8", hidden_size=4096),
        rows_at(0.3, dtype="fp8", hidden_size=2048),
        rows_at(0.4, dtype="fp8_block", hidden_size=1024),
    ]
    model = GroupedGemmModel.fit(pd.concat(tables), H100)
    asked = replace(OP, dtype=dtype, hidden_size=hidden_size)
    assert float(roofline_s(asked, H100) / model.cost(asked, H100)[0]) == pytest.approx(utilisation)


def test_per_tensor_curves_price_no_block_scaled_experts_where_others_of_these_were_measured() -> None:
    """Engines run other kernels for the two; a curve of the same experts would jump between neighbouring layouts."""
    tables = [
        rows_at(0.5, dtype="fp8_block", intermediate_size=768),
        rows_at(0.4, dtype="fp8_block", intermediate_size=384),
        rows_at(0.1, dtype="fp8", intermediate_size=192),
    ]
    cut = replace(OP, dtype="fp8_block", intermediate_size=192)
    for rows, low, high in ((tables, 0.38, 0.52), (tables[2:], 0.099, 0.101)):
        model = GroupedGemmModel.fit(pd.concat(rows), H100)
        assert low < float(roofline_s(cut, H100) / model.cost(cut, H100)[0]) < high


@pytest.mark.parametrize(("factor", "expected"), [(0.2, 1.0), (3.0, 3.0)])
def test_experts_of_few_tokens_are_read_from_memory(factor: float, expected: float) -> None:
    """Weights of 38 MB that a row found in the cache take the share of the roofline of larger ones, no less."""
    rows = rows_at(0.5, intermediate_size=192)
    timed = rows.assign(seconds=np.where(rows.tokens == 1.0, factor, 1.0) * rows.seconds)
    one = replace(OP, tokens=1.0, intermediate_size=192)
    got = float(GroupedGemmModel.fit(timed[timed.tokens < 9], H100).cost(one, H100)[0])
    assert got == pytest.approx(expected * 2.0 * float(roofline_s(one, H100)))


def test_parts_round_trip_and_vectors_equal_scalars() -> None:
    model = GroupedGemmModel.fit(pd.concat([rows_at(0.5), rows_at(0.2, n_experts=64)]), H100)
    facts, arrays = model.to_parts()
    again = GroupedGemmModel.from_parts(json.loads(json.dumps(facts)), arrays)
    tokens = np.array([1.0, 3.0, 64.0, 1000.0, 1e5])
    for op in (OP, replace(OP, hidden_size=3072)):
        together, origin = again.cost(replace(op, tokens=tokens), H100)
        for i, t in enumerate(tokens):
            one, o = model.cost(replace(op, tokens=float(t)), H100)
            assert together[i] == pytest.approx(float(one), rel=1e-5)
            assert origin[i] == float(o)


@pytest.fixture(scope="module")
def h100_rows(public_data: Path) -> pd.DataFrame:
    rows = read_family(public_data / "profiles" / "aiconfigurator", "h100_sxm", "moe")
    assert rows is not None
    return rows


def rows_as_timed(tables: Path, system: str, routing: str) -> pd.DataFrame:
    """Rows at one of the routings that the collectors timed."""
    raw = newest_table(tables, system, "moe", "moe_perf")
    assert raw is not None
    return moe_rows(raw[raw.distribution == routing].reset_index(drop=True))


def test_table_points_are_reproduced(public_data: Path) -> None:
    """DeepSeek-V3 in fp8 on 8 expert ranks, 128 tokens: 519 us; TP8, 64 tokens: 392 us (read off the table)."""
    raw = rows_as_timed(public_data / "profiles" / "aiconfigurator", "h100_sxm", "power_law_1.01")
    model = GroupedGemmModel.fit(raw, H100)
    ep8 = GroupedGemm(128.0, 7168, 2048, 256, 8, 8, "fp8")
    tp8 = GroupedGemm(64.0, 7168, 256, 256, 8, 1, "fp8")
    assert float(model.cost(ep8, H100)[0]) == pytest.approx(519e-6, rel=0.01)
    assert float(model.cost(tp8, H100)[0]) == pytest.approx(392e-6, rel=0.01)


def test_tokens_are_those_of_the_whole_expert_group(h100_rows: pd.DataFrame) -> None:
    """Planted mistake: were tokens counted per rank, 8 ranks would route 8 times the rows and beat peak arithmetic."""
    large = h100_rows[(h100_rows.tokens >= 8192) & (h100_rows.expert_ranks == 8) & (h100_rows.dtype == "bf16")]
    flops = large.tokens * large.experts_per_token * 6.0 * large.hidden_size * large.intermediate_size
    share = flops / large.expert_ranks / large.seconds / H100.flops_for("bf16")
    assert share.max() < 1.0
    assert (share * large.expert_ranks).max() > 1.0


def test_balanced_roofline_is_beaten_only_as_far_as_skew_explains(h100_rows: pd.DataFrame) -> None:
    from calibration.rows.physics_check import gate

    _, report = gate("moe", h100_rows, H100)
    assert report.n_rejected == 0
    slipped = h100_rows.assign(seconds=h100_rows.seconds / 1000)  # planted mistake: ms read as seconds / 1e6
    assert gate("moe", slipped, H100)[1].n_rejected > 0.9 * len(h100_rows)


def test_whole_architectures_held_out(h100_rows: pd.DataFrame) -> None:
    """Leave one architecture of the bf16 table out, all its splits with it: median error below 20 %."""
    rows = h100_rows[h100_rows.dtype == "bf16"]
    qwen = (rows.hidden_size == 4096) & (rows.n_experts == 128) & (rows.experts_per_token == 8)
    model = GroupedGemmModel.fit(rows[~qwen], H100)
    test = rows[qwen & (rows.expert_ranks == 1)]
    widths, tokens = test.intermediate_size.to_numpy(int), test.tokens.to_numpy(float)
    op = [GroupedGemm(t, 4096, int(w), 128, 8, 1, "bf16") for t, w in zip(tokens, widths, strict=True)]
    got = np.array([float(model.cost(o, H100)[0]) for o in op])
    assert float(np.median(np.abs(got / test.seconds.to_numpy() - 1))) < 0.20


def test_another_projects_profile_agrees_with_the_experts_touched(public_data: Path) -> None:
    """Qwen3-30B-A3B, vLLM 0.19, at the experts that a balanced router touches: within 4 % in the median from 4 tokens
    on, below which its eager launches show; the routings as they were timed are not."""
    from calibration.importers import llmservingsim

    profiles, accelerator = public_data / "profiles", parse_hardware("rtxpro6000").accelerator
    other = llmservingsim.import_profiles(profiles / "llmservingsim" / "perf", "rtxpro6000")["moe"]
    other = other[other.tokens >= 4]
    op = GroupedGemm(other.tokens.to_numpy(float), 2048, 768, 128, 8, 1, "bf16")
    tables, system = profiles / "aiconfigurator", "rtx_pro_6000_server"
    served = read_family(tables, system, "moe")
    assert served is not None
    timed = {routing: rows_as_timed(tables, system, routing) for routing in ("power_law_1.01", "balanced")}
    errors = {}
    for routing, rows in {"served": served, **timed}.items():
        balanced = replace(op, skew=0.0 if routing == "served" else None)
        seconds = GroupedGemmModel.fit(rows, accelerator).cost(balanced, accelerator)[0]
        errors[routing] = np.abs(seconds / other.seconds.to_numpy() - 1)
    assert float(np.median(errors["served"])) < 0.04 < float(np.median(errors["power_law_1.01"]))
    assert float(errors["served"].max()) < 0.20 < float(errors["balanced"].max())


def test_more_tokens_never_take_less_time() -> None:
    """Noise in the rows (a planted outlier, +40 % at 8 tokens) and a falling share of the roofline are both evened."""
    noisy = rows_at(0.5)
    noisy.loc[1, "seconds"] *= 1.4
    falling = rows_at(0.5, hidden_size=2048)
    falling["seconds"] *= [1.0, 1.0, 1.0, 0.6, 0.6]
    model = GroupedGemmModel.fit(pd.concat([noisy, falling]), H100)
    tokens = np.arange(1.0, 9000.0)
    for op in (OP, replace(OP, hidden_size=2048), replace(OP, hidden_size=3072), replace(OP, n_experts=64)):
        assert (np.diff(model.cost(replace(op, tokens=tokens), H100)[0]) >= 0).all()
    assert (np.diff(noisy.seconds) < 0).any() or (np.diff(falling.seconds) < 0).any()  # the rows do fall


def test_pooling_leaves_what_rises_and_keeps_the_mean() -> None:
    assert isotonic(np.array([1.0, 2.0, 5.0])).tolist() == [1.0, 2.0, 5.0]
    assert isotonic(np.array([1.0, 4.0, 2.0, 3.0, 9.0])).tolist() == [1.0, 3.0, 3.0, 3.0, 9.0]


def test_mxfp4_by_activations() -> None:
    """Eight-bit activations take their own kernel's curves, of other shapes if need be; sixteen-bit ones theirs."""
    b200 = parse_hardware("b200").accelerator
    tables = [rows_at(0.5, dtype="mxfp4"), rows_at(0.8, dtype="mxfp4_mxfp8", hidden_size=3072)]
    model = GroupedGemmModel.fit(pd.concat(tables), b200)
    wide, narrow = (model.cost(replace(OP, tokens=4096.0, dtype=d), b200) for d in ("mxfp4", "mxfp4_mxfp8"))
    assert float(wide[1]) == 0.0
    assert float(narrow[1]) == 1.0
    assert float(narrow[0]) < 0.7 * float(wide[0])


def test_a_sparse_profile_follows_the_experts_touched_between_its_rows() -> None:
    """Four rows, far apart and from 8 tokens on: between and before them the share of the roofline holds."""
    rows = rows_at(0.5)[1:]
    model = GroupedGemmModel.fit(rows, H100)
    for tokens in (1.0, 2.0, 16.0, 32.0, 256.0):
        op = replace(OP, tokens=tokens)
        assert float(model.cost(op, H100)[0]) == pytest.approx(float(roofline_s(op, H100)) / 0.5, rel=1e-6)


def test_a_balanced_router_takes_less_time_than_a_skewed_one_and_no_less_than_even_loads() -> None:
    rows = rows_at(0.5)
    rows = rows.assign(even_seconds=rows.seconds * np.where(TOKENS >= 16, 0.7, 1.0))
    model = GroupedGemmModel.fit(rows, H100)
    facts, arrays = model.to_parts()
    again = GroupedGemmModel.from_parts(json.loads(json.dumps(facts)), arrays)
    op = replace(OP, tokens=TOKENS)
    known, *by_skew = (again.cost(replace(op, skew=skew), H100)[0] for skew in (None, 0.0, 0.5, 0.7))
    assert known == pytest.approx(rows.seconds.to_numpy())
    for less, more in pairwise(by_skew):
        assert (less <= more * (1.0 + 1e-9)).all()
    even = rows.even_seconds.to_numpy()
    assert (by_skew[0] >= even * (1.0 - 1e-6)).all()
    assert by_skew[0][-1] == pytest.approx(even[-1], rel=0.05)
    assert by_skew[0][0] == pytest.approx(known[0])  # one token reaches the same experts under every router
    unseen = replace(op, hidden_size=5120)
    assert (again.cost(replace(unseen, skew=0.0), H100)[0] <= again.cost(unseen, H100)[0] * (1.0 + 1e-9)).all()


def test_a_balanced_router_takes_longer_where_it_reaches_more_experts() -> None:
    rows = rows_at(0.5)
    rows = rows.assign(even_seconds=rows.seconds * np.where(TOKENS < 16, 1.3, 1.0))
    facts, arrays = GroupedGemmModel.fit(rows, H100).to_parts()
    model = GroupedGemmModel.from_parts(json.loads(json.dumps(facts)), arrays)
    op = replace(OP, tokens=TOKENS)
    law, even, between = (model.cost(replace(op, skew=skew), H100)[0] for skew in (None, 0.0, 0.5))
    assert law == pytest.approx(rows.seconds.to_numpy())
    assert even[1] == pytest.approx(rows.even_seconds.iloc[1], rel=0.013)  # made non-decreasing
    assert law[1] < between[1] < even[1]
    assert even[-1] == pytest.approx(law[-1])


@pytest.mark.parametrize("ranks", [1, 8])
def test_a_router_with_more_skew_than_the_usual_one_reads_fewer_experts(ranks: int) -> None:
    chain_s, each_s, sizes = 20e-6, 2e-6, (128, 8, ranks)
    tokens = 2.0 ** np.arange(0, 15)
    rows = rows_at(0.5, expert_ranks=ranks).iloc[:1].merge(pd.DataFrame({"at": tokens}), how="cross")
    stream_s = chain_s + each_s * np.maximum.accumulate(reached(tokens, sizes))
    seconds = np.maximum(stream_s, 1e-7 * tokens)
    rows = rows.assign(tokens=tokens, seconds=seconds, even_seconds=seconds).drop(columns="at")
    model = GroupedGemmModel.fit(rows, H100)
    op = replace(OP, tokens=tokens, expert_ranks=ranks)
    usual, *by_skew = (model.cost(replace(op, skew=skew), H100)[0] for skew in (None, 1.0, 1.8))
    for skew, own in zip((1.0, 1.8), by_skew, strict=True):
        few = tokens <= 64
        by_hand = chain_s + each_s * np.maximum.accumulate(reached(tokens, sizes, skew))
        assert own[few] == pytest.approx(by_hand[few], rel=0.02)
        assert (own <= usual * (1.0 + 1e-9)).all()
        assert (np.diff(own) >= 0.0).all()
    assert (by_skew[1] <= by_skew[0] * (1.0 + 1e-9)).all()
    assert by_skew[0][-1] == pytest.approx(usual[-1], rel=0.02)  # all experts are reached, under either router
    barely = model.cost(replace(op, skew=DEFAULT_SKEW + 1e-6), H100)[0]
    assert barely == pytest.approx(usual, rel=0.01)


def test_rows_without_even_loads_are_the_same_for_every_router() -> None:
    model = GroupedGemmModel.fit(rows_at(0.5), H100)
    assert "moe_log_relief" not in model.to_parts()[1]
    assert float(model.cost(replace(OP, skew=0.0), H100)[0]) == float(model.cost(OP, H100)[0])
