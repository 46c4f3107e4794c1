"""The kernels of a job one by one: what each launch computes and moves, and its seconds by roofline and calibration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil

from calibration.bundles.bundle import Bundle
from calibration.operators.cost import INTERPOLATED, MEASURED, by_lender
from catalogs.networks.network import NeuralNetwork
from simulator.networks.execution import Execution
from simulator.networks.job import Bound, bound_of, pricings, roofline_sides_s
from simulator.networks.launches import launches
from simulator.networks.ranks import on_rank


@dataclass(frozen=True, slots=True)
class KernelRow:
    """All runs of one launch of a stage in a job, on one rank; SI units.

    Attributes:
        stage: The stage.
        name: The operator that it executes, and how many more.
        kind: "gemm", "attention", "convolution", "norm" or "stream".
        count: Number of runs in the job.
        flops: Arithmetic operations of all runs.
        bytes: Bytes through device memory.
        bound: What limits a run.
        arithmetic_bound: Whether arithmetic is the larger side of its roofline.
        roofline_s: Seconds by the roofline.
        seconds: Seconds by the calibration.
        measured_s: The part of `seconds` at measured points.
        interpolated_s: The part between measured points.
        borrowed_s: The part from tables of another accelerator.
    """

    stage: str
    name: str
    kind: str
    count: int
    flops: float
    bytes: float
    bound: Bound
    arithmetic_bound: bool
    roofline_s: float
    seconds: float
    measured_s: float
    interpolated_s: float
    borrowed_s: float


def job_kernels(
    network: NeuralNetwork, bundle: Bundle, execution: Execution, job: Mapping[str, int] | None = None
) -> Iterator[KernelRow]:
    """Yield the kernels of a job in the order of its stages, without collectives and casts of weights.

    Raises:
        InputError: A size or a backend is invalid, or heads cannot be divided among the ranks.
    """
    sizes = network.sizes_of(job)
    for stage, pricing in zip(network.stages, pricings(network, bundle, execution), strict=True):
        own = pricing.execution
        sized = stage.at(sizes, own.activation_bytes)
        runs = ceil(sized.runs / own.parallelism.guidance)
        for launch in launches(on_rank(sized, own), own):
            price = pricing.price(launch)
            count = runs * launch.times
            arithmetic_s, moving_s = roofline_sides_s(launch, pricing)
            flops = 0 if launch.operator is None else launch.operator.shape.executed_flops
            more = len(launch.names) - 1
            of_tables = (count * price.seconds * (price.origin == origin) for origin in (MEASURED, INTERPOLATED))
            measured_s, interpolated_s, borrowed_s = by_lender(bundle, *of_tables)
            yield KernelRow(
                stage=sized.name,
                name=f"{launch.names[0]} + {more}" if more else launch.names[0],
                kind=launch.kind,
                count=count,
                flops=float(count * flops),
                bytes=count * launch.bytes,
                bound=bound_of(launch, price.seconds, pricing),
                arithmetic_bound=arithmetic_s > moving_s,
                roofline_s=count * max(arithmetic_s, moving_s),
                seconds=count * price.seconds,
                measured_s=measured_s,
                interpolated_s=interpolated_s,
                borrowed_s=borrowed_s,
            )
