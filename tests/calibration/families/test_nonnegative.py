"""Non-negative weights of a few columns: those of SciPy, by hand where a weight is zero, and without SciPy."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.families.nonnegative import nonnegative, nonnegative_of_few


@settings(max_examples=60)
@given(st.integers(1, 5), st.integers(6, 40), st.integers(0, 10_000))
def test_few_columns_have_the_weights_of_scipy(n_columns: int, n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    terms = rng.lognormal(0, 2, (n, n_columns)) * 10.0 ** rng.integers(-9, 3, n_columns)
    values = terms @ rng.normal(0.3, 1.0, n_columns) + rng.lognormal(0, 1, n)
    values = np.abs(values) + 1e-3
    assert nonnegative_of_few(terms, values) == pytest.approx(nonnegative(terms, values), rel=1e-6, abs=1e-12)


def test_a_column_that_would_need_a_negative_weight_has_none() -> None:
    """The times fall with the second column, so that the first alone explains them: 3 - x is at most 3."""
    terms = np.column_stack([np.ones(3), np.array([0.0, 1.0, 2.0])])
    found = nonnegative_of_few(terms, np.array([3.0, 2.0, 1.0]))
    assert found[1] == 0.0
    assert found[0] > 0.0
    assert nonnegative_of_few(np.column_stack([np.ones(3), np.zeros(3)]), np.full(3, 4.0)) == pytest.approx([4.0, 0.0])


def test_experts_of_sizes_without_a_table_are_priced_without_scipy() -> None:
    """The base installation lacks SciPy, and a plan for DeepSeek-V4-Pro asked for it."""
    code = """
import sys
sys.modules["scipy"] = None
import numpy as np
from calibration.bundles.bundle import load_bundle
from calibration.operators.operators import GroupedGemm
from catalogs.engines.files import load_engine
from catalogs.hardware.catalog import parse_hardware
bundle = load_bundle(parse_hardware("b200x8").accelerator, engine=load_engine("vllm"))
print(float(bundle.cost(GroupedGemm(np.array([64.0]), 7168, 384, 384, 6, 1, "mxfp4")).seconds[0]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0
