"""The requests of a comparison: Poisson arrivals at rates from light load to near saturation, and a closed loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from catalogs.workloads.request_set import RequestSet
from simulator.cluster.run import Run

Simulate = Callable[[RequestSet], Run]

#: Rates of the trials, as shares of the throughput of a full batch. A judgement: a light, a usual and a high load, all
#: below overload.
SHARES: Final = (0.25, 0.5, 0.7)

#: Clients of the closed loop, as a share of the engine's seats. A judgement: a batch that is neither a single request
#: nor full.
CLOSED_LOOP_SHARE: Final = 0.25

#: Least requests of each client of the closed loop. A judgement: the first turns start together.
FEWEST_TURNS: Final = 4


@dataclass(frozen=True, slots=True)
class MeanLengths:
    """Means of input and output tokens. The lengths are uniform from half to one and a half times the means."""

    input_tokens: int = 128
    output_tokens: int = 32

    @property
    def longest(self) -> int:
        """Return the tokens of the longest request."""
        return self.input_tokens * 3 // 2 + self.output_tokens * 3 // 2


@dataclass(frozen=True, slots=True)
class TrialSize:
    """The requests of a trial and the seed of their random numbers."""

    lengths: MeanLengths = field(default_factory=MeanLengths)
    requests: int = 100
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Trial:
    """A set of requests with a name for the table."""

    name: str
    requests: RequestSet


def trials(simulate: Simulate, seats: int, size: TrialSize, rates: Sequence[float] = ()) -> list[Trial]:
    """Return the open-loop trials and one closed loop.

    Without `rates` (requests per second), the open loops run at shares of the simulated throughput of a full batch.
    """
    lengths, n, seed = size.lengths, size.requests, size.seed
    chosen = list(rates)
    if not chosen:
        full = simulate(_closed(lengths, 6 * seats, seed, seats))  # every seat is taken
        per_s = full.requests.n / float(np.nanmax(full.last_token_s))
        chosen = [float(f"{share * per_s:.2g}") for share in SHARES]
    found = [Trial(f"{rate:g}/s", _open(lengths, n, seed + k, rate)) for k, rate in enumerate(chosen)]
    clients = max(2, min(round(CLOSED_LOOP_SHARE * seats), n // FEWEST_TURNS))
    return [*found, Trial(f"{clients} clients", _closed(lengths, n, seed + len(chosen), clients))]


def _open(lengths: MeanLengths, n: int, seed: int, rate: float) -> RequestSet:
    rng = np.random.default_rng(seed)
    means = lengths.input_tokens, lengths.output_tokens
    inputs, outputs = (rng.integers(max(1, m // 2), m * 3 // 2, size=n, endpoint=True) for m in means)
    arrivals = np.cumsum(rng.exponential(1.0 / rate, size=n))
    return RequestSet(arrivals - arrivals[0], inputs, outputs, seed=seed)


def _closed(lengths: MeanLengths, n: int, seed: int, clients: int) -> RequestSet:
    drawn = _open(lengths, n, seed, 1.0)
    return replace(drawn, arrival_s=np.zeros(n), concurrency=clients)
