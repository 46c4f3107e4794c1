"""The outcome of each request, stored in flat arrays (90 bytes per request)."""

from __future__ import annotations

from array import array
from math import nan

import numpy as np

from catalogs.arrays import BoolArray, IntArray

#: Codes of what became of a request, in the order of the names in `STATUS`.
NOT_SENT, UNFINISHED, COMPLETED, TOO_LONG, TOO_LARGE, TOO_WIDE, FAILED, QUEUE_FULL, TIMED_OUT, ITEM_TOO_LARGE = range(
    10
)

STATUS = (
    "not sent",
    "unfinished",
    "completed",
    "rejected: longer than max_model_len",
    "rejected: larger than the KV cache",
    "rejected: longer than a step without chunked prefill",
    "failed: its replicas failed more often than requests are retried",
    "rejected: the queue was full",
    "timed out: its client gave up",
    "rejected: an image, a video or audio larger than the encoder cache",
)


#: Codes of requests that are rejected because of their size, whatever the load is.
TOO_BIG = (TOO_LONG, TOO_LARGE, TOO_WIDE, ITEM_TOO_LARGE)

#: Codes of requests that an engine rejects.
REJECTED = (*TOO_BIG, QUEUE_FULL)


class ByStatus:
    """The masks of a finished run by the status of its requests, or of its jobs, which are requests of a network."""

    __slots__ = ()

    status: IntArray  # codes of STATUS, Shape (requests,)

    @property
    def completed(self) -> BoolArray:
        """Return whether each request was completed. Shape (requests,)."""
        return np.equal(self.status, COMPLETED)

    @property
    def rejected(self) -> BoolArray:
        """Return whether each request was rejected. Shape (requests,)."""
        return np.isin(self.status, REJECTED)

    @property
    def timed_out(self) -> BoolArray:
        """Return whether each request timed out: its client gave up, or it waited too long. Shape (requests,)."""
        return np.equal(self.status, TIMED_OUT)

    @property
    def unfinished(self) -> BoolArray:
        """Return whether each request was sent and is still open at the end of the run. Shape (requests,)."""
        return np.equal(self.status, UNFINISHED)

    @property
    def arrived(self) -> BoolArray:
        """Return whether each request was sent. Shape (requests,)."""
        return np.not_equal(self.status, NOT_SENT)


class RequestOutcomes:
    """One row per request in workload order; times are nan seconds and counts are 0 until the event happens."""

    def __init__(self, n: int) -> None:
        blank = array("d", [nan]) * n
        zeros = array("q", [0]) * n
        self.arrival_s = blank[:]  # when the client sends the request
        self.routed_s = blank[:]  # when it first reaches the router
        self.started_s = blank[:]  # when its first step begins
        self.prefilled_s = blank[:]  # when the step ends that computes the first token
        self.decoded_s = blank[:]  # when the step ends that computes the last token
        self.first_token_s = blank[:]  # when the client receives the first token
        self.last_token_s = blank[:]
        self.cached_tokens = zeros[:]
        self.preemptions = zeros[:]
        self.replica = array("q", [-1]) * n  # the last replica that held the request
        self.status = array("b", [NOT_SENT]) * n
        self.gaps_s = array("d")  # inter-token gaps caused by preemptions; all other gaps follow from the step log
        self.openings_s = array("d")  # durations of steps in which a transferred request gave its first token (no gap)
        self.waits_s = array("d")  # pairs per transferred request: its first decode step there and the wait before it
        # Rows of (request, encoder replica, target replica, reached the encoder, began, encoded, arrived, embeddings)
        # for each pass through an encoder pool; target -1: none was there; arrived nan: under way or lost
        self.encodings = array("d")
        self.handovers = array("d")  # rows of (request, source replica, target replica, start, end); end nan: under way
