"""Means, percentiles and resampled intervals: those of numpy, and laws of an interval."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogs.statistics import QUANTILES, mean_ratio, resampled_interval, statistics


@given(st.lists(st.floats(0, 1e6) | st.just(float("nan")), max_size=30))
def test_percentiles_are_those_of_numpy_without_nan(values: list[float]) -> None:
    good = [value for value in values if not np.isnan(value)]
    found = statistics(np.array(values, dtype=np.float64))
    assert list(found) == ["mean", *QUANTILES]
    if not good:
        assert set(found.values()) == {None}
        return
    assert found["mean"] == pytest.approx(np.mean(good))
    assert [found[name] for name in QUANTILES] == pytest.approx([np.percentile(good, q) for q in QUANTILES.values()])
    assert statistics(np.array(good), {"p0": 0.0, "p100": 100.0})["p100"] == max(good)


def test_an_interval_holds_the_statistic_and_narrows_in_pairs() -> None:
    rng = np.random.default_rng(1)
    first = rng.lognormal(size=200)
    second = 2.0 * first
    low, high = resampled_interval((first, second), mean_ratio, 0.9, 500, np.random.default_rng(0))
    assert low < 2.0 < high
    paired = resampled_interval((first, second), mean_ratio, 0.9, 500, np.random.default_rng(0), paired=True)
    assert paired == pytest.approx((2.0, 2.0))
    wide = resampled_interval((first, second), mean_ratio, 0.99, 500, np.random.default_rng(0))
    assert wide[0] < low < high < wide[1]
