"""A deployment as it is written, simulated in detail for a request: the base of what-ifs and of improvements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from catalogs.deployments.layout import Layout
from catalogs.deployments.resolve import resolve_pools
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from planner.answer.confirmed_rates import SeedBudget
from planner.answer.evaluated_plan import EvaluatedPlan
from planner.answer.plan_evaluator import PlanEvaluator
from planner.evaluation.closed_forms.bounds import length_discard, memory_discard
from planner.evaluation.run_sizes import run_sizes
from planner.evaluation.simulated_evaluator import SimulatedEvaluator
from planner.problem.candidate import ENCODER_POOL, WHOLE, Candidate, DeploymentOverrides, Split
from planner.problem.demand import RequiredRates
from planner.problem.price_list import PriceList
from planner.problem.request import PlanRequest
from planner.search.candidate_tester import CandidateTester
from simulator.memory.plan import size_memory

#: Deployment keys that are fields of a candidate or are the same for all of them; the others go into its overrides.
_NOT_OVERRIDDEN: Final = frozenset(
    {f.name for f in fields(Candidate)} | {f.name for f in fields(Layout)} | {"model", "engine", "disaggregation"}
)

#: Keys of a `disaggregation` block that a candidate's Split states itself.
_OF_SPLIT: Final = {"prefill_replicas", "decode_replicas", "prefill", "decode"}


@dataclass(frozen=True, slots=True)
class WrittenDeployment:
    """A written deployment with the evaluator of its hardware.

    Attributes:
        written: The deployment.
        pools: Its pools, resolved.
        request: The request with the model and the hardware of the deployment.
        evaluator: Simulates the candidate.
        prices: The prices of the hardware.
        candidate: The deployment as a candidate.
        tester: Tests the candidate with runs as long as those of a search for the same objectives.
    """

    written: Deployment
    pools: tuple[ResolvedDeployment, ...]
    request: PlanRequest
    evaluator: SimulatedEvaluator
    prices: PriceList
    candidate: Candidate
    tester: CandidateTester

    @classmethod
    def of(cls, written: Deployment, request: PlanRequest, model: str) -> Self:
        """Return the deployment with its evaluator; `model` is its name in the request.

        Raises:
            InputError: The deployment or the workload is invalid, or it has kinds of replica that are not simulated
                together.
        """
        _check_pools(written)
        pools = resolve_pools(written)
        hardware = pools[-1].hardware.without_notices()
        request = request.replace(model=model, hardware=pools[-1].hardware.text)
        tokens = max(pool.limits.max_num_batched_tokens for pool in pools)
        seqs = max(pool.limits.max_num_seqs for pool in pools)
        evaluator = SimulatedEvaluator.of(request, hardware, largest_limits=(tokens, seqs))
        prices = PriceList.of(request.tariff, hardware, request.accounting)
        prices.check()
        return cls(written, pools, request, evaluator, prices, _candidate(written, pools), _tester(evaluator))

    @property
    def block(self) -> dict[str, object]:
        """Return the keys of deployment.yaml with every null filled in."""
        return self.evaluator.facts(self.candidate).deployment

    def unstartable(self) -> str | None:
        """Return why the deployment cannot start or serve the workload at all; None if it can."""
        for pool in self.pools:
            where = "" if len(self.pools) == 1 else f"the {pool.role} replicas: "
            states_length = self.candidate.states_length
            found = memory_discard(size_memory(pool), self.evaluator.statistics.longest, states_length)
            if found is None and pool.queueing.too_long != "truncate":
                sample, side = self.evaluator.statistics.sample, pool.side_tokens
                found = length_discard(pool.limits.max_model_len, sample, self.request.slos, side)
            if found is not None:
                return f"{where}{found.reason}"
        return None

    def entry(self, start_per_s: float | None, budget: SeedBudget) -> EvaluatedPlan:
        """Return the simulated plan; see `PlanEvaluator.entry`. A start is the capacity of the same deployment."""
        plans, capacity_known = PlanEvaluator(self.evaluator, self.tester, self.prices), start_per_s is not None
        return plans.entry(self.candidate, start_per_s, budget, start_is_capacity=capacity_known)


def _tester(evaluator: SimulatedEvaluator) -> CandidateTester:
    """Return a tester with runs as long as those of a search; their sizes follow from the workload, which is read."""
    request = evaluator.request
    rates = RequiredRates(request.demand, _no_users, _no_users) if request.spare else None
    load = request.confidence, request.requests_per_s, rates
    return CandidateTester(evaluator, request.slos, run_sizes(request), request.seed, *load)


def _check_pools(written: Deployment) -> None:
    """Check that a deployment can be simulated as one candidate.

    Raises:
        InputError: It has several kinds of replica other than prefill and decode, or those on different hardware.
    """
    if written.pools is not None:
        raise InputError("this command has no pools other than prefill and decode", "pools", "disaggregation")
    for role, own in zip(("prefill", "decode"), _halves(written), strict=True):
        if own.get("hardware", written.hardware) != written.hardware:
            rule = "prefill and decode replicas are simulated on the same kind of hardware"
            raise InputError(rule, f"disaggregation.{role}.hardware={own['hardware']}", written.hardware)


def _halves(written: Deployment) -> tuple[dict[str, object], dict[str, object]]:
    """Return the keys in which the prefill and the decode replicas differ; both are empty without them."""
    split = written.disaggregation
    return ({}, {}) if split is None else (split.prefill, split.decode)


def _candidate(written: Deployment, pools: Sequence[ResolvedDeployment]) -> Candidate:
    """Return the candidate of a written deployment with one kind of replica, or with prefill and decode replicas.

    Both may be behind an encoder pool.
    """
    parts, resolved = [part.written.model_dump() for part in written.slices], pools[-1]
    split, encoders = WHOLE, written.encoder_pool
    if encoders is not None:
        parts, pools = parts[1:], pools[1:]
    if len(pools) > 1:
        own = {k: v for k, v in parts[0].items() if k not in _NOT_OVERRIDDEN and v != parts[1][k]}
        values = [_chosen(pool) for pool in pools]
        own |= {k: v for k, v in values[0].items() if v != values[1][k]}
        kept = written.disaggregation.model_dump(exclude=_OF_SPLIT) if written.disaggregation else {}
        rest = {k: v for k, v in kept.items() if v is not None} | ({"prefill": own} if own else {})
        split = Split(pools[0].replicas, pools[0].layout, DeploymentOverrides(rest))
    pool = {} if encoders is None else {ENCODER_POOL: encoders.model_dump(exclude_defaults=True)}
    return Candidate(
        hardware=resolved.hardware.without_notices(),
        replicas=resolved.replicas,
        layout=resolved.layout,
        **_chosen(resolved),
        split=split,
        rest=DeploymentOverrides({k: v for k, v in parts[-1].items() if k not in _NOT_OVERRIDDEN} | pool),
    )


def _chosen(resolved: ResolvedDeployment) -> dict[str, Any]:
    """Return the precisions and limits of one kind of replica, as fields of a candidate."""
    limits = resolved.limits
    return {
        "weight_dtype": resolved.weight_dtype,
        "kv_dtype": resolved.kv_dtype,
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
    }


def _no_users(_: Candidate, requests_per_s: float) -> float:
    raise AssertionError(f"a load of {requests_per_s:g} requests/s does not depend on the response time of users")
