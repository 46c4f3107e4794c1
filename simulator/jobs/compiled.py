"""A compiled deployment of a network: names looked up, memory checked, and the price of each batch when it is needed.

A batch is priced once for each kind of job and number of items, in the whole process, and read from memory afterwards.
Its energy is split into that of its kernels and the idle power in the gaps in which the host launches, because the
gaps of one instance are filled by the kernels of another.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from calibration.bundles.bundle import Bundle, load_bundle
from catalogs.deployments.network_deployment import NetworkDeployment
from catalogs.errors import InputError, nearest_name
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Hardware
from catalogs.networks.files import find_network, load_network
from catalogs.networks.network import NeuralNetwork
from catalogs.workloads.jobs import JobSet, NetworkJob
from simulator.networks.execution import Execution, Parallelism
from simulator.networks.job import JobPrice, price_job

#: The size of a network that counts the items of one batch.
BATCH: Final = "batch"


@dataclass(frozen=True, slots=True)
class BatchPrice:
    """The price of one batch on one replica.

    Attributes:
        seconds: Its time on idle accelerators.
        busy_s: Time of its kernels and collectives, on each accelerator; in the rest the host launches.
        kernel_j: Joules of all accelerators of the replica, without their idle power while the host launches.
        peak_memory_bytes: Memory of one accelerator.
        measured: Share of the kernels' time at measured points.
        interpolated: Share between measured points.
        borrowed: Share from tables of another accelerator; the rest is from the roofline.
    """

    seconds: float
    busy_s: float
    kernel_j: float = 0.0
    peak_memory_bytes: float = 0.0
    measured: float = 0.0
    interpolated: float = 0.0
    borrowed: float = 0.0

    @classmethod
    def of(cls, price: JobPrice, ranks: int, idle_w: float) -> BatchPrice:
        """Return the price of a batch from that of its stages."""
        seconds = price.seconds
        busy_s = min(seconds, sum(s.runs * (s.device_s + s.communication_s) for s in price.stages))
        device_s = sum(s.runs * s.device_s for s in price.stages)
        joules = sum(s.runs * s.joules for s in price.stages)
        shares = {
            name: sum(s.runs * s.device_s * getattr(s, name) for s in price.stages) / device_s if device_s else 0.0
            for name in ("measured", "interpolated", "borrowed")
        }
        kernel_j = ranks * max(0.0, joules - (seconds - busy_s) * idle_w)
        return cls(seconds, busy_s, kernel_j, price.peak_memory_bytes, **shares)


@lru_cache(maxsize=65_536)
def _priced(network: str, hardware: str, execution: Execution, sizes: tuple[tuple[str, int], ...]) -> JobPrice:
    found = parse_hardware(hardware)
    return price_job(load_network(network), load_bundle(found.accelerator), found, execution, dict(sizes))


@dataclass(frozen=True)
class CompiledJobs:
    """A deployment of a network, ready to run.

    Attributes:
        deployment: The deployment as written.
        networks: Its networks by name; the first is that of the key `model`.
        hardware: All accelerators.
        bundle: The costs of one accelerator.
        execution: How each job is executed.
        change: Changes the price of every job, as a counterfactual does; None: the price as it is.
    """

    deployment: NetworkDeployment
    networks: Mapping[str, NeuralNetwork]
    hardware: Hardware
    bundle: Bundle
    execution: Execution
    change: Callable[[JobPrice], JobPrice] | None = None
    _known: dict[tuple[str, tuple[tuple[str, int], ...], int], BatchPrice] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """Return the number of accelerators of one replica."""
        return self.execution.parallelism.ranks

    @property
    def network(self) -> NeuralNetwork:
        """Return the network of the key `model`."""
        return self.networks[self.deployment.model]

    def network_of(self, kind: NetworkJob) -> NeuralNetwork:
        """Return the network of a kind of job.

        Raises:
            InputError: The deployment does not serve it.
        """
        return self.networks[self.name_of(kind)]

    def name_of(self, kind: NetworkJob) -> str:
        """Return the network of a kind of job by the name that the deployment gives it.

        Raises:
            InputError: The deployment does not serve it.
        """
        name = kind.model or self.deployment.model
        if name in self.networks:
            return name
        found = find_network(name)
        for served, network in self.networks.items():
            if network.name == found:
                return served
        nearest = nearest_name(name, self.networks) or ", ".join(self.networks)
        raise InputError("the jobs name a network that is not served", name, nearest)

    def sizes_of(self, kind: NetworkJob) -> dict[str, int]:
        """Return the sizes of a kind of job that its workload, the deployment or the network states.

        Raises:
            InputError: A size is unknown or has an invalid value.
        """
        network = self.network_of(kind)
        own = self.deployment.job if network is self.network else {}  # `job` has the sizes of `model`
        given = {**own, **kind.sizes}
        network.sizes_of(given)  # checks each
        return {size.name: given.get(size.name, size.default) for size in network.sizes}

    def items_of(self, kind: NetworkJob) -> int:
        """Return the items of one job: its size `batch`.

        Raises:
            InputError: They are more than max_batch.
        """
        items = self.sizes_of(kind).get(BATCH, 1)
        if items > self.deployment.max_batch > 1:
            raise InputError("a job has at most max_batch items", items, str(self.deployment.max_batch))
        return items

    def price(self, kind: NetworkJob, items: int) -> BatchPrice:
        """Return the price of a batch of jobs of one kind with `items` items in all.

        Raises:
            InputError: A size is invalid, or the network has no size `batch` and there are several jobs.
        """
        sizes = self.sizes_of(kind)
        network = self.network_of(kind)
        key = (network.name, tuple(sorted(sizes.items())), items)
        found = self._known.get(key)
        if found is None:
            if BATCH in sizes:
                sizes[BATCH] = items
            elif items > 1:
                raise InputError(f"{network.name} runs one job at a time", f"max_batch: {items}", "max_batch: 1")
            detail = self._detail(kind, sizes)
            found = BatchPrice.of(detail, self.ranks, self.hardware.accelerator.idle_w)
            self._known[key] = found
        return found

    def _detail(self, kind: NetworkJob, sizes: Mapping[str, int]) -> JobPrice:
        sorted_sizes = tuple(sorted(sizes.items()))
        found = _priced(self.name_of(kind), self.deployment.hardware, self.execution, sorted_sizes)
        return found if self.change is None else self.change(found)

    def weights_bytes(self, name: str) -> float:
        """Return the bytes of a network's weights on one accelerator."""
        stages = self.networks[name].at()
        most_runs = max(stage.runs for stage in stages)
        ranks = [self.ranks if self.deployment.shard_weights and s.runs == most_runs > 1 else 1 for s in stages]
        size = self.execution.activation_bytes
        return sum(stage.parameters * size / n for stage, n in zip(stages, ranks, strict=True))

    def spare_bytes(self, kinds: Iterable[NetworkJob]) -> float:
        """Return the memory of one accelerator that the largest batch of these kinds leaves free."""
        most = max(
            self.price(kind, max(self.deployment.max_batch, self.items_of(kind))).peak_memory_bytes for kind in kinds
        )
        return self.hardware.accelerator.memory_bytes - self.deployment.instances * most

    def all_weights_bytes(self, kinds: Iterable[NetworkJob]) -> float:
        """Return the memory of one accelerator for weights: what the activations of the largest batch leave."""
        activations = 0.0
        for kind in kinds:
            peak = self.price(kind, max(self.deployment.max_batch, self.items_of(kind))).peak_memory_bytes
            activations = max(activations, peak - self.weights_bytes(self.name_of(kind)))
        return self.hardware.accelerator.memory_bytes - activations

    def check_memory(self, kind: NetworkJob) -> None:
        """Check that the largest batch of a kind fits in the memory of an accelerator.

        Each instance holds the weights and its own activations.

        Raises:
            InputError: It does not; the message names the largest batch that does.
        """
        one, most = self.items_of(kind), max(self.deployment.max_batch, self.items_of(kind))
        instances, memory_bytes = self.deployment.instances, self.hardware.accelerator.memory_bytes
        need_bytes = instances * self.price(kind, most).peak_memory_bytes
        if need_bytes <= memory_bytes:
            return
        # The need grows with the batch, so the largest that fits is bisected.
        batches = range(one, most + 1)
        n_fitting = bisect_right(
            batches, memory_bytes, key=lambda batch: instances * self.price(kind, batch).peak_memory_bytes
        )
        fitting = batches[n_fitting - 1] if n_fitting else 0
        rule = f"a batch of {most} needs {need_bytes / 2**30:.1f} GiB on each {self.hardware.accelerator.name}"
        shown = f"{memory_bytes / 2**30:.1f} GiB"
        if fitting:
            raise InputError(rule, shown, f"max_batch: {fitting}")
        raise InputError(rule, shown, hint="use larger accelerators, shard_weights, offload, or smaller jobs")

    def notices(self, jobs: JobSet) -> tuple[str, ...]:
        """Return what was not measured in the prices of these jobs, one sentence each."""
        lines: list[str] = [*self.hardware.notices, *self.bundle.notices]
        for kind in jobs.kinds:
            sizes = self.sizes_of(kind)
            lines += self._detail(kind, sizes).notices
            lines += [notice for stage in self.network_of(kind).stages for notice in stage.notices]
        return tuple(dict.fromkeys(lines))


