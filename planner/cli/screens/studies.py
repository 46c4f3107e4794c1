"""The screens of `plan compare`, `plan whatif`, `plan explain`, `plan spares`, `plan front` and `plan deploy`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from catalogs.ui.charts import number_text
from catalogs.ui.terminal import LABEL, Line, open_console, show_lines, text_table
from catalogs.ui.words import (
    digits,
    dollars,
    duration_text,
    grams,
    joules,
    percent,
    rate,
    seconds,
    sure_percent,
    watt_hours,
    with_sign,
)
from planner.deploy.package import Package
from planner.report.evidence import growth_row
from planner.search.pareto_answer import ParetoAnswer, best_balance_words, footnotes, shown, shown_unit
from planner.sections.section import level_words
from planner.studies.bottleneck import gain_text, used_text
from planner.studies.capacity_growth import CAPACITY_GOAL
from planner.studies.comparison import Figure, PlanComparison
from planner.studies.explain import Explanation, cheapest_words
from planner.studies.spares import SparesDocument, SparesTried
from planner.studies.whatif import WhatIf

#: Maximum length of a value in a table of differences, in characters.
_CELL: Final = 26

#: Relative change from which it is written as a factor: ten times the value.
_LEAST_AS_FACTOR: Final = 9.0

_TEXT: Final[Mapping[str, Callable[[float | None], str]]] = {
    "rate": rate,
    "jobs": partial(rate, unit="jobs/s"),
    "seconds": seconds,
    "usd": dollars,
    "joules": joules,
    "watt_hours": watt_hours,
    "grams": grams,
    "share": percent,
    "confidence": sure_percent,
}


def show_comparison(c: PlanComparison, names: tuple[str, str]) -> None:
    """Print the comparison of two answers; `names` are the files of A and B."""
    open_console().print(f"A: {names[0]}\nB: {names[1]}")
    better = [f"{side} is better at: {', '.join(c.better_at(side)) or 'no figure'}" for side in ("A", "B")]
    _show_figures(c, ("A", "B"), [*better, *(f"Note: {note}" for note in c.notes)])


def show_whatif(found: WhatIf) -> None:
    """Print the changes, the figures before and after, and every objective that is missed."""
    missed = [f"{'Missed' if i == 0 else '      '}  {line}" for i, line in enumerate(found.breaks)]
    notes = [f"Note: {note}" for note in found.comparison.notes]
    _show_figures(found.comparison, ("planned", "changed"), [*notes, *(missed or ["Every objective is still met."])])


def _show_figures(c: PlanComparison, heads: tuple[str, str], remarks: Sequence[str]) -> None:
    """Print a table of the differences and a table of the figures of two plans, and then remarks."""
    console = open_console()
    if c.differs:
        console.print(text_table(("differs", *heads), [(w, _cut(a), _cut(b)) for w, a, b in c.differs], 1, ""))
    else:
        console.print("Request and plan are the same.")
    if c.figures:
        console.print(text_table(("figure", *heads, "change", "better"), [_cells(f, heads) for f in c.figures], 1, ""))
    for remark in remarks:
        console.print(remark)


def _cells(f: Figure, heads: tuple[str, str]) -> tuple[str, ...]:
    values = ("none" if value is None else _TEXT[f.unit](value) for value in (f.a, f.b))
    return (f.name, *values, change_text(f), {"A": heads[0], "B": heads[1]}.get(f.better, f.better))


def change_text(f: Figure) -> str:
    """Return the change of a figure: in per cent, as a factor from ten times on, or in points if it is a share.

    It is empty where it is not known.
    """
    unit = "points" if f.unit in ("share", "confidence") else "%"  # of shares, percentage points
    if f.change is not None and unit == "%" and f.change >= _LEAST_AS_FACTOR:
        return f"× {digits(1 + f.change)}"
    return "" if f.change is None else f"{with_sign(100 * f.change)} {unit}"


def _cut(text: str) -> str:
    return text if len(text) <= _CELL else text[: _CELL - 3] + "..."


def show_explanation(e: Explanation) -> None:
    """Print why a plan was chosen, why not its alternatives, and what limits it."""
    console = open_console()
    show_lines(("" if i else "Why", line) for i, line in enumerate(e.why))
    if e.alternatives:
        console.print(text_table(("alternative", "why not"), e.alternatives, 2, "Alternatives"))
    show_lines([("Bottleneck", e.binds), *(("To raise it" if not i else "", text) for i, text in enumerate(e.advice))])
    if e.uses:
        uses = [(u.resource, gain_text(u), used_text(u), u.of, "binds" if u.binds else "") for u in e.uses]
        console.print(text_table(("10 % more of", "capacity", "used now", "share of", ""), uses, 1, ""))
    if e.growth is not None:
        title = f"{percent(CAPACITY_GOAL - 1)} more capacity: {e.growth.words}, simulated"
        head = ("change", "meets objectives", "cost per hour", "difference")
        console.print(text_table(head, [growth_row(c) for c in e.growth.changes], 1, title))
        best = e.growth.cheapest
        show_lines([("Cheapest", "no change that was tried reaches it" if best is None else cheapest_words(best))])


def show_spares(found: SparesDocument) -> None:
    """Print the document of `plan spares`."""
    show_lines(_spares_lines(found), ("Recommended", "NO"))


def _spares_lines(found: SparesDocument) -> Iterator[Line]:
    yield (
        "Failures",
        f"a replica fails every {duration_text(found.mtbf_s)} and restarts in {duration_text(found.restart_s)}: "
        f"available {percent(found.availability, 3)} of the time; {rate(found.requests_per_s)}, "
        f"{', '.join(found.slo)}",
    )
    required, window = 100 * found.windows_must_hold, duration_text(found.window_s)
    if found.spares is None or found.replicas is None:
        missed = f"{100 - required:.3g} % of windows of {window}"
        sure = f"with {percent(found.confidence)} confidence"
        no = f"{sure}, {found.most} spare replicas still miss the objectives in more than {missed}"
        fewer = found.spares_as_simulated
        yield "NO", no if fewer is None else f"{no}; with steps as simulated {_spares(fewer)} would be enough"
    else:
        meets = f"meet the objectives in at least {required:.3g} % of windows of {window}"
        yield "Recommended", f"{_recommended(found)} {meets}{_as_simulated(found)}"
    late = f"{100 * found.late_allowed:.3g} %"
    enough = f"{_spares(found.formula)} keep enough replicas up for all but {late} of the time, and {late} of requests"
    yield "Formula", f"{enough} may be late; the formula ignores queues, so the simulation decides"
    for row in found.tried:
        yield "Simulated", _tried_words(row, found.ci_level)
    if found.usd_per_hour is not None:
        yield "Cost", f"${found.usd_per_hour:.2f}/h, ${found.usd_per_hour_planned:.2f}/h as planned"
    if found.survive is not None:
        yield "Note", _unasked(found, found.survive)
    yield "Note", "replicas fail independently; failures of several at once (a node, a release) are not included"


def _recommended(found: SparesDocument) -> str:
    """Return the recommended replicas in words."""
    replicas = found.replicas or 0
    more = replicas - found.planned_replicas
    planned = "as planned" if not more else f"{abs(more)} {'more' if more > 0 else 'fewer'} than planned"
    total = _kinds(found.replicas_by_pool) or f"{replicas} in total"
    return f"{found.needed} required and {found.spares} spare replicas ({total}, {planned})"


def _unasked(found: SparesDocument, survive: str) -> str:
    """Return that the loss which the answer had to survive is no part of this question."""
    text = (
        f"the answer requires the objectives with {survive} at any time (--survive), which is no part of this question"
    )
    fewer = found.replicas is not None and found.replicas < found.planned_replicas
    return f"{text}: keep the {found.planned_replicas} planned replicas where it still applies" if fewer else text


def _as_simulated(found: SparesDocument) -> str:
    """Return the effect of the calibration error on the recommended replicas, as the end of their sentence."""
    slower = (
        f"steps {percent(found.slow_factor - 1)} slower than simulated" if found.slow_factor > 1 else "no slower steps"
    )
    text = f" with {percent(found.confidence)} confidence (calibration error: {slower})"
    if found.held_as_simulated is None:
        return text
    text += f"; with steps as simulated, in {percent(found.held_as_simulated, 1)}"
    fewer = found.spares_as_simulated
    return text if fewer is None or fewer == found.spares else f"{text}, and {_spares(fewer)} would be enough"


def _kinds(by_pool: Mapping[str, int]) -> str:
    """Return replicas by kind: "2 prefill + 1 decode"; empty where there is only one kind."""
    return " + ".join(f"{n} {role}" for role, n in by_pool.items())


def _tried_words(row: SparesTried, level: float) -> str:
    shares = {down: "unknown" if share is None else percent(share, 2) for down, share in row.late_by_down.items()}
    late = ", ".join(f"{share} with {down} down" for down, share in shares.items())
    interval = level_words(level, f"{percent(row.ci_low, 1)} to {percent(row.ci_high, 1)}")
    windows = f"{percent(row.windows_held, 1)} of windows meet the objectives ({interval})"
    up = f"enough replicas available {percent(row.enough_up, 3)} of the time"
    verdict = "enough" if row.holds else "not enough"
    kinds = f" ({_kinds(row.by_pool)})" if row.by_pool else ""
    return f"{_spares(row.spares)}{kinds}: {windows}: {verdict}; {up}; late requests: {late}"


def _spares(n: int) -> str:
    return f"{n} spare{'' if n == 1 else 's'}"


def show_front(found: ParetoAnswer) -> None:
    """Print a Pareto front, sorted by its first objective."""
    console, request = open_console(), found.request
    names = " against ".join(axis.name for axis in found.axes)
    console.print(f"{request.model} on {request.hardware}, workload {found.workload.words}: {names}")
    for slo in found.limits:
        console.print(f"Every row meets with {percent(request.confidence)} confidence: {slo.words}")
    if found.members:
        head = ("deployment", "requests/s", *(f"{axis.name} ({shown_unit(axis)})" for axis in found.axes))
        rows = []
        for p, sample in found.members:
            values = (shown(axis, value) for axis, value in zip(found.axes, sample.values, strict=True))
            name = f"{p.candidate.hardware.text}: {p.candidate.words}"
            rows.append((name, number_text(p.requests_per_s), *values))
        console.print(text_table(head, rows, 1, ""))
        console.print(best_balance_words(found))
    else:
        none = "no simulated deployment serves the load within every limit"
        console.print(f"NO: {none if found.result.samples else 'no deployment can meet every limit'}.")
    for note in footnotes(found):
        console.print(note)


def show_deployment(package: Package, folder: Path) -> None:
    """Print the files that were written, the steps to start the plan, and notes."""
    show_lines([("Deployment", package.words), ("Wrote", f"{folder}: {', '.join(sorted(package.files))}")])
    for i, step in enumerate((f"cd {folder}", *package.steps)):
        print(f"{'' if i else 'Start':<{LABEL}}{step}")  # users copy the commands, so a line never breaks
    show_lines([("Verify", "./verify.sh"), *(("Note", note) for note in package.notes)])
