"""Token-length distributions: whole numbers of at least one token, drawn by numpy from seeded streams."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from catalogs.arrays import FloatArray, IntArray
from catalogs.errors import InputError
from catalogs.io.yaml_files import choose_kind
from catalogs.workloads.arrivals import Count, Rate

Probability = Annotated[float, Field(ge=0, le=1)]

Tokens = Annotated[float, Field(ge=1, le=1e9, allow_inf_nan=False)]


class Lengths(BaseModel):
    """Base: a distribution of lengths."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def sample(self, rng: np.random.Generator, n: int) -> IntArray:
        """(n,) lengths, the same random numbers each, so that a longer draw of one seed begins with the shorter one."""
        raise NotImplementedError


class ConstantLength(Lengths):
    """Always `tokens`."""

    tokens: Count

    def sample(self, rng: np.random.Generator, n: int) -> IntArray:  # noqa: ARG002 - one signature for all
        return np.full(n, self.tokens, dtype=np.int64)


class Uniform(Lengths):
    """Every whole number from `low` to `high`, both included, equally often."""

    low: Count
    high: Count

    @model_validator(mode="after")
    def _ordered(self) -> Uniform:
        if self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")
        return self

    def sample(self, rng: np.random.Generator, n: int) -> IntArray:
        span = self.high - self.low + 1
        steps = np.floor(rng.random(n) * span).astype(np.int64)
        return self.low + np.minimum(steps, span - 1)


class Lognormal(Lengths):
    """Lognormal with this mean and coefficient of variation, rounded, at least 1 (and at most `high` where given).

    sigma^2 = ln(1 + cv^2), mu = ln(mean) - sigma^2 / 2.
    """

    mean: Tokens
    cv: Rate
    high: Count | None = None

    def sample(self, rng: np.random.Generator, n: int) -> IntArray:
        variance = np.log1p(self.cv**2)
        normal = rng.standard_normal(n)
        drawn = np.exp(np.log(self.mean) - variance / 2 + np.sqrt(variance) * normal)
        return whole_tokens(np.minimum(drawn, float(self.high) if self.high else 2.0**53))


class Quantiles(Lengths):
    """A table {probability: tokens} from 0 to 1, straight lines between the entries."""

    table: dict[Probability, Tokens]

    @model_validator(mode="after")
    def _is_quantile_function(self) -> Quantiles:
        check_quantiles(list(self.table), [list(self.table.values())])
        return self

    def sample(self, rng: np.random.Generator, n: int) -> IntArray:
        return self.at(rng.random(n))

    def at(self, share: FloatArray) -> IntArray:
        """The lengths at these positions (0..1) of the distribution."""
        return whole_tokens(np.interp(share, list(self.table), list(self.table.values())))


class QuantilesByInput(Lengths):
    """Output quantiles that depend on the input length: row k of `tokens` holds for the k-th of len(tokens) equally
    likely classes of input length, shortest first. Keeps whatever relation the two lengths had, monotone or not."""

    probabilities: tuple[Probability, ...]
    tokens: tuple[tuple[Tokens, ...], ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _are_quantile_functions(self) -> QuantilesByInput:
        check_quantiles(self.probabilities, self.tokens)
        return self

    def sample(self, rng: np.random.Generator, n: int) -> IntArray:
        return self.given(rng.random(n), rng)

    def given(self, input_share: FloatArray, rng: np.random.Generator) -> IntArray:
        """Lengths for requests whose input lengths lie at these positions (0..1) of the input distribution."""
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


def whole_tokens(tokens: FloatArray) -> IntArray:
    """Rounded to whole tokens, at least one."""
    return np.maximum(np.rint(tokens), 1).astype(np.int64)


def check_quantiles(probabilities: Sequence[float], rows: Sequence[Sequence[float]]) -> None:
    """Raises InputError unless probabilities climb from 0 to 1 and no row of tokens ever falls."""
    p = list(probabilities)
    if len(p) < 2 or p[0] != 0 or p[-1] != 1 or any(b <= a for a, b in pairwise(p)):
        raise InputError("quantiles must climb from probability 0 to probability 1", p)
    for row in rows:
        if len(row) != len(p) or any(b < a for a, b in pairwise(row)):
            raise InputError(f"quantiles need {len(p)} token counts that never fall", list(row))


def parse_lengths(data: object, where: str) -> Lengths:
    """`512`, `{uniform: {low: 1, high: 9}}`, ...; InputError names the nearest kind or key."""
    if isinstance(data, int) and not isinstance(data, bool):
        data = {"constant": data}
    return choose_kind(LENGTHS, data, where)


def sample_pairs(
    inputs: Lengths, outputs: Lengths, streams: tuple[np.random.Generator, np.random.Generator], n: int
) -> tuple[IntArray, IntArray]:
    """(n,) input and (n,) output lengths, each from its own stream."""
    if isinstance(inputs, Quantiles) and isinstance(outputs, QuantilesByInput):
        share = streams[0].random(n)
        return inputs.at(share), outputs.given(share, streams[1])
    return inputs.sample(streams[0], n), outputs.sample(streams[1], n)
