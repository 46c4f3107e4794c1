"""Finds what to change in a running deployment: its figures, the best one on its hardware, and each change alone.

The search is that of `plan` on the hardware and the engine of the command. The difference between its answer and the
present deployment is a set of changes; each is simulated alone, and then they are made one after another, the most
useful first, while they bring more than a tie. A change that the others do not need is taken back.
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
from catalogs.ui.words import digits, joules, percent
from planner.answer.answer_schema import Answer
from planner.answer.confirmed_rates import BEST
from planner.answer.evaluated_plan import EvaluatedPlan, load_at_equal_value, objective_value
from planner.answer.plan_schema import Plan
from planner.improve.changes import (
    KEPT,
    LENGTH_KEY,
    SINGLE,
    Change,
    changes_between,
    flag_changes,
    length_notes,
    served_length,
)
from planner.improve.document import SCHEMA_VERSION, ChangeRow, Figures, Improvement, OtherHardware, savings
from planner.pipeline import plan as search_plan
from planner.problem.request import CONTEXT, DISAGGREGATED, PIPELINES, PlanRequest
from planner.search.candidate_tester import TIE
from planner.studies.written_deployment import WrittenDeployment

#: Called with a sentence about what is simulated next.
Report = Callable[[str], None]

_WHERE: Final = "the deployment of the command"

#: Why a deployment has a key that no change states.
_FOLLOWS: Final = "follows from the other changes"

#: Keys with defaults that depend on others, which therefore stay as they are today until they are changed.
_HELD: Final = ("weight_dtype", "kv_dtype", "max_num_seqs", "max_num_batched_tokens")

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

    def load(self, entry: EvaluatedPlan) -> float:
        """Return the capacity that decides between variants of equal value, requests per second; 0 if it does not."""
        return load_at_equal_value(self.request.objective, self.request.given, entry)

    def better(self, a: EvaluatedPlan | str, b: EvaluatedPlan | str) -> bool:
        """Return whether variant a is better than variant b by more than a tie.

        Between equal values, the capacity decides as in `plan`, and between equal capacities the energy.
        """
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
        one, two = self.load(a), self.load(b)
        if abs(one - two) > TIE * two:
            return one > two
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
    length = served_length(read.deployment)
    if length is not None:  # stated, so that no variant is simulated with a shorter one
        base[LENGTH_KEY] = length
    report("the present deployment")
    found = WrittenDeployment.of(read.deployment, request, request.model)
    if len(found.pools) == 1:
        base |= {key: found.block[key] for key in _HELD if found.block.get(key) is not None}
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
        notices=[*length_notes(read.deployment), *(_new_notices(today, final) if improves else ())],
        saves=None if now is None or then is None else savings(now, then, request.given),
        confidence=None if then is None else then.probability_met,
        infeasible=None if refusal is None else refusal.binding_constraint,
        what_would_meet_it=[] if refusal is None else [s.change for s in refusal.what_would_meet_it],
        other_hardware=hardware,
        seconds=time.perf_counter() - started,
    )


def request_for(read: ReadLaunch, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a request with the model, the engine and the kept keys of a command.

    The context length is kept also where the command does not state it: every candidate holds what is served today.

    Raises:
        InputError: The deployment of the command is invalid.
    """
    keys, length = read.keys, served_length(read.deployment)
    fixed = {key: keys[key] for key in KEPT if keys.get(key) is not None}
    if length is not None:
        fixed[LENGTH_KEY] = length
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
    changes = changes_between(block, answer.best.deployment)
    alone: dict[str, EvaluatedPlan | str] = {}
    for change in changes:
        improver.report(f"{change.what} alone")
        alone[change.what] = improver.entry(with_keys(base, change.after))
    turns = ChangesInTurn(improver, base, today, sorted(changes, key=lambda c: improver.rank(alone[c.what])))
    made = turns.made()
    keys = turns.keys(made)
    final = improver.entry(keys)
    rows = [
        _row(improver, change, base, alone[change.what], change in made, turns.why(change, made, alone[change.what]))
        for change in changes
    ]
    rows = _with_what_follows(rows, block, final)
    rows.sort(key=lambda row: not row.recommended)
    return rows, final, keys


