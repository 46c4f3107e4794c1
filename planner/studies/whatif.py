"""The planned deployment with changes, simulated with the same requests, and the objectives it misses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from catalogs.deployments.layout import Layout
from catalogs.deployments.resolve import resolve_pools
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.io.yaml_files import validate_as
from catalogs.ui.words import counted, digits, human_s, sure_percent
from planner.answer.evaluate import BEST, OTHER, PlanEvaluator, SeedBudget
from planner.answer.plan_schema import Plan
from planner.answer.schema import Answer
from planner.economics.money import offer_words
from planner.evaluation.evaluator import RunSizes
from planner.evaluation.multi_hardware import open_evaluator
from planner.evaluation.simulated import SimulatedEvaluator
from planner.problem.candidate import ENCODER_POOL, WHOLE, Candidate, DeploymentOverrides, Split
from planner.problem.demand import RequiredRates
from planner.problem.hardware_choice import is_one
from planner.problem.overrides import with_keys
from planner.problem.price_list import PriceList
from planner.problem.reproduction import digest
from planner.problem.request import PlanRequest
from planner.search.candidate_tester import CandidateTester
from planner.space.bounds import length_discard, memory_discard
from planner.studies.comparison import PlanComparison, deployment_differs, figures
from planner.studies.rerun import without_load
from simulator.memory.plan import size_memory

#: Deployment keys that are fields of a candidate or are the same for all of them; the others go into its overrides.
_NOT_OVERRIDDEN: Final = frozenset(
    {f.name for f in fields(Candidate)} | {f.name for f in fields(Layout)} | {"model", "engine", "disaggregation"}
)

#: Keys of a `disaggregation` block that a candidate's Split states itself.
_OF_SPLIT: Final = {"prefill_replicas", "decode_replicas", "prefill", "decode"}


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes to a plan.

    `requests_per_s` is None for the planned rate, and `keys` are keys of deployment.yaml.
    """

    requests_per_s: float | None
    hardware: str | None
    workload: str | None
    keys: dict[str, object]


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The result of a change.

    `plan` is the changed plan, None if it cannot start. `breaks` describes each missed objective.
    """

    comparison: PlanComparison
    breaks: tuple[str, ...]
    plan: Plan | None

    def document(self) -> dict[str, Any]:
        """Return the document of `plan whatif --json`."""
        return {
            "schema_version": 1,
            "holds": not self.breaks,
            "breaks": list(self.breaks),
            "comparison": self.comparison.document(),
            "plan": None if self.plan is None else self.plan.document(),
        }


def parse_rate(text: str, planned: float) -> float:
    """Return a rate in requests per second: "x2" is twice the planned rate, "12" is 12 requests per second.

    Raises:
        InputError: The text is neither a rate nor a factor.
    """
    times = text[:1] in ("x", "X")
    try:
        value = float(text[1:] if times else text) * (planned if times else 1.0)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise InputError("a rate must be requests per second or a factor on the planned rate", text, "x2")
    return value


def what_if(answer: Answer, plan: Plan, changes: Changes) -> WhatIf:
    """Simulate the changed plan, which takes some seconds, and compare it with the planned one.

    Raises:
        InputError: The changed deployment is invalid, or the answer was made with another calibration.
    """
    request = _request(answer, plan, changes)
    caution = _calibration_note(answer)
    written = _written(plan, changes)
    pools = resolve_pools(written)
    resolved = pools[-1]
    model, hardware = str(changes.keys.get("model", request.model)), resolved.hardware.without_notices()
    request = request.replace(model=model, hardware=resolved.hardware.text)
    evaluator = SimulatedEvaluator.of(request, hardware, exact_limits=True)
    prices = PriceList(request.tariff, hardware)
    prices.check()
    candidate = _candidate(written, pools)
    block = evaluator.facts(candidate).deployment
    planned, now = plan.requests_per_s or 0.0, evaluator.request.requests_per_s or 0.0
    differs = [("requests/s", digits(planned), digits(now))] if digits(planned) != digits(now) else []
    if answer.request.workload != request.workload:
        differs.append(("workload", answer.request.workload, request.workload))
    differs += deployment_differs(plan.deployment, block)
    for pool in pools:
        where = "" if len(pools) == 1 else f"the {pool.role} replicas: "
        found = memory_discard(size_memory(pool), evaluator.statistics.longest)
        if found is None and pool.queueing.too_long != "truncate":
            sample, side = evaluator.statistics.sample, pool.side_tokens
            found = length_discard(pool.limits.max_model_len, sample, request.slos, side)
        if found is not None:
            return WhatIf(PlanComparison(tuple(differs), ()), (f"{where}{found.reason}",), None)
    same = (changes.hardware, changes.workload) == (None, None) and not changes.keys
    start_per_s = plan.capacity_requests_per_s if same else None  # the rate alone does not change the capacity
    changed = _plan_evaluator(evaluator, prices).entry(candidate, start_per_s, _effort(answer, plan)).plan
    billed = _billed(changed, candidate, request)
    notes = (*filter(None, [caution]), *_notes(plan, changed, evaluator.request), *billed)
    comparison = PlanComparison(tuple(differs), tuple(figures(plan, changed)), notes)
    return WhatIf(comparison, tuple(_breaks(changed)), changed)


def _written(plan: Plan, changes: Changes) -> Deployment:
    """Return the changed deployment as it is written.

    Raises:
        InputError: A key or a value is invalid, or the change needs several kinds of replica that are not simulated.
    """
    hardware = {} if changes.hardware is None else {"hardware": parse_hardware(changes.hardware).text}
    block = plan.deployment
    given = changes.keys
    split = block.get("disaggregation")
    if split and "replicas" in given and given.get("disaggregation", split) is not None:
        decode = "disaggregation.decode_replicas"
        raise InputError("the replicas of this plan only decode", f"replicas={given['replicas']}", decode)
    keys = with_keys(block, hardware | given) | {"kv_blocks": None}
    written = validate_as(Deployment, keys, "the changed deployment")
    if written.pools is not None:
        raise InputError("plan whatif has no pools other than prefill and decode", "pools", "disaggregation")
    for role, own in zip(("prefill", "decode"), _halves(written), strict=True):
        if own.get("hardware", written.hardware) != written.hardware:
            rule = "plan whatif simulates prefill and decode replicas on the same kind of hardware"
            raise InputError(rule, f"disaggregation.{role}.hardware={own['hardware']}", written.hardware)
    return written


def _halves(written: Deployment) -> tuple[dict[str, object], dict[str, object]]:
    """Return the keys in which the prefill and the decode replicas differ; both are empty without them."""
    split = written.disaggregation
    return ({}, {}) if split is None else (split.prefill, split.decode)


def _request(answer: Answer, plan: Plan, changes: Changes) -> PlanRequest:
    request = answer.request
    same = changes.hardware is None or changes.hardware == plan.deployment["hardware"]
    tariff = request.tariff if same else request.tariff.replace(usd_per_hour=None)
    if same and tariff.usd_per_hour is not None and plan.usd_per_hour is not None:
        tariff = tariff.replace(usd_per_hour=plan.usd_per_hour)  # the price of the chosen part of the hardware
    own_lengths = changes.workload is not None  # another workload has other lengths
    return without_load(request).replace(
        hardware=changes.hardware or str(plan.deployment["hardware"]),
        requests_per_s=changes.requests_per_s or plan.requests_per_s,
        workload=changes.workload or request.workload,
        input_tokens=None if own_lengths else request.input_tokens,
        output_tokens=None if own_lengths else request.output_tokens,
        engine=str(changes.keys.get("engine", request.engine)),
        tariff=tariff,
        spare=request.spare,
    )


def _calibration_note(answer: Answer) -> str:
    """Return a note on a changed calibration; empty if it is the calibration of the answer.

    If the request names several kinds of hardware, a changed price could also be the reason, and the note says so.

    Raises:
        InputError: The answer was made with another calibration.
    """
    made, here = answer.reproduce.calibration, digest(open_evaluator(answer.request).fingerprint)
    if made == here:
        return ""
    if is_one(answer.request.hardware):
        raise InputError(f"the answer was made with another calibration ({made}, here {here}): plan again")
    return "the answer was made with another calibration or hardware choice, which may explain part of a change"


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


def _effort(answer: Answer, plan: Plan) -> SeedBudget:
    """Return the seeds with which the plan itself was simulated, so that a difference is not one of seeds."""
    return BEST if plan is answer.best else OTHER


def _plan_evaluator(evaluator: SimulatedEvaluator, prices: PriceList) -> PlanEvaluator:
    request, sizes = evaluator.request, RunSizes.for_slos(evaluator.request.slos)
    rates = RequiredRates(request.demand, _no_users, _no_users) if request.spare else None
    load = request.confidence, request.requests_per_s, rates
    tester = CandidateTester(evaluator, request.slos, sizes, request.seed, *load)
    return PlanEvaluator(evaluator, tester, prices)


def _no_users(_: Candidate, requests_per_s: float) -> float:
    raise AssertionError(f"a load of {requests_per_s:g} requests/s does not depend on the response time of users")


def _breaks(changed: Plan) -> Iterator[str]:
    """Yield a sentence for each objective that is missed at the simulated rate."""
    rate, capacity = changed.requests_per_s or 0.0, changed.capacity_requests_per_s
    for row in changed.slo:
        if row.met:
            continue
        value = "no value" if row.value_s is None else human_s(row.value_s)
        found = f"{row.name} is {value}, limit {human_s(row.limit_s)}, at {digits(rate)} requests/s"
        if row.share > 1:
            yield found
        elif row.probability_met:
            yield f"{found}: met with only {sure_percent(row.probability_met)} confidence"
        else:
            yield f"the queue grows at {digits(rate)} requests/s"
    if capacity is None:
        yield "no rate meets every objective"
    elif capacity < rate:
        limit = f" ({changed.limited_by})" if changed.limited_by else ""
        yield f"it carries {digits(capacity)} requests/s, not {digits(rate)}{limit}"
    if changed.survival is not None and not changed.survival.met:
        yield f"an objective is missed with {counted(changed.survival.replicas_left, 'remaining replica')}"


def _billed(changed: Plan, candidate: Candidate, request: PlanRequest) -> Iterator[str]:
    """Yield what the changed plan is billed for, and the named accelerators that it does not use."""
    if changed.cost is None or changed.cost.usd_per_hour is None:
        return
    yield f"billed: {offer_words(changed.cost)}"
    named, used = candidate.hardware.n_accelerators, candidate.accelerators
    if used < named and request.tariff.usd_per_hour is None:
        idle = f"{named - used} of the {named} accelerators of {candidate.hardware.text} are not used"
        yield f"{idle}: they are not billed, but their idle power is in the energy"
    elif used < named:
        yield f"your price is for all {named} accelerators, of which {used} are used"


def _notes(plan: Plan, changed: Plan, request: PlanRequest) -> Iterator[str]:
    if changed.capacity_requests_per_s is None or changed.capacity_requests_per_s < (changed.requests_per_s or 0.0):
        yield "latency, cost and energy of the changed plan refer to an overloaded run"
    if changed.usd_per_hour is None and plan.usd_per_hour is not None:
        yield f"no known price for {request.hardware}"
    yield from (n for n in changed.notices if n not in plan.notices)
