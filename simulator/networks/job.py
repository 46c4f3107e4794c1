"""The time, certainty and memory of a network's job: its stages, their runs, and the split over accelerators.

What each rank executes and holds is in simulator/networks/ranks.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Final, Literal

from calibration.bundles.bundle import Bundle
from calibration.operators.cost import INTERPOLATED, MEASURED, by_lender, evidence_shares
from calibration.operators.operators import Collective
from calibration.operators.roofline import link_bytes
from calibration.power.model import LIMIT_SHARE, capped_w
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Hardware
from catalogs.networks.network import NeuralNetwork, SizedStage
from catalogs.networks.shapes import AttentionShape
from simulator.costs.counterfactual import FIXED_COST_FACTOR
from simulator.interconnect.collectives import Interconnect
from simulator.networks.execution import Execution, Parallelism
from simulator.networks.factors import EngineFactors, load_factors
from simulator.networks.launches import KernelLaunch, launches
from simulator.networks.measured import host_launch_s
from simulator.networks.operator_price import GEMM_DTYPE, TF32_SLOWDOWN, Pricing
from simulator.networks.ranks import (
    activation_bytes,
    check_split,
    on_rank,
    rank_memory_bytes,
    repeated_stages,
    stage_executions,
)

#: What limits a kernel, the launches of the host, or a collective.
Resource = Literal["compute", "memory", "fixed", "host", "link"]

#: What limits a kernel.
Bound = Literal["compute", "memory", "fixed"]

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
        interpolated: Share between measured points.
        borrowed: Share from tables of another accelerator; the rest is from the roofline.
        parameters: Parameters of the stage.
        activation_bytes: Largest activations of one rank.
        compute_s: The part of `device_s` in kernels that are bound by arithmetic.
        memory_s: The part in kernels that are bound by bytes; the rest is the fixed cost of short kernels.
        serial: Whether the host and the kernels work one after the other, as on a CPU.
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
    borrowed: float
    parameters: int
    activation_bytes: float
    compute_s: float = 0.0
    memory_s: float = 0.0
    serial: bool = False

    @property
    def fixed_s(self) -> float:
        """Return the part of `device_s` in kernels that are bound by neither arithmetic nor bytes."""
        return max(0.0, self.device_s - self.compute_s - self.memory_s)

    def improved(self, resource: Resource, factor: float) -> StagePrice:
        """Return the stage where what is bound by one resource takes its time divided by a factor.

        The joules are those of the stage as it is.
        """
        now = {
            "compute": self.compute_s,
            "memory": self.memory_s,
            "fixed": self.fixed_s,
            "host": self.host_s,
            "link": self.communication_s,
        }
        new = now | {resource: now[resource] / factor}
        device_s = new["compute"] + new["memory"] + new["fixed"]
        before_s = _total_s(self.device_s, self.host_s, self.communication_s, self.serial)
        after_s = _total_s(device_s, new["host"], new["link"], self.serial)
        return replace(
            self,
            seconds=self.seconds * after_s / before_s if before_s else self.seconds,
            device_s=device_s,
            host_s=new["host"],
            communication_s=new["link"],
            compute_s=new["compute"],
            memory_s=new["memory"],
        )

    @property
    def roofline(self) -> float:
        """Return the share of the kernels' time that follows from the roofline or from stated rates."""
        return max(0.0, 1.0 - self.measured - self.interpolated - self.borrowed)

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

    def improved(self, resource: Resource, factor: float) -> JobPrice:
        """Return the job where what is bound by one resource takes its time divided by a factor."""
        return replace(self, stages=tuple(stage.improved(resource, factor) for stage in self.stages))


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
    check_split(network, split, bool(repeated_stages(network)), job)
    sizes, links = network.sizes_of(job), Interconnect(hardware)
    pricing = pricings(network, bundle, execution, factors)
    priced = tuple(
        price_stage(stage.at(sizes, own.execution.activation_bytes), own, links)
        for stage, own in zip(network.stages, pricing, strict=True)
    )
    executions = [own.execution for own in pricing]
    memory = rank_memory_bytes(executions, [s.parameters for s in priced], [s.activation_bytes for s in priced])
    return JobPrice(priced, memory, tuple(pricing[0].notices))


