"""The API server in front of one replica as queues, in closed form: how busy it is and how long requests wait there.

Its two queues are those of simulator/api_server.py: the tokeniser on the way in, the event loop on the way out. Waits
are Kingman's approximation of a queue of one server (J. F. C. Kingman, 1961): the mean of utilisation, variability
and service time. Guesses, never bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from catalogs.engines import HostTimes

#: A queue is not looked at closer to saturation than this: what it would say is infinite.
FULLEST: Final = 0.97
#: Squared coefficient of variation of the work that steps put out: their batches swing slowly.
_STEPS_CV2: Final = 1.0


def queue_s(busy: float, service_s: float, variability: float) -> float:
    """Mean wait in seconds; variability: squared coefficients of variation of gaps and of services, added."""
    busy = min(busy, FULLEST)
    return busy / (1 - busy) * variability / 2 * service_s


@dataclass(frozen=True, slots=True)
class FrontDoor:
    """processes: of the API server, which share a replica's requests evenly."""

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
        """What a request spends there though nobody is in its way: on the way in, and with its step on the way out."""
        host = self.host
        return host.request_s + host.request_s_per_input_token * input_tokens + self._work_s(batch) + host.output_s

    def _work_s(self, batch: float) -> float:
        return self.host.api_step_s + batch * self.host.api_token_s / self.processes
