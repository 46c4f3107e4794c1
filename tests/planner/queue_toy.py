"""A queue with a known answer in place of the simulator: one server per replica, deterministic service (M/D/1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np

from calibration.accuracy.stated_error import StatedError
from catalogs.deployments.layout import Layout
from catalogs.hardware.catalog import parse_hardware
from planner.evaluation.closed_forms.estimates import GuessedLimits
from planner.evaluation.observation import Load, Observation
from planner.problem.candidate import Candidate


def candidate(tensor_parallel: int = 8, **changes: object) -> Candidate:
    values: dict[str, object] = {
        "hardware": parse_hardware("h100x8"),
        "replicas": 1,
        "layout": Layout(tensor_parallel),
        "weight_dtype": "bf16",
        "kv_dtype": "bf16",
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
    }
    return Candidate(**{**values, **changes})  # type: ignore[arg-type]


def md1_waits_s(arrival_s: np.ndarray, service_s: float) -> np.ndarray:
    """Lindley's recursion, vectorised: the wait of each customer before its service."""
    steps = np.concatenate([[0.0], service_s - np.diff(arrival_s)])
    walk = np.cumsum(steps)
    return walk - np.minimum.accumulate(walk)


@dataclass
class QueueToy:
    """Service time falls with max_num_seqs and rises with batched tokens, so candidates differ in a known way."""

    service_s: float = 0.1
    joules: float = 1.0
    operator_error: float = 0.0
    n_observed: int = 0
    loads: list[tuple[Candidate, Load]] = field(default_factory=list)

    def candidate_service_s(self, c: Candidate) -> float:
        return (
            self.service_s
            * (1 + 64 / c.max_num_seqs)
            * (1 + c.max_num_batched_tokens / 65536)
            / c.layout.tensor_parallel
        )

    def fluid_requests_per_s(self, c: Candidate) -> float:
        return c.replicas / self.candidate_service_s(c)

    def light_requests_per_s(self, c: Candidate) -> float:
        return 0.01 * self.fluid_requests_per_s(c)

    def stated_error(self, c: Candidate) -> StatedError:  # noqa: ARG002
        return StatedError("toy", self.operator_error, {})

    def guess_w(self, c: Candidate, requests_per_s: float) -> float:
        return requests_per_s * self._joules(c, requests_per_s)

    @property
    def mean_output_tokens(self) -> float:
        return 1.0

    def guess_s(self, c: Candidate, requests_per_s: float, metric: str, quantile: float | None = None) -> float:  # noqa: ARG002
        """The mean of an M/D/1 queue (Pollaczek and Khinchine), whatever the quantile."""
        service_s = self.candidate_service_s(c)
        busy = requests_per_s / c.replicas * service_s
        return service_s * (1 + busy / (2 * (1 - busy))) if busy < 1 else np.inf

    def _joules(self, c: Candidate, requests_per_s: float) -> float:
        service_s = self.candidate_service_s(c)
        return self.joules * (0.2 + 1 / (requests_per_s * service_s)) * c.layout.tensor_parallel

    def guess_capacity_per_s(self, c: Candidate, limits: GuessedLimits) -> float:
        light_per_s, full_per_s = self.light_requests_per_s(c), self.fluid_requests_per_s(c)
        return limits.capacity_per_s(partial(self.guess_s, c), light_per_s, full_per_s)

    def run_requests(self, c: Candidate, load: Load) -> int:  # noqa: ARG002
        return load.n_requests

    def observe(self, c: Candidate, load: Load) -> Observation:
        self.n_observed += 1
        self.loads.append((c, load))
        rng = np.random.default_rng(load.seed)
        arrival_s = np.cumsum(rng.exponential(size=load.n_requests)) / (load.requests_per_s / c.replicas)
        service_s = self.candidate_service_s(c)
        wait_s = md1_waits_s(arrival_s, service_s)
        ttft_s = wait_s + service_s
        skip = load.n_requests // 10
        window_s = arrival_s[-1] - arrival_s[skip]
        n = load.n_requests - skip
        in_system = [np.sum(arrival_s <= t) - np.sum(arrival_s + ttft_s <= t) for t in (arrival_s[skip], arrival_s[-1])]
        growth = float(in_system[1] - in_system[0]) / n if window_s > 0 else 1.0
        energy = self._joules(c, load.requests_per_s)
        samples = dict.fromkeys(("ttft", "tpot", "itl", "e2e"), ttft_s[skip:])
        return Observation(load, samples, n, growth, energy, queue_s=wait_s[skip:])
