"""The choice of the requests of simulated runs: a few draws that together resemble the average of many.

The value of a percentile differs between seeds mostly because requests happen to arrive more or less densely, and
because long prompts follow each other more or less often. Both are known before anything is simulated. So many draws
are compared in simple queues, which cost little, and the draws that together resemble the average of all are simulated.
This is the idea of a control variate, applied to the choice of the samples: the noise that the queues explain does not
enter the runs. `benchmarks/seed_noise.py` shows how much less the results of several seeds differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from catalogs.arrays import FloatArray
from catalogs.workloads.synthetic import SyntheticWorkload

#: Draws that are chosen together. A judgement: the number of seeds that confirm a plan (`BEST`).
BLOCK: Final = 4

#: Most draws among which a block is chosen. A judgement: half as many leave a tenth more noise.
_MOST_DRAWS: Final = 128

#: Fewest draws among which a block is chosen. A judgement: with fewer there is hardly a choice.
_FEWEST_DRAWS: Final = 8

#: Requests of all draws together, which limits the number of draws of long runs. A judgement: they take 80 ms, and
#: the fewest draws of the longest runs half a second.
_DRAWN_REQUESTS: Final = 204_800

#: Requests of the shortest run whose draws are compared. A judgement: shorter runs are no measurement of a percentile.
_FEWEST_REQUESTS: Final = 100

#: Difference between the seeds of two draws, so that requests with neighbouring seeds share none.
_STRIDE: Final = 2**32

#: Share of time in which the server of each queue is busy. A judgement: from runs that seldom queue to runs close to
#: saturation, whatever the capacity of the simulated deployment is.
_BUSY: Final = (0.2, 0.5, 0.8)

#: Percentiles of the times in these queues, above which a draw should have as many times as all draws have. They are
#: those of most objectives.
_QUANTILES: Final = (0.95, 0.99)

#: Share of a draw whose requests find an emptier queue than the others, and do not count. A judgement.
_WARM_UP: Final = 0.05

#: Weight of the squared distance of one draw from the average of all, where that of the mean of the block has 1. A
#: judgement: the search for a plan has one seed only, so some draw of a block must be typical on its own.
_OWN_WEIGHT: Final = 0.06

#: How often each draw of a block is chosen. A judgement: further rounds hardly change a block.
_ROUNDS: Final = 4


@dataclass(frozen=True, slots=True, eq=False)
class _Same:
    """A workload as the key of a cache, which is equal to itself only: a comparison of all its lengths takes longer."""

    content: SyntheticWorkload

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.content is self.content

    def __hash__(self) -> int:
        return id(self.content)


def representative_seed(content: SyntheticWorkload, seed: int, index: int, n_requests: int, share: int = 1) -> int:
    """Return the seed with which the `index`-th run of a request draws its requests.

    The runs of a block together resemble the average of all draws; the first of them is the most typical one.

    Args:
        content: The distributions from which the requests are drawn. Another rate must only divide their arrivals.
        seed: The seed of the request.
        index: Number of the run, from 0.
        n_requests: Requests of the run.
        share: Of the drawn requests, every `share`-th belongs to the run.
    """
    if n_requests < _FEWEST_REQUESTS:
        return seed + index
    block, place = divmod(index, BLOCK)
    return _seeds_of_block(_Same(content), seed, block, n_requests, share)[place]


@lru_cache(maxsize=256)
def _seeds_of_block(same: _Same, seed: int, block: int, n_requests: int, share: int) -> tuple[int, ...]:
    n_draws = min(max(_DRAWN_REQUESTS // (n_requests * share), _FEWEST_DRAWS), _MOST_DRAWS)
    seeds = [seed + (block * n_draws + i) * _STRIDE for i in range(n_draws)]
    drawn = [same.content.draw(each, n_requests * share, 1.0).every(share) for each in seeds]
    arrival_s = np.array([each.arrival_s for each in drawn]) / share
    inputs = np.array([each.input_tokens for each in drawn], dtype=np.float64)
    outputs = np.array([each.output_tokens for each in drawn], dtype=np.float64)
    chosen = balanced(queue_measures(arrival_s, inputs / inputs.mean(), outputs / outputs.mean()), BLOCK)
    return tuple(seeds[i] for i in chosen)


def queue_measures(arrival_s: FloatArray, inputs: FloatArray, outputs: FloatArray) -> FloatArray:
    """Return measures of what makes the requests of a draw wait, on any deployment. Shape (draws, measures).

    They are the rate of tokens, the mean output, and how long prompts are in queues with one server, which reads them
    in their order (Lindley's equation): the mean time, and the shares of times above the percentiles of all draws. The
    mean of each measure over several draws is that of their requests together.

    Args:
        arrival_s: Arrivals at a rate of one per second. Shape (draws, requests).
        inputs: Prompt lengths, with a mean of 1. Shape (draws, requests).
        outputs: Output lengths, with a mean of 1. Shape (draws, requests).
    """
    counted = slice(int(_WARM_UP * arrival_s.shape[1]), None)
    gaps = np.diff(arrival_s, axis=1)
    found = [(inputs + outputs).sum(axis=1) / arrival_s[:, -1], outputs[:, counted].mean(axis=1)]
    for busy in _BUSY:
        backlog = np.zeros_like(arrival_s)
        np.cumsum(busy * inputs[:, :-1] - gaps, axis=1, out=backlog[:, 1:])
        times = (backlog - np.minimum.accumulate(backlog, axis=1) + busy * inputs)[:, counted]
        limits = np.quantile(times, _QUANTILES)
        found += [times.mean(axis=1), *((times > limit).mean(axis=1) for limit in limits)]
    return np.array(found).T


def balanced(measures: FloatArray, n: int) -> list[int]:
    """Return `n` draws whose measures are together close to the mean of all draws, the most typical one first.

    They are chosen one after another, each so that it comes closest with the others (herding). Then each is chosen
    again in turn.

    Args:
        measures: Measures of the draws. Shape (draws, measures), with at least `n` draws.
        n: Number of draws to choose.
    """
    spread = measures.std(axis=0)
    distance = (measures - measures.mean(axis=0)) / np.where(spread > 1e-9, spread, np.inf)
    own = (distance**2).sum(axis=1)
    chosen = list[int]()
    for _ in range(_ROUNDS * n):
        others = chosen[max(len(chosen) - n + 1, 0) :]
        together = (distance[others].sum(axis=0) + distance) / (len(others) + 1)
        cost = (together**2).sum(axis=1) + _OWN_WEIGHT * own
        cost[others] = np.inf
        chosen = [*others, int(cost.argmin())]
    return sorted(chosen, key=lambda i: (own[i], i))
