"""Statistics of the lengths of requests, in the words and the keys that all answers share."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from catalogs.arrays import IntArray


@dataclass(frozen=True, slots=True)
class TokenStatistics:
    """Statistics of the prompt lengths or of the output lengths of requests, in tokens."""

    mean: float
    p50: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, tokens: IntArray) -> TokenStatistics:
        """Return the statistics of lengths. Shape (n,), n >= 1."""
        p50, p95, p99 = np.percentile(tokens, (50, 95, 99))
        return cls(float(tokens.mean()), float(p50), float(p95), float(p99), float(tokens.max()))

    @property
    def constant(self) -> bool:
        """Return whether all requests have the same length."""
        return self.mean == self.max


@dataclass(frozen=True, slots=True)
class LengthStatistics:
    """The statistics of the input and the output lengths of requests."""

    input_tokens: TokenStatistics
    output_tokens: TokenStatistics

    @classmethod
    def of(cls, input_tokens: IntArray, output_tokens: IntArray) -> LengthStatistics:
        """Return the statistics of requests with these lengths. Shape (n,) each, n >= 1."""
        return cls(TokenStatistics.of(input_tokens), TokenStatistics.of(output_tokens))

    @property
    def words(self) -> str:
        """Return the lengths in words: "mean 1,155 in, 211 out; p95 4,083 in, 451 out"."""
        i, o = self.input_tokens, self.output_tokens
        if i.constant and o.constant:
            return f"constant: {i.mean:,.0f} in, {o.mean:,.0f} out"
        if not i.constant and not o.constant:
            return f"mean {i.mean:,.0f} in, {o.mean:,.0f} out; p95 {i.p95:,.0f} in, {o.p95:,.0f} out"
        return f"{_side(i)} in; {_side(o)} out"

    def within(self, most_tokens: int) -> dict[str, int]:
        """Return the constant length, by its key, with which requests have `most_tokens` input and output tokens.

        Prompts are shortened, or outputs where they alone have that many tokens. The result is empty if the lengths
        vary, or if neither length alone can be shortened so far.
        """
        i, o = self.input_tokens, self.output_tokens
        if i.constant and o.constant and o.max < most_tokens:
            return {"input_tokens": most_tokens - int(o.max)}
        if i.constant and o.constant and i.max < most_tokens:
            return {"output_tokens": most_tokens - int(i.max)}
        return {}

    def within_words(self, most_tokens: int) -> str:
        """Return in words which requests have at most `most_tokens` input and output tokens."""
        for key, tokens in self.within(most_tokens).items():
            side, other, kept = ("prompts", "outputs", self.output_tokens)
            if key == "output_tokens":
                side, other, kept = ("outputs", "prompts", self.input_tokens)
            return f"{side} of at most {tokens:,} fit with {other} of {kept.max:,.0f}"
        return f"at most {most_tokens:,} fit, prompt and output together"

    def block(self) -> dict[str, Any]:
        """Return the keys `input_tokens` and `output_tokens` of an answer, tokens."""
        return {
            side: {name: round(value, 2) for name, value in numbers.items()} for side, numbers in asdict(self).items()
        }


def _side(tokens: TokenStatistics) -> str:
    if tokens.constant:
        return f"constant {tokens.mean:,.0f}"
    return f"mean {tokens.mean:,.0f}, p95 {tokens.p95:,.0f}"
