"""The planned deployment with changes, simulated with the same requests, and the objectives it misses."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Final

from catalogs.deployments.layout import Layout
from catalogs.deployments.resolve import resolve
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.io.yaml_files import validate_as
from catalogs.ui.words import human_s
from planner.answer.measure import BEST, Measure
from planner.answer.plan_schema import Plan
from planner.answer.schema import Answer
from planner.evaluation.confidence import SAFE
from planner.evaluation.multi_hardware import open_evaluator
from planner.evaluation.simulated import SimulatedEvaluator
from planner.problem.candidate import Candidate, DeploymentOverrides
from planner.problem.demand import RequiredRates
from planner.problem.hardware_choice import is_one
from planner.problem.price_list import PriceList
from planner.problem.reproduction import digest
from planner.problem.request import PlanRequest
from planner.search.objectives import CandidateTester, RunSizes
from planner.space.bounds import memory_discard
from planner.studies.comparison import PlanComparison, deployment_differs, figures
from planner.studies.rerun import without_load
from simulator.memory.plan import size_memory

#: Deployment keys that are fields of a candidate; the others go into its overrides.
_OWN: Final = frozenset({f.name for f in fields(Candidate)} | {f.name for f in fields(Layout)})


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
    resolved = _resolved(plan, changes)
    request = request.replace(model=_model(request, changes), hardware=resolved.hardware.text)
    hardware = resolved.hardware.without_notices()
    world = SimulatedEvaluator.of(request, hardware, exact_limits=True)
    prices = PriceList(request.tariff, hardware)
    prices.check()
    differs = (
        *_asked(answer, plan, world.request),
        *deployment_differs(plan.deployment, _block(plan, changes, resolved)),
    )
    found = memory_discard(size_memory(resolved), world.statistics.longest)
    if found is not None:
        return WhatIf(PlanComparison(differs, ()), (found.reason,), None)
    changed = _measured(world, prices, _candidate(resolved, plan, changes))
    notes = (*([caution] if caution else []), *_notes(plan, changed, world.request))
    comparison = PlanComparison(differs, tuple(figures(plan, changed)), notes)
    return WhatIf(comparison, tuple(_breaks(changed)), changed)


def _request(answer: Answer, plan: Plan, changes: Changes) -> PlanRequest:
    asked = answer.request
    same = changes.hardware is None or changes.hardware == plan.deployment["hardware"]
    tariff = asked.tariff if same else asked.tariff.replace(usd_per_hour=None)
    if same and tariff.usd_per_hour is not None and plan.usd_per_hour is not None:
        tariff = tariff.replace(usd_per_hour=plan.usd_per_hour)  # the price of the chosen part of the hardware
    return without_load(asked).replace(
        hardware=changes.hardware or str(plan.deployment["hardware"]),
        requests_per_s=changes.requests_per_s or plan.requests_per_s,
        workload=changes.workload or asked.workload,
        engine=str(changes.keys.get("engine", asked.engine)),
        tariff=tariff,
        spare=asked.spare,
    )


def _calibration_note(answer: Answer) -> str:
    """Return a note on a changed calibration; empty if it is the calibration of the answer.

    If the request names several kinds of hardware, a changed price could also be the reason, and the note says so.

    Raises:
        InputError: The answer was made with another calibration.
    """
    asked = answer.request
    made, here = answer.reproduce.calibration, digest(open_evaluator(asked).fingerprint)
    if made == here:
        return ""
    if is_one(asked.hardware):
        raise InputError(f"the answer was made with another calibration ({made}, here {here}): plan again")
    return "the answer was made with another calibration or hardware choice, which may explain part of a change"


def _model(request: PlanRequest, changes: Changes) -> str:
    return str(changes.keys.get("model", request.model))


def _written(plan: Plan, changes: Changes) -> dict[str, Any]:
    hardware = {} if changes.hardware is None else {"hardware": parse_hardware(changes.hardware).text}
    return {**plan.deployment, **hardware, **changes.keys, "kv_blocks": None}


def _resolved(plan: Plan, changes: Changes) -> ResolvedDeployment:
    return resolve(validate_as(Deployment, _written(plan, changes), "the changed deployment"))


def _block(plan: Plan, changes: Changes, resolved: ResolvedDeployment) -> dict[str, Any]:
    written = validate_as(Deployment, _written(plan, changes), "the changed deployment")
    return resolved.filled_in(written) | {"model": resolved.model.hf_id or resolved.model.name}


def _candidate(resolved: ResolvedDeployment, plan: Plan, changes: Changes) -> Candidate:
    rest = {k: v for k, v in _written(plan, changes).items() if k not in _OWN | {"model", "engine", "hardware"}}
    return Candidate(
        hardware=resolved.hardware.without_notices(),
        replicas=resolved.replicas,
        layout=resolved.layout,
        weight_dtype=resolved.weight_dtype,
        kv_dtype=resolved.kv_dtype,
        max_num_seqs=resolved.limits.max_num_seqs,
        max_num_batched_tokens=resolved.limits.max_num_batched_tokens,
        rest=DeploymentOverrides(rest),
    )


def _measured(world: SimulatedEvaluator, prices: PriceList, candidate: Candidate) -> Plan:
    request = world.request
    asked = RequiredRates(request.demand, _no_users, _no_users) if request.spare else None
    bench = CandidateTester(
        world, request.slos, RunSizes.for_slos(request.slos), request.seed, request.requests_per_s, asked
    )
    return Measure(world, bench, prices).entry(candidate, None, BEST).plan


def _no_users(_: Candidate, requests_per_s: float) -> float:
    raise AssertionError(
        f"the load is a rate, {requests_per_s:g} requests/s, so the response time of users is not needed"
    )


def _asked(answer: Answer, plan: Plan, request: PlanRequest) -> Iterator[tuple[str, str, str]]:
    planned, now = plan.requests_per_s, request.requests_per_s
    if planned != now:
        yield "requests/s", *(f"{x:.4g}" for x in (planned or 0.0, now or 0.0))  # type: ignore[misc]
    if answer.request.workload != request.workload:
        yield "workload", answer.request.workload, request.workload


def _breaks(changed: Plan) -> Iterator[str]:
    """Yield a sentence for each objective that is missed at the simulated rate."""
    rate, capacity = changed.requests_per_s or 0.0, changed.capacity_requests_per_s
    for row in changed.slo:
        if not row.met and row.share > 1:
            value = "no value" if row.value_s is None else human_s(row.value_s)
            yield f"{row.name} is {value}, limit {human_s(row.limit_s)}, at {rate:.3g} requests/s"
    if capacity is None:
        yield "no rate meets every objective"
    elif capacity < rate:
        yield f"it carries {capacity:.3g} requests/s, not {rate:.3g}" + (
            f" ({changed.limited_by})" if changed.limited_by else ""
        )
    elif not all(row.met for row in changed.slo) and all(row.share <= 1 for row in changed.slo):
        yield f"the queue grows at {rate:.3g} requests/s"
    if changed.survival is not None and not changed.survival.met:
        yield f"an objective is missed with {changed.survival.replicas_left} remaining replicas"


def _notes(plan: Plan, changed: Plan, request: PlanRequest) -> Iterator[str]:
    for row in changed.slo:
        if row.met and row.probability_met < SAFE:
            yield f"{row.name} is met with only {100 * row.probability_met:.0f} % confidence"
    if changed.capacity_requests_per_s is None or changed.capacity_requests_per_s < (changed.requests_per_s or 0.0):
        yield "latency, cost and energy of the changed plan refer to an overloaded run"
    if changed.usd_per_hour is None and plan.usd_per_hour is not None:
        yield f"no known price for {request.hardware}"
    yield from (n for n in changed.notices if n not in plan.notices)
