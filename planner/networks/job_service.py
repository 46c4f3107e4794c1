"""The seconds, joules and memory that the jobs of a network take on a replica, from the prices of the simulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import exp, hypot, log
from statistics import NormalDist
from typing import Final, Self

from calibration.accuracy.stated_error import MEDIAN_TO_SIGMA
from calibration.bundles.bundle import Bundle, load_bundle
from calibration.operators.cost import ROOFLINE_ERROR
from catalogs.errors import InputError
from catalogs.hardware.catalog import with_nodes
from catalogs.networks.network import SizedStage
from catalogs.networks.shapes import AttentionShape, GemmShape
from planner.networks.candidate import Setup
from planner.networks.job import BATCH, STEPS, TEXT_FAMILIES, PlannedJob
from planner.networks.mix import JobMix
from planner.problem.slo import Slo
from simulator.networks.factors import IntervalClass, interval_factor, load_factors, seconds_class
from simulator.networks.job import JobPrice, price_job
from simulator.networks.ranks import job_memory_bytes, repeated_stages

#: The engine whose pooling runner serves networks with one output for each text.
POOLING: Final = "vllm"

#: Level of the published intervals of errors (docs/accuracy-networks.md), which are two-sided.
PUBLISHED_LEVEL: Final = 0.9


def error_factor(kind: IntervalClass, level: float, measured: bool = True) -> float:
    """Return the factor that measured over predicted does not exceed with a probability, from the published interval.

    The logarithm of the ratio is normal with the published quantiles: 90 % of measurements are between the prediction
    divided by the published factor and the prediction times it. The measurements are of hardware with operator tables.
    On other hardware (`measured` false) the assumed error of the roofline is added in quadrature.
    """
    normal = NormalDist()
    sigma = log(interval_factor(kind)) / normal.inv_cdf((1 + PUBLISHED_LEVEL) / 2)
    roofline = 0.0 if measured else ROOFLINE_ERROR / MEDIAN_TO_SIGMA
    return exp(hypot(sigma, roofline) * normal.inv_cdf(level))


@dataclass(frozen=True, slots=True)
class JobService:
    """Prices of the jobs of a plan on any setup; each is computed once.

    Attributes:
        mix: The jobs.
        requested: The engine that the request names; None: the usual one.
        change: Changes every price, as a counterfactual does; None: the prices as they are.

    Raises:
        InputError: The engine does not serve such jobs.
    """

    mix: JobMix
    requested: str | None = None
    change: Callable[[JobPrice], JobPrice] | None = None
    _prices: dict[tuple[Setup, int, int], JobPrice] = field(default_factory=dict, repr=False, compare=False)
    _memory: dict[tuple[Setup, int, int], float] = field(default_factory=dict, repr=False, compare=False)
    _bundles: dict[str, Bundle] = field(default_factory=dict, repr=False, compare=False)
    _stages: list[SizedStage] = field(default_factory=list, repr=False, compare=False)

    def __post_init__(self) -> None:
        family, usual = self.job.network.family, self._usual
        if self.requested in (None, usual) or (self.requested == POOLING and family in TEXT_FAMILIES):
            return
        others = f", {POOLING}" if family in TEXT_FAMILIES else ""
        raise InputError(f"{self.requested} does not serve networks of {family}", self.requested, f"{usual}{others}")

    @property
    def _usual(self) -> str:
        return "sglang-diffusion" if self.repeats else "triton"

    @property
    def waits(self) -> bool:
        """Return whether the engine can let a job wait for others."""
        return self.engine != POOLING

    @property
    def job(self) -> PlannedJob:
        """Return the job, the first one of several."""
        return self.mix.first

    @property
    def repeats(self) -> bool:
        """Return whether a job runs a stage many times, as diffusion does."""
        return STEPS in self.job.all_sizes

    @property
    def stages(self) -> list[SizedStage]:
        """Return the stages of the job, the first one of several; they are computed once."""
        if not self._stages:
            self._stages.extend(self.job.network.at(dict(self.job.sizes)))
        return self._stages

    def lower_bound_s(self, setup: Setup) -> float:
        """Return a lower bound of the seconds of a single job on a setup, from its arithmetic; no kernel is priced.

        No kernel is faster than the arithmetic of the hardware. Products and attention of the stages that the job
        repeats are divided among all ranks; attention may be quantised to 8 bits. It is 0 where a job repeats no stage,
        or where there are several kinds of jobs.
        """
        peaks = setup.hardware.accelerator.peak_flops
        if not self.repeats or self.mix.several or setup.precision not in peaks:
            return 0.0
        repeated = repeated_stages(self.job.network)
        attention_peak = max(peak for name, peak in peaks.items() if name in (setup.precision, "fp8", "int8"))
        seconds = 0.0
        for stage in (stage for stage in self.stages if stage.name in repeated):
            for op in stage.operators:
                if isinstance(op.shape, GemmShape):
                    seconds += stage.runs * op.times * op.shape.executed_flops / peaks[setup.precision]
                elif isinstance(op.shape, AttentionShape):
                    seconds += stage.runs * op.times * op.shape.executed_flops / attention_peak
        return seconds / setup.ranks

    @property
    def engine(self) -> str:
        """Return the requested engine, or the usual one: SGLang-Diffusion for denoising, otherwise Triton."""
        return self.requested or self._usual

    def bundle(self, setup: Setup) -> Bundle:
        """Return the calibration of the accelerator of a setup.

        Raises:
            InputError: There is no calibration.
        """
        accelerator = setup.hardware.accelerator
        if accelerator.name not in self._bundles:
            self._bundles[accelerator.name] = load_bundle(accelerator)
        return self._bundles[accelerator.name]

    def with_its_prices(self) -> Self:
        """Return a service of the same jobs that shares the prices, and has used no calibration yet."""
        return replace(self, _bundles={})

    @property
    def fingerprint(self) -> str:
        """Return text that identifies the calibrations used so far and the factors of engines."""
        names = sorted(f"{b.name} {sorted(b.provenance.items(), key=str)}" for b in self._bundles.values())
        return " + ".join([*names, load_factors().model_dump_json()])

    def price(self, setup: Setup, jobs: int = 1, kind: int = 0) -> JobPrice:
        """Return the price of a batch of equal jobs, of one kind of the mix.

        Raises:
            InputError: The setup cannot execute the job.
        """
        key = _on_one_node(setup), jobs, kind
        if key not in self._prices:
            network, sizes = self.mix.jobs[kind].network, self.sizes(jobs, kind)
            found = price_job(network, self.bundle(setup), setup.hardware, setup.execution, sizes)
            self._prices[key] = found if self.change is None else self.change(found)
        return self._prices[key]

    def sizes(self, jobs: int = 1, kind: int = 0) -> dict[str, int]:
        """Return the sizes of a batch of equal jobs, of one kind of the mix."""
        job = self.mix.jobs[kind]
        return {**job.sizes, BATCH: jobs * job.items} if BATCH in job.all_sizes else dict(job.sizes)

    def prices(self, setup: Setup, jobs: int = 1) -> list[tuple[float, JobPrice]]:
        """Return the share of each kind of job with the price of a batch of it."""
        return [(share, self.price(setup, jobs, kind)) for kind, share in enumerate(self.mix.shares)]

    def seconds(self, setup: Setup, jobs: int = 1) -> float:
        """Return the seconds of a batch of jobs, the mean over the kinds of job."""
        return sum(share * price.seconds for share, price in self.prices(setup, jobs))

    def statistic_s(self, setup: Setup, jobs: int, slo: Slo) -> float:
        """Return the statistic of an objective over the seconds of batches of each kind of job, without any wait."""
        if not self.mix.several:
            return self.seconds(setup, jobs)
        seconds = {kind: self.price(setup, jobs, kind).seconds for kind in range(len(self.mix.jobs))}
        return self.mix.statistic_s(seconds, slo)

    def joules(self, setup: Setup, jobs: int = 1) -> float:
        """Return the joules of all accelerators of a replica in a batch of jobs, the mean over the kinds of job."""
        each = (share * sum(s.runs * s.joules for s in price.stages) for share, price in self.prices(setup, jobs))
        return setup.ranks * sum(each)

    def memory_bytes(self, setup: Setup, jobs: int = 1, instances: int = 1) -> float:
        """Return the peak memory of one accelerator in batches of jobs, one of the largest kind for each instance."""
        return instances * max(self._memory_bytes(setup, jobs, kind) for kind in range(len(self.mix.jobs)))

    def _memory_bytes(self, setup: Setup, jobs: int, kind: int) -> float:
        """Return the peak memory of one accelerator in a batch of equal jobs, from closed forms: nothing is priced."""
        key = setup, jobs, kind
        if key not in self._memory:
            self._memory[key] = job_memory_bytes(self.mix.jobs[kind].network, setup.execution, self.sizes(jobs, kind))
        return self._memory[key]

    def fits(self, setup: Setup, jobs: int = 1, instances: int = 1) -> bool:
        """Return whether batches of jobs are predicted to fit into the memory of an accelerator."""
        return self.memory_bytes(setup, jobs, instances) <= setup.hardware.accelerator.memory_bytes

    def fluid_jobs_per_s(self, setup: Setup, max_batch: int, instances: int = 1) -> float:
        """Return the rate of one replica whose batches are always as large as serves most jobs per second.

        Several instances hide each other's host time: at most all of it (simulator/jobs/accelerator.py). Batches are
        of equal jobs, so that a job of each kind takes its own least time.
        """
        sizes = batch_sizes(max_batch)
        if instances == 1 and not self.mix.several:
            return max(jobs / self.seconds(setup, jobs) for jobs in sizes)
        each_s = 0.0
        for kind, share in enumerate(self.mix.shares):
            prices = [(jobs, self.price(setup, jobs, kind)) for jobs in sizes]
            each_s += share * min(max(p.seconds / instances, busy_s(p)) / jobs for jobs, p in prices)
        return 1.0 / each_s

    def error_class(self, setup: Setup) -> IntervalClass:
        """Return the class of networks whose published error applies."""
        return seconds_class(self.repeats, setup.mode)

    def slowdown(self, setup: Setup, level: float) -> float:
        """Return the factor on the seconds of a job that holds with a probability."""
        return error_factor(self.error_class(setup), level, self.is_measured(setup))

    def is_measured(self, setup: Setup) -> bool:
        """Return whether operators were measured on the hardware, or on hardware that it resembles."""
        return bool(self.bundle(setup).models)

    def interval_factor(self, setup: Setup) -> float:
        """Return the factor either way within which 90 % of measured seconds are expected to be."""
        return error_factor(self.error_class(setup), (1 + PUBLISHED_LEVEL) / 2, self.is_measured(setup))


@lru_cache(maxsize=1024)
def _on_one_node(setup: Setup) -> Setup:
    """Return a setup whose hardware is one of its nodes; the price is the same, as no replica spans nodes."""
    hardware = setup.hardware
    return setup if hardware.n_nodes == 1 else replace(setup, hardware=with_nodes(hardware, 1))


def busy_s(price: JobPrice) -> float:
    """Return the seconds in which the kernels and collectives of a job keep its accelerators busy."""
    return min(price.seconds, sum(s.runs * (s.device_s + s.communication_s) for s in price.stages))


def batch_sizes(most: int) -> list[int]:
    """Return the powers of two up to a batch, and the batch itself."""
    sizes = [2**i for i in range(most.bit_length()) if 2**i < most]
    return [*sizes, most]
