"""The screen of `plan analyze`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from catalogs.ui.charts import number_text, si_text, time_text
from catalogs.ui.terminal import open_console
from catalogs.ui.words import percent
from planner.networks.report.analysis import batch_rows, format_rows, stage_rows
from planner.networks.request import MODES
from planner.networks.studies.analysis import job_headlines
from planner.report.analysis_page import precision_rows, scaling_rows
from planner.studies.step_analysis import headlines

#: Most characters of the name of an operator.
_WIDEST: Final = 36

#: Number of operators that each have a row.
_SHOWN: Final = 16


def show(document: dict[str, Any]) -> None:
    """Print the document of `plan analyze --json`."""
    console = open_console()
    if document.get("kind") == "network":
        _job(console, document)
        return
    if "published" in document:
        _published(console, document)
        return
    for line in headlines(document):
        console.print(line)
    head = ("operator", "n", "FLOP", "bytes", "FLOP/B", "bound", "roofline", "time", "share")
    console.print(_table(head, _operator_rows(document)))
    sizes = ("bits", "weights", "KV", "moved", "roofline", "engine", "weights stored", "KV stored", "fits")
    console.print(_table(sizes, precision_rows(document), words=3))
    scaled = ("scaling          ", "roofline", "engine", "relative to this step", "tokens/s")
    console.print(_table(scaled, scaling_rows(document)))
    for notice in document["notices"]:
        console.print(f"Note: {notice}")


def _job(console: Console, document: dict[str, Any]) -> None:
    """Print one job of a network."""
    for line in job_headlines(document):
        console.print(line)
    stages = ("stage", "runs", "time", "share", "kernels", "host", "waits for")
    console.print(_table(stages, stage_rows(document)))
    head = ("operator", "n", "FLOP", "bytes", "FLOP/B", "bound", "roofline", "time", "share")
    console.print(_table(head, _operator_rows(document)))
    console.print(_table(("jobs together", "time", "jobs/s", "memory", "fits"), batch_rows(document)))
    console.print(_table(("format", *MODES), format_rows(document)))
    for notice in document["notices"]:
        console.print(f"Note: {notice}")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> Table:
    """Return a table narrow enough for nine columns in 80 characters."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    for i, name in enumerate(head):
        table.add_column(name, justify="left" if i < words else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _operator_rows(document: dict[str, Any]) -> list[tuple[str, ...]]:
    operators, total_s = document["operators"], sum(row["seconds"] for row in document["operators"])
    rows: list[tuple[str, ...]] = []
    for row in operators[:_SHOWN]:
        work = (si_text(row["flops"], ""), number_text(row["flops_per_byte"])) if row["flops"] else ("", "")
        times = (time_text(row["roofline_s"]), time_text(row["seconds"]), percent(row["seconds"] / total_s))
        cells = (f"{row['count']:g}", work[0], si_text(row["bytes"], "B"), work[1], row["bound"].removesuffix(" cost"))
        rows.append((_short(row["name"]), *cells, *times))
    if len(operators) > _SHOWN:
        rest_s = sum(row["seconds"] for row in operators[_SHOWN:])
        count = f"{len(operators) - _SHOWN} more"
        rows.append((count, *[""] * 6, time_text(rest_s), percent(rest_s / total_s)))
    return rows


def _short(name: str) -> str:
    """Return the name of an operator within the width of its column: the end says more than the beginning."""
    return name if len(name) <= _WIDEST else f"...{name[-_WIDEST + 3 :]}"


PUBLISHED_WORDS: Final = {
    "operations": "operations",
    "seconds": "time at the memory roofline, no launch cost",
    "load_activation_bytes": "load activations",
    "load_kv_bytes": "load KV",
    "load_weights_bytes": "load weights",
    "store_activation_bytes": "store activations",
    "store_kv_bytes": "store KV",
    "memory_access_bytes": "memory access",
    "held_kv_cache_bytes": "KV cache in memory",
    "held_temporary_activation_bytes": "temporary activations in memory",
    "held_weights_bytes": "weights in memory",
}


def _published(console: Console, document: dict[str, Any]) -> None:
    q, views = document["question"], document["published"]
    console.print(f"{q['model']} on {q['hardware']}: one decode step, batch {q['batch']}, context {q['context']}")
    console.print("Conventions of the published table: lm_head is counted once, and there is no FlashAttention.")
    rows = []
    for key, words in PUBLISHED_WORDS.items():
        unit = ", B" if key.endswith("_bytes") else ", ms" if key == "seconds" else ""
        values = [f"{v[key] * 1e3:.6f}" if key == "seconds" else f"{v[key]:,.0f}" for v in views]
        rows.append((words + unit, *values))
    console.print(_table(("", *(f"{v['bits']} bit" for v in views)), rows))
