"""A load on a deployment, and the results of a run under it: its steady window, and all its figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from calibration.accuracy.stated_error import StatedError
from catalogs.arrays import FloatArray
from catalogs.workloads.request_set import RequestSet
from planner.evaluation.stability import FILLING_GROWTH, GROWTH_LIMIT, most_unserved
from planner.problem.slo import Slo


@dataclass(frozen=True, slots=True)
class Load:
    """Open-loop requests on a whole deployment: equal seeds give equal lengths, and arrivals scaled by the rate.

    Attributes:
        requests_per_s: The rate on the whole deployment.
        n_requests: Requests of the run.
        seed: The seed of the request plus the number of the run, which determine lengths and arrivals.
        whole_cluster: True simulates every replica and the router, False one replica under its share of the rate.
        patient: Whether the run is extended if it is undecided whether the system keeps up (see `verdict_of`).
    """

    requests_per_s: float
    n_requests: int
    seed: int
    whole_cluster: bool = False
    patient: bool = True


@dataclass(frozen=True, slots=True)
class Observation:
    """The steady window of one run.

    Attributes:
        load: The load of the run.
        samples_s: Samples by name in LATENCY_METRICS, one per request, token gap, session or task, seconds. Each has
            shape (n,).
        n_measured: Requests in the window.
        growth_fraction: Growth of the requests in the system over the window, as a share of the arrivals in it.
        joules_per_output_token: Energy of all accelerators and hosts, at the socket, with those that are rented and
            not used.
        n_simulated: Requests of the whole run.
        rejected_fraction: Share of the requests in the window that are rejected because of their size. They count in
            `growth_fraction`: the system does not serve them.
        rejected_because: Why most of them are rejected; empty if none is.
        waiting_fraction: Requests that waited for their first step at the last arrival, as a share of the run's.
        queue_s: Time from arrival to the first step of each sample of ttft, seconds; None if it is not known. Shape
            (n,).
        conditioned_queue_s: The same of the requests of each metric on a condition, by its name. Each has shape (n,).
        seat_share: The largest share of `max_num_seqs` in use at the same time; 1 if it is not known, or if the KV
            cache was ever full.
    """

    load: Load
    samples_s: Mapping[str, FloatArray]
    n_measured: int
    growth_fraction: float
    joules_per_output_token: float = float("nan")
    n_simulated: int = 0
    rejected_fraction: float = 0.0
    rejected_because: str = ""
    waiting_fraction: float = 1.0
    queue_s: FloatArray | None = None
    conditioned_queue_s: Mapping[str, FloatArray] = field(default_factory=dict)
    seat_share: float = 1.0

    def queue_of(self, slo: Slo) -> FloatArray | None:
        """Return the queue times of the requests that an objective is about; None if they are not known. Shape (n,)."""
        return self.queue_s if slo.latency.condition is None else self.conditioned_queue_s.get(slo.metric)

    @property
    def undecided(self) -> bool:
        """Return whether the system may still be filling up, so that a longer run decides.

        The requests in it grow by more than a long run of a stable system may, but no faster than a batch that fills
        up, or none of them waits for a place in the batch. Growth within the larger tolerance of a short run counts as
        undecided too, so that the verdict at a rate does not depend on the length of the run.
        """
        filling = self.growth_fraction <= FILLING_GROWTH or self.waiting_fraction <= GROWTH_LIMIT
        return self.growth_fraction > GROWTH_LIMIT and filling

    @property
    def stable(self) -> bool:
        """Return whether the system kept up, with an allowance for the random walk of a short, busy run."""
        return self.growth_fraction <= most_unserved(self.n_measured)


#: Equal spans of a run whose arrivals are counted. A judgement: spans of many requests, and short enough for bursts.
_SPANS: Final = 20


@dataclass(frozen=True, slots=True)
class TracePiece:
    """How the requests of a run differ from those of other pieces of the same trace.

    Attributes:
        input_tokens: Mean prompt length.
        output_tokens: Mean output length.
        burst: Requests of the busiest of `_SPANS` equal spans of the run, in multiples of the mean.
    """

    input_tokens: float
    output_tokens: float
    burst: float

    @classmethod
    def of(cls, requests: RequestSet) -> TracePiece:
        """Return the statistics of the requests of a run, of which there is at least one."""
        arrived, _ = np.histogram(requests.arrival_s, bins=_SPANS)
        means = float(requests.input_tokens.mean()), float(requests.output_tokens.mean())
        return cls(*means, float(arrived.max()) * _SPANS / requests.n)


@dataclass(frozen=True, slots=True)
class RunDetail:
    """All results of one simulated run.

    Attributes:
        observation: The steady window of the run.
        metrics: The metrics block of the run; its power and energy are those of the steady window.
        samples_s: Samples of the steady window beside those of the observation: the time in the queue and the gaps
            between tokens, seconds. Each has shape (n,).
        time_breakdown: Seconds of the replicas in the steady window by class of operator.
        calibration: The calibration block.
        requests_per_s: Requests served per second by the whole deployment: the load if the system keeps up.
        output_tokens_per_s: Output tokens per second of the whole deployment: requests served per second times the
            mean lengths of the workload, as for all figures per token.
        total_tokens_per_s: Input and output tokens per second of the whole deployment.
        power_w: Power of all accelerators and hosts of the whole deployment, at the socket, `unused_w` included.
        error: Differences between simulated and measured whole runs of the engine.
        notices: Notes on the run, one sentence each.
        unused_w: Power of the accelerators that are rented with the deployment and not used, at the socket.
        piece: The piece of a trace that the run replays; None for a whole trace and for other workloads.
    """

    observation: Observation
    metrics: dict[str, object]
    time_breakdown: dict[str, float]
    calibration: dict[str, object]
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    power_w: float
    error: StatedError
    notices: tuple[str, ...] = ()
    samples_s: Mapping[str, FloatArray] = field(default_factory=dict)
    unused_w: float = 0.0
    piece: TracePiece | None = None
