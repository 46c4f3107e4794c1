"""What a plan for agents chooses: a placement, where KV blocks are kept, how requests are routed, a token budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from catalogs.deployments.resolve import CatalogLookup
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.ui.words import counted, dollars
from catalogs.units import GIB
from catalogs.workloads.workload import Workload
from planner.agents.agent_runs import AgentServing, Tier
from planner.agents.estimate import AgentLoad, estimated_ratio
from planner.evaluation.closed_forms.candidate_forms import ClosedForms
from planner.evaluation.closed_forms.disaggregated import ratios
from planner.evaluation.deployments import CandidateDeployments
from planner.evaluation.workload_statistics import WorkloadStatistics
from planner.problem.candidate import Candidate, DeploymentOverrides
from planner.problem.hardware_choice import choose_hardware
from planner.problem.request import DISAGGREGATED, PlanRequest
from planner.problem.tariff import least_price
from planner.space.candidates import candidates, limits, widest_limits

#: Share of the host memory of the accelerators that the KV tier may take. A judgement: the rest is for the engines and
#: the operating system.
HOST_SHARE: Final = 0.8

#: Host memory of the KV tier for each accelerator, GiB, where that of the node is not known. A judgement: 1 TiB for
#: eight accelerators.
HOST_GIB_PER_ACCELERATOR: Final = 128.0

#: SSD of the KV tier for each accelerator, GiB. A judgement: about 4 TB for eight accelerators, since the catalog has
#: no sizes of disks.
SSD_GIB_PER_ACCELERATOR: Final = 500.0

#: Token budgets of a step that are tried besides those of other plans: agents wait for every token of long answers.
SMALL_BUDGETS: Final = (512, 1024)

#: Placements of each price that are simulated, in the order of their estimated latencies: with prefill and decode on
#: the same replicas (False), and on separate ones (True). A judgement of cost: runs of agents are long.
MOST_PLACEMENTS: Final = {False: 3, True: 2}

#: Shares of the device memory that the kept first tokens of all agents' prompts take. A judgement: half, and nearly all
#: of it.
RETAINED_SHARES: Final = (0.5, 0.9)

#: Step of the number of kept first tokens. A judgement: whole blocks of any engine, and a number that reads well.
RETAINED_STEP: Final = 256

DEVICE_ONLY: Final = Tier("HBM", DeploymentOverrides({}))

BY_SESSION: Final = "session_affinity"

IN_TURN: Final = "round_robin"


@dataclass(frozen=True, slots=True)
class Choice:
    """A placement with a tier and a router."""

    serving: AgentServing = field(compare=False)
    candidate: Candidate
    tier: Tier
    router: str

    @property
    def deployment(self) -> dict[str, Any]:
        """Return the deployment, as `simulate` reads it."""
        keys = {**self.candidate.rest.values, **self.tier.keys.values, "router": self.router}
        written = replace(self.candidate, rest=DeploymentOverrides(keys))
        found: dict[str, Any] = self.serving.deployments.written(written).model_dump(mode="json")
        return found

    @property
    def runs(self) -> bool:
        """Return whether the choice fits and the engine supports its tier."""
        try:
            self.serving.compiled(self.candidate, self.tier)
        except InputError:
            return False
        return True

    def tiers(self) -> list[Choice]:
        """Return the choice with each tier that runs, the simplest first."""
        return [other for tier in tiers(self.candidate) if (other := replace(self, tier=tier)).runs]

    def retentions(self, agents: int) -> list[Choice]:
        """Return the choice with the first tokens of each agent's prompts kept; none where the engine cannot do so.

        What the agents keep together takes a share of the device memory. Memory that holds all contexts keeps them
        anyway.
        """
        if self.tier != DEVICE_ONLY or "kv_retention" in self.candidate.rest.values:
            return []
        held_tokens, _ = self.serving.held_tokens(self.candidate, self.tier)
        found = []
        for share in RETAINED_SHARES:
            tokens = int(share * held_tokens / agents) // RETAINED_STEP * RETAINED_STEP
            keys = DeploymentOverrides({"kv_retention": {"prompt_tokens": tokens}})
            tier = Tier(f"HBM, first {tokens:,} tokens of prompts kept", keys)
            if tokens and (other := replace(self, tier=tier)).runs:
                found.append(other)
        return found

    def routers(self) -> list[Choice]:
        """Return the choice with each router, by session first."""
        return [replace(self, router=router) for router in routers(self.candidate)]

    def budgets(self, request: PlanRequest) -> list[Choice]:
        """Return the choice with each other token budget that runs; none where the request fixes the budget."""
        if request.fixed.number("max_num_batched_tokens"):
            return []
        own = self.candidate.max_num_seqs, self.candidate.max_num_batched_tokens
        ladder = {tokens for seqs, tokens in limits(self.serving.names, request.fixed) if seqs == own[0]}
        found = []
        for tokens in sorted({*ladder, *SMALL_BUDGETS} - {own[1]}):
            seqs = min(own[0], tokens)
            candidate = replace(self.candidate, max_num_batched_tokens=tokens, max_num_seqs=seqs)
            if (other := replace(self, candidate=candidate)).runs:
                found.append(other)
        return found


def tiers(candidate: Candidate) -> Iterator[Tier]:
    """Yield the tiers that a candidate can have, the simplest first; sizes are per replica."""
    yield DEVICE_ONLY
    known = candidate.hardware.host_memory_bytes
    per_accelerator = (
        HOST_GIB_PER_ACCELERATOR if known is None else HOST_SHARE * known / candidate.hardware.n_accelerators / GIB
    )
    each = min(pool.layout.accelerators for _, pool in candidate.pools)
    host = {"host_gib": float(int(per_accelerator * each))}
    disk = {"disk_gib": SSD_GIB_PER_ACCELERATOR * each}
    shared = {"shared": True}
    several = candidate.replicas + candidate.split.replicas > 1
    yield Tier("HBM + DRAM", DeploymentOverrides({"kv_offload": host}))
    if several:
        yield Tier("HBM + shared DRAM", DeploymentOverrides({"kv_offload": host | shared}))
    yield Tier("HBM + DRAM + SSD", DeploymentOverrides({"kv_offload": host | disk}))
    if several:
        yield Tier("HBM + shared DRAM + SSD", DeploymentOverrides({"kv_offload": host | disk | shared}))


def routers(candidate: Candidate) -> tuple[str, ...]:
    """Return the routers to compare: by session and in turn, or only one where each stage has one replica."""
    several = max(candidate.replicas, candidate.split.replicas) > 1
    return (BY_SESSION, IN_TURN) if several else (IN_TURN,)


@dataclass(frozen=True, slots=True)
class PricedChoices:
    """The placements of one price that are simulated, the most promising first.

    Attributes:
        price: The price in words; the number of accelerators where no price is known.
        choices: The placements.
        n_all: The number of all placements of the price.
    """

    price: str
    choices: list[Choice]
    n_all: int


def priced_choices(request: PlanRequest, workload: Workload, agents: int) -> list[PricedChoices]:
    """Return the placements of each price at the engine's default limits, the lowest price first, unknown ones last.

    Those of a price are ordered by the latencies that closed forms estimate, relative to the objectives.

    Raises:
        InputError: A name of the request is unknown, or no hardware is left.
    """
    found = choose_hardware(
        request.hardware,
        lambda hardware: least_price(hardware, request.tariff),
        False,
        request.max_usd_per_hour,
        engine=request.engine,
    )
    groups: dict[tuple[bool, float, str], list[tuple[float, Choice]]] = {}
    for hardware in found.hardware:
        serving = open_serving(request, workload, hardware.text)
        load = AgentLoad.of(serving.sample(agents), agents)
        for candidate in _legal(request, serving.names, agents):
            try:
                if not all(serving.deployments.memory(pool).fits for _, pool in candidate.pools):
                    continue
                ratio = estimated_ratio(serving, candidate, load)
            except InputError:
                continue
            choice = Choice(serving, candidate, DEVICE_ONLY, routers(candidate)[0])
            groups.setdefault(_price(candidate, request), []).append((ratio, choice))
    return [_most_promising(key[-1], groups[key]) for key in sorted(groups)]


def _most_promising(price: str, rated: list[tuple[float, Choice]]) -> PricedChoices:
    """Return the placements of a price that are simulated; see MOST_PLACEMENTS."""
    ordered = sorted(rated, key=lambda pair: pair[0])
    left = dict(MOST_PLACEMENTS)
    kept = []
    for _, choice in ordered:
        split = bool(choice.candidate.split)
        if left[split]:
            left[split] -= 1
            kept.append(choice)
    return PricedChoices(price, kept, len(rated))


def _legal(request: PlanRequest, names: CatalogLookup, agents: int) -> Iterator[Candidate]:
    """Yield the candidates at the engine's default limits, those with separate prefill and decode replicas last."""
    sized = request.model_copy(update={"agents": None, "users": agents})  # a load: any part of the hardware may do
    own = limits(names, request.fixed)[0]
    for candidate in candidates(sized, names):
        if (candidate.max_num_seqs, candidate.max_num_batched_tokens) == own:
            yield candidate
    if not request.extensions or DISAGGREGATED in request.extensions:
        yield from ratios(sized, names)


def open_serving(request: PlanRequest, workload: Workload, hardware: str) -> AgentServing:
    """Return what simulates the agents of a workload on the candidates of one hardware.

    Raises:
        InputError: A name is unknown.
    """
    names = CatalogLookup.on(parse_hardware(hardware), request.model, request.engine)
    tokens, seqs = widest_limits(names, request.fixed)
    deployments = CandidateDeployments(names, request.model, request.engine, (max(tokens, *SMALL_BUDGETS), seqs))
    forms = ClosedForms(deployments, WorkloadStatistics.of(workload, request.seed), request.slos)
    return AgentServing(names, deployments, workload, request.slos, request.seed, forms)


def _price(candidate: Candidate, request: PlanRequest) -> tuple[bool, float, str]:
    """Return whether the price of a placement is unknown, its dollars per hour and the same in words.

    Placements without a known price have their number of accelerators in place of dollars.
    """
    price = least_price(candidate.hardware, request.tariff)
    if price is None:
        n = candidate.hardware.n_accelerators
        return True, float(n), f"an unknown price, on {counted(n, 'accelerator')}"
    return False, price.usd_per_hour, f"{dollars(price.usd_per_hour)} per hour"
