"""What a network's jobs take on a replica: seconds, joules and memory by batch, from the prices of the simulator."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, log
from statistics import NormalDist
from typing import Final

from calibration.bundles.bundle import Bundle, load_bundle
from catalogs.errors import InputError
from planner.networks.candidate import Setup
from planner.networks.job import BATCH, STEPS, PlannedJob
from simulator.networks.factors import IntervalClass, interval_factor, load_factors, seconds_class
from simulator.networks.job import JobPrice, price_job

#: The engine whose pooling runner serves networks with one output for each text.
POOLING: Final = "vllm"

#: The families of such networks.
POOLED_FAMILIES: Final = ("text embedding", "text reranking")

#: Level of the published intervals of errors (docs/accuracy-networks.md), which are two-sided.
PUBLISHED_LEVEL: Final = 0.9


def error_factor(kind: IntervalClass, level: float) -> float:
    """Return the factor that measured over predicted does not exceed with a probability, from the published interval.

    The logarithm of the ratio is normal with the published quantiles: 90 % of measurements are between the prediction
    divided by the published factor and the prediction times it.
    """
    normal = NormalDist()
    sigma = log(interval_factor(kind)) / normal.inv_cdf((1 + PUBLISHED_LEVEL) / 2)
    return exp(sigma * normal.inv_cdf(level))


@dataclass(frozen=True, slots=True)
class JobService:
    """Prices of one job on any setup; each is computed once.

    Attributes:
        job: The job.
        requested: The engine that the request names; None: the usual one.

    Raises:
        InputError: The engine does not serve such jobs.
    """

    job: PlannedJob
    requested: str | None = None
    _prices: dict[tuple[Setup, int], JobPrice] = field(default_factory=dict, repr=False, compare=False)
    _bundles: dict[str, Bundle] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        family, usual = self.job.network.family, self._usual
        if self.requested in (None, usual) or (self.requested == POOLING and family in POOLED_FAMILIES):
            return
        others = f", {POOLING}" if family in POOLED_FAMILIES else ""
        raise InputError(f"{self.requested} does not serve networks of {family}", self.requested, f"{usual}{others}")

    @property
    def _usual(self) -> str:
        return "sglang-diffusion" if self.repeats else "triton"

    @property
    def waits(self) -> bool:
        """Return whether the engine can let a job wait for others."""
        return self.engine != POOLING

    @property
    def repeats(self) -> bool:
        """Return whether a job runs a stage many times, as diffusion does."""
        return STEPS in self.job.all_sizes

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

    @property
    def fingerprint(self) -> str:
        """Return text that identifies the calibrations used so far and the factors of engines."""
        names = sorted(f"{b.name} {sorted(b.provenance.items(), key=str)}" for b in self._bundles.values())
        return " + ".join([*names, load_factors().model_dump_json()])

    def price(self, setup: Setup, jobs: int = 1) -> JobPrice:
        """Return the price of a batch of jobs.

        Raises:
            InputError: The setup cannot execute the job.
        """
        key = setup, jobs
        if key not in self._prices:
            sizes = dict(self.job.sizes)
            if BATCH in self.job.all_sizes:
                sizes[BATCH] = jobs * self.job.items
            self._prices[key] = price_job(self.job.network, self.bundle(setup), setup.hardware, setup.execution, sizes)
        return self._prices[key]

    def seconds(self, setup: Setup, jobs: int = 1) -> float:
        """Return the seconds of a batch of jobs."""
        return self.price(setup, jobs).seconds

    def joules(self, setup: Setup, jobs: int = 1) -> float:
        """Return the joules of all accelerators of a replica in a batch of jobs."""
        return setup.ranks * sum(stage.runs * stage.joules for stage in self.price(setup, jobs).stages)

    def memory_bytes(self, setup: Setup, jobs: int = 1) -> float:
        """Return the peak memory of one accelerator in a batch of jobs."""
        return self.price(setup, jobs).peak_memory_bytes

    def fits(self, setup: Setup, jobs: int = 1) -> bool:
        """Return whether a batch of jobs is predicted to fit into the memory of an accelerator."""
        return self.memory_bytes(setup, jobs) <= setup.hardware.accelerator.memory_bytes

    def fluid_jobs_per_s(self, setup: Setup, max_batch: int) -> float:
        """Return the rate of one replica whose batches are always as large as serves most jobs per second."""
        return max(jobs / self.seconds(setup, jobs) for jobs in batch_sizes(max_batch))

    def error_class(self, setup: Setup) -> IntervalClass:
        """Return the class of networks whose published error applies."""
        return seconds_class(self.repeats, setup.mode)

    def slowdown(self, setup: Setup, level: float) -> float:
        """Return the factor on the seconds of a job that holds with a probability."""
        return error_factor(self.error_class(setup), level)


def batch_sizes(most: int) -> list[int]:
    """Return the powers of two up to a batch, and the batch itself."""
    sizes = [2**i for i in range(most.bit_length()) if 2**i < most]
    return [*sizes, most]
