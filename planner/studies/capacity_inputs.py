"""The inputs that determine the capacity of a plan: how each is improved in a simulation, and what improves it in fact.

One row is one input. An improvement of 10 % makes a resource 10 % faster or larger, or divides a time by 1.1. Rows of
replicas exist once for each kind of replica. A new stage of the simulator gets a row here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from catalogs.deployments.layout import Role
from catalogs.engines.profile import HostTimes
from planner.evaluation.deployments import Improve
from planner.evaluation.simulated_evaluator import SimulatedEvaluator
from planner.evaluation.varied_workload import VariedWorkload
from planner.studies.rerun import Rerun
from simulator.cluster.compiled import CompiledDeployment, with_host
from simulator.costs.compile import compile_step_cost
from simulator.costs.counterfactual import DeviceResource, improved_cost, with_faster_links

COMPUTE, MEMORY, LINK, FIXED = "compute", "memory bandwidth", "links between accelerators", "fixed cost per kernel"

HOST, API_SERVER, CLIENT_PATH = "host (scheduling, launches)", "API server", "client path"

KV_CACHE, SEATS, BUDGET = "KV cache", "running sequences", "batched tokens"

HOST_LINK, TRANSFER, ARRIVALS = "host memory link", "KV transfer", "queue (bursts of arrivals)"

Change = Callable[[CompiledDeployment, float], CompiledDeployment]

#: Host times of the steps of an engine.
STEP_TIMES: Final = (
    "step_s",
    "step_s_per_sequence",
    "step_gap_s",
    "kernel_launch_s",
    "latent_launch_s",
    "piece_s",
    "ngram_s_per_sequence",
    "ngram_s_per_token",
)

#: Host times of the processes of the API server.
API_TIMES: Final = ("api_request_s", "api_step_s", "api_token_s", "request_s_per_input_token")

#: Fixed delays between clients and engine.
CLIENT_TIMES: Final = ("request_s", "output_s")


@dataclass(frozen=True, slots=True)
class ReplicaInput:
    """An input of one kind of replica.

    Attributes:
        name: Name of the input.
        change: Returns a deployment with the input improved by a factor.
        advice: What improves the input in fact, as the end of a sentence that begins with "To raise it,".
        applies: Returns whether the input can matter for a deployment.
    """

    name: str
    change: Change
    advice: str
    applies: Callable[[CompiledDeployment], bool] = lambda _: True


@dataclass(frozen=True, slots=True)
class CapacityInput:
    """An input of a plan; `improved` makes a copy of the plan's evaluator with the input improved by a factor.

    `role` is the kind of replica that has the input; "" stands for the whole deployment.
    """

    name: str
    role: Role | str
    advice: str
    improved: Callable[[float], SimulatedEvaluator] = field(compare=False)

    @property
    def words(self) -> str:
        """Return the name, with the kind of replica if there are two."""
        return f"{self.role}: {self.name}" if self.role in ("encode", "prefill", "decode") else self.name


def _device(resource: DeviceResource) -> Change:
    def change(compiled: CompiledDeployment, factor: float) -> CompiledDeployment:
        return replace(compiled, cost=improved_cost(compiled.resolved, compiled.bundle, resource, factor))

    return change


def _shorter(host: HostTimes, names: Sequence[str], factor: float) -> HostTimes:
    return replace(host, **{name: getattr(host, name) / factor for name in names})


def _host(compiled: CompiledDeployment, factor: float) -> CompiledDeployment:
    return with_host(compiled, _shorter(compiled.resolved.engine.host, STEP_TIMES, factor))


def _outside_steps(names: Sequence[str]) -> Change:
    """Return a change of host times that are not part of any step, so the step costs remain."""

    def change(compiled: CompiledDeployment, factor: float) -> CompiledDeployment:
        resolved = compiled.resolved
        engine = replace(resolved.engine, host=_shorter(resolved.engine.host, names, factor))
        return replace(compiled, resolved=replace(resolved, engine=engine))

    return change


def _kv_cache(compiled: CompiledDeployment, factor: float) -> CompiledDeployment:
    blocks = round(compiled.memory.kv_blocks * factor)
    limits = replace(compiled.resolved.limits, kv_blocks=blocks)
    resolved = replace(compiled.resolved, limits=limits)
    return replace(compiled, resolved=resolved, memory=replace(compiled.memory, kv_blocks=blocks))


def _limit(name: str) -> Change:
    def change(compiled: CompiledDeployment, factor: float) -> CompiledDeployment:
        limits = compiled.resolved.limits
        limits = replace(limits, **{name: round(getattr(limits, name) * factor)})
        tokens = max(limits.max_num_batched_tokens, limits.max_num_seqs)  # every sequence needs a token of a step
        resolved = replace(compiled.resolved, limits=replace(limits, max_num_batched_tokens=tokens))
        return replace(compiled, resolved=resolved, cost=compile_step_cost(resolved, compiled.bundle))

    return change


def _host_link(compiled: CompiledDeployment, factor: float) -> CompiledDeployment:
    resolved, offload = compiled.resolved, compiled.resolved.offload
    node = resolved.hardware.node
    copies = tuple(replace(c, bytes_per_s=c.bytes_per_s and c.bytes_per_s * factor) for c in node.host_copies)
    node = replace(node, host_bytes_per_s=node.host_bytes_per_s * factor, host_copies=copies)
    if offload is not None:
        names = ("host_bytes_per_s", "to_host_bytes_per_s", "disk_bytes_per_s")
        rates = {name: rate * factor for name in names if (rate := getattr(offload, name)) is not None}
        offload = replace(offload, **rates)
    hardware = replace(resolved.hardware, node=node)
    return replace(compiled, resolved=replace(resolved, hardware=hardware, offload=offload))


def _transfer(compiled: CompiledDeployment, factor: float) -> CompiledDeployment:
    """Return the deployment with faster links for KV blocks; the compiled steps keep their collectives."""
    hardware = compiled.resolved.hardware
    hardware = replace(hardware, node=with_faster_links(hardware.node, factor))
    return replace(compiled, resolved=replace(compiled.resolved, hardware=hardware))


def _has_links(compiled: CompiledDeployment) -> bool:
    return compiled.resolved.layout.accelerators > 1


def _moves_to_host(compiled: CompiledDeployment) -> bool:
    return compiled.resolved.offload is not None or compiled.resolved.swap_bytes > 0


#: The inputs of each kind of replica.
REPLICA_INPUTS: Final = (
    ReplicaInput(COMPUTE, _device("compute"), "use an accelerator with more arithmetic, or narrower weights"),
    ReplicaInput(
        MEMORY, _device("memory"), "use an accelerator with more memory bandwidth, or narrower weights or KV cache"
    ),
    ReplicaInput(LINK, _device("link"), "use faster links, or fewer accelerators for each replica", _has_links),
    ReplicaInput(FIXED, _device("fixed"), "let each step do more (more sequences), or fuse kernels"),
    ReplicaInput(HOST, _host, "use a host with faster cores"),
    ReplicaInput(
        API_SERVER,
        _outside_steps(API_TIMES),
        "run more API server processes (api_server_count), or more replicas where the engine has one process only",
    ),
    ReplicaInput(CLIENT_PATH, _outside_steps(CLIENT_TIMES), "shorten the path between clients and engine"),
    ReplicaInput(KV_CACHE, _kv_cache, "store KV in fewer bytes, or use accelerators with more memory"),
    ReplicaInput(SEATS, _limit("max_num_seqs"), "raise max_num_seqs"),
    ReplicaInput(BUDGET, _limit("max_num_batched_tokens"), "raise max_num_batched_tokens"),
    ReplicaInput(HOST_LINK, _host_link, "use a faster link to host memory", _moves_to_host),
)


#: The inputs that replicas without a language model do not have.
_NOT_OF_ENCODERS: Final = (KV_CACHE, SEATS)


def capacity_inputs(rerun: Rerun) -> Iterator[CapacityInput]:
    """Yield the inputs of the recommended plan of an answer."""
    evaluator, candidate = rerun.evaluator_of(0), rerun.candidates[0]

    def of_role(change: Change, role: Role, factor: float) -> SimulatedEvaluator:
        improve: Improve = lambda own, compiled: change(compiled, factor) if own == role else compiled  # noqa: E731
        return evaluator.with_(improve=improve)

    for role, pool in candidate.pools:
        compiled = evaluator.deployments.compiled(pool)
        rows = (row for row in REPLICA_INPUTS if row.applies(compiled))
        for row in (row for row in rows if role != "encode" or row.name not in _NOT_OF_ENCODERS):
            yield CapacityInput(row.name, role, row.advice, partial(of_role, row.change, role))
    if candidate.split:
        advice = "use a faster network between prefill and decode replicas"
        yield CapacityInput(
            TRANSFER, "", advice, lambda f: evaluator.with_(improve=lambda _, compiled: _transfer(compiled, f))
        )
    advice = "smooth the arrivals (a queue or a rate limit before the replicas), or share one queue among more replicas"
    yield CapacityInput(
        ARRIVALS,
        "",
        advice,
        lambda f: evaluator.with_(workload=VariedWorkload.of(rerun.workload, burstiness=1.0 / f)),
    )
