"""Quantile regression against hand calculations, a linear program and planted ties."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from calibration.complexity.quantile_regression import quantile_fit


def loss(columns: np.ndarray, values: np.ndarray, level: float, coefficients: np.ndarray) -> float:
    left = values - columns @ coefficients
    return float(np.where(left > 0, level * left, (level - 1) * left).sum())


def best_loss(columns: np.ndarray, values: np.ndarray, level: float) -> float:
    """The least loss by the dual linear program: its optimum is the same number."""
    needed = (1 - level) * columns.sum(axis=0)
    solved = linprog(-values, A_eq=columns.T, b_eq=needed, bounds=(0, 1), method="highs")
    return loss(columns, values, level, -solved.eqlin.marginals)


def test_a_constant_is_the_quantile_and_a_line_passes_through_its_points() -> None:
    values = np.array([3.0, 1.0, 4.0, 1.5, 9.0])
    assert quantile_fit(np.ones((5, 1)), values, 0.5) == pytest.approx([3.0])
    assert quantile_fit(np.ones((5, 1)), values, 0.9) == pytest.approx([9.0])
    x = np.linspace(0, 2, 9)
    outlier = 1 + 2 * x
    outlier[4] = 50.0  # the median does not see by how much one point is off
    assert quantile_fit(np.column_stack([np.ones(9), x]), outlier, 0.5) == pytest.approx([1.0, 2.0])


@given(st.integers(4, 200), st.integers(1, 3), st.sampled_from([0.1, 0.5, 0.9, 0.99]), st.integers(0, 2), st.integers())
def test_no_fit_has_a_smaller_loss(n: int, n_columns: int, level: float, digits: int, seed: int) -> None:
    """Values and columns are rounded, so that many points tie."""
    rng = np.random.default_rng(abs(seed))
    lengths = [rng.lognormal(0, 1, n).round(digits) + np.arange(n) / n for _ in range(n_columns - 1)]
    columns = np.column_stack([np.ones(n), *lengths])
    values = (columns @ rng.uniform(0, 2, n_columns) + rng.gamma(1, 1, n)).round(digits)
    found = loss(columns, values, level, quantile_fit(columns, values, level))
    assert found <= best_loss(columns, values, level) + 1e-7 * np.abs(values).sum()


def test_equal_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="not independent"):
        quantile_fit(np.ones((5, 2)), np.arange(5.0), 0.5)


DIGITS = """
import numpy as np
from calibration.complexity.quantile_regression import quantile_fit
rng = np.random.default_rng(5)
columns = np.column_stack([np.ones(400), rng.lognormal(0, 1, (400, 2))])
values = 0.3 + 0.7 * columns[:, 1] + 1.1 * columns[:, 2] + rng.gamma(1, 1, 400)
print([c.hex() for level in (0.5, 0.9, 0.99) for c in quantile_fit(columns, values, level)])
"""


#: The kernels of OpenBLAS that this processor can run, by the instructions that each needs beyond SSE3.
KERNELS = ["Prescott"] + [
    kernel
    for kernel, feature in (("Haswell", "AVX2"), ("SkylakeX", "AVX512_SKX"))
    if np._core._multiarray_umath.__cpu_features__.get(feature)
]


def test_the_digits_are_those_of_every_kernel_of_linear_algebra() -> None:
    """A report that is made again on another processor has the same bytes."""
    printed = {
        subprocess.run(
            [sys.executable, "-c", DIGITS],
            env=os.environ | {"OPENBLAS_CORETYPE": kernel},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for kernel in KERNELS
    }
    assert len(printed) == 1
