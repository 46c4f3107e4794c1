"""Finds what to change in a running deployment: its figures, the best one on its hardware, and each change alone.

The search is that of `plan` on the hardware and the engine of the command. The difference between its answer and the
present deployment is a set of changes; each is simulated alone, and then they are made one after another, the most
useful first, until the next one brings no more than a tie.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from catalogs.deployments.key_texts import with_keys
from catalogs.deployments.schema import Deployment, deployment_of_keys
from catalogs.errors import InputError
from catalogs.launch.reading.read import ReadLaunch
from planner.answer.evaluate import BEST
from planner.answer.evaluated_plan import EvaluatedPlan, objective_value
from planner.answer.plan_schema import Plan
from planner.answer.schema import Answer
from planner.improve.changes import KEPT, Change, changes_between, flag_changes
from planner.improve.document import SCHEMA_VERSION, ChangeRow, Figures, Improvement, OtherHardware, savings
from planner.pipeline import plan as search_plan
from planner.problem.request import CONTEXT, DISAGGREGATED, PIPELINES, PlanRequest
from planner.search.candidate_tester import TIE
from planner.studies.written_deployment import WrittenDeployment

#: Called with a sentence about what is simulated next.
Report = Callable[[str], None]

_WHERE: Final = "the deployment of the command"

#: Kinds of candidate that a search considers only where the present deployment is one of them.
_EXTENSIONS: Final = {
    "disaggregation": DISAGGREGATED,
    "pipeline_parallel": PIPELINES,
    "context_parallel": CONTEXT,
    "decode_context_parallel": CONTEXT,
}


@dataclass(slots=True)
class Improver:
    """Simulates variants of one deployment for one request; equal variants are simulated once.

    Attributes:
        read: What was read from the command.
        request: The request, on the hardware of the command.
        report: Called before each simulation.
    """

    read: ReadLaunch
    request: PlanRequest
    report: Report
    _entries: dict[str, EvaluatedPlan | str] = field(default_factory=dict)

    def entry(self, keys: Mapping[str, Any]) -> EvaluatedPlan | str:
        """Return the plan of a variant as simulated, or why it cannot run.

        All variants have the seeds of a recommended plan: their figures stand side by side.
        """
        name = str(sorted(keys.items(), key=str))
        if name not in self._entries:
            self._entries[name] = self._simulated(keys)
        return self._entries[name]

    def _simulated(self, keys: Mapping[str, Any]) -> EvaluatedPlan | str:
        try:
            found = WrittenDeployment.of(deployment_of_keys(dict(keys), _WHERE), self.request, self.request.model)
        except InputError as error:
            return str(error)
        reason = found.unstartable()
        return found.entry(None, BEST) if reason is None else reason

    def rank(self, entry: EvaluatedPlan | str) -> tuple[bool, float, float]:
        """Return a sort key of variants, the best first: meets the objectives, the objective, and the capacity."""
        if isinstance(entry, str):
            return (True, math.inf, 0.0)
        return (not self.meets(entry), self.value(entry), -(entry.capacity_requests_per_s or 0.0))

    def meets(self, entry: EvaluatedPlan) -> bool:
        """Return whether a variant meets every objective: at the required load, or at any rate without one."""
        return entry.met if self.request.given else entry.capacity_requests_per_s is not None

    def value(self, entry: EvaluatedPlan) -> float:
        """Return the quantity that the objective of the request minimises."""
        return objective_value(self.request.objective, self.request.given, entry)

    def better(self, a: EvaluatedPlan | str, b: EvaluatedPlan | str) -> bool:
        """Return whether variant a is better than variant b by more than a tie; energy decides between equal costs."""
        if isinstance(a, str) or isinstance(b, str):
            return isinstance(b, str) and not isinstance(a, str)
        if self.meets(a) != self.meets(b):
            return self.meets(a)
        if not self.meets(a):
            one, two = (entry.capacity_requests_per_s or 0.0 for entry in (a, b))
            return one > two * (1 + TIE) or (not two and a.plan.tightest.share < (1 - TIE) * b.plan.tightest.share)
        one, two = self.value(a), self.value(b)
        if math.isfinite(two) and abs(one - two) > TIE * abs(two):
            return one < two
        if math.isinf(one) != math.isinf(two):
            return math.isinf(two)
        return _joules(a) < (1 - TIE) * _joules(b)


def _joules(entry: EvaluatedPlan) -> float:
    """Return the energy of an output token; 0 where it is not known."""
    return 0.0 if entry.plan.energy is None else entry.plan.energy.j_per_output_token


def improve(
    command: str,
    read: ReadLaunch,
    request: PlanRequest,
    others: Sequence[str] = (),
    report: Report = lambda _: None,
) -> Improvement:
    """Return what to change in the deployment of a command.

    Args:
        command: The command or the file that was read.
        read: What was read from it.
        request: The request on the hardware of the command; its fixed keys are those of the command that a search must
            keep (see `request_for`).
        others: Other hardware to compare with.
        report: Called with what is simulated next.

    Raises:
        InputError: The deployment is invalid, or cannot be simulated as one candidate.
    """
    started = time.perf_counter()
    improver = Improver(read, request, report)
    base = read.deployment.model_dump(exclude_unset=True) | {"hardware": read.deployment.hardware}
    report("the present deployment")
    found = WrittenDeployment.of(read.deployment, request, request.model)
    today = improver.entry(base)
    report("the search on the same hardware")
    answer = search_plan(request)
    rows, final, keys = _changed(improver, base, found.block, today, answer)
    now = None if isinstance(today, str) else Figures.of(today, request.given)
    then = None if isinstance(final, str) else Figures.of(final, request.given)
    improves, refusal = improver.better(final, today), answer.infeasible
    plan = None if isinstance(final, str) else final.plan
    hardware = [_elsewhere(request, other, report) for other in others]
    return Improvement(
        schema_version=SCHEMA_VERSION,
        request=request.as_dict(),
        command=command,
        notes=[note.document() for note in read.notes],
        deployment=found.block,
        today=now,
        why_not_today=today if isinstance(today, str) else "",
        feasible=then is not None and then.meets,
        improves=improves,
        changes=rows,
        improved=then,
        improved_deployment=None if plan is None else _writable(keys),
        new_command="" if plan is None else " ".join([plan.command, *read.kept]),
        command_notes=[] if plan is None else plan.command_notes,
        saves=None if now is None or then is None else savings(now, then, request.given),
        confidence=None if then is None else then.probability_met,
        infeasible=None if refusal is None else refusal.binding_constraint,
        what_would_meet_it=[] if refusal is None else [s.change for s in refusal.what_would_meet_it],
        other_hardware=hardware,
        seconds=time.perf_counter() - started,
    )


def request_for(read: ReadLaunch, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a request with the model, the engine and the kept keys of a command."""
    keys = read.keys
    fixed = {key: keys[key] for key in KEPT if keys.get(key) is not None}
    own = {"model": keys["model"], "engine": keys["engine"], "hardware": keys["hardware"], "fixed": fixed}
    also = list(dict.fromkeys(kind for key, kind in _EXTENSIONS.items() if keys.get(key, 1) not in (1, None)))
    return {**values, **own, **({"also": also} if also else {})}