def pricings(
    network: NeuralNetwork, bundle: Bundle, execution: Execution, factors: EngineFactors | None = None
) -> list[Pricing]:
    """Return the prices of the kernels of each stage; all of them share their notices."""
    factors, notices = factors or load_factors(), dict[str, None]()
    known: dict[Execution, Pricing] = {}
    return [
        known.setdefault(own, Pricing(bundle, own, factors, notices=notices))
        for own in stage_executions(network, execution)
    ]


def price_stage(stage: SizedStage, pricing: Pricing, links: Interconnect) -> StagePrice:
    """Return the price of one stage, under the power limit of the execution or of the board.

    The tables were measured at the limit of the board that was measured, so the stage takes longer by what a lower
    limit adds to that: one that the execution states, or that of a board whose tables are those of a larger one.

    Raises:
        InputError: The attention backend is unknown, or heads cannot be divided among the ranks.
    """
    plain, unit = _at_clock(stage, pricing, links), pricing.bundle.accelerator
    limit = min(pricing.execution.power_limit_w or unit.tdp_w, unit.tdp_w)
    measured_w = measured_limit_w(pricing.bundle)
    if limit >= measured_w:
        return replace(plain, joules=min(plain.joules, capped_w(unit) * plain.seconds))
    pricing = replace(pricing, bundle=replace(pricing.bundle, accelerator=replace(unit, tdp_w=measured_w)), _known={})
    known: dict[float, StagePrice] = {}

    def at(clock: float) -> StagePrice:
        if clock not in known:
            known[clock] = _at_clock(stage, replace(pricing, clock=clock, _known={}, _cache_rate=None), links)
        return known[clock]

    def under(held_w: float) -> StagePrice:
        """Return the price at the highest clock at which the mean power is within a limit."""
        first = bisect_left(CLOCKS, True, key=lambda c: at(c).joules <= LIMIT_SHARE * held_w * at(c).seconds)
        return at(CLOCKS[min(first, len(CLOCKS) - 1)])

    limited, own = under(limit), under(measured_w)
    factor, joules = limited.seconds / own.seconds, limited.joules * plain.seconds / own.seconds
    return replace(
        plain,
        seconds=plain.seconds * factor,
        device_s=plain.device_s * factor,
        compute_s=plain.compute_s * factor,
        memory_s=plain.memory_s * factor,
        joules=joules,
    )


def measured_limit_w(bundle: Bundle) -> float:
    """Return the power limit at which an accelerator's tables hold.

    Where they are those of a larger board, it is the limit of that board for the part of its arithmetic that this one
    has: H100 PCIe has 76 % of the peak of H100, whose tables were measured at 700 W, and a limit of 350 W.
    """
    unit = bundle.accelerator
    if not bundle.transferred or unit.calibrated_like is None:
        return unit.tdp_w
    board = parse_hardware(unit.calibrated_like).accelerator
    share = min(unit.flops_for("bf16") / board.flops_for("bf16"), 1.0)
    return max(unit.tdp_w, unit.idle_w + share * (board.tdp_w - board.idle_w))


def _at_clock(stage: SizedStage, pricing: Pricing, links: Interconnect) -> StagePrice:
    execution = pricing.execution
    split = execution.parallelism
    sharded = on_rank(stage, execution)
    device, joules, known, kernels = 0.0, 0.0, {MEASURED: 0.0, INTERPOLATED: 0.0}, 0
    bound_s = {"compute": 0.0, "memory": 0.0, "fixed": 0.0}
    for launch in launches(sharded, execution):
        price = pricing.price(launch)
        seconds = launch.times * price.seconds
        device, kernels = device + seconds, kernels + launch.times * launch.kernels
        joules += seconds * price.watts
        bound_s[bound_of(launch, price.seconds, pricing)] += seconds
        if price.origin in known:
            known[price.origin] += seconds
    cast = _cast_s(stage, pricing)
    device, bound_s["memory"] = device + cast, bound_s["memory"] + cast
    shares = evidence_shares(by_lender(pricing.bundle, known[MEASURED], known[INTERPOLATED]), device)
    measured = host_launch_s(execution, pricing.bundle)
    host = kernels * (pricing.factors.host_launch_s[execution.mode] if measured is None else measured)
    talk = _communication_s(stage, sharded, split, pricing, links)
    runs = ceil(stage.runs / split.guidance)
    on_host = pricing.bundle.accelerator.kind == "cpu"  # the kernels run where the launches do, one after the other
    total = _total_s(device, host, talk, on_host)
    return StagePrice(
        stage.name,
        runs,
        total,
        device,
        host,
        joules + (total - device) * pricing.bundle.accelerator.idle_w,
        talk,
        shares["measured_fraction"],
        shares["interpolated_fraction"],
        shares["borrowed_fraction"],
        stage.parameters,
        activation_bytes(sharded, split, execution),
        bound_s["compute"],
        bound_s["memory"],
        on_host,
    )


