"""The page of one step taken apart: the roofline, every operator, memory, precision and scaling."""

from __future__ import annotations

from pathlib import Path

from catalogs.io.output_files import write_atomically
from catalogs.ui.charts import si_text, time_text
from catalogs.ui.html_page import Markup, Page, PageSection, bullets, cards, chart, need_plotly, render, table
from planner.report import machine_figures
from planner.studies.step_analysis import Analysis, bound_words, document, headlines, memory_words
from simulator.analysis.operators import BOUND_WORDS, together


def write_analysis(analysis: Analysis, out: Path) -> None:
    """Raises InputError where plotly is missing or the file cannot be written."""
    need_plotly()
    write_atomically(out, [render(analysis_page(analysis))])


def analysis_page(a: Analysis) -> Page:
    """See the module."""
    told, unit = document(a), a.resolved.hardware.accelerator
    q = a.question
    what = "One decode step" if q.stage == "decode" else "The prompts" if a.steps.n > 1 else "One step of prompts"
    title = f"{what} of {a.resolved.model.name} on {a.resolved.hardware.text}"
    subtitle = next(iter(headlines(told)))
    ceilings = machine_figures.ceiling_words(unit)
    said = f"Operators of the step on one accelerator. Ceilings of the {unit.name}: {ceilings}."
    charts = [
        chart(machine_figures.roofline(a.rows, unit), said, 540),
        chart(machine_figures.reached(a.rows), "Includes operators that only move data.", 480),
        chart(
            machine_figures.time_by_layer(a.rows, 1.0),
            "One layer of each kind, and the operators outside the layers.",
            260,
        ),
    ]
    sections = [
        PageSection(
            "Step",
            [cards(_cards(a)), bullets([bound_words(told["bound_s"]), memory_words(told["memory"]), *a.notices])],
        ),
        PageSection("Roofline", charts),
        PageSection("Operators", [_operators(a)]),
        PageSection("Precision", [_precisions(a)]),
        PageSection("Scaling with batch and context", [_scaling(a)], "Scaling"),
    ]
    return Page(title, subtitle, sections, "Written by plan analyze. This file loads no external resources.")


def _cards(a: Analysis) -> list[tuple[str, str]]:
    busiest = next(iter(document(a)["bound_s"]), "")
    return [
        ("In the engine", time_text(a.time.engine_s)),
        ("On the device, calibrated", time_text(a.time.device_s)),
        ("At the roofline", time_text(a.time.roofline_s)),
        ("Tokens", f"{a.tokens_per_s:,.0f} per second"),
        ("Mostly bound by", BOUND_WORDS.get(busiest, busiest)),
        ("Calibration", a.bundle),
    ]


def _operators(a: Analysis) -> Markup:
    head = ("Operator", "Class", "Bound by", "Times", "FLOP", "Bytes", "FLOP/B", "Roofline", "Time", "Share")
    total, rows = a.time.device_s, []
    for r in together(a.rows):
        work = si_text(r.flops, "") if r.flops else ""
        intensity = f"{r.intensity:.3g}" if r.flops else ""
        figures = (
            f"{r.count:g}",
            work,
            si_text(r.bytes, "B"),
            intensity,
            time_text(r.roofline_s),
            time_text(r.seconds),
        )
        rows.append((r.name, r.kind.replace("_", " "), BOUND_WORDS[r.bound], *figures, f"{r.seconds / total:.1%}"))
    return table(head, rows, "On one accelerator; all executions in a step together.", words=3)


def _precisions(a: Analysis) -> Markup:
    head = ("Bits", "Weights", "KV", "Bytes", "Roofline", "Engine", "Weights stored", "KV of the batch", "Fits")
    rows = []
    for p in a.precisions:
        times = (si_text(p.bytes, "B"), time_text(p.time.roofline_s), time_text(p.time.engine_s))
        held = (si_text(p.held.weights_bytes, "B"), si_text(p.held.kv_batch_bytes, "B"), "yes" if p.held.fits else "no")
        rows.append((str(p.bits), p.weight_dtype, p.kv_dtype, *times, *held))
    return table(head, rows, "The same step with other weights and KV cache; activations stay at 16 bit.", words=3)


def _scaling(a: Analysis) -> Markup:
    head = ("With", "Roofline", "Engine", "Relative to this step", "Tokens/s")
    rows = []
    for s in a.scaling:
        ratio = f"x {s.time.engine_s / a.time.engine_s:.2f}"
        times = (time_text(s.time.roofline_s), time_text(s.time.engine_s))
        rows.append((f"{s.quantity} {s.value:,}", *times, ratio, f"{s.tokens_per_s:,.0f}"))
    return table(head, rows)
