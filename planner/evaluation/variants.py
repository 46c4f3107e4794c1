"""Workloads with other lengths or contents, as changed inputs of an evaluator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from catalogs.arrays import IntArray
from catalogs.workloads.length_statistics import LengthStatistics
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.synthetic import SyntheticWorkload
from catalogs.workloads.workload import STATS_REQUESTS, Workload

_SHARED_BLOCK_TOKENS: Final = 16


@dataclass(frozen=True)
class VariedWorkload(Workload):
    """A workload with longer or shorter requests, or with a common first part of every prompt.

    Attributes:
        input_factor: Factor on the prompt lengths.
        output_factor: Factor on the output lengths.
        shared: Share of every prompt that is common text: 0 makes every prompt unique, 0.5 makes the first half of all
            prompts equal, None keeps the contents.
    """

    input_factor: float = 1.0
    output_factor: float = 1.0
    shared: float | None = None

    @classmethod
    def of(
        cls, workload: Workload, input_factor: float = 1.0, output_factor: float = 1.0, shared: float | None = None
    ) -> VariedWorkload:
        """Return `workload` with changed lengths or contents."""
        kept = (workload.name, workload.source, workload.content, workload.notices)
        return cls(*kept, input_factor, output_factor, shared)

    def lengths(self) -> LengthStatistics:
        """Return the statistics of the changed lengths."""
        n = STATS_REQUESTS if isinstance(self.content, SyntheticWorkload) else self.n_requests
        inputs, outputs = self.content.draw_lengths(self.content.seed, n)
        return LengthStatistics.of(_scaled(inputs, self.input_factor), _scaled(outputs, self.output_factor))

    def materialise(
        self, seed: int | None = None, n_requests: int | None = None, requests_per_s: float | None = None
    ) -> RequestSet:
        """Draw the requests of the workload, then change their lengths and contents."""
        drawn = Workload.materialise(self, seed, n_requests, requests_per_s)
        inputs = _scaled(drawn.input_tokens, self.input_factor)
        outputs = _scaled(drawn.output_tokens, self.output_factor)
        varied = replace(drawn, input_tokens=inputs, output_tokens=outputs)
        if self.shared is not None:
            return _sharing(varied, self.shared)
        if drawn.block_hashes is None:
            return varied
        full = (inputs + outputs) // drawn.hash_block_tokens
        return replace(varied, block_hashes=tuple(h[:n] for h, n in zip(drawn.block_hashes, full, strict=True)))


def _scaled(tokens: IntArray, factor: float) -> IntArray:
    found: IntArray = np.maximum(np.rint(tokens * factor), 1).astype(np.int64)
    return found


def _sharing(requests: RequestSet, share: float) -> RequestSet:
    """Return the requests with the first `share` of every prompt taken from one common text."""
    if not share:
        return replace(requests, block_hashes=None)
    blocks = (requests.input_tokens * share).astype(np.int64) // _SHARED_BLOCK_TOKENS
    hashes = tuple(tuple(range(n)) for n in blocks.tolist())
    return replace(requests, block_hashes=hashes, hash_block_tokens=_SHARED_BLOCK_TOKENS)
