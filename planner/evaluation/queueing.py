"""Closed-form guesses of a replica: where it saturates, how long requests wait and how full it runs. Never bounds.

The engine is a fluid at mean lengths. The API server in front of it has the two queues of
simulator/engine/api_server.py: the
tokeniser on the way in, the event loop on the way out. Waits are Kingman's approximation of a queue with one server
(J. F. C. Kingman, 1961): a mean from utilisation, variability and service time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from catalogs.engines.profile import HostTimes
from simulator.core.batch import BatchShape

#: No queue is evaluated at a higher utilisation: its mean wait grows without bound.
FULLEST: Final = 0.97

#: Squared coefficient of variation of the work that steps put out: their batches swing slowly.
_STEPS_CV2: Final = 1.0

#: Utilisation of a light load: one request in twenty finds another one.
LIGHT: Final = 0.05

#: A rate this far above saturation is overload whatever the guess got wrong.
OVERLOAD: Final = 1.15

_ROUNDS: Final = 40


def queue_s(busy: float, service_s: float, variability: float) -> float:
    """Mean wait in seconds; variability: squared coefficients of variation of gaps and of services, added."""
    busy = min(busy, FULLEST)
    return busy / (1 - busy) * variability / 2 * service_s


@dataclass(frozen=True, slots=True)
class ApiServerQueue:
    """The API server in front of one replica. processes: its processes, which share the requests evenly."""

    host: HostTimes
    processes: int = 1

    def most_per_s(self, step_s: float, output_tokens: float) -> float:
        """Requests/s that it streams at most while the engine takes a step every step_s."""
        left = max(1.0 - self.host.api_step_s / step_s, 0.0)
        each_s = self._request_s(output_tokens)
        return left / each_s if each_s > 0 else float("inf")

    def _request_s(self, output_tokens: float) -> float:
        return (self.host.api_request_s + output_tokens * self.host.api_token_s) / self.processes

    def busy(self, requests_per_s: float, step_s: float, output_tokens: float) -> float:
        """Share of its time that an event loop works."""
        return requests_per_s * self._request_s(output_tokens) + self.host.api_step_s / step_s

    def read_s(self, requests_per_s: float, input_tokens: float, variability: float) -> float:
        """A request's waits before it is at the engine: to be read, and to be tokenised."""
        host, each_per_s = self.host, requests_per_s / self.processes
        tokenise_s = host.request_s_per_input_token * input_tokens
        read_s = queue_s(each_per_s * host.api_request_s, host.api_request_s, variability)
        return read_s + queue_s(each_per_s * tokenise_s, tokenise_s, variability)

    def loop_s(self, busy: float, batch: float) -> float:
        """What a step of `batch` tokens waits for the event loop."""
        return queue_s(busy, self._work_s(batch), _STEPS_CV2)

    def alone_s(self, input_tokens: float, batch: float) -> float:
        """What a request spends there when it meets no other: on the way in, and with its step on the way out."""
        host = self.host
        return host.request_s + host.request_s_per_input_token * input_tokens + self._work_s(batch) + host.output_s

    def _work_s(self, batch: float) -> float:
        return self.host.api_step_s + batch * self.host.api_token_s / self.processes


