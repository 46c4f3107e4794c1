"""The HTML page of one engine step: the roofline, every operator, memory, precision and scaling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from catalogs.io.output_files import write_atomically
from catalogs.ui.charts import si_text, time_text
from catalogs.ui.html_page import (
    Markup,
    Page,
    PageSection,
    bullets,
    cards,
    chart,
    footer_of,
    need_plotly,
    render,
    table,
)
from catalogs.ui.words import percent
from planner.report import machine_figures
from planner.studies.step_analysis import Analysis, bound_words, document, headlines, memory_words
from simulator.analysis.operators import BOUND_WORDS, together


def write_analysis(analysis: Analysis, out: Path) -> None:
    """Write the page of a step.

    Raises:
        InputError: Plotly is missing, or the file cannot be written.
    """
    need_plotly()
    write_atomically(out, [render(analysis_page(analysis))])


def analysis_page(a: Analysis) -> Page:
    """Return the page of a step."""
    figures, unit = document(a), a.resolved.hardware.accelerator
    prompts = "The prompts" if a.steps.n > 1 else "One step of prompts"
    step = "One decode step" if a.query.stage == "decode" else prompts
    ceilings = machine_figures.ceiling_words(unit)
    caption = f"Operators of the step on one accelerator. Ceilings of the {unit.name}: {ceilings}."
    layers = "One layer of each kind, and the operators outside the layers."
    charts = [
        chart(machine_figures.roofline(a.rows, unit), caption, 540),
        chart(machine_figures.reached(a.rows), "Includes operators that only move data.", 480),
        chart(machine_figures.time_by_layer(a.rows, 1.0), layers, 260),
    ]
    busiest = next(iter(figures["bound_s"]), "")
    summary = [
        ("In the engine", time_text(a.time.engine_s)),
        ("On the device, calibrated", time_text(a.time.device_s)),
        ("At the roofline", time_text(a.time.roofline_s)),
        ("Tokens", f"{a.tokens_per_s:,.0f} per second"),
        ("Mostly bound by", BOUND_WORDS.get(busiest, busiest)),
        ("Calibration", a.bundle.name),
    ]
    remarks = [bound_words(figures["bound_s"]), memory_words(figures["memory"]), *a.notices]
    sizes = ("Bits", "Weights", "KV", "Bytes", "Roofline", "Engine", "Weights stored", "KV of the batch", "Fits")
    formats = "The same step with other weights and KV cache; activations stay at 16 bit."
    scaled = ("With", "Roofline", "Engine", "Relative to this step", "Tokens/s")
    sections = [
        PageSection("Step", [cards(summary), bullets(remarks)]),
        PageSection("Roofline", charts),
        PageSection("Operators", [_operators(a)]),
        PageSection("Precision", [table(sizes, precision_rows(figures), formats, words=3)]),
        PageSection("Scaling with batch and context", [table(scaled, scaling_rows(figures))], "Scaling"),
    ]
    title = f"{step} of {a.resolved.model.name} on {a.resolved.hardware.text}"
    footer = footer_of("plan analyze")
    return Page(title, next(iter(headlines(figures))), sections, footer)


def _operators(a: Analysis) -> Markup:
    head = ("Operator", "Class", "Bound by", "Times", "FLOP", "Bytes", "FLOP/B", "Roofline", "Time", "Share")
    rows = []
    for r in together(a.rows):
        work = (si_text(r.flops, ""), f"{r.intensity:.3g}") if r.flops else ("", "")
        words = (r.name, r.kind.replace("_", " "), BOUND_WORDS[r.bound], f"{r.count:g}")
        times = (time_text(r.roofline_s), time_text(r.seconds), percent(r.seconds / a.time.device_s, 1))
        rows.append((*words, work[0], si_text(r.bytes, "B"), work[1], *times))
    return table(head, rows, "On one accelerator; all executions in a step together.", words=3)


def precision_rows(document: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return one row per precision of the document: formats, bytes moved, times, sizes, and whether the batch fits.

    The sizes are those of the weights and of the KV cache of the batch.
    """
    rows: list[tuple[str, ...]] = []
    for p in document["precisions"]:
        time, held = p["time"], p["held"]
        moved = (si_text(p["bytes"], "B"), time_text(time["roofline_s"]), time_text(time["engine_s"]))
        stored = (si_text(held["weights_bytes"], "B"), si_text(held["kv_batch_bytes"], "B"))
        fits = "yes" if held["kv_batch_bytes"] <= held["kv_room_bytes"] else "no"
        rows.append((str(p["bits"]), p["weight_dtype"], p["kv_dtype"], *moved, *stored, fits))
    return rows


def scaling_rows(document: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return one row per scaled step of the document: what is scaled, times, their ratio to this step, and tokens/s."""
    rows: list[tuple[str, ...]] = []
    for s in document["scaling"]:
        times = (time_text(s["time"]["roofline_s"]), time_text(s["time"]["engine_s"]))
        ratio = f"x {s['time']['engine_s'] / document['step']['engine_s']:.2f}"
        rows.append((f"{s['quantity']} {s['value']:,}", *times, ratio, f"{s['tokens_per_s']:,.0f}"))
    return rows
