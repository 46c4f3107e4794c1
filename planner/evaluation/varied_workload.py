"""Workloads with other lengths, contents or arrivals, as changed inputs of an evaluator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from catalogs.arrays import FloatArray, IntArray
from catalogs.workloads.length_statistics import LengthStatistics
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.synthetic import SyntheticWorkload
from catalogs.workloads.workload import STATS_REQUESTS, Workload

_SHARED_BLOCK_TOKENS: Final = 16


@dataclass(frozen=True)
class VariedWorkload(Workload):
    """A workload with longer or shorter requests, a common first part of every prompt, or smoother arrivals.

    Attributes:
        input_factor: Factor on the prompt lengths.
        output_factor: Factor on the output lengths.
        shared: Share of every prompt that is common text: 0 makes every prompt unique, 0.5 makes the first half of all
            prompts equal, None keeps the contents.
        burstiness: Exponent of every gap between arrivals, at most 1: below 1 the gaps differ less, with the same mean.
    """

    input_factor: float = 1.0
    output_factor: float = 1.0
    shared: float | None = None
    burstiness: float = 1.0

    @classmethod
    def of(
        cls,
        workload: Workload,
        input_factor: float = 1.0,
        output_factor: float = 1.0,
        shared: float | None = None,
        burstiness: float = 1.0,
    ) -> VariedWorkload:
        """Return `workload` with changed lengths, contents or gaps between arrivals."""
        kept = (workload.name, workload.source, workload.content, workload.notices)
        return cls(*kept, input_factor, output_factor, shared, burstiness)

    def lengths(self) -> LengthStatistics:
        """Return the statistics of the changed lengths."""
        n = STATS_REQUESTS if isinstance(self.content, SyntheticWorkload) else self.n_requests
        if self.sends_media:
            drawn = self.materialise(n_requests=n)
            return LengthStatistics.of(drawn.input_tokens, drawn.output_tokens)
        inputs, outputs = self.content.draw_lengths(self.content.seed, n)
        return LengthStatistics.of(_scaled(inputs, self.input_factor), _scaled(outputs, self.output_factor))

    @property
    def scales(self) -> bool:
        """Return whether another rate only divides the times of arrival; changed gaps are scaled in another way."""
        return super().scales and self.burstiness == 1.0

    def materialise(
        self, seed: int | None = None, n_requests: int | None = None, requests_per_s: float | None = None
    ) -> RequestSet:
        """Draw the requests of the workload, then change their arrivals, lengths and contents."""
        drawn = Workload.materialise(self, seed, n_requests, requests_per_s)
        if self.burstiness != 1.0 and drawn.n > 1:
            drawn = replace(drawn, arrival_s=_smoother(drawn.arrival_s, self.burstiness))
        media = 0 if drawn.media is None or not drawn.media.is_read else drawn.media.tokens
        inputs = _scaled(drawn.input_tokens - media, self.input_factor) + media
        outputs = _scaled(drawn.output_tokens, self.output_factor)
        varied = replace(drawn, input_tokens=inputs, output_tokens=outputs)
        if self.shared is not None:
            return _sharing(varied, self.shared)
        return varied.with_known(inputs + outputs)


def _scaled(tokens: IntArray, factor: float) -> IntArray:
    found: IntArray = np.maximum(np.rint(tokens * factor), 1).astype(np.int64)
    return found


def _smoother(arrival_s: FloatArray, exponent: float) -> FloatArray:
    """Return arrivals whose gaps are raised to a power and scaled to the same mean. Shape of both: (n,).

    Requests that arrive at the same time still do.
    """
    gaps = np.diff(arrival_s) ** exponent
    total = float(gaps.sum())
    if not total:
        return arrival_s
    span_s = float(arrival_s[-1] - arrival_s[0])
    return np.asarray(arrival_s[0] + np.concatenate([[0.0], np.cumsum(gaps) * (span_s / total)]))


def _sharing(requests: RequestSet, share: float) -> RequestSet:
    """Return the requests with the first `share` of every prompt taken from one common text."""
    if not share:
        return replace(requests, block_hashes=None)
    media = requests.media
    text = requests.input_tokens if media is None else requests.input_tokens - media.tokens
    blocks = (text * share).astype(np.int64) // _SHARED_BLOCK_TOKENS
    hashes = tuple(tuple(range(n)) for n in blocks.tolist())
    if media is not None:  # they follow the shared text
        requests = replace(requests, media=replace(media, before=blocks * _SHARED_BLOCK_TOKENS))
    return replace(requests, block_hashes=hashes, hash_block_tokens=_SHARED_BLOCK_TOKENS)
