"""An evaluator whose latencies are a formula, so that every figure of a plan can be worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from calibration.accuracy.stated_error import StatedError
from planner.evaluation.closed_forms.estimates import GuessedLimits
from planner.evaluation.facts import CandidateFacts
from planner.evaluation.observation import Load, Observation, RunDetail
from planner.problem.candidate import Candidate

MEMORY = {
    "device_bytes": 80e9,
    "usable_bytes": 72e9,
    "weights_bytes": 16e9,
    "activation_bytes": 1e9,
    "non_torch_bytes": 1e9,
    "kv_bytes": 54e9,
    "kv_blocks": 1000,
    "kv_tokens_per_replica": 16000,
    "equation": "KV = 72 - 16 - 1 - 1",
}

CALIBRATION = {
    "bundle": "toy",
    "measured_fraction": 1.0,
    "interpolated_fraction": 0.0,
    "roofline_fraction": 0.0,
    "expected_error": 0.0,
}


@dataclass
class KnownPlan:
    """A replica answers every request in `base_s` / (1 - share of the rate it carries); beyond that it falls behind.

    `cluster` multiplies the latency of whole clusters, and `noise` that of each seed from the first on (1 afterwards).
    Seed s makes 100 (1 + s) output tokens and four times as many tokens for each request, and draws 1,000 (1 + s) W.
    """

    full_per_s: float = 10.0  # of one replica
    base_s: float = 0.1
    cluster: float = 1.0
    noise: tuple[float, ...] = ()
    operator_error: float = 0.0
    seed: int = 0
    loads: list[Load] = field(default_factory=list)  # of the runs that were simulated
    known: dict[tuple[Candidate, Load], Observation] = field(default_factory=dict)

    def value_s(self, c: Candidate, rate_per_s: float) -> float:
        share = rate_per_s / c.replicas / self.full_per_s
        return self.base_s / (1 - share) if share < 1 else 1.0

    def rate_per_s(self, c: Candidate, value_s: float) -> float:
        """The rate at which a request takes as long."""
        return c.replicas * self.full_per_s * (1 - self.base_s / value_s)

    def fluid_requests_per_s(self, c: Candidate) -> float:
        return c.replicas * self.full_per_s

    def light_requests_per_s(self, c: Candidate) -> float:
        return 0.01 * self.fluid_requests_per_s(c)

    def stated_error(self, _: Candidate) -> StatedError:
        return StatedError("toy", self.operator_error, {})

    def guess_s(self, c: Candidate, rate_per_s: float, metric: str, _: float | None = None) -> float:
        """The value without noise; infinite where the queue grows."""
        factor = {"tpot": 0.1, "e2e": 3.0}.get(metric, 1.0)
        return factor * self.value_s(c, rate_per_s) if rate_per_s < self.fluid_requests_per_s(c) else float("inf")

    def guess_capacity_per_s(self, c: Candidate, limits: GuessedLimits) -> float:
        light_per_s, full_per_s = self.light_requests_per_s(c), self.fluid_requests_per_s(c)
        return limits.capacity_per_s(partial(self.guess_s, c), light_per_s, full_per_s)

    def run_requests(self, c: Candidate, load: Load) -> int:  # noqa: ARG002
        return load.n_requests

    def knows(self, c: Candidate, load: Load) -> bool:
        return self._run(c, load) in self.known

    def keep(self, c: Candidate, seen: Observation) -> None:
        self.known[self._run(c, seen.load)] = seen

    def _run(self, c: Candidate, load: Load) -> tuple[Candidate, Load]:
        """No run is extended."""
        return c, replace(load, patient=False)

    def observe(self, c: Candidate, load: Load) -> Observation:
        if self.knows(c, load):
            return replace(self.known[self._run(c, load)], load=load)
        self.loads.append(load)
        nth = load.seed - self.seed
        factor = (self.cluster if load.whole_cluster else 1.0) * (self.noise[nth] if nth < len(self.noise) else 1.0)
        value_s = factor * self.value_s(c, load.requests_per_s)
        samples = {"ttft": np.full(10, value_s), "tpot": np.full(10, value_s / 10), "e2e": np.full(10, 3 * value_s)}
        growth = 0.0 if load.requests_per_s < self.fluid_requests_per_s(c) else 1.0
        return Observation(load, samples, load.n_requests, growth, n_simulated=load.n_requests)

    def detail(self, c: Candidate, load: Load) -> RunDetail:
        times = 1 + load.seed - self.seed
        output = 100.0 * times * load.requests_per_s
        metrics: dict[str, object] = {"output_tokens_per_s": output, "total_tokens_per_s": 4 * output, "other": times}
        breakdown = {"compute": 0.25 * times, "host": 0.5}
        notices = (f"notice of seed {times}", "a notice")
        power_w = 1000.0 * times
        seen = self.observe(c, load)
        per_s = load.requests_per_s, output, 4 * output
        return RunDetail(seen, metrics, breakdown, CALIBRATION, *per_s, power_w, self.stated_error(c), notices)

    def facts(self, c: Candidate) -> CandidateFacts:
        deployment = {"hardware": "h100x8", "replicas": c.replicas}
        return CandidateFacts(deployment, dict(MEMORY), "serve", ("a note",), ("a notice", "another"))
