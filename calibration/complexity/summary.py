"""The end-to-end latencies of a run against the complexity of its requests: by bins, as a fit, normalised, in parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from calibration.complexity.length_bins import LengthBins, TokenRange
from calibration.complexity.linear_fit import LatencyFit
from calibration.complexity.records import PARTS, LatencyRecords
from catalogs.statistics import statistics

#: The statistics of a latency by name: "mean", "p50", "p90", "p95" and "p99", seconds; None without requests.
Statistics = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class BinLatencies:
    """The latencies of the requests of one bin.

    Attributes:
        inputs: The input lengths of the bin.
        outputs: The output lengths of the bin.
        n: The number of requests.
        mean_input_tokens: None without requests.
        mean_output_tokens: None without requests.
        e2e_s: Statistics of the end-to-end time.
        per_output_token_s: Statistics of the end-to-end time over the output tokens.
    """

    inputs: TokenRange
    outputs: TokenRange
    n: int
    mean_input_tokens: float | None
    mean_output_tokens: float | None
    e2e_s: Statistics
    per_output_token_s: Statistics

    @classmethod
    def of(cls, ranges: tuple[TokenRange, TokenRange], records: LatencyRecords) -> BinLatencies:
        """Return the latencies of a bin with the (input, output) lengths `ranges`, which holds the records."""
        inputs, outputs = ranges
        return cls(
            inputs=inputs,
            outputs=outputs,
            n=records.n,
            mean_input_tokens=float(records.input_tokens.mean()) if records.n else None,
            mean_output_tokens=float(records.output_tokens.mean()) if records.n else None,
            e2e_s=statistics(records.e2e_s),
            per_output_token_s=statistics(records.per_output_token_s),
        )

    def block(self) -> dict[str, Any]:
        """Return the bin as a block of JSON."""
        return {
            "input_tokens": range_block(self.inputs),
            "output_tokens": range_block(self.outputs),
            "requests": self.n,
            "mean_input_tokens": self.mean_input_tokens,
            "mean_output_tokens": self.mean_output_tokens,
            "e2e_s": self.e2e_s,
            "per_output_token_s": self.per_output_token_s,
        }


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the end-to-end time: its statistics in seconds, and its share of the time of all requests."""

    seconds: Statistics
    share: float

    def block(self) -> dict[str, Any]:
        """Return the part as a block of JSON."""
        return {"seconds": self.seconds, "share": self.share}


@dataclass(frozen=True, slots=True)
class Complexity:
    """The end-to-end latencies of a run against the complexity of its requests.

    Attributes:
        n: The number of requests.
        e2e_s: Statistics of the end-to-end time.
        per_output_token_s: Statistics of the end-to-end time over the output tokens (normalised latency).
        per_token_s: Statistics of the end-to-end time over the input and output tokens.
        bins: The bins of lengths.
        by_bin: The latencies of each bin, in the order of `bins.ranges`; bins without requests are included.
        fit: The linear fit; None if there are too few requests.
        parts: The parts of the end-to-end time by name, in their order; empty where they are not known.
    """

    n: int
    e2e_s: Statistics
    per_output_token_s: Statistics
    per_token_s: Statistics
    bins: LengthBins
    by_bin: tuple[BinLatencies, ...]
    fit: LatencyFit | None
    parts: dict[str, Part]

    def block(self) -> dict[str, Any]:
        """Return everything as a block of JSON."""
        return {
            "requests": self.n,
            "e2e_s": self.e2e_s,
            "per_output_token_s": self.per_output_token_s,
            "per_token_s": self.per_token_s,
            "by_bin": [each.block() for each in self.by_bin],
            "fit": None if self.fit is None else self.fit.block(),
            "parts": {name: part.block() for name, part in self.parts.items()},
        }


def range_block(tokens: TokenRange) -> dict[str, float | None]:
    """Return a range of lengths as a block of JSON; "below" is None without an upper bound."""
    return {"least": tokens.low, "below": tokens.below if np.isfinite(tokens.below) else None}


def complexity_of(records: LatencyRecords, bins: LengthBins | None = None) -> Complexity:
    """Return the latencies of records against the complexity of their requests.

    Args:
        records: The finished requests of one run, or of several runs pooled.
        bins: The bins of lengths; None: quartiles of the records' own lengths.
    """
    chosen = bins or LengthBins.of(records)
    numbers, total_s = chosen.numbers(records), float(records.e2e_s.sum())
    return Complexity(
        n=records.n,
        e2e_s=statistics(records.e2e_s),
        per_output_token_s=statistics(records.per_output_token_s),
        per_token_s=statistics(records.per_token_s),
        bins=chosen,
        by_bin=tuple(BinLatencies.of(r, records.picked(numbers == i)) for i, r in enumerate(chosen.ranges)),
        fit=LatencyFit.of(records),
        parts={
            name: Part(statistics(records.parts[name]), float(records.parts[name].sum()) / total_s if total_s else 0.0)
            for name in PARTS
            if name in records.parts
        },
    )
