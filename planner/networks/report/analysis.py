"""The HTML page of one job of a network: its roofline, stages, kernels, batches and number formats; and its tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from catalogs.io.output_files import write_atomically
from catalogs.ui.charts import si_text, time_text
from catalogs.ui.html_page import (
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
from catalogs.ui.words import digits, gigabytes, percent
from planner.networks.request import MODES
from planner.networks.studies.analysis import JobAnalysis, job_document, job_headlines
from planner.report import machine_figures
from simulator.analysis.operators import BOUND_WORDS


def write_job_analysis(found: JobAnalysis, out: Path) -> None:
    """Write the page of a job.

    Raises:
        InputError: Plotly is missing, or the file cannot be written.
    """
    need_plotly()
    write_atomically(out, [render(job_page(found))])


def job_page(found: JobAnalysis) -> Page:
    """Return the page of a job."""
    document, unit = job_document(found), found.setup.hardware.accelerator
    job, rows = document["job"], found.rows()
    first, *headlines = job_headlines(document)
    ceilings = machine_figures.ceiling_words(unit)
    caption = f"Kernels of the job on one accelerator. Ceilings of the {unit.name}: {ceilings}."
    summary = [
        ("Whole job", time_text(job["seconds"])),
        ("Kernels, calibrated", time_text(job["device_s"])),
        ("Launches on the host", time_text(job["host_s"])),
        ("At the roofline", time_text(job["roofline_s"])),
        ("Jobs", f"{digits(job['jobs_per_s'])} per second"),
        ("Calibration", document["calibration"]["bundle"]),
    ]
    head = ("Operator", "Class", "Bound by", "Times", "FLOP", "Bytes", "Roofline", "Time", "Share")
    total_s = sum(row.seconds for row in rows)
    cells = [
        (
            row.name,
            row.kind,
            BOUND_WORDS[row.bound],
            f"{row.count:g}",
            si_text(row.flops, "") if row.flops else "",
            si_text(row.bytes, "B"),
            time_text(row.roofline_s),
            time_text(row.seconds),
            percent(row.seconds / total_s, 1),
        )
        for row in rows
    ]
    stages = ("Stage", "Runs", "Time", "Share", "Kernels", "Host", "Waits for")
    batches = ("Jobs together", "Time", "Jobs/s", "Memory", "Fits")
    sections = [
        PageSection("Job", [cards(summary), bullets([*headlines, *document["notices"]])]),
        PageSection("Roofline", [chart(machine_figures.roofline(rows, unit), caption, 540)]),
        PageSection("Stages", [table(stages, stage_rows(document))]),
        PageSection("Kernels", [table(head, cells, "Kernels of equal names of a stage together.", words=3)]),
        PageSection("Batches", [table(batches, batch_rows(document))]),
        PageSection("Number formats", [table(("Format", *MODES), format_rows(document))], "Formats"),
    ]
    footer = footer_of("plan analyze")
    return Page(f"One job of {found.service.job.network.name} on {unit.name}", first, sections, footer)


def stage_rows(document: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return a row for each stage of the document."""
    total_s = document["job"]["seconds"]
    return [
        (
            stage["name"],
            f"{stage['runs']:,}",
            time_text(stage["total_s"]),
            percent(stage["total_s"] / total_s),
            time_text(stage["runs"] * stage["device_s"]),
            time_text(stage["runs"] * stage["host_s"]),
            "host" if stage["host_s"] > stage["device_s"] else "accelerator",
        )
        for stage in document["stages"]
    ]


def batch_rows(document: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return a row for each batch of the document."""
    return [
        (
            f"{row['batch']:,}",
            time_text(row["seconds"]),
            digits(row["jobs_per_s"]),
            gigabytes(row["peak_bytes"]),
            "yes" if row["fits"] else "no",
        )
        for row in document["batches"]
    ]


def format_rows(document: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return a row for each number format of the document, with a column for each execution."""
    found: dict[str, dict[str, float]] = {}
    for row in document["formats"]:
        found.setdefault(row["precision"], {})[row["mode"]] = row["seconds"]
    return [(precision, *(time_text(times[mode]) for mode in MODES)) for precision, times in found.items()]