@dataclass(frozen=True, slots=True)
class ChangesInTurn:
    """Makes changes one after another, and says why one is made or left out.

    Attributes:
        improver: Simulates deployments.
        base: The keys of the present deployment.
        today: The present deployment as simulated.
        changes: All changes, the most useful alone first.
    """

    improver: Improver
    base: Mapping[str, Any]
    today: EvaluatedPlan | str
    changes: Sequence[Change]

    def keys(self, made: Sequence[Change]) -> Mapping[str, Any]:
        """Return the keys of the present deployment with some changes."""
        keys = self.base
        for change in made:
            keys = with_keys(keys, change.after)
        return keys

    def made(self) -> list[Change]:
        """Return the changes that the new command has.

        The most useful ones alone come first, and those that bring more than a tie stay. Where they stay behind all
        changes together, all are made. Those without which the deployment is no worse are then taken back.
        """
        made = self._with_more([])
        if len(made) < len(self.changes):
            self.improver.report("all changes together")
            if self.improver.better(self._entry(self.changes), self._entry(made)):
                made = list(self.changes)
        return self._with_more(self._needed(made))

    def why(self, change: Change, made: Sequence[Change], alone: EvaluatedPlan | str) -> str:
        """Return why a change without a gain alone is made, or why one is left out; empty for a gain alone."""
        others = [c for c in made if c is not change]
        if change not in made:
            beside = f" beside {_listed(others)}" if others else ""
            return f"left out: it brings no more than {percent(TIE)}{beside}{self._despite(alone)}"
        if not others or self.improver.better(alone, self.today):
            return ""
        without = self._entry(others)
        if isinstance(without, str):
            lacks = f"the deployment cannot serve the load ({without})"
        elif not self.improver.meets(without):
            lacks = "the objectives are missed"
        else:
            lacks = f"the deployment is worse by more than {percent(TIE)}"
        return f"no gain alone, but needed with {_listed(others)}: without it {lacks}"

    def _despite(self, alone: EvaluatedPlan | str) -> str:
        """Return what else a change brings, a higher capacity or less energy, and why it is left out nevertheless."""
        if isinstance(alone, str) or isinstance(self.today, str) or not self.improver.request.given:
            return ""
        gains = []
        before, after = (entry.capacity_requests_per_s or 0.0 for entry in (self.today, alone))
        if after > before * (1 + TIE):
            gains.append(f"serves {digits(after)} requests/s, not {digits(before)}")
        before, after = _joules(self.today), _joules(alone)
        if 0 < after < before * (1 - TIE):
            gains.append(f"takes {joules(after)} per output token, not {joules(before)}")
        if not gains:
            return ""
        objective = self.improver.request.objective
        then = ", and capacity counts only at equal cost" if objective == "cost" else ""
        return f"; alone it {', and '.join(gains)}, but the objective is {objective}{then}"

    def _entry(self, made: Sequence[Change]) -> EvaluatedPlan | str:
        return self.improver.entry(self.keys(made))

    def _with_more(self, made: list[Change]) -> list[Change]:
        """Return changes with each further one that brings more than a tie."""
        for change in self.changes:
            if change in made:
                continue
            self.improver.report(f"with {change.what}")
            if self.improver.better(self._entry([*made, change]), self._entry(made)):
                made = [*made, change]
        return made

    def _needed(self, made: list[Change]) -> list[Change]:
        """Return changes without those that are not needed: the others are as good up to a tie."""
        whole, kept = self._entry(made), made
        for change in reversed(made):
            rest = [c for c in kept if c is not change]
            if not rest:
                break
            self.improver.report(f"without {change.what}")
            entry = self._entry(rest)
            if not self.improver.better(whole, entry) and self.improver.better(entry, self.today):
                kept = rest
        return kept


def _listed(changes: Sequence[Change]) -> str:
    return ", ".join(change.what for change in changes)


def _row(
    improver: Improver,
    change: Change,
    base: Mapping[str, Any],
    alone: EvaluatedPlan | str,
    recommended: bool,
    why: str,
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
        why=why,
    )


def _with_what_follows(rows: list[ChangeRow], block: Mapping[str, Any], final: EvaluatedPlan | str) -> list[ChangeRow]:
    """Return the rows with one for each key that differs in the new deployment because an engine derives it."""
    if isinstance(final, str):
        return rows
    now, stated = final.plan.deployment, {key for row in rows if row.recommended for key in row.keys}
    keys = [key for key in (*SINGLE, LENGTH_KEY) if key not in stated and now.get(key) != block.get(key)]
    follow = [
        ChangeRow(
            what=key,
            keys={key: {"from": block.get(key), "to": now.get(key)}},
            flags=[],
            alone=None,
            why_not_alone=_FOLLOWS,
            recommended=True,
            why=_FOLLOWS,
        )
        for key in keys
    ]
    return [row for row in rows if row.what not in keys] + follow


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


def _new_notices(today: EvaluatedPlan | str, final: EvaluatedPlan | str) -> list[str]:
    """Return the notices about the improved deployment, such as those on its precisions, that today's does not have."""
    if isinstance(final, str):
        return []
    known = [] if isinstance(today, str) else today.plan.notices
    return [notice for notice in final.plan.notices if notice not in known]


def _writable(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a deployment as deployment.yaml holds them, without those at their defaults."""
    written = deployment_of_keys(dict(keys), _WHERE).model_dump(mode="json")
    defaults = {name: f.default for name, f in Deployment.model_fields.items()}
    return {key: value for key, value in written.items() if key in ("model", "engine") or value != defaults.get(key)}
