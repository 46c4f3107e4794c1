"""The planned deployment with changes, simulated with the same requests, and the objectives it misses."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from catalogs.deployments.key_texts import with_keys
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError, nearest_number
from catalogs.hardware.catalog import parse_hardware
from catalogs.io.json_block import JsonBlock
from catalogs.io.yaml_files import validate_as
from catalogs.ui.words import counted, digits, human_s, sure_percent, unused_accelerators_words
from catalogs.workloads.limits import MOST_PLANNED_PER_S, check_rate
from planner.answer.answer_schema import Answer
from planner.answer.confirmed_rates import BEST, OTHER, SeedBudget
from planner.answer.plan_schema import Plan
from planner.economics.money import offer_words
from planner.evaluation.multi_hardware import open_evaluator
from planner.problem.candidate import Candidate
from planner.problem.hardware_choice import is_one
from planner.problem.reproduction import digest
from planner.problem.request import PlanRequest
from planner.studies.comparison import PlanComparison, deployment_differs, figures
from planner.studies.rerun import without_load
from planner.studies.written_deployment import WrittenDeployment


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
    plan: JsonBlock | None

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
        rule = "a rate must be requests per second or a factor on the planned rate"
        raise InputError(rule, text, _nearest_rate(text))
    return check_rate(value, "a rate", MOST_PLANNED_PER_S)


def _nearest_rate(text: str) -> str:
    """Return the factor that a change in per cent (+20%) or a number with an x behind it means, or a number."""
    change = re.fullmatch(r"\s*([+-])\s*(\d{1,4}(?:\.\d+)?)\s*%\s*", text)
    factor = 1 + float(change[1] + change[2]) / 100 if change else 0.0
    if factor > 0:
        return f"x{factor:g}"
    behind = re.fullmatch(r"\s*(\d{1,9}(?:\.\d+)?)\s*[xX]\s*", text)
    if behind and float(behind[1]) > 0:
        return f"x{behind[1]}"
    number = nearest_number(text, is_whole=False)
    return number if number is not None and float(number) > 0 else "x2"


def what_if(answer: Answer, plan: Plan, changes: Changes) -> WhatIf:
    """Simulate the changed plan, which takes some seconds, and compare it with the planned one.

    Raises:
        InputError: The changed deployment is invalid, or the answer was made with another calibration.
    """
    caution = _calibration_note(answer)
    return _compared(answer.request, plan, changes, caution, _effort(answer, plan))


def what_if_today(deployment: Deployment, request: PlanRequest, changes: Changes) -> WhatIf:
    """Simulate a deployment that runs today, and the same with changes.

    Args:
        deployment: The deployment as it is written.
        request: The objectives and the load, on the hardware of the deployment.
        changes: The changes.

    Raises:
        InputError: One of the deployments is invalid, or the present one cannot start.
    """
    today = WrittenDeployment.of(deployment, request, request.model)
    reason = today.unstartable()
    if reason is not None:
        raise InputError(f"the present deployment cannot serve the load: {reason}", deployment.model)
    keys = {"engine": deployment.engine, **changes.keys}  # a plan names its engine without the version
    changes = replace(changes, keys=keys)
    _changed(today.request, Plan.unstarted(today.block, None), changes)  # an invalid change is refused at once
    return _compared(today.request, today.entry(None, OTHER).plan, changes, "", OTHER)


def _changed(base: PlanRequest, plan: Plan, changes: Changes) -> WrittenDeployment:
    """Return the changed deployment of a plan that was made for the request `base`.

    Raises:
        InputError: The changed deployment is invalid.
    """
    request = _request(base, plan, changes)
    return WrittenDeployment.of(_written(plan, changes), request, str(changes.keys.get("model", request.model)))


def _compared(base: PlanRequest, plan: Plan, changes: Changes, caution: str, budget: SeedBudget) -> WhatIf:
    """Return the changed plan compared with a plan that was made for the request `base`."""
    found = _changed(base, plan, changes)
    request, evaluator, candidate = found.request, found.evaluator, found.candidate
    block = found.block
    planned, now = plan.requests_per_s or 0.0, evaluator.request.requests_per_s or 0.0
    differs = [("requests/s", digits(planned), digits(now))] if digits(planned) != digits(now) else []
    if base.workload != request.workload:
        differs.append(("workload", base.workload, request.workload))
    if base.engine != request.engine:
        differs.append(("engine", base.engine, request.engine))
    differs += [row for row in deployment_differs(plan.deployment, block) if row[0] != "engine"]
    reason = found.unstartable()
    if reason is not None:
        return WhatIf(PlanComparison(tuple(differs), ()), (reason,), None)
    same = (changes.hardware, changes.workload) == (None, None) and not changes.keys.keys() - {"engine"}
    start_per_s = plan.capacity_requests_per_s if same else None  # the rate alone does not change the capacity
    changed = found.entry(start_per_s, budget).plan
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
    return validate_as(Deployment, keys, "the changed deployment")


def _request(request: PlanRequest, plan: Plan, changes: Changes) -> PlanRequest:
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


def _effort(answer: Answer, plan: Plan) -> SeedBudget:
    """Return the seeds with which the plan itself was simulated, so that a difference is not one of seeds."""
    return BEST if plan is answer.best else OTHER


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
        limit = f" ({changed.limit_words})" if changed.limit_words else ""
        yield f"it serves {digits(capacity)} requests/s, not {digits(rate)}{limit}"
    if changed.survival is not None and not changed.survival.met:
        yield f"an objective is missed with {counted(changed.survival.replicas_left, 'remaining replica')}"


def _billed(changed: Plan, candidate: Candidate, request: PlanRequest) -> Iterator[str]:
    """Yield what the changed plan is billed for, and the named accelerators that it does not use."""
    if changed.cost is None or changed.cost.usd_per_hour is None:
        return
    yield f"billed: {offer_words(changed.cost)}"
    named, used = candidate.hardware.n_accelerators, candidate.accelerators
    if used < named and changed.cost.idle_accelerators:
        return  # the bill counts them
    if used < named and request.tariff.usd_per_hour is None:
        idle = unused_accelerators_words(named - used, named, candidate.hardware.text)
        yield f"{idle}: this part is not billed, but its idle power is in the energy"
    elif used < named:
        yield f"your price is for all {named} accelerators, of which {used} are used"


def run_words(changed: Plan) -> str:
    """Return what is wrong with the run of a plan beyond its capacity: the load, a value, or only the confidence."""
    unmet = [row for row in changed.slo if not row.met]
    if any(row.value_s is None or (row.share <= 1 and not row.probability_met) for row in unmet):
        return "an overloaded run"
    missed = [row.name for row in unmet if row.share > 1]
    if missed:
        return f"a run that misses {', '.join(missed)}"
    unsure = [row.name for row in unmet]
    of = f" of {', '.join(unsure)}" if unsure else ""
    return f"a run within the limits, without the required confidence{of}"


def _notes(plan: Plan, changed: Plan, request: PlanRequest) -> Iterator[str]:
    if changed.capacity_requests_per_s is None or changed.capacity_requests_per_s < (changed.requests_per_s or 0.0):
        yield f"latency, cost and energy of the changed plan refer to {run_words(changed)}"
    if changed.usd_per_hour is None and plan.usd_per_hour is not None:
        yield f"no known price for {request.hardware}"
    yield from (n for n in changed.notices if n not in plan.notices)
