"""The screen of `plan front`: the Pareto front, sorted by its first objective."""

from __future__ import annotations

from catalogs.ui.charts import number_text
from catalogs.ui.terminal import open_console, text_table
from planner.search.pareto_search import ParetoAnswer, footnotes, shown, shown_unit


def show(found: ParetoAnswer) -> None:
    """Print a Pareto front."""
    console = open_console()
    names = " against ".join(axis.name for axis in found.axes)
    asked = found.request
    console.print(f"{asked.model} on {asked.hardware}, workload {asked.workload}: {names}")
    for slo in found.limits:
        console.print(f"Every row meets: {slo.words}")
    if found.members:
        head = ("deployment", "requests/s", *(f"{axis.name} ({shown_unit(axis)})" for axis in found.axes))
        rows = [
            (
                f"{p.candidate.hardware.text}: {p.candidate.words}",
                number_text(p.requests_per_s),
                *(shown(axis, v) for axis, v in zip(found.axes, look.values, strict=True)),
            )
            for p, look in found.members
        ]
        console.print(text_table(head, rows, 1, ""))
    else:
        carried = "no simulated deployment carries the load within every limit"
        console.print(f"NO: {carried if found.result.samples else 'no deployment can meet every limit'}.")
    for line in footnotes(found):
        console.print(line)
