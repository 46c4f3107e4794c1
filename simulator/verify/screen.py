"""A comparison on the screen, as JSON, and as a table for the docs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from simulator.verify.compare import THROUGHPUT, Line
from simulator.verify.session import Verification


def print_verification(found: Verification) -> None:
    """One table: a row for each statistic, columns for each way."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    subject = found.subject.deployment
    version = f" {found.calibration.engine_version}" if found.calibration.engine_version else ""
    console.print(f"[bold]{subject.engine}{version}[/bold] serving {found.calibration.model}, driven by {found.client}")
    console.print(
        f"{found.requests} requests a trial, {found.repeats} repeats; noise: half the spread of the repeats\n"
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("trial", "", "measured", "noise"):
        table.add_column(title, justify="left" if title in ("trial", "") else "right")
    for way in found.ways:
        table.add_column(way, justify="right")
        table.add_column("error", justify="right")
    table.add_column("bar", justify="right")
    for row in _rows(found):
        table.add_row(*row)
    console.print(table)
    for text in verdict(found):
        console.print(text, markup=False)


def verdict(found: Verification) -> list[str]:
    """What the table amounts to, and what to know before trusting it."""
    said = []
    for way in found.ways:
        missed = found.missed(way)
        judged = [line for line in found.lines if line.bar is not None]
        names = ", ".join(f"{line.trial} {line.metric} {line.stat} {line.error(way):+.0%}" for line in missed)
        said.append(
            f"{way}: {len(judged) - len(missed)} of {len(judged)} within their bars" + (f"; {names}" if names else "")
        )
    if found.contended:
        said.append(
            f"NOT A FAIR MEASUREMENT: other processes used {found.others_cores:.1f} cores meanwhile; "
            "measure again on a quiet machine"
        )
    return said


def document(found: Verification) -> dict[str, Any]:
    """Everything, for other programs."""
    return {
        "schema_version": 1,
        "engine": found.subject.deployment.engine,
        "engine_version": found.calibration.engine_version,
        "model": found.calibration.model,
        "hardware": found.calibration.hardware,
        "deployment": found.subject.deployment.model_dump(),
        "client": found.client,
        "requests": found.requests,
        "repeats": found.repeats,
        "others_cores": found.others_cores,
        "contended": found.contended,
        "operators": found.plant.bundle.name,
        "engine_calibration": found.calibration.model_dump(mode="json"),
        "ways": list(found.ways),
        "met": {way: not found.missed(way) for way in found.ways},
        "lines": [_line(line, found.ways) for line in found.lines],
        "notices": [*found.plant.notices, *verdict(found)],
    }


def _line(line: Line, ways: tuple[str, ...]) -> dict[str, Any]:
    return {
        "trial": line.trial,
        "metric": line.metric,
        "stat": line.stat,
        "measured": line.measured,
        "noise_fraction": line.noise,
        "bar_fraction": line.bar,
        "simulated": {w: {"value": line.simulated[w], "error": line.error(w), "met": line.met(w)} for w in ways},
    }


def markdown(found: Verification) -> str:
    """The judged lines as a table for the docs."""
    heads = ["trial", "statistic", "measured", "noise", *(x for way in found.ways for x in (way, "error")), "bar"]
    rows = ["| " + " | ".join(heads) + " |", "|---|---|" + "---:|" * (len(heads) - 2)]
    trial = ""
    for row in _rows(found, judged_only=True, plain=True):
        trial = row[0] or trial
        rows.append("| " + " | ".join([trial, *row[1:]]) + " |")
    return "\n".join(rows) + "\n"


def _rows(found: Verification, judged_only: bool = False, plain: bool = False) -> Iterator[list[str]]:
    last = ""
    for line in found.lines:
        if judged_only and line.bar is None:
            continue
        shown = "" if line.trial == last else line.trial
        last = line.trial
        cells = [
            shown,
            f"{line.metric} {line.stat}".removesuffix(" mean")
            if line.metric == THROUGHPUT
            else f"{line.metric} {line.stat}",
        ]
        cells += [_value(line, line.measured), f"{line.noise:.1%}"]
        for way in found.ways:
            error = f"{line.error(way):+.1%}"
            met = line.met(way)
            if not plain and met is not None:
                error = f"[{'green' if met else 'red'}]{error}[/]"
            cells += [_value(line, line.simulated[way]), error]
        yield [*cells, "" if line.bar is None else f"{line.bar:.0%}"]


def _value(line: Line, value: float) -> str:
    return f"{value:.1f}" if line.metric == THROUGHPUT else f"{value * 1e3:.1f} ms"
