"""What became of each request, as flat arrays: 66 bytes a request."""

from __future__ import annotations

from array import array
from math import nan

NOT_SENT, UNFINISHED, COMPLETED, TOO_LONG, TOO_LARGE, TOO_WIDE, FAILED, QUEUE_FULL, TIMED_OUT = range(9)

STATUS = (
    "not sent",
    "unfinished",
    "completed",
    "rejected: longer than max_model_len",
    "rejected: larger than the KV cache",
    "rejected: longer than a step without chunked prefill",
    "failed: lost with its replica more often than it is retried",
    "rejected: the queue was full",
    "timed out: its client gave up",
)


class RequestOutcomes:
    """One row per request in workload order; seconds are nan and counts 0 until they happen."""

    __slots__ = (
        "arrival_s",
        "cached_tokens",
        "first_token_s",
        "gaps_s",
        "handovers",
        "last_token_s",
        "openings_s",
        "preemptions",
        "replica",
        "started_s",
        "status",
        "waits_s",
    )

    def __init__(self, n: int) -> None:
        blank = array("d", [nan]) * n
        zeros = array("q", [0]) * n
        self.arrival_s = blank[:]  # the client sends it
        self.started_s = blank[:]  # its first step begins
        self.first_token_s = blank[:]  # the client has the first token
        self.last_token_s = blank[:]
        self.cached_tokens = zeros[:]
        self.preemptions = zeros[:]
        self.replica = array("q", [-1]) * n  # the last that had it
        self.status = array("b", [NOT_SENT]) * n
        self.gaps_s = array("d")  # gaps between tokens that a preemption made; all others follow from the step log
        self.openings_s = array("d")  # steps in which a decode that came with its blocks gave its first token: no gap
        self.waits_s = array("d")  # pairs: first decode step on a replica that took a request over, the wait before it
        self.handovers = array("d")  # request, from replica, to replica, start, end (nan: not yet): one after the other
