"""Bins partition the requests, fits recover planted laws, and a run compared with itself at equal complexity is 1."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from calibration.complexity.comparison import compare
from calibration.complexity.length_bins import LengthBins, quantile_edges
from calibration.complexity.linear_fit import LatencyFit
from calibration.complexity.records import PARTS, LatencyRecords
from calibration.complexity.summary import complexity_of
from catalogs.arrays import FloatArray
from catalogs.errors import InputError


def records(inputs: object, outputs: object, e2e_s: object, **parts: FloatArray) -> LatencyRecords:
    """Records without times to first token."""
    i, o, e = (np.asarray(column, dtype=np.float64) for column in (inputs, outputs, e2e_s))
    return LatencyRecords(i, o, e, np.full(len(e), np.nan), parts)


def drawn(seed: int, n: int, slowness: float = 1.0) -> LatencyRecords:
    """Requests of lognormal lengths, their time a law with noise that grows with the length."""
    rng = np.random.default_rng(seed)
    inputs, outputs = rng.lognormal(6, 1, n).round() + 1, rng.lognormal(5, 0.8, n).round() + 1
    e2e_s = slowness * (0.1 + 2e-4 * inputs + 0.02 * outputs * (1 + 0.3 * rng.random(n)))
    return records(inputs, outputs, e2e_s)


_LENGTHS = st.lists(st.integers(1, 3000), min_size=1, max_size=60)


@given(_LENGTHS, st.data())
def test_bins_partition_the_requests(inputs: list[int], data: st.DataObject) -> None:
    n = len(inputs)
    outputs = data.draw(st.lists(st.integers(1, 3000), min_size=n, max_size=n))
    found = records(inputs, outputs, np.ones(n))
    bins = LengthBins.of(found)
    assert len(bins.input_ranges) <= 4
    assert len(bins.output_ranges) <= 4
    for (i, o), number in zip(zip(inputs, outputs, strict=True), bins.numbers(found).tolist(), strict=True):
        holding = [k for k, (a, b) in enumerate(bins.ranges) if a.low <= i < a.below and b.low <= o < b.below]
        assert holding == [number]
    summary = complexity_of(found, bins)
    assert sum(each.n for each in summary.by_bin) == n
    for tokens in (inputs, outputs):  # no range of one length alone is empty
        edges = np.array([0.0, *quantile_edges(np.array(tokens, dtype=float)), np.inf])
        assert np.all(np.histogram(tokens, [*edges[:-1].tolist(), 1e9])[0] > 0)


_FIT = """
import numpy as np
from calibration.complexity.linear_fit import mean_law
from calibration.complexity.records import LatencyRecords
rng = np.random.default_rng(0)
i, o = rng.lognormal(6, 1, 5000).round(), rng.lognormal(5, 1, 5000).round()
law = mean_law(LatencyRecords(i, o, 0.1 + 2e-4 * i + 0.02 * o * rng.random(5000), o, {}))
print([x.hex() for x in (law.constant_s, law.input_token_s, law.output_token_s)])
"""


def test_the_fit_has_the_same_digits_with_other_kernels_of_the_linear_algebra() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", _FIT],
            env=os.environ | {"OPENBLAS_CORETYPE": kernels, "OPENBLAS_NUM_THREADS": threads},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for kernels, threads in (("Haswell", "1"), ("Prescott", "2"))
    }
    assert len(found) == 1, found


@given(
    st.floats(0, 10),
    st.floats(1e-6, 1e-2),
    st.floats(1e-5, 0.5),
    st.integers(0, 2**32 - 1),
    st.integers(5, 200),
)
def test_the_fit_recovers_a_planted_law(a: float, b: float, c: float, seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    inputs = rng.integers(1, 100_000, n).astype(float)
    outputs = rng.integers(1, 4_000, n).astype(float)
    if len(set(inputs)) < 3 or len(set(outputs)) < 3 or abs(np.corrcoef(inputs, outputs)[0, 1]) > 0.99:
        return
    fit = LatencyFit.of(records(inputs, outputs, a + b * inputs + c * outputs))
    assert fit is not None
    whole = a + b * 1e5 + c * 4e3
    for law in (fit.mean, *fit.quantiles.values()):
        assert law.input_token_s is not None
        assert law.output_token_s is not None
        assert law.constant_s == pytest.approx(a, abs=1e-6 * whole)
        assert law.input_token_s == pytest.approx(b, abs=1e-6 * whole / 1e5)
        assert law.output_token_s == pytest.approx(c, abs=1e-6 * whole / 4e3)
    assert fit.explained == pytest.approx(1.0, abs=1e-9)
    assert max(map(abs, fit.residual_s.values())) < 1e-6 * whole


@pytest.mark.parametrize("level", [50, 90, 99])
def test_a_quantile_law_fulfils_the_conditions_of_its_optimum(level: int) -> None:
    """Koenker and Bassett, theorem 3.3: the requests on the law balance the weighted ones above and below it."""
    found, share = drawn(3, 400), level / 100
    fit = LatencyFit.of(found)
    assert fit is not None
    left_s = found.e2e_s - fit.quantiles[f"p{level}"].e2e_s(found.input_tokens, found.output_tokens)
    on = np.abs(left_s) < 1e-9
    assert on.sum() == 3
    assert (left_s < -1e-9).sum() <= share * found.n <= ((left_s < -1e-9) | on).sum()
    columns = np.column_stack([np.ones(found.n), found.input_tokens, found.output_tokens])
    pull = (share - (left_s < 0.0))[~on] @ columns[~on]
    weights = np.linalg.solve(columns[on].T, -pull)
    assert np.all((weights >= share - 1 - 1e-9) & (weights <= share + 1e-9))


@pytest.mark.slow
@pytest.mark.parametrize("level", [50, 90, 99])
def test_quantile_regression_equals_that_of_scikit_learn(level: int) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    found = drawn(3, 400)
    fit = LatencyFit.of(found)
    assert fit is not None
    law = fit.quantiles[f"p{level}"]
    columns = np.column_stack([found.input_tokens, found.output_tokens]) / 100.0
    other = linear_model.QuantileRegressor(quantile=level / 100, alpha=0.0).fit(columns, found.e2e_s)
    ours = law.e2e_s(found.input_tokens, found.output_tokens)

    def loss(fitted: FloatArray) -> float:
        left = found.e2e_s - fitted
        return float(np.maximum(level / 100 * left, (level / 100 - 1) * left).mean())

    assert loss(ours) <= loss(other.predict(columns)) * (1 + 1e-9)
    assert_allclose([law.input_token_s, law.output_token_s], other.coef_ / 100.0, rtol=1e-6)
    above = int((found.e2e_s > ours + 1e-9).sum())
    assert above <= found.n * (1 - level / 100) <= above + 3  # the law passes through three requests


def test_one_length_has_no_coefficient() -> None:
    same_inputs = LatencyFit.of(records([100] * 6, [1, 2, 3, 4, 5, 6], [3, 4, 5, 6, 7, 8]))
    assert same_inputs is not None
    assert same_inputs.mean.input_token_s is None
    assert (same_inputs.mean.constant_s, same_inputs.mean.output_token_s) == pytest.approx((2.0, 1.0))
    proportional = LatencyFit.of(records([10, 20, 30, 40], [1, 2, 3, 4], [3, 4, 5, 6]))
    assert proportional is not None
    assert proportional.mean.input_token_s is None
    assert proportional.mean.output_token_s == pytest.approx(1.0)
    assert LatencyFit.of(records([10, 20, 35], [1, 2, 3], [3, 4, 5])) is None  # three coefficients, three requests
    assert LatencyFit.of(records([], [], [])) is None


@given(st.integers(0, 10_000), st.integers(1, 300))
def test_a_run_compared_with_itself_is_one(seed: int, n: int) -> None:
    found = drawn(seed, n)
    same = compare(found, found)
    assert (same.ratio, same.raw_ratio, same.covered) == (1.0, 1.0, 1.0)
    assert same.fit_ratio in (1.0, None)
    assert all(each.ratio in (1.0, None) for each in same.bins)
    assert sum(each.weight for each in same.bins) == pytest.approx(1.0)


def test_a_slower_runtime_is_slower_by_its_factor_although_its_requests_are_shorter() -> None:
    first, second = drawn(1, 4000), drawn(2, 4000, slowness=1.5)
    shorter = second.picked(np.random.default_rng(0).random(4000) < np.where(second.output_tokens > 150, 0.3, 1.0))
    found = compare(first, shorter)
    assert found.raw_ratio < 1.2  # the mix of lengths hides the difference
    assert found.ratio == pytest.approx(1.5, rel=0.06)
    assert found.fit_ratio == pytest.approx(1.5, rel=0.02)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.ratio < found.high
    back = compare(shorter, first)
    assert back.ratio == pytest.approx(1 / found.ratio)


def test_the_weights_of_bins_by_hand() -> None:
    """Three short and one long request against one and three: both means weigh short and long requests equally."""
    first = records([1, 1, 1, 9], [1, 1, 1, 1], [1, 1, 1, 3])
    second = records([1, 9, 9, 9, 99], [1, 1, 1, 1, 1], [2, 3, 3, 3, 9])
    found = compare(first, second, LengthBins((5, 50), ()))
    assert [each.weight for each in found.bins] == [0.5, 0.5, 0.0]
    assert [each.ratio for each in found.bins] == [2.0, 1.0, None]
    assert found.ratio == (0.5 * 2 + 0.5 * 3) / (0.5 * 1 + 0.5 * 3)
    assert found.raw_ratio == 4.0 / 1.5
    assert found.covered == 8 / 9
    # No time varies within a bin, so the interval has no width.
    assert (found.low, found.high) == (found.ratio, found.ratio)
    one = compare(records([1, 9], [1, 1], [1, 2]), records([1, 9], [1, 1], [1, 3]), LengthBins((5,), ()))
    assert (one.ratio, one.low) == (4 / 3, None)


def test_runs_without_a_common_length_are_refused() -> None:
    short, long = records([1, 2, 3, 4], [1, 2, 3, 4], [1, 1, 1, 1]), records([91, 92], [91, 92], [1, 1])
    with pytest.raises(InputError, match="bins of lengths"):
        compare(short, long, LengthBins((50,), (50,)))
    with pytest.raises(InputError, match="finished requests"):
        compare(short, short.picked(np.zeros(4, dtype=bool)))


def test_a_summary_by_hand() -> None:
    parts = {"queue": np.array([1.0, 0.0]), "decode": np.array([1.0, 4.0])}
    found = complexity_of(records([10, 30], [2, 8], [2.0, 4.0], **parts), LengthBins((20,), ()))
    assert found.per_output_token_s["mean"] == pytest.approx((1.0 + 0.5) / 2)
    assert found.per_token_s["mean"] == pytest.approx((2 / 12 + 4 / 38) / 2)
    assert [(each.inputs.words, each.outputs.words, each.n) for each in found.by_bin] == [
        ("under 20", "all", 1),
        ("from 20", "all", 1),
    ]
    assert found.by_bin[1].e2e_s["p50"] == 4.0
    assert {name: part.share for name, part in found.parts.items()} == pytest.approx({"queue": 1 / 6, "decode": 5 / 6})
    assert found.fit is None
    block = found.block()
    assert block["by_bin"][1]["input_tokens"] == {"least": 20, "below": None}


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"e2e_s": np.ones(3)}, "one value per request"),
        ({"input_tokens": np.array([1.0, np.nan])}, "must be finite"),
        ({"output_tokens": np.array([1.0, 0.0])}, "output token"),
        ({"parts": {"lunch": np.zeros(2)}}, "no such part"),
    ],
)
def test_bad_records_are_refused(change: dict[str, object], rule: str) -> None:
    good = {name: np.ones(2) for name in ("input_tokens", "output_tokens", "e2e_s", "ttft_s")}
    with pytest.raises(InputError, match=rule):
        LatencyRecords(**(good | change))  # type: ignore[arg-type]


def test_records_pool_the_parts_that_all_have() -> None:
    one = records([1], [1], [1.0], queue=np.array([0.4]), decode=np.array([0.6]))
    two = records([2], [2], [2.0], decode=np.array([2.0]))
    both = LatencyRecords.pooled([one, two])
    assert both.n == 2
    assert list(both.parts) == ["decode"]
    assert set(PARTS) > set(both.parts)
