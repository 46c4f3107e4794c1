"""One way to serve the jobs of a network: how a replica executes them, how many replicas, and how they batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Final

from catalogs.economics.prices import Price, RentalNeed
from catalogs.hardware.catalog import with_count, with_nodes
from catalogs.hardware.specs import Hardware
from catalogs.ui.words import counted, seconds
from planner.problem.tariff import Tariff, table_price
from simulator.networks.execution import Execution, Mode, Parallelism

ONE_RANK: Final = Parallelism()


@dataclass(frozen=True, slots=True)
class Setup:
    """How one replica executes a job.

    Attributes:
        hardware: The hardware of the request, of which a plan may use a part.
        precision: The number format.
        mode: What launches and fuses the operators.
        parallelism: The split of one job over accelerators.
        offload: Whether only the weights of the running stage are on the accelerator.
    """

    hardware: Hardware
    precision: str
    mode: Mode
    parallelism: Parallelism = ONE_RANK
    offload: bool = False

    @property
    def ranks(self) -> int:
        """Return the accelerators of one replica."""
        return self.parallelism.ranks

    @property
    def most_replicas(self) -> int:
        """Return the replicas that the hardware holds; a replica does not span nodes."""
        return self.hardware.n_nodes * (self.hardware.accelerators_per_node // self.ranks)

    @property
    def execution(self) -> Execution:
        """Return the execution that is priced."""
        return Execution(self.mode, self.precision, parallelism=self.parallelism, offload=self.offload)

    @property
    def distance(self) -> tuple[int, ...]:
        """Return how far the setup is from the simplest one: fewer choices come first where two plans tie."""
        modes = {"eager": 0, "compiled": 1, "tensorrt": 2}
        narrow = self.precision in ("fp8", "int8")
        return self.ranks, int(self.offload), int(self.parallelism.shard_weights), int(narrow), modes[self.mode]

    @property
    def words(self) -> str:
        """Return the execution in words, such as "bf16, compiled, 2 accelerators per job (ulysses 2)"."""
        found = [self.precision, self.mode]
        split = self.parallelism
        if self.ranks > 1:
            degrees = {"ulysses": split.ulysses, "ring": split.ring, "guidance": split.guidance}
            named = ", ".join(f"{name} {n}" for name, n in degrees.items() if n > 1)
            found.append(f"{self.ranks} accelerators per job ({named})")
        found += ["weights sharded"] if split.shard_weights else []
        found += ["weights offloaded"] if self.offload else []
        return ", ".join(found)


@dataclass(frozen=True, slots=True)
class JobCandidate:
    """A setup with its replicas and its batching.

    Attributes:
        setup: How one replica executes a job.
        replicas: Number of replicas.
        max_batch: Most jobs that run together.
        queue_delay_s: Longest wait of the oldest job for others to join its batch.
        instances: Copies of the network on the accelerators of a replica, each with a batch of its own.
    """

    setup: Setup
    replicas: int
    max_batch: int = 1
    queue_delay_s: float = 0.0
    instances: int = 1

    @property
    def accelerators(self) -> int:
        """Return the accelerators that are used."""
        return self.replicas * self.setup.ranks

    @property
    def hardware(self) -> Hardware:
        """Return the least part of the hardware that holds the replicas."""
        whole = self.setup.hardware
        per_node = whole.accelerators_per_node // self.setup.ranks
        nodes = ceil(self.replicas / per_node)
        if whole.text == "local" or whole.accelerator.is_slice:
            return whole
        if nodes > 1:
            return with_nodes(whole, nodes)
        return with_count(with_nodes(whole, 1), self.accelerators)

    @property
    def need(self) -> RentalNeed:
        """Return the accelerators to rent: those of a replica together, so many times."""
        return RentalNeed.of(self.setup.hardware, self.setup.ranks, self.replicas)

    @property
    def distance(self) -> tuple[float, ...]:
        """Return how far the candidate is from the simplest one."""
        return (*self.setup.distance, self.instances, self.max_batch, self.queue_delay_s)

    @property
    def batching(self) -> tuple[object, ...]:
        """Return everything but the number of replicas."""
        return self.setup, self.max_batch, self.queue_delay_s, self.instances

    @property
    def words(self) -> str:
        """Return the candidate in words."""
        found = [f"{self.hardware.text}: {counted(self.replicas, 'replica')}, {self.setup.words}"]
        found += [f"{self.instances} instances on each accelerator"] if self.instances > 1 else []
        each = "one job at a time" if self.instances == 1 else "one job each at a time"
        found.append(f"up to {self.max_batch} jobs together" if self.max_batch > 1 else each)
        if self.queue_delay_s:
            found.append(f"waiting at most {seconds(self.queue_delay_s)} for a batch")
        return ", ".join(found)

    def with_replicas(self, replicas: int) -> JobCandidate:
        """Return the same with another number of replicas."""
        return replace(self, replicas=replicas)

    def deployment(self, model: str, engine: str, job: Mapping[str, int]) -> dict[str, Any]:
        """Return the keys of deployment.yaml that `simulate` reads; the batch counts the items of the jobs."""
        split = self.setup.parallelism
        return {
            "model": model,
            "engine": engine,
            "hardware": self.hardware.text,
            "replicas": self.replicas,
            "mode": self.setup.mode,
            "precision": self.setup.precision,
            "ulysses": split.ulysses,
            "ring": split.ring,
            "guidance": split.guidance,
            "shard_weights": split.shard_weights,
            "offload": self.setup.offload,
            "job": dict(job),
            "max_batch": self.max_batch * job.get("batch", 1),
            "queue_delay_s": self.queue_delay_s,
            "instances": self.instances,
            "router": "least_outstanding",
        }


def price_of(candidate: JobCandidate, tariff: Tariff) -> Price | None:
    """Return the price of the accelerators of a candidate in whole instances; None if no price is known.

    The user's own price of all the hardware is divided in proportion to the accelerators that are used.

    Raises:
        InputError: The cloud or the region is unknown.
    """
    if tariff.usd_per_hour is None:
        return table_price(candidate.need, tariff)
    used, whole = candidate.accelerators, candidate.setup.hardware.n_accelerators
    price = Price.user(tariff.usd_per_hour * used / whole)
    return price if used == whole else replace(price, note=f"your price in proportion: {used} of {whole} accelerators")