def _changed(
    improver: Improver,
    base: Mapping[str, Any],
    block: Mapping[str, Any],
    today: EvaluatedPlan | str,
    answer: Answer,
) -> tuple[list[ChangeRow], EvaluatedPlan | str, Mapping[str, Any]]:
    """Return each change, the deployment with the useful ones as simulated, and its keys."""
    if answer.best is None:
        return [], today, base
    best = answer.best.deployment
    changes = changes_between(block, best)
    alone: dict[str, EvaluatedPlan | str] = {}
    for change in changes:
        improver.report(f"{change.what} alone")
        alone[change.what] = improver.entry(with_keys(base, change.after))
    made, keys = _in_turn(improver, base, changes, alone)
    final = improver.entry(keys) if made else today
    rows = [_row(improver, change, base, alone[change.what], change in made) for change in changes]
    rows.sort(key=lambda row: not row.recommended)
    return rows, final, keys


def _in_turn(
    improver: Improver,
    base: Mapping[str, Any],
    changes: Sequence[Change],
    alone: Mapping[str, EvaluatedPlan | str],
) -> tuple[list[Change], Mapping[str, Any]]:
    """Make the changes one after another, the most useful alone first, and keep those that bring more than a tie.

    Where a chain of single changes stays behind all of them together, all of them are kept.
    """
    made: list[Change] = []
    keys, present = base, improver.entry(base)
    for change in sorted(changes, key=lambda c: improver.rank(alone[c.what])):
        wider = with_keys(keys, change.after)
        improver.report(f"with {change.what}")
        entry = improver.entry(wider)
        if improver.better(entry, present):
            made, keys, present = [*made, change], wider, entry
    everything = base
    for change in changes:
        everything = with_keys(everything, change.after)
    if len(made) < len(changes):
        improver.report("all changes together")
        entry = improver.entry(everything)
        if improver.better(entry, present):
            return list(changes), everything
    return made, keys


def _row(
    improver: Improver, change: Change, base: Mapping[str, Any], alone: EvaluatedPlan | str, recommended: bool
) -> ChangeRow:
    both = {key: {"from": value, "to": change.after[key]} for key, value in change.before.items()}
    figures = None if isinstance(alone, str) else Figures.of(alone, improver.request.given)
    flags: list[str] = []
    if figures is not None:
        before, after = (deployment_of_keys(dict(k), _WHERE) for k in (base, with_keys(base, change.after)))
        flags = flag_changes(before, after)
    return ChangeRow(
        what=change.what,
        keys=both,
        flags=flags,
        alone=figures,
        why_not_alone=alone if isinstance(alone, str) else "",
        recommended=recommended,
    )


def _elsewhere(request: PlanRequest, hardware: str, report: Report) -> OtherHardware:
    """Return the best deployment on other hardware."""
    report(hardware)
    tariff = request.tariff.replace(usd_per_hour=None)
    answer = search_plan(request.replace(hardware=hardware, tariff=tariff))
    best: Plan | None = answer.best
    if best is None:
        reason = "" if answer.infeasible is None else answer.infeasible.binding_constraint
        return OtherHardware(hardware=hardware, figures=None, command="", reason=reason)
    return OtherHardware(
        hardware=best.hardware,
        figures=Figures.of_plan(best, True),
        command=best.command,
    )


def _writable(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a deployment as deployment.yaml holds them, without those at their defaults."""
    written = deployment_of_keys(dict(keys), _WHERE).model_dump(mode="json")
    defaults = {name: f.default for name, f in Deployment.model_fields.items()}
    return {key: value for key, value in written.items() if key in ("model", "engine") or value != defaults.get(key)}
