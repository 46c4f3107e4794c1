"""The screen of `plan improve`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from catalogs.launch.reading.notes import WORTH_READING
from catalogs.ui.terminal import LABEL, Line, open_console, show_lines, text_table
from catalogs.ui.words import digits, dollars, human_s, joules, percent, rate, seconds, sure_percent
from planner.improve.document import ChangeRow, Figures, Improvement
from planner.problem.slo import parse_slos
from planner.search.candidate_tester import TIE

#: Most notes of the reader that fit on the screen.
MOST_NOTES: Final = 6


def show_improvement(found: Improvement) -> None:
    """Print what runs today, what to change, the new command and what it saves."""
    show_lines(_today(found))
    if found.changes:
        tightest = _tightest(found)
        head = ("change", "from", "to", "alone: meets", "requests/s", tightest, "$/h", "J/token", "")
        rows = [cell for change in found.changes for cell in _cells(change, tightest)]
        open_console().print(text_table(head, rows, 3, ""))
        show_lines(_reasons(found))
    show_lines(_result(found), ("Change", "Keep", "NO"))
    if found.feasible and found.improves:
        print(f"{'New command':<{LABEL}}{found.new_command}")  # users copy it, so the line never breaks
    show_lines(_remarks(found))


def _reasons(found: Improvement) -> Iterator[Line]:
    """Yield why changes are left out, and why some are made without a gain of their own."""
    for i, change in enumerate(row for row in found.changes if row.why):
        yield ("" if i else "Why"), f"{change.what}: {change.why}"


def _today(found: Improvement) -> Iterator[Line]:
    if found.today is None:
        yield "Today", f"cannot serve the load: {found.why_not_today}"
        return
    yield "Today", f"{found.today.words}: {_figures(found.today)}"
    yield "", _objectives(found, found.today)


def _objectives(found: Improvement, figures: Figures) -> str:
    limits = {slo.name: human_s(slo.limit_s) for slo in parse_slos(found.request["slo"])}
    values = [
        f"{name} {'no value' if value is None else human_s(value)} (limit {limits.get(name, '?')})"
        for name, value in figures.latencies_s.items()
    ]
    at = "" if figures.requests_per_s is None else f" at {rate(figures.requests_per_s)}"
    verdict = "meets the objectives" if figures.meets else "does not meet the objectives"
    sure = f" with {sure_percent(figures.probability_met)} confidence" if figures.meets else ""
    return f"{', '.join(values)}{at}: {verdict}{sure}"


def _figures(figures: Figures) -> str:
    capacity = figures.capacity_requests_per_s
    serves = "no rate meets the objectives" if capacity is None else f"serves {rate(capacity)}"
    known = serves if figures.usd_per_hour is None else f"{serves}, {dollars(figures.usd_per_hour)}/h"
    if figures.idle_accelerators:
        idle = figures.idle_accelerators
        known += f" ({idle} rented accelerator{'' if idle == 1 else 's'} idle, counted in the energy)"
    tokens = []
    if figures.usd_per_million_output_tokens is not None:
        tokens.append(f"{dollars(figures.usd_per_million_output_tokens)} per million output tokens")
    if figures.j_per_output_token is not None:
        tokens.append(f"{joules(figures.j_per_output_token)} per output token")
    if not tokens:
        return known
    given = figures.requests_per_s
    # it then serves more tokens than within the objectives, so that each costs less than it would there
    missed = given is not None and given > (capacity or 0.0)
    return known + (f"; at {rate(given)}, where the objectives are missed: " if missed else ", ") + ", ".join(tokens)


def _tightest(found: Improvement) -> str:
    """Return the first objective that the present deployment misses, or the first of all."""
    limits = {slo.name: slo.limit_s for slo in parse_slos(found.request["slo"])}
    known = {} if found.today is None else found.today.latencies_s
    missed = [name for name, value in known.items() if value is None or value > limits.get(name, value)]
    return (missed or list(limits))[0]


def _cells(change: ChangeRow, tightest: str) -> Iterator[tuple[str, ...]]:
    """Yield a row for each key of a change; the figures stand in the first."""
    for i, (key, values) in enumerate(change.keys.items()):
        before, after = (_value(values[side]) for side in ("from", "to"))
        if i:
            yield (f"  {key}", before, after, "", "", "", "", "", "")
            continue
        alone = change.alone
        use = "make it" if change.recommended else "left out"
        if alone is None:
            yield (key, before, after, "not alone", "", "", "", "", use)
            continue
        carried, latency = alone.capacity_requests_per_s, alone.latencies_s.get(tightest)
        capacity, value = "none" if carried is None else digits(carried), seconds(latency)
        usd = "" if alone.usd_per_hour is None else dollars(alone.usd_per_hour)
        used = "" if alone.j_per_output_token is None else joules(alone.j_per_output_token)
        yield (key, before, after, "yes" if alone.meets else "no", capacity, value, usd, used, use)


def _value(value: Any) -> str:
    if value is None:
        return "default"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _result(found: Improvement) -> Iterator[Line]:
    if not found.feasible:
        yield "NO", f"no deployment on this hardware meets the objectives: {found.infeasible or found.why_not_today}"
        nothing = "no change that was tried meets the objectives; try wider objectives, a lower --rate or --other-hw"
        for i, text in enumerate(found.what_would_meet_it or [nothing]):
            yield ("" if i else "Would meet"), text
        return
    if not found.improves or found.improved is None:
        yield "Keep", f"nothing on this hardware is better than the present command by more than {percent(TIE)}"
        return
    yield "Change", f"{found.improved.words}: {_figures(found.improved)}"
    yield "", _objectives(found, found.improved)
    yield from _saved(found)


def _saved(found: Improvement) -> Iterator[Line]:
    saves = found.saves
    if saves is None:
        return
    words = []
    if saves.usd_per_hour:
        words.append(f"{dollars(abs(saves.usd_per_hour))}/h {'less' if saves.usd_per_hour > 0 else 'more'}")
    if saves.share_of_cost:
        words.append(f"cost {percent(-saves.share_of_cost, signed=True)}")
    if saves.accelerators:
        count = abs(saves.accelerators)
        words.append(f"{count} {'fewer' if saves.accelerators > 0 else 'more'} accelerator{'' if count == 1 else 's'}")
    if saves.share_of_energy_per_token:
        words.append(f"energy per token {percent(-saves.share_of_energy_per_token, signed=True)}")
    if saves.capacity:
        words.append(f"capacity {percent(saves.capacity, signed=True)}")
    yield "Saves", ", ".join(words) or "latency only"


def _remarks(found: Improvement) -> Iterator[Line]:
    for note in (*found.notices, *found.command_notes):
        yield "Note", note
    for other in found.other_hardware:
        if other.figures is None:
            yield "Elsewhere", f"{other.hardware}: {other.reason or 'no plan'}"
        else:
            yield "Elsewhere", f"{other.figures.words}: {_figures(other.figures)}"
    important = [row for row in found.notes if row["kind"] in WORTH_READING]
    for row in important[:MOST_NOTES]:
        head = f"{row['flag']}: " if row["flag"] else ""
        yield "Read", f"{row['kind']}: {head}{row['text']}"
    if len(important) > MOST_NOTES:
        yield "Read", f"{len(important) - MOST_NOTES} more notes: --json FILE has all"