@dataclass(frozen=True, slots=True)
class Utilisation:
    """How much of each resource a load takes, as shares: of the engine's time, of the API server's time, of the seats,
    and of the tokens that a step may hold.

    full: share of the saturation rate. step_s: seconds of a step under the load. first_s: the parts of the time to the
    first token, seconds.
    """

    full: float
    engine: float
    api_server: float
    seats: float
    tokens: float
    step_s: float
    first_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class QueueingModel:
    """One replica under the workload's mean lengths. seats: sequences that can run at once (limits and KV cache).

    variability: squared coefficients of variation of the gaps between arrivals and of prompt lengths, added.
    """

    cycle_s: Callable[[BatchShape], float]
    seats: int
    max_num_batched_tokens: int
    input_tokens: float
    output_tokens: float
    api_server: ApiServerQueue
    variability: float
    input_quantile: Callable[[float], float]

    def step_s(self, batch: int) -> float:
        """One step that decodes `batch` sequences half way through their outputs. Seconds."""
        context = int(self.input_tokens + self.output_tokens / 2)
        return self.cycle_s(
            BatchShape(decodes=batch, decode_context_sum=batch * context, decode_context_max=2 * context, logits=batch)
        )

    @property
    def prefill_s(self) -> float:
        """Engine time one prompt takes where many share a step: what it adds to a step that runs anyway. Seconds."""
        chunk = max(int(self.input_tokens), 1)
        n = max(1, self.max_num_batched_tokens // chunk)
        shape = BatchShape(prefill_tokens=n * chunk, prefill_pairs=n * chunk**2 / 2, prefill_chunks=n, logits=n)
        return self.cycle_s(shape) / n

    @property
    def saturation_per_s(self) -> float:
        """Requests/s with every seat taken, or with the API server streaming all it can."""
        step_s = self.step_s(self.seats)
        engine_per_s = 1.0 / (step_s * self.output_tokens / self.seats + self.prefill_s)
        return min(engine_per_s, self.api_server.most_per_s(step_s, self.output_tokens))

    @property
    def light_per_s(self) -> float:
        """Requests/s at which requests hardly ever meet."""
        return LIGHT / (self.step_s(1) * max(self.output_tokens, 1.0))

    def latency_s(self, requests_per_s: float, metric: str, quantile: float | None = None) -> float:
        """A guess at the mean of a latency metric at this rate, seconds; infinite where overloaded. A quantile is
        guessed of the first token only, where it differs most.

        A token every step, of which prompts take their share. The first token waits at the API server, for a seat, for
        half of the step that runs, in the queue of prompts, and for its own step; then for the API server again.
        """
        in_flight = self.in_flight(requests_per_s)
        if in_flight is None:
            return float("inf")
        step_s = self._shared_step_s(requests_per_s, in_flight)
        if metric in ("tpot", "itl"):
            return step_s
        first_s = sum(self._first_s(requests_per_s, in_flight, step_s, quantile if metric == "ttft" else None))
        return first_s if metric == "ttft" else first_s + max(self.output_tokens - 1, 0.0) * step_s

    def _shared_step_s(self, requests_per_s: float, in_flight: float) -> float:
        """A step with the prompts that come meanwhile. Between whole batches on a straight line."""
        low = max(int(in_flight), 1)
        step_s = self.step_s(low)
        step_s += max(in_flight - low, 0.0) * (self.step_s(low + 1) - step_s)
        return step_s / max(1.0 - requests_per_s * self.prefill_s, 1.0 - FULLEST)

    def _first_s(
        self, requests_per_s: float, in_flight: float, step_s: float, quantile: float | None
    ) -> tuple[float, ...]:
        """Waits as if they were exponential, its own step by the quantile of prompt lengths."""
        own_tokens = self.input_tokens if quantile is None else self.input_quantile(quantile)
        loop = self.api_server.busy(requests_per_s, step_s, self.output_tokens)
        waits_s = (
            self.api_server.read_s(requests_per_s, self.input_tokens, self.variability),
            self._seat_s(in_flight, step_s),
            0.5 * step_s,
            queue_s(requests_per_s * self.prefill_s, self.prefill_s, self.variability),
            self.api_server.loop_s(loop, in_flight),
        )
        late = 1.0 if quantile is None else -math.log(1.0 - quantile)
        own_s = self._lone_prefill_s(int(in_flight), own_tokens)
        return (*(late * wait_s for wait_s in waits_s), own_s, self.api_server.alone_s(own_tokens, in_flight))

    def _seat_s(self, in_flight: float, step_s: float) -> float:
        """For one of the seats: as many servers as there are seats (H. Sakasegawa, 1977)."""
        busy = min(in_flight / self.seats, FULLEST)
        stay_s = self.output_tokens * step_s
        return (
            float(busy ** (math.sqrt(2 * (self.seats + 1)) - 1))
            / (self.seats * (1 - busy))
            * stay_s
            * self.variability
            / 2
        )

    def _lone_prefill_s(self, decodes: int, tokens: float) -> float:
        """A prompt beside so many decodes, in chunks of what the token budget leaves. Seconds."""
        context = int(self.input_tokens + self.output_tokens / 2)
        chunk = max(self.max_num_batched_tokens - decodes, 1)
        n = math.ceil(max(tokens, 1.0) / chunk)
        each = max(int(tokens) // n, 1)
        shape = BatchShape(
            decodes=decodes,
            decode_context_sum=decodes * context,
            decode_context_max=2 * context if decodes else 0,
            prefill_tokens=each,
            prefill_pairs=each * tokens / 2,
            prefill_chunks=1,
            logits=decodes + 1,
        )
        return n * self.cycle_s(shape)

    def utilisation(self, requests_per_s: float, quantile: float | None = None) -> Utilisation:
        """See Utilisation; shares may be above one. quantile: of the first token, None its mean."""
        batch = self.in_flight(requests_per_s)
        batch = float(self.seats) if batch is None else batch
        step_s = self._shared_step_s(requests_per_s, batch)
        return Utilisation(
            full=requests_per_s / self.saturation_per_s,
            engine=requests_per_s * self.prefill_s,
            api_server=self.api_server.busy(requests_per_s, step_s, self.output_tokens),
            seats=batch / self.seats,
            tokens=(batch + requests_per_s * step_s * self.input_tokens) / self.max_num_batched_tokens,
            step_s=step_s,
            first_s=self._first_s(requests_per_s, batch, step_s, quantile),
        )

    def in_flight(self, requests_per_s: float) -> float | None:
        """Requests running at once at this rate (Little's law with the step time they cause); None: overloaded."""
        if requests_per_s > OVERLOAD * self.saturation_per_s:
            return None
        free = max(1.0 - requests_per_s * self.prefill_s, 0.02)
        batch = 1.0
        for _ in range(_ROUNDS):
            batch = min(requests_per_s * self.output_tokens * self.step_s(max(int(batch), 1)) / free, float(self.seats))
        return batch


@dataclass(frozen=True, slots=True)
class ColocatedQueueing:
    """A deployment of equal replicas that serve whole requests, each under an even share of the rate.

    lanes: batches in flight at once in all replicas together (see Candidate.lanes).
    """

    model: QueueingModel
    replicas: int
    lanes: int

    @property
    def saturation_per_s(self) -> float:
        """Requests/s of the whole deployment with every seat taken."""
        return self.lanes * self.model.saturation_per_s

    @property
    def light_per_s(self) -> float:
        """Requests/s of the whole deployment at which requests hardly ever meet."""
        return self.replicas * self.model.light_per_s

    def latency_s(self, requests_per_s: float, metric: str, quantile: float | None = None) -> float:
        """See QueueingModel.latency_s; requests_per_s is of the whole deployment."""
        return self.model.latency_s(requests_per_s / self.lanes, metric, quantile)

    def utilisation(self, requests_per_s: float, quantile: float | None = None) -> Utilisation:
        """See QueueingModel.utilisation; requests_per_s is of the whole deployment."""
        return self.model.utilisation(requests_per_s / self.lanes, quantile)

    def in_flight(self, requests_per_s: float) -> float | None:
        """Requests that one lane runs at once; None where it is overloaded."""
        return self.model.in_flight(requests_per_s / self.lanes)