def _total_s(device_s: float, host_s: float, communication_s: float, serial: bool) -> float:
    """Return the seconds of a run from its parts; with `serial`, the kernels wait for the host."""
    return (device_s + host_s if serial else max(device_s, host_s)) + communication_s


def bound_of(launch: KernelLaunch, seconds: float, pricing: Pricing) -> Bound:
    """Return what limits a kernel that takes some seconds: the larger side of its roofline, or neither of them.

    A kernel far from its roofline is short: its fixed cost determines its time (simulator/costs/counterfactual.py).
    """
    arithmetic_s, moving_s = roofline_sides_s(launch, pricing)
    if seconds > FIXED_COST_FACTOR * max(arithmetic_s, moving_s):
        return "fixed"
    return "compute" if arithmetic_s > moving_s else "memory"


def roofline_sides_s(launch: KernelLaunch, pricing: Pricing) -> tuple[float, float]:
    """Return the seconds of a kernel's arithmetic at the peak of its format, and of its bytes at the peak rate."""
    unit, precision = pricing.bundle.accelerator, pricing.execution.precision
    moving_s = launch.bytes / unit.memory_bandwidth_bytes_per_s
    if launch.operator is None:
        return 0.0, moving_s
    slower = TF32_SLOWDOWN if precision == "tf32" else 1.0
    peak = unit.flops_for(GEMM_DTYPE[precision]) / slower
    return launch.operator.shape.executed_flops / peak, moving_s


def _cast_s(stage: SizedStage, pricing: Pricing) -> float:
    """Return the seconds in which a run casts its weights, or its share of them, to the format of its products."""
    execution = pricing.execution
    kept = 4 if execution.autocast else execution.weight_bytes
    if kept <= execution.activation_bytes:
        return 0.0
    shards = execution.parallelism.ranks if execution.parallelism.shard_weights else 1
    moved = stage.parameters / shards * (kept + execution.activation_bytes)
    return moved / pricing.bundle.accelerator.memory_bandwidth_bytes_per_s


def _communication_s(
    stage: SizedStage, sharded: SizedStage, split: Parallelism, pricing: Pricing, links: Interconnect
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
            total += op.times * 4 * collective_s(exchange, links)
        if split.ring > 1 and own.times > op.times:
            moved = 2 * width / split.ulysses * shape.keys / split.ring
            step = collective_s(Collective("send_recv", moved, 2), links)
            hidden = pricing.attention(own.shape).seconds
            total += op.times * (split.ring - 1) * max(step - hidden, 0.0)
    if split.shard_weights:
        gathered = Collective("all_gather", stage.parameters * size, split.ranks)
        compute = sum(launch.times * pricing.price(launch).seconds for launch in launches(sharded, pricing.execution))
        total += max(collective_s(gathered, links) - compute, 0.0)
    return total


def collective_s(op: Collective, links: Interconnect) -> float:
    """Return the seconds of a collective, no less than over a host that routes the traffic between its accelerators."""
    seconds, routed = float(links.collective_s(op, links.span(op.ranks))), links.hardware.node.routed
    if routed is None:
        return seconds
    return max(seconds, 2 * (op.ranks - 1) * routed.hop_s + float(link_bytes(op)) / routed.bytes_per_s)
