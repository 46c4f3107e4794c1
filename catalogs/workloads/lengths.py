"""Token-length distributions: whole numbers of at least one token, drawn from seeded random streams."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Final

import numpy as np
from pydantic import Field, model_validator

from catalogs.arrays import FloatArray, IntArray
from catalogs.errors import InputError, nearest_name, nearest_number
from catalogs.io.yaml_files import Share, YamlBlock, choose_kind
from catalogs.workloads.arrivals import Count, Variation

Tokens = Annotated[float, Field(ge=1, le=1e9)]


class Lengths(YamlBlock):
    """Base class of distributions of lengths."""

    def sample(self, rng: np.random.Generator, n: int) -> IntArray:
        """Return n lengths. Shape (n,).

        Each length uses the same number of random draws, so that a longer sample with the same seed begins with the
        shorter.
        """
        raise NotImplementedError


class ConstantLength(Lengths):
    """A constant length of `tokens`."""

    tokens: Count

    def sample(self, rng: np.random.Generator, n: int) -> IntArray:  # noqa: ARG002 - one signature for all
        """Return `tokens` n times. Shape (n,)."""
        return np.full(n, self.tokens, dtype=np.int64)


class Uniform(Lengths):
    """Whole numbers from `low` to `high`, inclusive, with equal probability."""

    low: Count
    high: Count

    @model_validator(mode="after")
    def _ordered(self) -> Uniform:
        if self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")
        return self

    def sample(self, rng: np.random.Generator, n: int) -> IntArray:
        """Return n uniform lengths. Shape (n,)."""
        span = self.high - self.low + 1
        steps = np.floor(rng.random(n) * span).astype(np.int64)
        return self.low + np.minimum(steps, span - 1)


class Lognormal(Lengths):
    """Lognormal lengths with this mean and coefficient of variation, rounded, at least 1 and at most `high`.

    sigma^2 = ln(1 + cv^2), mu = ln(mean) - sigma^2 / 2.
    """

    mean: Tokens
    cv: Variation
    high: Count | None = None

    def sample(self, rng: np.random.Generator, n: int) -> IntArray:
        """Return n lognormal lengths. Shape (n,)."""
        variance = np.log1p(self.cv**2)
        normal = rng.standard_normal(n)
        drawn = np.exp(np.log(self.mean) - variance / 2 + np.sqrt(variance) * normal)
        return whole_tokens(np.minimum(drawn, float(self.high) if self.high else 2.0**53))


class Quantiles(Lengths):
    """A quantile table {probability: tokens} from 0 to 1, with linear interpolation between its entries."""

    table: dict[Share, Tokens]

    @model_validator(mode="after")
    def _is_quantile_function(self) -> Quantiles:
        check_quantiles(list(self.table), [list(self.table.values())])
        return self

    def sample(self, rng: np.random.Generator, n: int) -> IntArray:
        """Return n lengths from the interpolated table. Shape (n,)."""
        return self.at(rng.random(n))

    def at(self, share: FloatArray) -> IntArray:
        """Return the lengths at the given positions (0..1) of the distribution. Shape of `share`."""
        return whole_tokens(np.interp(share, list(self.table), list(self.table.values())))


class QuantilesByInput(Lengths):
    """Output quantiles that depend on the input length.

    Row k of `tokens` applies to the k-th of len(tokens) equally likely classes of input length, shortest first. Any
    relation between the two lengths can be represented, monotone or not.
    """

    probabilities: tuple[Share, ...]
    tokens: tuple[tuple[Tokens, ...], ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _are_quantile_functions(self) -> QuantilesByInput:
        check_quantiles(self.probabilities, self.tokens)
        return self

    def sample(self, rng: np.random.Generator, n: int) -> IntArray:
        """Return n lengths for random input lengths. Shape (n,)."""
        return self.given(rng.random(n), rng)

    def given(self, input_share: FloatArray, rng: np.random.Generator) -> IntArray:
        """Return output lengths for the given positions (0..1) of the input lengths. Shape of `input_share`."""
        share = rng.random(len(input_share))
        p, table = np.asarray(self.probabilities), np.asarray(self.tokens)
        row = np.minimum((input_share * len(table)).astype(np.int64), len(table) - 1)
        right = np.clip(np.searchsorted(p, share, side="right"), 1, len(p) - 1)
        weight = (share - p[right - 1]) / (p[right] - p[right - 1])
        return whole_tokens(table[row, right - 1] * (1 - weight) + table[row, right] * weight)


LENGTHS: Final[dict[str, type[Lengths]]] = {
    "constant": ConstantLength,
    "uniform": Uniform,
    "lognormal": Lognormal,
    "quantiles": Quantiles,
    "quantiles_by_input": QuantilesByInput,
}


#: Other names of distributions, for error messages.
_OTHER_NAMES: Final = {
    **dict.fromkeys(("fixed", "const", "exact"), "constant"),
    **dict.fromkeys(("range", "randint"), "uniform"),
    **dict.fromkeys(("normal", "gaussian", "exponential"), "lognormal"),
    **dict.fromkeys(("percentiles", "histogram", "empirical"), "quantiles"),
}


def whole_tokens(tokens: FloatArray) -> IntArray:
    """Return lengths rounded to whole tokens, at least one. Shape of `tokens`."""
    return np.maximum(np.rint(tokens), 1).astype(np.int64)


def check_quantiles(probabilities: Sequence[float], rows: Sequence[Sequence[float]]) -> None:
    """Check that probabilities rise from 0 to 1 and that no row of tokens falls.

    Raises:
        InputError: The table is not a quantile function.
    """
    p = list(probabilities)
    if len(p) < 2 or p[0] != 0 or p[-1] != 1 or any(b <= a for a, b in pairwise(p)):
        raise InputError("quantiles must rise from probability 0 to probability 1", p)
    for row in rows:
        if len(row) != len(p) or any(b < a for a, b in pairwise(row)):
            raise InputError(f"quantiles need {len(p)} token counts that never fall", list(row))


def parse_lengths(data: object, where: str) -> Lengths:
    """Return the distribution that `data` names, such as `512` or `{uniform: {low: 1, high: 9}}`.

    Raises:
        InputError: The kind or a key is unknown (the message names the nearest), or a value is out of range.
    """
    if isinstance(data, int) and not isinstance(data, bool):
        data = {"constant": data}
    kind = next(iter(data), None) if isinstance(data, dict) and len(data) == 1 else None
    if kind in _OTHER_NAMES:
        raise InputError(f"{where}: unknown kind", kind, _OTHER_NAMES[kind])
    if isinstance(data, float) or (isinstance(data, str) and data not in LENGTHS):
        rule = f"{where} is a whole number of tokens or a distribution, such as {{uniform: {{low: 1, high: 9}}}}"
        raise InputError(rule, data, nearest_number(data, is_whole=True) or nearest_name(str(data), LENGTHS) or "512")
    return choose_kind(LENGTHS, data, where)


def sample_pairs(
    inputs: Lengths, outputs: Lengths, streams: tuple[np.random.Generator, np.random.Generator], n: int
) -> tuple[IntArray, IntArray]:
    """Return n input lengths and n output lengths, each drawn from its own stream. Shape (n,) each."""
    if isinstance(inputs, Quantiles) and isinstance(outputs, QuantilesByInput):
        share = streams[0].random(n)
        return inputs.at(share), outputs.given(share, streams[1])
    return inputs.sample(streams[0], n), outputs.sample(streams[1], n)
