"""A comparison on the terminal, as JSON, and as a table for the docs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from calibration.accuracy.measured_run import STATS
from catalogs.errors import InputError
from catalogs.ui.terminal import open_console
from catalogs.ui.words import percent
from simulator.verify.comparison import THROUGHPUT, ComparisonLine
from simulator.verify.session import Verification


def print_verification(found: Verification) -> None:
    """Print one table: measured times by trial and metric, and below each the error of the simulation."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    console = open_console()
    subject = found.subject.deployment
    version = f" {found.calibration.engine_version}" if found.calibration.engine_version else ""
    console.print(f"{subject.engine}{version} serving {found.calibration.model}, driven by {found.client}")
    size = f"{found.effort.size.requests} requests per trial, {found.effort.repeats} repeats"
    console.print(f"{size}; milliseconds ± half the spread of repeats;")
    console.print("below each, the errors of the simulation for each way of calibration\n")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for title in ("trial", "", *STATS):
        table.add_column(title, justify="left" if title in ("trial", "") else "right", no_wrap=True)
    for row in _blocks(found):
        table.add_row(*map(Text.from_markup, row))
    console.print(table)
    for each in found.by_length:
        console.print(each.words)
    for text in (*verdict(found), *(f"note: {text}" for text in found.compiled.notices)):
        console.print(text)


def _blocks(found: Verification) -> Iterator[list[str]]:
    """Yield rows for each trial and metric: measured values with noise, then the error for each way of calibration."""
    last, by_name = "", {(line.trial, line.metric, line.stat): line for line in found.lines}
    for trial, metric in dict.fromkeys((line.trial, line.metric) for line in found.lines):
        own = [by_name.get((trial, metric, stat)) for stat in STATS]
        first, last = "" if trial == last else trial, trial
        yield [first, metric, *("" if x is None else f"{_number(x)} [dim]±{percent(x.noise)}[/]" for x in own)]
        for way in found.ways:
            yield ["", f"  [dim]{way}[/]", *("" if x is None else _error(x, way) for x in own)]


def _number(line: ComparisonLine) -> str:
    value = line.measured if line.metric == THROUGHPUT else line.measured * 1e3
    return f"{value:.3g}" if line.metric != THROUGHPUT and value < 999.5 else f"{value:.0f}"


def _error(line: ComparisonLine, way: str) -> str:
    met = line.met(way)
    text = percent(line.error(way), 1, signed=True)
    return text if met is None else f"[{'green' if met else 'bold red'}]{text}[/]"


def verdict(found: Verification) -> list[str]:
    """Return the results of the table, and a warning if other processes used the machine."""
    texts, judged = [], sum(line.bar is not None for line in found.lines)
    for way in found.ways:
        missed = found.missed(way)
        names = [f"{line.trial} {line.metric} {line.stat} {percent(line.error(way), signed=True)}" for line in missed]
        met = f"{way}: {judged - len(missed)} of {judged} within their bars"
        texts.append(f"{met}; {', '.join(names)}" if names else met)
    if found.contended:
        cores = f"other processes used {found.others_cores:.1f} cores in the meantime"
        texts.append(f"NOT A FAIR MEASUREMENT: {cores}; measure again on a quiet machine")
    return texts


def document(found: Verification) -> dict[str, Any]:
    """Return the whole comparison for other programs."""
    return {
        "schema_version": 1,
        "engine": found.subject.deployment.engine,
        "engine_version": found.calibration.engine_version,
        "model": found.calibration.model,
        "hardware": found.calibration.hardware,
        "deployment": found.subject.deployment.model_dump(),
        "client": found.client,
        "requests": found.effort.size.requests,
        "repeats": found.effort.repeats,
        "others_cores": found.others_cores,
        "contended": found.contended,
        "operators": found.compiled.bundle.name,
        "engine_calibration": found.calibration.model_dump(mode="json"),
        "ways": list(found.ways),
        "met": {way: not found.missed(way) for way in found.ways},
        "lines": [_line(line, found.ways) for line in found.lines],
        "by_length": [each.block() for each in found.by_length],
        "notices": [*found.compiled.notices, *verdict(found)],
    }


def _line(line: ComparisonLine, ways: tuple[str, ...]) -> dict[str, Any]:
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
    """Return the lines that have a bar as a table for the docs: measured value, noise, and the error of each way."""
    subject, size = found.subject.deployment, found.effort.size
    name = f"{subject.engine} {found.calibration.engine_version}".strip()
    unit = found.compiled.resolved.hardware.accelerator.full_name
    subtitle = f"{name}, {found.client}, {unit}, {found.calibration.as_of}"
    lengths = f"{size.lengths.input_tokens} in and {size.lengths.output_tokens} out, each half to one and a half"
    first = f"{subtitle}: {size.requests} requests per trial of {lengths} tokens, {found.effort.repeats} repeats.\n"
    heads = ["trial", "statistic", "measured", "noise", *found.ways, "bar"]
    rows = ["| " + " | ".join(heads) + " |", "|---|---|" + "---:|" * (len(heads) - 2)]
    for line in found.lines:
        if line.bar is not None:
            errors = [
                percent(line.error(w), 1, signed=True) + ("" if line.met(w) else " **missed**") for w in found.ways
            ]
            value = f"{line.measured:.1f}" if line.metric == THROUGHPUT else f"{line.measured * 1e3:.4g} ms"
            cells = [line.trial, f"{line.metric} {line.stat}", value, percent(line.noise, 1)]
            rows.append("| " + " | ".join([*cells, *errors, percent(line.bar)]) + " |")
    results = "\n".join(f"- {text}" for text in verdict(found))
    return "\n".join([first, *rows]) + f"\n\n{results}\n"


def place(found: Verification, page: str) -> str:
    """Return `page` with the comparison between its marks for this engine.

    Raises:
        InputError: The page has no marks for this engine.
    """
    before, after = _around(page, found.subject.deployment.engine)
    return f"{before}{markdown(found)}{after}"


def check_place(page: Path, engine: str) -> None:
    """Check that a page has marks for a comparison of this engine.

    Raises:
        InputError: There is no such page, or it has no marks for this engine.
    """
    if not page.is_file():
        raise InputError("the page does not exist", str(page))
    _around(page.read_text(encoding="utf-8"), engine)


def _around(page: str, engine: str) -> tuple[str, str]:
    """Return the text before and after a comparison, with its marks."""
    start, end = f"<!-- verify {engine} -->\n", "<!-- /verify -->"
    before, mark, rest = page.partition(start)
    _, closing, after = rest.partition(end)
    if not mark or not closing:
        raise InputError("the page has no place for this comparison", engine, hint=f"add {start.strip()} and {end}")
    return before + start, end + after
