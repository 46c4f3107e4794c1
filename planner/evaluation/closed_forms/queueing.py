"""Closed-form estimates of a replica: its saturation rate, its waiting times and its utilisation. They are no bounds.

The engine is a fluid at mean lengths. The API server in front of it has the two queues of
simulator/engine/api_server.py: the tokeniser for prompts, and the event loop for streamed tokens. Waits are Kingman's
approximation of a queue with one server (J. F. C. Kingman, 1961): a mean from utilisation, variability and service
time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from catalogs.deployments.layout import Role
from catalogs.engines.profile import HostTimes
from planner.evaluation.stability import OVERLOAD
from planner.problem.latency_metrics import LATENCY_METRICS
from planner.problem.metric_definition import ExpectedTimes
from simulator.core.batch import BatchShape
from simulator.core.step_log import StepLog

#: Highest utilisation at which a queue is evaluated. A judgement: the mean wait grows without bound towards 1, and at
#: 0.97 it is 32 service times already for random arrivals and times.
FULLEST: Final = 0.97

#: Sum of the squared coefficients of variation of the gaps between steps and of the work of their output. A judgement:
#: batch sizes vary slowly, so it is half of the 2 of random gaps and times.
_STEPS_CV2: Final = 1.0

#: Utilisation of a light load, a definition: one request in twenty meets another one.
LIGHT: Final = 0.05

#: The parts of the time to first token, in the order of `Utilisation.first_s`.
FIRST_TOKEN_STAGES: Final = (
    "waiting for the API server",
    "waiting for a place in the batch",
    "the rest of the current step",
    "the queue of prompts",
    "waiting for the API server's output",
    "prefill of the prompt",
    "work of the API server",
)

#: Most rounds of the fixed-point iteration that determines the requests in flight. It ends earlier where a round
#: changes nothing; the limit is against a cycle.
_ROUNDS: Final = 40

#: A run has at least this many times the requests that are in flight at once. A judgement: it then lasts eight
#: residence times (Little's law), of which the window of `steady_window` has five.
_IN_FLIGHT: Final = 8

#: A run has at most this many times the requests of its load. A judgement that limits the cost of candidates with
#: thousands of requests in flight.
_MAX_LONGER: Final = 4

#: Requests of each of several replicas, as a share of those that one replica alone needs until it is steady. A
#: judgement: the statistics are of the requests of all replicas together. Where the replicas are alike, a run of one
#: has already decided whether the system keeps up.
SHARE_OF_EACH_REPLICA: Final = 0.6


def queue_s(busy: float, service_s: float, variability: float) -> float:
    """Return the mean wait in a queue, seconds.

    Args:
        busy: Utilisation of the server.
        service_s: Mean service time.
        variability: Sum of the squared coefficients of variation of gaps and of service times.
    """
    busy = min(busy, FULLEST)
    return busy / (1 - busy) * variability / 2 * service_s


@dataclass(frozen=True, slots=True)
class ApiServerQueue:
    """The API server in front of one replica; its `processes` share the requests evenly."""

    host: HostTimes
    processes: int = 1

    def most_per_s(self, output_tokens: float) -> float:
        """Return the most requests per second that the server streams."""
        each_s = self._request_s(output_tokens)
        return 1.0 / each_s if each_s > 0 else float("inf")

    def _request_s(self, output_tokens: float) -> float:
        return (self.host.api_request_s + output_tokens * self.host.api_token_s) / self.processes

    def busy(self, requests_per_s: float, output_tokens: float) -> float:
        """Return the utilisation of an event loop; above one it cannot stream the tokens."""
        return requests_per_s * self._request_s(output_tokens)

    def read_s(self, requests_per_s: float, input_tokens: float, variability: float) -> float:
        """Return the mean wait of a request before the engine, seconds: to be read, and to be tokenised."""
        host, each_per_s = self.host, requests_per_s / self.processes
        tokenise_s = host.request_s_per_input_token * input_tokens
        read_s = queue_s(each_per_s * host.api_request_s, host.api_request_s, variability)
        return read_s + queue_s(each_per_s * tokenise_s, tokenise_s, variability)

    def loop_s(self, busy: float, batch: float) -> float:
        """Return the mean wait of a step of `batch` tokens for the event loop, seconds."""
        return queue_s(busy, self._stream_s(batch), _STEPS_CV2)

    def alone_s(self, input_tokens: float, batch: float) -> float:
        """Return the time of a request in an idle API server, seconds: for its prompt, and for its step's output."""
        host = self.host
        tokenise_s = host.request_s_per_input_token * input_tokens
        return host.request_s + tokenise_s + host.api_step_s + self._stream_s(batch) + host.output_s

    def _stream_s(self, batch: float) -> float:
        return batch * self.host.api_token_s / self.processes


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Utilisation of each resource under a load, as shares.

    Attributes:
        full: Share of the saturation rate.
        engine: Share of the engine's time that prefill takes.
        api_server: Share of the API server's time.
        seats: Share of the sequences that can run at once.
        tokens: Share of the token budget of a step.
        step_s: Time of a step under the load.
        first_s: Parts of the time to first token, seconds.
    """

    full: float
    engine: float
    api_server: float
    seats: float
    tokens: float
    step_s: float
    first_s: tuple[float, ...]


@dataclass(frozen=True)
class QueueingModel:
    """Equal replicas that serve whole requests of mean lengths, each under an even share of the rate.

    Rates are of the whole deployment, except `own_per_s`: the rate of one of the batches in flight at once.

    Attributes:
        replicas: Number of replicas.
        microbatches: Batches in flight at once in all replicas (see Candidate.microbatches).
        cycle_s: Returns the seconds of a step with a batch.
        seats: Sequences that can run at once (by the limits and the KV cache).
        max_num_batched_tokens: Token budget of a step.
        input_tokens: Mean prompt length.
        output_tokens: Mean output length.
        api_server: The API server in front of each replica.
        variability: Sum of the squared coefficients of variation of the gaps between arrivals and of prompt lengths.
        input_quantile: Returns the prompt length at a quantile.
        known_step_s: The results of `step_s` so far, by batch. Models of one workload and one step cost may share it.
    """

    replicas: int
    microbatches: int
    cycle_s: Callable[[BatchShape], float]
    seats: int
    max_num_batched_tokens: int
    input_tokens: float
    output_tokens: float
    api_server: ApiServerQueue
    variability: float
    input_quantile: Callable[[float], float]
    known_step_s: dict[int, float] = field(default_factory=dict, repr=False, compare=False)

    def step_s(self, batch: int) -> float:
        """Return the seconds of a step that decodes `batch` sequences half way through their outputs.

        The result is cached: every rate asks for the same few batch sizes.
        """
        if (seconds := self.known_step_s.get(batch)) is None:
            seconds = self.known_step_s[batch] = self.cycle_s(self._decodes(batch))
        return seconds

    def _decodes(self, batch: int) -> BatchShape:
        context = int(self.input_tokens + self.output_tokens / 2)
        return BatchShape(
            decodes=batch, decode_context_sum=batch * context, decode_context_max=2 * context, logits=batch
        )

    @cached_property
    def prefill_s(self) -> float:
        """Return the engine time that one prompt of many adds to a step that runs anyway, seconds."""
        shape = self._prompts
        return self.cycle_s(shape) / shape.prefill_chunks

    @cached_property
    def _prompts(self) -> BatchShape:
        """Return a step full of whole prompts."""
        chunk = max(int(self.input_tokens), 1)
        n = max(1, self.max_num_batched_tokens // chunk)
        return BatchShape(prefill_tokens=n * chunk, prefill_pairs=n * chunk**2 / 2, prefill_chunks=n, logits=n)

    def second_of_work(self, requests_per_s: float, role: Role = "both") -> StepLog:
        """Return the log of what one microbatch does in a second under a rate: steps of prompts, and of decodes.

        Replicas of one `role` take only their kind of step. The number of steps is a fraction.
        """
        own_per_s = requests_per_s / self.microbatches
        if role == "both":
            own_per_s = min(own_per_s, self._own_saturation_per_s)
        batch = max(int(self._in_flight(own_per_s) or self.seats), 1)
        prompts, decodes, log = self._prompts, self._decodes(batch), StepLog()
        for kind, shape, steps in (
            ("prefill", prompts, own_per_s / prompts.prefill_chunks),
            ("decode", decodes, own_per_s * self.output_tokens / batch),
        ):
            if role in (kind, "both"):
                each_s = self.cycle_s(shape)
                log.add(0.0, steps, shape, each_s, 0.0, steps * each_s)  # type: ignore[arg-type]
        return log

    @property
    def saturation_per_s(self) -> float:
        """Return the requests per second with full batches, or with the API servers at their limit."""
        return self.microbatches * self._own_saturation_per_s

    @cached_property
    def _own_saturation_per_s(self) -> float:
        step_s = self.step_s(self.seats)
        engine_per_s = 1.0 / (step_s * self.output_tokens / self.seats + self.prefill_s)
        return min(engine_per_s, self.api_server.most_per_s(self.output_tokens))

    @property
    def light_per_s(self) -> float:
        """Return the requests per second at which requests rarely overlap: alone, each takes a prompt and steps."""
        return self.replicas * LIGHT / (self.prefill_s + self.step_s(1) * max(self.output_tokens, 1.0))

    def latency_s(
        self, requests_per_s: float, metric: str, quantile: float | None = None, other_prefill_s: float = 0.0
    ) -> float:
        """Return the estimated mean of a latency metric at this rate, seconds; infinite if overloaded.

        `other_prefill_s` is the time of prefill on other replicas.

        A quantile is estimated for the first token only, where it differs most. Each step gives one token and takes
        longer by its prompts. The first token waits at the API server, for a place among the running sequences, for
        half of the running step, in the queue of prompts, and for its own step; then for the API server again.
        """
        own_per_s = requests_per_s / self.microbatches
        in_flight = self._in_flight(own_per_s)
        if in_flight is None:
            return math.inf
        step_s = self._shared_step_s(own_per_s, in_flight)

        def first_token_s(at: float | None) -> float:
            return sum(self._first_s(own_per_s, in_flight, step_s, at))

        expected = ExpectedTimes(first_token_s, step_s, self.input_tokens, self.output_tokens, other_prefill_s)
        return LATENCY_METRICS[metric].guess(expected, quantile)

    def _shared_step_s(self, own_per_s: float, in_flight: float) -> float:
        """Return the seconds of a step with the prompts that arrive in it, interpolated between whole batch sizes."""
        low = max(int(in_flight), 1)
        step_s = self.step_s(low)
        step_s += max(in_flight - low, 0.0) * (self.step_s(low + 1) - step_s)
        return step_s / max(1.0 - own_per_s * self.prefill_s, 1.0 - FULLEST)

    def _first_s(self, own_per_s: float, in_flight: float, step_s: float, quantile: float | None) -> tuple[float, ...]:
        """Return the parts of the time to first token, seconds.

        Waits are taken as exponential; the request's own step uses the quantile of prompt lengths. The wait for a place
        among the running sequences is that of a queue with `seats` servers (H. Sakasegawa, 1977).
        """
        own_tokens = self.input_tokens if quantile is None else self.input_quantile(quantile)
        loop = self.api_server.busy(own_per_s, self.output_tokens)
        busy = min(in_flight / self.seats, FULLEST)
        crowded = float(busy ** (math.sqrt(2 * (self.seats + 1)) - 1)) / (self.seats * (1 - busy))
        waits_s = (
            self.api_server.read_s(own_per_s, self.input_tokens, self.variability),
            crowded * (self.output_tokens * step_s) * self.variability / 2,
            0.5 * step_s,
            queue_s(own_per_s * self.prefill_s, self.prefill_s, self.variability),
            self.api_server.loop_s(loop, in_flight),
        )
        late = 1.0 if quantile is None else -math.log(1.0 - quantile)
        own_s = self._single_prefill_s(int(in_flight), own_tokens)
        return (*(late * wait_s for wait_s in waits_s), own_s, self.api_server.alone_s(own_tokens, in_flight))

    def _single_prefill_s(self, decodes: int, tokens: float) -> float:
        """Return the seconds of a prompt in steps that also decode; its chunks take the rest of the token budget."""
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
        """Return the estimated utilisation at a rate; shares may exceed one.

        The parts of the time to first token are of the given quantile, or of the mean if `quantile` is None.
        """
        own_per_s = requests_per_s / self.microbatches
        in_flight = self._in_flight(own_per_s)
        batch = float(self.seats) if in_flight is None else in_flight
        step_s = self._shared_step_s(own_per_s, batch)
        return Utilisation(
            full=own_per_s / self._own_saturation_per_s,
            engine=own_per_s * self.prefill_s,
            api_server=self.api_server.busy(own_per_s, self.output_tokens),
            seats=batch / self.seats,
            tokens=(batch + own_per_s * step_s * self.input_tokens) / self.max_num_batched_tokens,
            step_s=step_s,
            first_s=self._first_s(own_per_s, batch, step_s, quantile),
        )

    def _in_flight(self, own_per_s: float) -> float | None:
        """Return the requests that one microbatch holds at this rate, or None if it is overloaded.

        This is Little's law with the step time that these requests cause.
        """
        if own_per_s > OVERLOAD * self._own_saturation_per_s:
            return None
        free = max(1.0 - own_per_s * self.prefill_s, 0.02)
        tokens_per_s, seats, known = own_per_s * self.output_tokens, float(self.seats), self.known_step_s
        batch, before = 1.0, 0.0
        for _ in range(_ROUNDS):
            if batch == before:
                break
            before = batch
            whole = max(int(batch), 1)
            batch = min(tokens_per_s * (known.get(whole) or self.step_s(whole)) / free, seats)
        return batch

    def run_requests(self, requests_per_s: float, n_requests: int, share: int) -> tuple[int, int]:  # noqa: ARG002
        """Return (n, n_longer): requests of a run of which most is steady, and of the rerun if `Observation.undecided`.

        Args:
            requests_per_s: The rate.
            n_requests: Requests of a run with few requests in flight.
            share: Number of even parts of the deployment, one of which is simulated.
        """
        longest = _MAX_LONGER * n_requests
        in_flight = self._in_flight(requests_per_s / self.microbatches)
        if in_flight is None:
            return n_requests, longest  # far overloaded: any run shows it
        enough = _IN_FLIGHT * in_flight * (self.microbatches // self.replicas) <= n_requests
        return n_requests if enough else longest, longest

    def whole_run_requests(self, requests_per_s: float, n_requests: int, n_alone: int) -> int:  # noqa: ARG002
        """Return the requests of a run of all replicas: fewer for each than the `n_alone` that one replica needs."""
        return round(SHARE_OF_EACH_REPLICA * self.replicas * n_alone)
