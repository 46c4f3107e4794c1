"""The time, certainty and memory of a network's job: its stages, their runs, and the split over accelerators.

Under sequence parallelism a rank holds a share of the tokens. Products and memory-bound kernels shrink with it.
Ulysses exchanges queries, keys, values and the output of each attention, so that a rank attends with a share of the
heads (arXiv 2309.14509). In a ring, a rank keeps its queries and passes keys and values on, while it computes on what
it has (arXiv 2310.01889). Only the stage that a job repeats most is split; the others (text encoders, the decoder of a
latent image) run on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from calibration.bundles.bundle import Bundle
from calibration.operators.cost import INTERPOLATED, MEASURED
from calibration.operators.operators import Collective
from calibration.power.model import LIMIT_SHARE
from catalogs.errors import InputError
from catalogs.hardware.specs import Hardware
from catalogs.networks.network import NeuralNetwork, SizedOperator, SizedStage
from catalogs.networks.shapes import AttentionShape, ConvolutionShape, ElementShape, GemmShape, Shape
from simulator.network.collectives import Network
from simulator.networks.execution import Execution, Parallelism
from simulator.networks.factors import EngineFactors, load_factors
from simulator.networks.launches import launches
from simulator.networks.measured import host_launch_s
from simulator.networks.operator_price import Pricing

#: Clocks at which a stage under a power limit is priced, as shares of the highest.
CLOCKS: Final = tuple(1.0 - 0.025 * i for i in range(33))


@dataclass(frozen=True, slots=True)
class StagePrice:
    """One stage of a job.

    Attributes:
        name: The stage.
        runs: How often the job runs it, one after the other on one rank.
        seconds: Time of one run.
        device_s: Kernels of one run, the sum of their times.
        host_s: Launches of one run on the host; where it is larger, the accelerator waits. On a CPU both add up.
        joules: Energy of one accelerator in one run.
        communication_s: Collectives of one run that no kernel hides.
        measured: Share of the kernels' time at measured points.
        interpolated: Share between measured points; the rest is from the roofline.
        parameters: Parameters of the stage.
        activation_bytes: Largest activations of one rank.
    """

    name: str
    runs: int
    seconds: float
    device_s: float
    host_s: float
    joules: float
    communication_s: float
    measured: float
    interpolated: float
    parameters: int
    activation_bytes: float

    @property
    def roofline(self) -> float:
        """Return the share of the kernels' time that follows from the roofline or from stated rates."""
        return max(0.0, 1.0 - self.measured - self.interpolated)

    @property
    def total_s(self) -> float:
        """Return the seconds of all runs."""
        return self.runs * self.seconds


@dataclass(frozen=True, slots=True)
class JobPrice:
    """A whole job: its stages, peak memory of one rank, and notices on what was not measured."""

    stages: tuple[StagePrice, ...]
    peak_memory_bytes: float
    notices: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """Return the seconds of the job."""
        return sum(stage.total_s for stage in self.stages)


def price_job(
    network: NeuralNetwork,
    bundle: Bundle,
    hardware: Hardware,
    execution: Execution,
    job: Mapping[str, int] | None = None,
    factors: EngineFactors | None = None,
) -> JobPrice:
    """Return the price of a job of a network.

    Args:
        network: The network.
        bundle: The costs of the accelerator.
        hardware: The links between accelerators.
        execution: How the network is executed.
        job: Sizes of the job; those left out have their defaults.
        factors: Factors of the engine; None: the shipped ones.

    Raises:
        InputError: A size, a backend or a degree is invalid, or heads cannot be divided among the ranks.
    """
    split, factors = execution.parallelism, factors or load_factors()
    if split.ranks > hardware.accelerators_per_node * hardware.n_nodes:
        most = str(hardware.accelerators_per_node * hardware.n_nodes)
        raise InputError("a job has at most as many ranks as the hardware has accelerators", split.ranks, most)
    pricing = Pricing(bundle, execution, factors)
    stages = network.at(job, execution.activation_bytes)
    alone = Pricing(bundle, replace(execution, parallelism=Parallelism()), factors, notices=pricing.notices)
    most_runs = max(stage.runs for stage in stages)
    links = Network(hardware)
    priced = tuple(price_stage(s, pricing if s.runs == most_runs else alone, links) for s in stages)
    weights = [
        stage.parameters
        * execution.activation_bytes
        / (split.ranks if split.shard_weights and stage.runs == most_runs > 1 else 1)
        for stage in stages
    ]
    needs = [w + s.activation_bytes for w, s in zip(weights, priced, strict=True)]
    peak = max(needs) if execution.offload else sum(weights) + max(s.activation_bytes for s in priced)
    return JobPrice(priced, peak, tuple(pricing.notices))


