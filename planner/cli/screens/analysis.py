"""The screen of `plan analyze`."""

from __future__ import annotations

from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from catalogs.ui.charts import si_text, time_text
from catalogs.ui.terminal import open_console
from planner.studies.step_analysis import headlines

_SHORT: Final = {"compute": "compute", "memory": "memory", "link": "link", "fixed cost": "fixed"}

_SHOWN: Final = 16


def show(document: dict[str, Any]) -> None:
    """Print the document of `plan analyze --json`."""
    console = open_console()
    if "published" in document:
        _published(console, document)
        return
    for line in headlines(document):
        console.print(line)
    console.print(_operators(document))
    console.print(_precisions(document))
    console.print(_scaling(document))
    for notice in document["notices"]:
        console.print(f"Note: {notice}")


def _table(*heads: str, words: int = 1) -> Table:
    """Return an empty table narrow enough for nine columns in 80 characters."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    for i, head in enumerate(heads):
        table.add_column(head, justify="left" if i < words else "right", no_wrap=True)
    return table


def _operators(document: dict[str, Any]) -> Table:
    table = _table("operator", "n", "FLOP", "bytes", "FLOP/B", "bound", "roofline", "time", "share")
    rows, total = document["operators"], document["step"]["device_s"]
    for row in rows[:_SHOWN]:
        table.add_row(*_cells(row, total))
    rest = rows[_SHOWN:]
    if rest:
        seconds = sum(r["seconds"] for r in rest)
        table.add_row(f"{len(rest)} more", "", "", "", "", "", "", time_text(seconds), f"{seconds / total:.0%}")
    return table


def _cells(row: dict[str, Any], total_s: float) -> list[str]:
    work = si_text(row["flops"], "") if row["flops"] else ""
    per_byte = row["flops_per_byte"]
    intensity = "" if not per_byte else f"{per_byte:,.0f}" if per_byte >= 100 else f"{per_byte:.3g}"
    times = (time_text(row["roofline_s"]), time_text(row["seconds"]), f"{row['seconds'] / total_s:.0%}")
    return [row["name"], f"{row['count']:g}", work, si_text(row["bytes"], "B"), intensity, _SHORT[row["bound"]], *times]


def _precisions(document: dict[str, Any]) -> Table:
    table = _table("bits", "weights", "KV", "moved", "roofline", "engine", "weights stored", "KV stored", "", words=3)
    for p in document["precisions"]:
        held = p["held"]
        fits = "fits" if held["kv_batch_bytes"] <= held["kv_room_bytes"] else "does not fit"
        sizes = (si_text(held["weights_bytes"], "B"), si_text(held["kv_batch_bytes"], "B"), fits)
        times = (time_text(p["time"]["roofline_s"]), time_text(p["time"]["engine_s"]))
        table.add_row(str(p["bits"]), p["weight_dtype"], p["kv_dtype"], si_text(p["bytes"], "B"), *times, *sizes)
    return table


def _scaling(document: dict[str, Any]) -> Table:
    table = _table("scaling          ", "roofline", "engine", "relative to this step", "tokens/s")
    this_step_s = document["step"]["engine_s"]
    for s in document["scaling"]:
        t = s["time"]
        name = f"{s['quantity']} {s['value']:,}"
        ratio = f"x {t['engine_s'] / this_step_s:.2f}"
        table.add_row(name, time_text(t["roofline_s"]), time_text(t["engine_s"]), ratio, f"{s['tokens_per_s']:,.0f}")
    return table


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
    table = _table("", *(f"{v['bits']} bit" for v in views))
    for key, words in PUBLISHED_WORDS.items():
        unit = ", B" if key.endswith("_bytes") else ", ms" if key == "seconds" else ""
        values = [f"{v[key] * 1e3:.6f}" if key == "seconds" else f"{v[key]:,.0f}" for v in views]
        table.add_row(words + unit, *values)
    console.print(table)
