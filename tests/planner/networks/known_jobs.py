"""A world whose batches take a known time, so that the laws of queues give the answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from catalogs.hardware.catalog import parse_hardware
from catalogs.networks.files import load_network
from catalogs.workloads.jobs import NetworkJob
from planner.networks.candidate import JobCandidate, Setup
from planner.networks.evaluation import JobEvaluator
from planner.networks.job import PlannedJob
from planner.networks.job_assessor import JobAssessor
from planner.networks.job_service import JobService
from planner.networks.mix import JobMix
from planner.networks.request import NetworkRequest, network_request
from simulator.jobs.compiled import BatchPrice, CompiledJobs, compile_jobs

SecondsOf = Callable[[int], float]  # jobs of a batch -> seconds


@dataclass(frozen=True)
class KnownJobs(CompiledJobs):
    """A compiled deployment whose batches take a known time."""

    seconds_of: SecondsOf = float

    def price(self, kind: NetworkJob, items: int) -> BatchPrice:  # noqa: ARG002
        """Return the known price of a batch: 100 J per second."""
        seconds = self.seconds_of(items)
        return BatchPrice(seconds, seconds, 100.0 * seconds)


@dataclass(frozen=True, slots=True)
class KnownService(JobService):
    """Prices that are known, with a known factor of the error at every confidence."""

    seconds_of: SecondsOf = float
    error: float = 1.0

    def seconds(self, setup: Setup, jobs: int = 1) -> float:  # noqa: ARG002
        """Return the known seconds of a batch."""
        return self.seconds_of(jobs)

    def slowdown(self, setup: Setup, level: float) -> float:  # noqa: ARG002
        """Return the known factor above one half, and its inverse below."""
        return self.error if level > 0.5 else 1.0 if level == 0.5 else 1.0 / self.error


@dataclass(slots=True)
class KnownEvaluator(JobEvaluator):
    """Simulates batches of known seconds."""

    seconds_of: SecondsOf = float
    known: dict[JobCandidate, KnownJobs] = field(default_factory=dict)

    def _compile(self, candidate: JobCandidate) -> KnownJobs:
        if candidate not in self.known:
            found = compile_jobs(self.deployment(candidate))
            self.known[candidate] = KnownJobs(
                found.deployment,
                found.networks,
                found.hardware,
                found.bundle,
                found.execution,
                seconds_of=self.seconds_of,
            )
        return self.known[candidate]


def world(seconds_of: SecondsOf, error: float = 1.0, **keys: Any) -> JobAssessor:
    """Return what measures candidates for which a batch of n jobs takes `seconds_of(n)` seconds."""
    request = ask(**keys)
    mix = JobMix.one(PlannedJob(load_network(request.model), {}))
    service = KnownService(mix, seconds_of=seconds_of, error=error)
    return JobAssessor(request, KnownEvaluator(request, service, seconds_of=seconds_of))


def ask(**keys: Any) -> NetworkRequest:
    """Return a request for resnet50 on eight H100, changed by some keys."""
    usual = {"model": "resnet50", "hardware": "h100x8", "slo": "e2e.p90=10s", "confidence": 0.9}
    return network_request(usual | keys)


def one(hardware: str = "h100x8", **changes: Any) -> JobCandidate:
    """Return a candidate with one replica that executes one job at a time."""
    setup = Setup(parse_hardware(hardware), "bf16", "compiled")
    return replace(JobCandidate(setup, 1), **changes)
