"""`simulate` for a deployment of a network: its document, its table of jobs and its screen."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from math import isnan
from pathlib import Path
from typing import Any, Final

from catalogs.deployments.network_deployment import NetworkDeployment
from catalogs.errors import InputError
from catalogs.io.output_files import write_atomically, write_json
from catalogs.statistics import QUANTILES
from catalogs.ui.progress import status_line
from catalogs.ui.terminal import open_console, text_table
from catalogs.ui.words import counted, digits, evidence_words, percent
from catalogs.workloads.jobs import JobWorkload, load_job_workload
from simulator.core.outcomes import STATUS
from simulator.jobs.compiled import compile_jobs
from simulator.jobs.metrics import caveats, items_of, summarise_jobs
from simulator.jobs.run import JobRun
from simulator.jobs.simulate import simulate_jobs
from simulator.networks.attention_backends import default_backend

#: Version of the form of a summary of jobs.
SCHEMA_VERSION: Final = 1

_LATENCIES: Final = {"e2e_s": "end to end", "queue_s": "queue", "service_s": "batch"}

#: Statuses of requests in the words of jobs.
_STATUS: Final = {
    **{text: text for text in STATUS},
    "timed out: its client gave up": "timed out: it waited too long",
}


def simulate_network(
    deployment: NetworkDeployment,
    workload: str | None,
    seed: int | None = None,
    jobs: int | None = None,
    rate: float | None = None,
    json_file: str | None = None,
    requests_out: Path | None = None,
) -> None:
    """Simulate jobs and write the outputs that the user requests; without a workload the jobs are the default ones.

    Raises:
        InputError: A name or a value is invalid, or an output cannot be written.
    """
    compiled = compile_jobs(deployment)
    source = JobWorkload() if workload is None else load_job_workload(workload)
    drawn = source.draw(seed, jobs, rate)
    with status_line(f"simulate: {counted(drawn.n, 'job')}"):
        run = simulate_jobs(compiled, drawn)
    found = document(run, source)
    rate_notice = source.rate_notice if rate is None else None
    for notice in dict.fromkeys(filter(None, [*found["notices"], rate_notice, *caveats(run)])):
        print(f"simulate: {notice}", file=sys.stderr)
    if requests_out is not None:
        write_csv(run, requests_out)
    if json_file is not None:
        write_json(found, json_file)
    if json_file != "-":
        print_jobs(found)


def document(run: JobRun, source: JobWorkload) -> dict[str, Any]:
    """Return OUT.json of a run of jobs as a dictionary of plain values.

    Raises:
        ValueError: The run has no compiled deployment.
    """
    if run.compiled is None:
        raise ValueError("a run of bare prices has no document")
    compiled, jobs = run.compiled, run.jobs
    written = compiled.deployment
    backend = written.attention_backend or default_backend(compiled.bundle)
    largest = max(
        (compiled.price(kind, max(written.max_batch, compiled.items_of(kind))) for kind in jobs.kinds),
        key=lambda price: price.peak_memory_bytes,
    )
    return {
        "schema_version": SCHEMA_VERSION,
        "deployment": {
            **written.model_dump(),
            "preferred_batches": list(written.preferred_batches or (written.max_batch,)),
            "attention_backend": backend,
            "accelerators_per_replica": compiled.ranks,
            "peak_memory_bytes": written.instances * largest.peak_memory_bytes,
            "memory_bytes": compiled.hardware.accelerator.memory_bytes,
        },
        "workload": {
            "name": source.name,
            "source": source.source,
            "jobs": jobs.n,
            "concurrency": jobs.concurrency,
            "kinds": [
                {
                    "model": compiled.name_of(kind),
                    "share": share,
                    "sizes": compiled.sizes_of(kind),
                    "seconds": compiled.price(kind, items).seconds,
                }
                for kind, share, items in zip(
                    jobs.kinds, _shares(run), [k.items for k in run.serving.kinds], strict=True
                )
            ],
        },
        "seed": jobs.seed,
        "notices": list(dict.fromkeys([*compiled.notices(jobs), *source.notices])),
        **summarise_jobs(run),
    }


def _shares(run: JobRun) -> list[float]:
    """Return the share of each kind among the jobs of a run."""
    return [float((run.jobs.kind == i).mean()) for i in range(len(run.jobs.kinds))]


def write_csv(run: JobRun, path: Path) -> None:
    """Write one row per job in workload order; cells are empty where a time does not exist."""
    if run.compiled is None:
        raise ValueError("a run of bare prices has no sizes")
    sizes = [run.compiled.sizes_of(kind) for kind in run.jobs.kinds]
    kinds = run.jobs.kind.tolist()

    def times(name: str) -> list[float | None]:
        return [None if isnan(x) else x for x in getattr(run, name).tolist()]

    rows_of_batches = [*run.batches.items.tolist(), None]  # the last: of jobs without a batch
    columns: dict[str, Iterable[object]] = {
        "job_id": range(run.jobs.n),
        "arrival_s": times("arrival_s"),
        **{
            name: [sizes[kind].get(name) for kind in kinds] for name in dict.fromkeys(n for each in sizes for n in each)
        },
        "items": items_of(run).tolist(),
        "batch_items": [rows_of_batches[row] for row in run.batch.tolist()],
        **{name: times(name) for name in ("e2e_s", "queue_s", "service_s")},
        "replica": [index if index >= 0 else None for index in run.replica.tolist()],
        "status": [_STATUS[STATUS[code]] for code in run.status.tolist()],
    }
    if run.jobs.sessions is not None:
        columns["session"] = run.jobs.sessions.tolist()
    rows = (",".join("" if x is None else str(x) for x in row) + "\n" for row in zip(*columns.values(), strict=True))
    write_atomically(path, (",".join(columns) + "\n", *rows))


def print_jobs(found: dict[str, Any]) -> None:
    """Print the summary of a run of jobs to stdout."""
    console, metrics = open_console(), found["metrics"]
    console.print(_deployment_line(found["deployment"]))
    for line in _workload_lines(found["workload"]):
        console.print(line)
    names = ("mean", *QUANTILES)
    longest = max((metrics[key]["p99"] or 0.0 for key in _LATENCIES), default=0.0)
    factor, unit = (1.0, "seconds") if longest >= 10.0 else (1e3, "milliseconds")
    rows = [
        [words, *("-" if (s := metrics[key][name]) is None else f"{factor * s:,.1f}" for name in names)]
        for key, words in _LATENCIES.items()
    ]
    console.print(text_table([unit, *names], rows, 1, ""))
    for line in (_throughput(metrics), _power(metrics), _calibration(found["calibration"])):
        console.print(line)


def _deployment_line(deployment: dict[str, Any]) -> str:
    ranks = deployment["accelerators_per_replica"]
    split = ", ".join(f"{key} {deployment[key]}" for key in ("ulysses", "ring", "guidance") if deployment[key] > 1)
    batching = f"max_batch {deployment['max_batch']}"
    if deployment["engine"] == "triton" and deployment["max_batch"] > 1:
        batching += f" (preferred {', '.join(map(str, deployment['preferred_batches']))})"
    if deployment["queue_delay_s"]:
        batching += f", delay {1e3 * deployment['queue_delay_s']:g} ms"
    if deployment["instances"] > 1:
        batching += f", {deployment['instances']} instances"
    memory = f"{deployment['peak_memory_bytes'] / 2**30:.1f} of {deployment['memory_bytes'] / 2**30:.1f} GiB"
    return (
        f"{deployment['model']} ({deployment['precision']}, {deployment['mode']}) on {deployment['hardware']}, "
        f"{deployment['engine']}, {counted(deployment['replicas'], 'replica')} of {counted(ranks, 'accelerator')}"
        f"{f' ({split})' if split else ''}, {batching}, {memory} at most"
    )


def _workload_lines(workload: dict[str, Any]) -> list[str]:
    lines = [f"{counted(workload['jobs'], 'job')} of workload {workload['name']}"]
    for kind in workload["kinds"]:
        sizes = ", ".join(f"{name} {value}" for name, value in kind["sizes"].items())
        lines.append(f"  {percent(kind['share'])} {kind['model']}: {sizes}; {digits(kind['seconds'])} s alone")
    return lines


def _throughput(metrics: dict[str, Any]) -> str:
    others = ("n_rejected", "n_timed_out", "n_unfinished")
    rest = "".join(f", {metrics[key]} {key[2:].replace('_', ' ')}" for key in others if metrics[key])
    batch = metrics["items_per_batch"]
    moved = f", {metrics['states_moved']} states of sessions copied" if "states_moved" in metrics else ""
    moved += f", {metrics['networks_loaded']} loads of weights" if "networks_loaded" in metrics else ""
    return (
        f"{counted(metrics['n_completed'], 'job')} in {metrics['duration_s']:,.1f} s{rest}: "
        f"{digits(metrics['jobs_per_s'])} jobs/s, {metrics['batches']:,} batches of "
        f"{'-' if batch is None else f'{batch:.2f}'} items on average; accelerators busy "
        f"{percent(metrics['busy_fraction'])}, serving {percent(metrics['serving_fraction'])} of the time{moved}"
    )


def _power(metrics: dict[str, Any]) -> str:
    power, energy = metrics["power"], metrics["energy"]
    if power["gpu_w_mean"] is None or energy["gpu_j_per_job"] is None:
        return "no power: no job was completed"
    return (
        f"{power['gpu_w_mean']:.0f} W per accelerator, {power['node_w_mean']:,.0f} W in total; "
        f"{energy['gpu_j_per_job']:.3g} J per job, {energy['total_j_per_job']:.3g} with hosts"
    )


def _calibration(calibration: dict[str, Any]) -> str:
    return f"calibration {calibration['bundle']}: kernel time {evidence_words(calibration)}"


def refuse_options(options: dict[str, object]) -> None:
    """Refuse options of `simulate` that only language models have.

    Raises:
        InputError: One of them is given.
    """
    for name, value in options.items():
        if value not in (None, False):
            raise InputError("this option needs a language model, and the deployment is for a network", name)
