"""The latencies of finished requests, simulated or measured, as the statistics of this package read them.

`simulator.analysis.complexity` makes records of a simulated run, `LatencyRecords.measured` of a load client's result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from calibration.accuracy.measured_run import MeasuredRun
from catalogs.arrays import BoolArray, FloatArray
from catalogs.errors import InputError

#: The parts of a request's end-to-end time in their order, with their names on screens. Every part lies between two
#: instants of the request, so the parts add up to its end-to-end time.
PARTS: Final[Mapping[str, str]] = {
    "client_network": "client and network",  # fixed times on the way to the engine and back
    "tokenise": "tokenise",  # and the wait for the API server's processes
    "encode": "encoder pool",  # encoding on a replica of an encoder pool, and the transfer of the embeddings
    # from the router, whereas queue_s counts from the arrival; with all waits after the loss of a replica
    "queue": "wait for the first step",
    "prefill": "prefill",  # until the step that computes the first token ends
    "transfer": "KV transfer",  # between a prefill and a decode replica
    "decode": "decode",  # until the step that computes the last token ends
    "detokenise": "detokenise",  # detokenise and stream, with the wait for the API server's processes
}


@dataclass(frozen=True, slots=True, eq=False)
class LatencyRecords:
    """One row per finished request. All arrays have shape (n,).

    Attributes:
        input_tokens: Tokens of the prompt, whether they were cached or not.
        output_tokens: Generated tokens, at least one.
        e2e_s: Seconds from the time the client sent the request to the last byte that it received.
        ttft_s: Seconds from the time the client sent the request to the first token; NaN where it is not known.
        parts: The parts of `e2e_s` by the names of `PARTS`, seconds; empty where they are not known.

    Raises:
        InputError: Shapes differ, a length or latency is not finite, or a part has another name.
    """

    input_tokens: FloatArray
    output_tokens: FloatArray
    e2e_s: FloatArray
    ttft_s: FloatArray
    parts: Mapping[str, FloatArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        columns = {name: getattr(self, name) for name in ("input_tokens", "output_tokens", "e2e_s", "ttft_s")}
        for name, values in (columns | dict(self.parts)).items():
            if values.shape != (self.n,):
                raise InputError(
                    f"{name} of latency records needs one value per request", values.shape, f"{self.n} values"
                )
        for name in ("input_tokens", "output_tokens", "e2e_s"):
            if not np.isfinite(columns[name]).all():
                raise InputError(f"{name} of latency records must be finite", "nan or inf")
        if self.n and self.output_tokens.min() < 1:
            raise InputError(
                "every request of latency records has an output token", float(self.output_tokens.min()), "1"
            )
        unknown = next((name for name in self.parts if name not in PARTS), None)
        if unknown is not None:
            raise InputError("latency records have no such part", unknown, ", ".join(PARTS))

    @classmethod
    def measured(cls, run: MeasuredRun) -> LatencyRecords:
        """Return the records of a load client's result; requests without lengths or end-to-end time are left out."""
        kept = np.isfinite(run.input_tokens) & np.isfinite(run.e2e_s) & (run.output_tokens >= 1)
        inputs, outputs = (np.asarray(each[kept], dtype=np.float64) for each in (run.input_tokens, run.output_tokens))
        return cls(inputs, outputs, run.e2e_s[kept], run.ttft_s[kept])

    @classmethod
    def pooled(cls, several: Sequence[LatencyRecords]) -> LatencyRecords:
        """Return the records of several runs together, with the parts that all of them have."""
        shared = [name for name in PARTS if several and all(name in each.parts for each in several)]
        parts = {name: np.concatenate([each.parts[name] for each in several]) for name in shared}
        return cls(
            input_tokens=np.concatenate([np.zeros(0), *(each.input_tokens for each in several)]),
            output_tokens=np.concatenate([np.zeros(0), *(each.output_tokens for each in several)]),
            e2e_s=np.concatenate([np.zeros(0), *(each.e2e_s for each in several)]),
            ttft_s=np.concatenate([np.zeros(0), *(each.ttft_s for each in several)]),
            parts=parts,
        )

    @property
    def n(self) -> int:
        """Return the number of requests."""
        return len(self.e2e_s)

    @property
    def per_output_token_s(self) -> FloatArray:
        """Return the end-to-end time over the output tokens of each request, seconds. Shape (n,)."""
        return self.e2e_s / self.output_tokens

    @property
    def per_token_s(self) -> FloatArray:
        """Return the end-to-end time over the input and output tokens of each request, seconds. Shape (n,)."""
        return self.e2e_s / (self.input_tokens + self.output_tokens)

    def picked(self, kept: BoolArray) -> LatencyRecords:
        """Return the records of the kept requests only. `kept` has shape (n,)."""
        parts = {name: values[kept] for name, values in self.parts.items()}
        return LatencyRecords(
            self.input_tokens[kept], self.output_tokens[kept], self.e2e_s[kept], self.ttft_s[kept], parts
        )