def price_stage(stage: SizedStage, pricing: Pricing, links: Network) -> StagePrice:
    """Return the price of one stage, under the power limit of the execution.

    The tables were measured at the board's own limit, so the stage takes longer by what the lower limit adds to that.

    Raises:
        InputError: The attention backend is unknown, or heads cannot be divided among the ranks.
    """
    plain, limit = _at_clock(stage, pricing, links), pricing.execution.power_limit_w
    unit = pricing.bundle.accelerator
    if limit is None or limit >= unit.tdp_w:
        return plain
    known = {1.0: plain}

    def under(held_w: float) -> StagePrice:
        """Return the price at the highest clock at which the mean power is within a limit."""
        for clock in CLOCKS:
            if clock not in known:
                known[clock] = _at_clock(stage, replace(pricing, clock=clock, _known={}), links)
            if known[clock].joules <= LIMIT_SHARE * held_w * known[clock].seconds:
                break
        return known[clock]

    limited, own = under(limit), under(unit.tdp_w)
    factor = limited.seconds / own.seconds
    return replace(plain, seconds=plain.seconds * factor, device_s=plain.device_s * factor, joules=limited.joules)


def _at_clock(stage: SizedStage, pricing: Pricing, links: Network) -> StagePrice:
    execution = pricing.execution
    split = execution.parallelism if stage.runs > 1 else Parallelism()
    sharded = replace(stage, operators=tuple(sequence_shard(op, split) for op in stage.operators))
    device, joules, known, kernels = 0.0, 0.0, {MEASURED: 0.0, INTERPOLATED: 0.0}, 0
    for launch in launches(sharded, execution):
        price = pricing.price(launch)
        seconds = launch.times * price.seconds
        device, kernels = device + seconds, kernels + launch.times * launch.kernels
        joules += seconds * price.watts
        if price.origin in known:
            known[price.origin] += seconds
    if execution.autocast:  # weights are cast once in each pass: read in fp32, written in 16 bits
        device += stage.parameters * (4 + 2) / pricing.bundle.accelerator.memory_bandwidth_bytes_per_s
    measured = host_launch_s(execution, pricing.bundle)
    host = kernels * (pricing.factors.host_launch_s[execution.mode] if measured is None else measured)
    talk = _communication_s(stage, sharded, split, pricing, links)
    runs = ceil(stage.runs / split.guidance)
    on_host = pricing.bundle.accelerator.kind == "cpu"  # the kernels run where the launches do, one after the other
    total = (device + host if on_host else max(device, host)) + talk
    return StagePrice(
        stage.name,
        runs,
        total,
        device,
        host,
        joules + (total - device) * pricing.bundle.accelerator.idle_w,
        talk,
        known[MEASURED] / device if device else 0.0,
        known[INTERPOLATED] / device if device else 0.0,
        stage.parameters,
        stage.peak_activation_bytes / split.sequence,
    )


def sequence_shard(op: SizedOperator, split: Parallelism) -> SizedOperator:
    """Return the share of an operator that one rank executes.

    Raises:
        InputError: The heads cannot be divided among the ranks.
    """
    ranks = split.sequence
    if ranks == 1:
        return op
    shape: Shape = op.shape
    times = op.times
    match shape:
        case GemmShape():
            shape = replace(shape, m=ceil(shape.m / ranks))
        case AttentionShape():
            if shape.heads % split.ulysses:
                raise InputError("Ulysses divides the heads among its ranks", split.ulysses, str(shape.heads))
            long = shape.queries >= ranks
            shape = replace(
                shape,
                heads=shape.heads // split.ulysses,
                kv_heads=max(shape.kv_heads // split.ulysses, 1),
                queries=ceil(shape.queries / split.ring) if long else shape.queries,
                keys=ceil(shape.keys / split.ring) if long and split.ring > 1 else shape.keys,
            )
            times *= split.ring if long else 1
        case ConvolutionShape():
            shape = replace(shape, output=(ceil(shape.output[0] / ranks), *shape.output[1:]))
        case ElementShape():
            shape = replace(shape, elements=ceil(shape.elements / ranks))
    return replace(
        op, shape=shape, times=times, read_bytes=op.read_bytes // ranks, written_bytes=op.written_bytes // ranks
    )


def _communication_s(
    stage: SizedStage, sharded: SizedStage, split: Parallelism, pricing: Pricing, links: Network
) -> float:
    """Return the seconds of collectives in one run of a stage that its kernels do not hide."""
    if split.ranks == 1:
        return 0.0
    size, total = pricing.execution.activation_bytes, 0.0
    for op, own in zip(stage.operators, sharded.operators, strict=True):
        shape = op.shape
        if not isinstance(shape, AttentionShape) or not isinstance(own.shape, AttentionShape):
            continue
        width = shape.batch * shape.heads * shape.head_dim * size
        if split.ulysses > 1:
            tokens = 2 * shape.queries + 2 * shape.keys  # queries and output, keys and values
            sent = width * tokens / 4 / split.sequence
            exchange = Collective("all_to_all", sent, split.ulysses)
            total += op.times * 4 * float(links.collective_s(exchange, links.span(split.ulysses)))
        if split.ring > 1 and own.times > op.times:
            moved = 2 * width / split.ulysses * shape.keys / split.ring
            step = float(links.collective_s(Collective("send_recv", moved, 2), links.span(2)))
            hidden = pricing.attention(own.shape).seconds
            total += op.times * (split.ring - 1) * max(step - hidden, 0.0)
    if split.shard_weights:
        gathered = Collective("all_gather", stage.parameters * size, split.ranks)
        compute = sum(launch.times * pricing.price(launch).seconds for launch in launches(sharded, pricing.execution))
        total += max(float(links.collective_s(gathered, links.span(split.ranks))) - compute, 0.0)
    return total