def compile_jobs(deployment: NetworkDeployment) -> CompiledJobs:
    """Look up the names of a deployment and check its keys.

    Raises:
        InputError: A name or a value is invalid, or the replicas need more accelerators than there are.
    """
    deployment.check()
    networks = {name: load_network(name) for name in deployment.models}
    hardware = parse_hardware(deployment.hardware)
    needed = deployment.replicas * deployment.accelerators_per_replica
    if needed > hardware.n_accelerators:
        rule = f"{deployment.replicas} x {deployment.accelerators_per_replica} accelerators do not fit"
        most = hardware.n_accelerators // deployment.accelerators_per_replica
        raise InputError(rule, deployment.hardware, f"replicas: {most}" if most else None, hint="use larger hardware")
    bundle = load_bundle(hardware.accelerator)
    compiled = CompiledJobs(deployment, networks, hardware, bundle, execution_of(deployment))
    compiled.sizes_of(NetworkJob())
    return compiled


def execution_of(deployment: NetworkDeployment) -> Execution:
    """Return how a deployment executes its network.

    Raises:
        InputError: A mode, a precision or a degree is invalid.
    """
    split = Parallelism(deployment.ulysses, deployment.ring, deployment.guidance, deployment.shard_weights)
    return Execution(
        mode=deployment.mode,  # type: ignore[arg-type]  # checked there
        precision=deployment.precision,
        autocast=deployment.autocast,
        attention_backend=deployment.attention_backend,
        parallelism=split,
        power_limit_w=deployment.power_limit_w,
        offload=deployment.offload,
    )


def with_replicas(compiled: CompiledJobs, replicas: int) -> CompiledJobs:
    """Return the same deployment with another number of replicas, which shares the prices.

    Raises:
        InputError: They do not fit.
    """
    deployment = compiled.deployment.model_copy(update={"replicas": replicas})
    return replace(compile_jobs(deployment), _known=compiled._known)
