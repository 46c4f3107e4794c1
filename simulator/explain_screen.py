"""An explanation on the terminal: where requests spent their time, and what bound the run."""

from __future__ import annotations

from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from simulator.explain import PERCENTILES
from simulator.speculative_metrics import speculative_line

_PHASES: Final = {
    "client_path": "client path",
    "api_server": "API server",
    "lost": "lost with a replica",
    "no_replica": "no replica there",
    "wait_seat": "waits for a seat",
    "wait_blocks": "waits for blocks",
    "wait_turn": "waits for budget",
    "wait_step": "waits for a step",
    "prefill": "prefill",
    "transfer": "KV transfer",
    "decode": "decode",
    "stalled_by_prefill": "prefill of others",
    "preemption": "preemption",
}
_BOUNDS: Final = {
    "kv_capacity": "KV capacity",
    "queue": "seats",
    "compute": "compute",
    "memory_bandwidth": "memory bandwidth",
    "network": "network",
    "fixed_cost": "fixed cost per kernel",
    "host": "host",
    "idle": "idle",
}
#: Shares below are not worth a line.
SMALL: Final = 0.0005


def print_explanation(console: Console, block: dict[str, Any]) -> None:
    """The block `explain` of OUT.json."""
    if block["latency"]:
        console.print(_phase_table(block["latency"]))
    name = _BOUNDS[block["bound_by"]]
    console.print(f"bound by {name}: {_shares(block['bounds'])} of replica time")
    if block["bounds"]["kv_capacity"] + block["bounds"]["queue"] >= SMALL:
        console.print(f"whatever waited, replica time went to {_shares(block['steps'])}")
    if "speculative" in block:
        console.print(speculative_line(block["speculative"]))


def _phase_table(latency: dict[str, Any]) -> Table:
    """Milliseconds by phase; the share is that of the last statistic."""
    statistics = ("mean", *PERCENTILES)
    last = statistics[-1]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("milliseconds of\nrequests near")
    for metric in latency:
        for name in statistics:
            table.add_column(f"{metric}\n{name}", justify="right", min_width=6)
        table.add_column(f"{metric}\n{last} %", justify="right")
    for phase, words in _PHASES.items():
        if all(part["shares"][phase] < SMALL for found in latency.values() for part in found.values()):
            continue
        table.add_row(words, *_cells(latency, phase, statistics, last))
    table.add_section()
    totals = []
    for found in latency.values():
        totals += [*(_ms(found[name]["seconds"]) for name in statistics), "100"]
    table.add_row("all", *totals)
    return table


def _cells(latency: dict[str, Any], phase: str, statistics: tuple[str, ...], last: str) -> list[str]:
    cells = []
    for found in latency.values():
        cells += [_ms(found[name]["phases_s"][phase]) for name in statistics]
        cells.append(f"{100 * found[last]['shares'][phase]:.0f}")
    return cells


def _ms(seconds: float) -> str:
    milliseconds = 1e3 * max(0.0, seconds)
    return f"{milliseconds:,.0f}" if milliseconds >= 999.5 else f"{milliseconds:.1f}"


def _shares(shares: dict[str, float]) -> str:
    """The largest first."""
    found = sorted(((share, _BOUNDS[name]) for name, share in shares.items() if share >= 0.005), reverse=True)
    return ", ".join(f"{name} {share:.0%}" for share, name in found) or "nothing"
