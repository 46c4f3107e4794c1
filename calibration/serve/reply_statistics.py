"""Figures of a load that was sent: latencies, throughput, and what its answers cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from calibration.serve.request_load import SentLoad
from calibration.serve.streaming_client import GeneratedReply
from catalogs.units import HOUR_S

#: Percentiles of the figures of a load.
_PERCENTILES: Final = {"p50": 50.0, "p90": 90.0, "p99": 99.0}


@dataclass(frozen=True, slots=True)
class TokenPrices:
    """What an endpoint costs, in dollars; None where it is not known.

    Attributes:
        usd_per_million_input_tokens: Price of a million tokens of prompts.
        usd_per_million_output_tokens: Price of a million generated tokens.
        usd_per_hour: Price of the machines behind the endpoint.
    """

    usd_per_million_input_tokens: float | None = None
    usd_per_million_output_tokens: float | None = None
    usd_per_hour: float | None = None

    @property
    def by_token(self) -> bool:
        """Return whether the tariff has a price of tokens."""
        return self.usd_per_million_input_tokens is not None or self.usd_per_million_output_tokens is not None

    def answer_usd(self, reply: GeneratedReply) -> float | None:
        """Return the price of the tokens of one answer; None if it is not known.

        The price is not known without a price of tokens, and where prompts cost money and their length is not known.
        """
        if not self.by_token or (self.usd_per_million_input_tokens and reply.input_tokens is None):
            return None
        inputs_usd = (self.usd_per_million_input_tokens or 0.0) * (reply.input_tokens or 0)
        return (inputs_usd + (self.usd_per_million_output_tokens or 0.0) * reply.output_tokens) / 1e6

    def machines_usd(self, duration_s: float) -> float | None:
        """Return the price of the machines for a time; None if it is not known."""
        return None if self.usd_per_hour is None else self.usd_per_hour * duration_s / HOUR_S


def load_summary(load: SentLoad, tariff: TokenPrices) -> dict[str, Any]:
    """Return the figures of a load; a statistic without values is None.

    Rates are over the whole duration of the load, from its first request to its last message.
    """
    replies, seconds = load.replies, load.duration_s
    columns = {name: [getattr(r, name) for r in replies] for name in ("ttft_s", "tpot_s", "e2e_s")}
    tokens = sum(r.output_tokens for r in replies)
    known = [usd for r in replies if (usd := tariff.answer_usd(r)) is not None]
    return {
        "n": len(load.sent),
        "n_failed": len(load.sent) - len(replies),
        "duration_s": seconds,
        "requests_per_s": len(replies) / seconds if seconds else None,
        "output_tokens": tokens,
        "output_tokens_per_s": tokens / seconds if seconds else None,
        **{name: statistics([x for x in column if x is not None]) for name, column in columns.items()},
        "itl_s": statistics([gap for r in replies for gap in r.itl_s]),
        "usd": sum(known) if known else None,
        "usd_of_machines": tariff.machines_usd(seconds),
    }


def statistics(values: Sequence[float]) -> dict[str, float | None] | None:
    """Return the mean and percentiles of values; None if there are none."""
    if not values:
        return None
    import numpy as np  # not at the start: a server starts without it

    from catalogs import statistics as of_samples

    return of_samples.statistics(np.asarray(values, dtype=np.float64), _PERCENTILES)


def failure_counts(loads: Iterable[SentLoad]) -> dict[str, int]:
    """Return the number of failed requests by reason, the most frequent first."""
    return dict(Counter(s.problem for load in loads for s in load.sent if s.problem is not None).most_common())


def counting_notes(replies: Sequence[GeneratedReply]) -> list[str]:
    """Return notes on what the replies of a server leave open."""
    notes = []
    if any(not r.counted_by_server for r in replies):
        notes.append("the server does not count tokens: each message with text counts as one output token")
    if any(r.ttft_s is None for r in replies):
        notes.append("the reply is not streamed, so there is no time to first token")
    return notes
