"""A front on the terminal: what nothing beats, the first objective ascending."""

from __future__ import annotations

from catalogs.console import open_console
from planner.axes import Axis
from planner.front import RESOLVED
from planner.front_answer import FrontAnswer
from planner.report.style import number
from planner.slo import human_s
from planner.terminal import grid


def show(found: FrontAnswer) -> None:
    """Print it."""
    console = open_console()
    names = " against ".join(axis.name for axis in found.axes)
    asked = found.request
    console.print(f"{asked.model} on {asked.hardware}, workload {asked.workload}: {names}")
    for slo in found.limits:
        console.print(f"Every row holds: {slo.words}")
    if found.members:
        head = ("deployment", "requests/s", *(f"{axis.name} ({shown_unit(axis)})" for axis in found.axes))
        rows = [
            (
                f"{p.candidate.hardware}: {p.candidate.words}",
                number(p.requests_per_s),
                *(shown(axis, v) for axis, v in zip(found.axes, look.values, strict=True)),
            )
            for p, look in found.members
        ]
        console.print(grid(head, rows, 1, ""))
    else:
        what = "Nothing that was simulated keeps up and holds" if found.result.looks else "No deployment can hold"
        console.print(f"NO: {what} every limit.")
    for line in footnotes(found):
        console.print(line)


def shown_unit(axis: Axis) -> str:
    return "time" if axis.slo is not None else axis.unit


def shown(axis: Axis, value: float) -> str:
    """With the unit of a time, which differs from row to row."""
    return human_s(value) if axis.slo is not None else number(value)


def footnotes(found: FrontAnswer) -> list[str]:
    """What the figures are, and how they were found."""
    s = found.search
    lines = [f"{axis.name}: {axis.words} ({axis.unit})" for axis in found.axes]
    if s["interrupted"]:
        end = "interrupted"
    elif s["exhausted"]:
        end = f"no other point is thought to be ahead by more than {RESOLVED:.0%}"
    else:
        end = f"stopped at --trials {found.request.trials}: more may be found with more"
    lines.append(
        f"Search: {s['n_candidates']} candidates, {s['n_bounded_out']} ruled out by bounds, {s['n_points']} points "
        f"(deployments at loads), {s['n_simulated']} simulated ({s['n_pruned']} stopped early, {s['n_resumed']} "
        f"resumed), {s['n_requests']} requests, seed {s['seed']}, {s['seconds']:.1f} s; {end}"
    )
    return [*lines, *(f"Note: {notice}" for notice in found.notices)]
