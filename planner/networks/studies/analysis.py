"""One job of a network broken down: its stages and kernels, what bounds them, memory, batches and number formats.

All figures are of one accelerator of a replica that executes one batch at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from catalogs.errors import InputError, nearest_name
from catalogs.hardware.catalog import parse_hardware
from catalogs.networks.files import load_network
from catalogs.ui.charts import time_text
from catalogs.ui.words import digits, evidence_words, gigabytes, shares_words
from planner.networks.candidate import Setup
from planner.networks.job import BATCH, read_job
from planner.networks.job_service import JobService
from planner.networks.mix import JobMix
from planner.networks.request import MODES
from simulator.analysis.operators import BOUND_WORDS, COMPUTE, FIXED, MEMORY, SUMMED, OperatorRow, operator_document
from simulator.networks.execution import ACTIVATION_BYTES, Mode
from simulator.networks.kernels import KernelRow, job_kernels

#: Version of the form of an analysis of a network.
SCHEMA_VERSION: Final = 1

#: Jobs of a batch in the table of batches.
BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128)

#: What bounds a kernel, in the words of the operators of language models.
_BOUNDS: Final = {"compute": COMPUTE, "memory": MEMORY, "fixed": FIXED}

#: Number formats in the table of formats.
_FORMATS: Final = ("fp32", "tf32", "bf16", "fp8")


@dataclass(frozen=True, slots=True)
class JobQuery:
    """The job to analyze: `batch` jobs of the sizes `job`, executed on one accelerator of the hardware."""

    model: str
    hardware: str
    batch: int = 1
    job: str | None = None
    steps: int | None = None
    precision: str | None = None
    mode: str = "compiled"


@dataclass(frozen=True, slots=True)
class JobAnalysis:
    """A job that was analysed: the service that prices it, its setup, and its kernels."""

    query: JobQuery
    service: JobService
    setup: Setup
    kernels: tuple[KernelRow, ...]

    def rows(self) -> list[OperatorRow]:
        """Return the kernels of equal names of each stage together, the longest first."""
        found: dict[tuple[str, str, str], OperatorRow] = {}
        for kernel in self.kernels:
            row, key = operator_row(kernel), (kernel.stage, kernel.name, kernel.bound)
            found[key] = _sum(found[key], row) if key in found else row
        return sorted(found.values(), key=lambda row: -row.seconds)


def analyze_job(query: JobQuery) -> JobAnalysis:
    """Return the analysis of a job.

    Raises:
        InputError: A name, a size or a number format is invalid.
    """
    if query.batch < 1:
        raise InputError("batch is a whole number of at least 1", query.batch, "1")
    if query.mode not in MODES:
        raise InputError("networks have no such mode", query.mode, nearest_name(query.mode, MODES) or ", ".join(MODES))
    service = JobService(JobMix.one(read_job(load_network(query.model), query.job, query.steps)))
    hardware = parse_hardware(query.hardware)
    known = hardware.accelerator.peak_flops
    precision = query.precision or next((p for p in ("bf16", "fp16", "fp32") if p in known), "fp32")
    if precision not in ACTIVATION_BYTES:
        near = nearest_name(precision, ACTIVATION_BYTES) or ", ".join(ACTIVATION_BYTES)
        raise InputError("networks have no such number format", precision, near)
    if query.batch > 1 and BATCH not in service.job.all_sizes:
        raise InputError(f"{service.job.network.name} runs one job at a time", query.batch, "--batch 1")
    mode: Mode = query.mode
    setup = Setup(hardware, precision, mode)
    sizes = service.sizes(query.batch)
    kernels = tuple(job_kernels(service.job.network, service.bundle(setup), setup.execution, sizes))
    return JobAnalysis(query, service, setup, kernels)


def operator_row(kernel: KernelRow) -> OperatorRow:
    """Return a kernel as a row of the tables and figures of operators."""
    return OperatorRow(
        name=f"{kernel.stage}: {kernel.name}",
        kind=kernel.kind,
        layers=kernel.count,
        limit=COMPUTE if kernel.arithmetic_bound else MEMORY,
        count=float(kernel.count),
        flops=kernel.flops,
        bytes=kernel.bytes,
        roofline_s=kernel.roofline_s,
        seconds=kernel.seconds,
        measured_s=kernel.measured_s,
        interpolated_s=kernel.interpolated_s,
        borrowed_s=kernel.borrowed_s,
    )


def _sum(a: OperatorRow, b: OperatorRow) -> OperatorRow:
    sums = {name: getattr(a, name) + getattr(b, name) for name in SUMMED}
    return OperatorRow(a.name, a.kind, a.layers + b.layers, a.limit, **sums)


def job_document(found: JobAnalysis) -> dict[str, Any]:
    """Return the document of `plan analyze --json` for a network, in SI units."""
    service, setup, n = found.service, found.setup, found.query.batch
    price = service.price(setup, n)
    bound_s = dict.fromkeys(_BOUNDS.values(), 0.0)
    for kernel in found.kernels:
        bound_s[_BOUNDS[kernel.bound]] += kernel.seconds
    device_s = sum(stage.runs * stage.device_s for stage in price.stages)
    known = {
        name: sum(stage.runs * stage.device_s * getattr(stage, name) for stage in price.stages) / device_s
        for name in ("measured", "interpolated", "borrowed", "roofline")
    }
    formats = list(_formats(found))
    question = asdict(found.query) | {"precision": setup.precision, "hardware": setup.hardware.text}
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "network",
        "question": question | {"model": service.job.network.name, "sizes": service.job.all_sizes},
        "job": {
            "words": service.job.words,
            "seconds": price.seconds,
            "device_s": device_s,
            "host_s": sum(stage.runs * stage.host_s for stage in price.stages),
            "roofline_s": sum(kernel.roofline_s for kernel in found.kernels),
            "flops": sum(kernel.flops for kernel in found.kernels),
            "bytes": sum(kernel.bytes for kernel in found.kernels),
            "joules": service.joules(setup, n),
            "jobs_per_s": n / price.seconds,
        },
        "bound_s": bound_s,
        "memory": {"peak_bytes": price.peak_memory_bytes, "device_bytes": setup.hardware.accelerator.memory_bytes},
        "stages": [asdict(stage) | {"total_s": stage.total_s} for stage in price.stages],
        "operators": [operator_document(row) for row in found.rows()],
        "batches": list(_batches(found)),
        "formats": formats,
        "calibration": service.bundle(setup).source_block() | {f"{k}_fraction": v for k, v in known.items()},
        "notices": [*service.bundle(setup).notices, *price.notices, *_slow_formats(found, formats)],
    }


def _batches(found: JobAnalysis) -> Iterator[dict[str, Any]]:
    """Yield the same job in batches of several sizes, up to the first that does not fit."""
    service, setup = found.service, found.setup
    for n in BATCHES if BATCH in service.job.all_sizes else (1,):
        seconds, peak = service.seconds(setup, n), service.memory_bytes(setup, n)
        fits = peak <= setup.hardware.accelerator.memory_bytes
        yield {"batch": n, "seconds": seconds, "jobs_per_s": n / seconds, "peak_bytes": peak, "fits": fits}
        if not fits:
            return


def _formats(found: JobAnalysis) -> Iterator[dict[str, Any]]:
    """Yield the same batch in the number formats that the accelerator has and in each execution."""
    known = found.setup.hardware.accelerator.peak_flops
    for precision in _FORMATS:
        if precision not in known and precision not in ("fp32", "tf32"):
            continue
        if precision == "tf32" and found.setup.hardware.accelerator.kind != "gpu":
            continue
        for mode in MODES:
            setup = Setup(found.setup.hardware, precision, mode)
            seconds = found.service.seconds(setup, found.query.batch)
            yield {"precision": precision, "mode": mode, "seconds": seconds}


def _slow_formats(found: JobAnalysis, formats: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield why fp8 takes longer than bf16 in the executions in which it does.

    The tables of products in fp8 are those of language models, whose kernels find a scale for each token first
    (`simulator.networks.operator_price`). TensorRT scales by constants instead.
    """
    seconds = {(row["mode"], row["precision"]): row["seconds"] for row in formats}
    slow = [m for m in MODES if m != "tensorrt" and seconds.get((m, "fp8"), 0.0) > seconds.get((m, "bf16"), math.inf)]
    if slow:
        eight, sixteen = (time_text(_products_s(found, precision, slow[-1])) for precision in ("fp8", "bf16"))
        yield (
            f"fp8 takes longer than bf16 in {' and '.join(slow)} execution, because its matrix products take {eight} "
            f"instead of {sixteen} ({slow[-1]}): their tables are those of language models, whose kernels find a scale "
            "for each row of the input first; narrow products gain less from fp8 than this takes. TensorRT scales by "
            "constants"
        )


