"""The candidates of a request, and those that fluid bounds and memory rule out without simulation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, cast, get_args

from catalogs.errors import InputError
from catalogs.hardware.specs import Hardware
from catalogs.networks.shapes import AttentionShape
from catalogs.ui.words import gigabytes, percent, seconds
from planner.networks.candidate import JobCandidate, Setup
from planner.networks.job_service import JobService, batch_sizes
from planner.networks.request import NetworkRequest
from simulator.networks.execution import Mode, Parallelism

#: Copies of a network on an accelerator that are considered. A judgement of cost.
INSTANCES: Final = (1, 2, 4)

#: Largest batch that is considered where the request names none. A judgement: beyond it, hardly any network gains
#: throughput, and jobs wait longer.
MOST_BATCH: Final = 128

#: Largest batch of denoising jobs: beyond it, none gains throughput.
MOST_DENOISED: Final = 8

#: A larger batch must serve this factor more jobs per second than smaller ones, or it only makes jobs wait. A
#: judgement: smaller gains are within the error of the prices.
_GAIN: Final = 1.01

#: The constraint of setups that the simulator refuses, such as a split that the heads of a network do not allow.
_NOT_EXECUTED: Final = "execution"

#: Shares of the time that the limit leaves beside a full batch, for which the oldest job may wait for others.
_DELAY_SHARES: Final = (0.0, 0.25, 0.5)


@dataclass(slots=True)
class Space:
    """The candidates of a request.

    Attributes:
        left: Those that bounds leave.
        discarded: Number of those that cannot meet the request, by constraint.
        closest: For each constraint the sentence of the candidate that misses it least, and how much it misses it.
        floor: The setup that executes a single job fastest, and its seconds at the confidence.
    """

    left: list[JobCandidate] = field(default_factory=list)
    discarded: Counter[str] = field(default_factory=Counter)
    closest: dict[str, tuple[float, str]] = field(default_factory=dict)
    floor: tuple[Setup, float] | None = None

    def discard(self, constraint: str, excess: float, sentence: str) -> None:
        """Count a candidate that a bound rules out; `excess` is its value over the limit."""
        self.discarded[constraint] += 1
        if constraint not in self.closest or excess < self.closest[constraint][0]:
            self.closest[constraint] = excess, sentence

    @property
    def n(self) -> int:
        """Return the number of all candidates."""
        return len(self.left) + self.discarded.total()

    @property
    def reasons(self) -> dict[str, int]:
        """Return the number of discarded candidates by the sentence of the closest one."""
        return {self.closest[constraint][1]: n for constraint, n in self.discarded.most_common()}


def precisions(request: NetworkRequest, hardware: Hardware) -> tuple[str, ...]:
    """Return the number formats to consider: those of the request, or 16 bits and fp8 where the hardware has them.

    The result is empty if the hardware has none of them.
    """
    known = hardware.accelerator.peak_flops
    if not request.precisions:
        native = next((p for p in ("bf16", "fp16", "fp32") if p in known), "fp32")
        return (native, "fp8") if "fp8" in known and hardware.accelerator.kind == "gpu" else (native,)
    return tuple(p for p in request.precisions if p in known or p in ("fp32", "tf32"))


def modes(request: NetworkRequest) -> tuple[Mode, ...]:
    """Return the executions to consider."""
    if request.modes:
        return tuple(cast(Mode, mode) for mode in request.modes)
    found: tuple[Mode, ...] = get_args(Mode)
    return tuple(mode for mode in found if mode != "tensorrt")


def splits(service: JobService, hardware: Hardware) -> list[Parallelism]:
    """Return the ways to split one job over accelerators of a node; jobs that repeat no stage are not split."""
    if not service.repeats:
        return [Parallelism()]
    guidance = [g for g in (1, 2) if service.job.all_sizes.get("guidance", 1) >= g]
    heads = _heads(service)
    found: dict[Parallelism, None] = {}
    for ranks in (n for n in batch_sizes(hardware.accelerators_per_node) if n <= hardware.accelerators_per_node):
        for g in (g for g in guidance if ranks % g == 0):
            sequence = ranks // g
            ulysses = max((u for u in range(1, sequence + 1) if sequence % u == 0 and heads % u == 0), default=1)
            found[Parallelism(ulysses, sequence // ulysses, g)] = None
    return list(found)


def _heads(service: JobService) -> int:
    """Return the number that the heads of every attention of the repeated stages are a multiple of; 1 without any."""
    most = max(stage.runs for stage in service.stages)
    shapes = [op.shape for stage in service.stages if stage.runs == most for op in stage.operators]
    return math.gcd(*(shape.heads for shape in shapes if isinstance(shape, AttentionShape))) or 1


def make_space(request: NetworkRequest, service: JobService, hardware: Sequence[Hardware]) -> Space:
    """Return the candidates of a request on some hardware.

    Each uses all of the hardware; the search finds how few replicas suffice.

    Raises:
        InputError: No hardware has a precision of the request, or the simulator refuses every setup.
    """
    space = Space()
    if not any(precisions(request, h) for h in hardware):
        known = sorted({p for h in hardware for p in h.accelerator.peak_flops})
        raise InputError(f"{request.hardware} has no such precision", ",".join(request.precisions), ", ".join(known))
    for one in hardware:
        tried = _setups(request, service, one)
        bounds_s = {setup: service.lower_bound_s(setup) for setup in tried}
        fastest_s = min(bounds_s.values(), default=0.0)
        for setup in sorted(tried, key=bounds_s.__getitem__):
            _try(space, request, service, setup, bounds_s[setup] if bounds_s[setup] > fastest_s else 0.0)
    if not space.left and space.discarded.total() == space.discarded[_NOT_EXECUTED]:
        raise InputError(f"no setup of {request.model} can be executed: {space.closest[_NOT_EXECUTED][1]}")
    return space


def _setups(request: NetworkRequest, service: JobService, hardware: Hardware) -> list[Setup]:
    """Return the setups of a request on some hardware, those that the simulator refuses included."""
    ways = splits(service, hardware)
    return [
        Setup(hardware, precision, mode, split)
        for precision in precisions(request, hardware)
        for mode in modes(request)
        for split in ways
    ]


def is_too_slow(request: NetworkRequest, service: JobService, hardware: Hardware) -> bool:
    """Return whether a single job exceeds a limit in every setup on some hardware by its arithmetic alone."""
    limit_s = min(slo.limit_s for slo in request.objectives)
    try:
        setups = _setups(request, service, hardware)
        confidence = request.confidence
        return bool(setups) and all(
            service.slowdown(s, confidence) * service.lower_bound_s(s) > limit_s for s in setups
        )
    except InputError:  # without calibration; the search states the reason
        return False


def _try(space: Space, request: NetworkRequest, service: JobService, setup: Setup, least_s: float) -> None:
    """Add the candidates of one setup, or the reason why the simulator refuses it, or has no calibration for it.

    `least_s` are seconds that a single job exceeds. If they are above the limit, the setup is not priced, because
    pricing many setups takes long. The setups with the fastest arithmetic have 0 instead: they are priced, so that the
    answer states how long a single job takes.
    """
    try:
        service.bundle(setup)
        _add(space, request, service, setup, least_s)
    except InputError as error:
        space.discard(_NOT_EXECUTED, math.inf, f"{setup.words}: {error.rule}")


def _add(space: Space, request: NetworkRequest, service: JobService, plain: Setup, least_s: float) -> None:
    """Add the candidates of one setup, in the first variant whose weights fit."""
    setup = next((s for s in _variants(plain, service) if service.fits(s)), None)
    if setup is None:
        least = min(service.memory_bytes(s) for s in _variants(plain, service))
        own = plain.hardware.accelerator
        words = f"one job needs {gigabytes(least)} of an accelerator's {gigabytes(own.memory_bytes)} ({own.name})"
        space.discard("memory", least / own.memory_bytes, words)
        return
    slow = service.slowdown(setup, request.confidence)
    limit_s = min(slo.limit_s for slo in request.objectives)
    if slow * least_s > limit_s:
        _discard_slow(space, request, setup, slow * least_s, limit_s, is_bound=True)
        return
    tightest = max(request.objectives, key=lambda slo: service.statistic_s(setup, 1, slo) / slo.limit_s)
    limit_s, alone_s = tightest.limit_s, slow * service.statistic_s(setup, 1, tightest)
    if space.floor is None or alone_s < space.floor[1]:
        space.floor = setup, alone_s
    if alone_s > limit_s:
        _discard_slow(space, request, setup, alone_s, limit_s)
        return
    best = 0.0
    for batch in _batches(request, service, setup):
        batch_s = service.statistic_s(setup, batch, tightest)
        if batch_s * slow > limit_s and batch > 1:
            words = f"a batch of {batch} takes {seconds(batch_s * slow)}, above the limit of {seconds(limit_s)}"
            space.discard("batch", batch_s * slow / limit_s, words)
            break
        per_s = batch / service.seconds(setup, batch)
        if per_s < _GAIN * best:
            space.discard("no gain", 1.0, "a larger batch serves no more jobs per second")
            continue
        best = per_s
        shares = _DELAY_SHARES if batch > 1 and service.waits else (0.0,)
        delays = {_rounded(share * (limit_s - batch_s * slow)) for share in shares}
        for instances in _instances(request, service, setup, batch):
            found = [JobCandidate(setup, setup.most_replicas, batch, delay, instances) for delay in sorted(delays)]
            space.left += found


def _discard_slow(
    space: Space, request: NetworkRequest, setup: Setup, alone_s: float, limit_s: float, is_bound: bool = False
) -> None:
    """Count a setup in which a single job takes too long; one that was not priced is named only if none was."""
    takes = f"one job alone takes {'at least ' if is_bound else ''}{seconds(alone_s)}"
    words = f"{takes} at {percent(request.confidence)} confidence, above the limit of {seconds(limit_s)}"
    excess = math.inf if is_bound else alone_s / limit_s
    space.discard("latency", excess, f"{words} ({setup.hardware.accelerator.name}, {setup.words})")


def _variants(plain: Setup, service: JobService) -> Iterator[Setup]:
    """Yield a setup, and the same with less memory: weights sharded over the ranks of a job, then offloaded."""
    yield plain
    split = plain.parallelism
    if split.ranks > 1:
        sharded = Parallelism(split.ulysses, split.ring, split.guidance, shard_weights=True)
        yield Setup(plain.hardware, plain.precision, plain.mode, sharded)
    if len(service.job.network.stages) > 1:
        yield Setup(plain.hardware, plain.precision, plain.mode, split, offload=True)


def _batches(request: NetworkRequest, service: JobService, setup: Setup) -> Iterator[int]:
    """Yield the batches that fit into memory, ascending."""
    usual = MOST_DENOISED if service.repeats else MOST_BATCH
    for batch in batch_sizes(request.max_batch or usual):
        if not service.fits(setup, batch):
            return
        yield batch


def _instances(request: NetworkRequest, service: JobService, setup: Setup, batch: int) -> Iterator[int]:
    """Yield the copies of a network on an accelerator that serve more jobs than fewer of them, and that fit."""
    before = 0.0
    for instances in INSTANCES:
        several = instances > 1
        if several and (instances > request.max_instances or service.engine != "triton"):
            return
        if several and (setup.hardware.accelerator.kind != "gpu" or not service.fits(setup, batch, instances)):
            return
        per_s = service.fluid_jobs_per_s(setup, batch, instances) if request.max_instances > 1 else 1.0
        if per_s < _GAIN * before:
            return
        before = per_s
        yield instances


def _rounded(delay_s: float) -> float:
    """Return a delay rounded down to one significant digit, which is how people configure it."""
    if delay_s <= 0.0:
        return 0.0
    digit = 10.0 ** math.floor(math.log10(delay_s))
    return float(f"{math.floor(delay_s / digit) * digit:.1g}")