def _products_s(found: JobAnalysis, precision: str, mode: Mode) -> float:
    """Return the seconds of all matrix products of the batch in a number format and an execution."""
    service, setup = found.service, Setup(found.setup.hardware, precision, mode)
    kernels = job_kernels(service.job.network, service.bundle(setup), setup.execution, service.sizes(found.query.batch))
    return sum(kernel.seconds for kernel in kernels if kernel.kind == "gemm")


def job_headlines(document: dict[str, Any]) -> Iterator[str]:
    """Yield the sentences above the tables of an analysis."""
    q, job, calibration, memory = (document[name] for name in ("question", "job", "calibration", "memory"))
    batch = f"{q['batch']:,} jobs together" if q["batch"] > 1 else "one job"
    yield f"{q['model']}, {q['precision']}, {q['mode']}, on one accelerator of {q['hardware']}: {batch}, {job['words']}"
    times = [time_text(job[name]) for name in ("seconds", "device_s", "host_s", "roofline_s")]
    yield (
        f"Time      {times[0]}: {times[1]} of kernels, {times[2]} of launches on the host, {times[3]} at the roofline; "
        f"{digits(job['jobs_per_s'])} jobs/s"
    )
    ranked = sorted(document["bound_s"].items(), key=lambda item: -item[1])
    bounds = {BOUND_WORDS[name]: bound_s for name, bound_s in ranked if bound_s > 0.0}
    yield f"Bound     {shares_words(bounds, len(bounds))}"
    yield f"Memory    {gigabytes(memory['peak_bytes'])} of {gigabytes(memory['device_bytes'])} at this batch"
    yield f"Known     kernel time {evidence_words(calibration)} ({calibration['bundle']})"
