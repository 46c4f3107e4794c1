"""`simulate` for a deployment of a language model: the load, the run and its outputs."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from catalogs.deployments.schema import Deployment, Multimodal
from catalogs.errors import InputError
from catalogs.io.output_files import write_json
from catalogs.models.catalog import load_model
from catalogs.ui.progress import status_line
from catalogs.ui.words import counted
from catalogs.workloads.length_statistics import LengthStatistics
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.workload import (
    default_workload,
    in_closed_loop,
    load_workload,
    served_modalities,
    with_constant_lengths,
)
from simulator.cli import outputs
from simulator.cli.outputs import RequestedOutputs
from simulator.cluster.compiled import CompiledFleet, compile_fleet
from simulator.cluster.run import Run
from simulator.cluster.serving_options import serving_options
from simulator.cluster.simulate import simulate
from simulator.core.outcomes import STATUS, TOO_LONG

#: Number of requests from which a run may use all cores.
LONG_RUN: Final = 50_000


@dataclass(frozen=True, slots=True)
class RequestedLoad:
    """The load that a user requests; None stands for the value of the workload, or for the default workload."""

    workload: str | None
    requests_per_s: float | None
    n_requests: int | None
    concurrency: int | None
    input_tokens: int | None
    output_tokens: int | None
    seed: int | None


def simulate_requests(
    written: Deployment,
    load: RequestedLoad,
    views: RequestedOutputs,
    json_file: str | None,
    requests_out: Path | None,
    complexity: bool,
    processes: int | None,
) -> None:
    """Simulate requests and write the outputs that the user requests.

    Args:
        written: The deployment.
        load: The requests that clients send.
        views: The outputs in addition to the summary.
        json_file: The file of the summary, - for stdout, or None.
        requests_out: The file with one row per request, or None.
        complexity: Whether the screen shows latencies by the length of requests.
        processes: The number of processes; by default one, or all cores for a long run without an event log.

    Raises:
        InputError: A name or a value is invalid, or an output cannot be written.
    """
    sent = default_workload(written.model) if load.workload is None else load.workload
    source = with_constant_lengths(load_workload(sent), load.input_tokens, load.output_tokens)
    source = source if load.concurrency is None else in_closed_loop(source, load.concurrency)
    written = with_media(written, sent) if source.sends_media else written
    fleet = compile_fleet(written)
    options = serving_options(written, fleet)
    source = fleet.reads(source)
    drawn = source.materialise(load.seed, load.n_requests, load.requests_per_s)
    event_log = views.event_log()
    n_processes = _processes(processes, drawn.n, event_log is not None)
    with status_line(f"simulate: {counted(drawn.n, 'request')}"):
        done = simulate(fleet, drawn, replace(options, processes=n_processes, event_log=event_log))
    document = outputs.document(done, written, source)
    rate_notice = source.rate_notice if load.requests_per_s is None else None
    notices = [*document["notices"], rate_notice, *_caveats(done, fleet), *views.write(done, document)]
    for notice in dict.fromkeys(filter(None, notices)):
        print(f"simulate: {notice}", file=sys.stderr)
    if requests_out is not None:
        outputs.write_csv(done, requests_out)
    if json_file is not None:
        write_json(document, json_file)
    if json_file != "-":
        from simulator.cli.screen import print_summary

        print_summary(document, complexity)


def _processes(chosen: int | None, n_requests: int, records_events: bool) -> int:
    """Return the number of processes of a run.

    Raises:
        InputError: Several processes are chosen for a run that records events.
    """
    if not records_events:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        return chosen or (cores if n_requests >= LONG_RUN else 1)
    if (chosen or 1) > 1:
        rule = "--chrome-trace, --time-series and --explain need a run in one process"
        raise InputError(rule, f"--processes {chosen}", "--processes 1")
    return 1


def with_media(written: Deployment, workload: str) -> Deployment:
    """Return the deployment that also serves the kinds of items that a workload sends; others stay disabled."""
    sent = served_modalities(workload, load_model(written.model))
    kept = written if written.multimodal or not sent else None
    return kept or written.model_copy(update={"multimodal": Multimodal(modalities=sent)})


def _caveats(run: Run, fleet: CompiledFleet) -> list[str]:
    """Return notices on requests without latencies, and on too few requests for a percentile."""
    texts = {**dict(enumerate(STATUS)), TOO_LONG: f"{STATUS[TOO_LONG]} {_limit_words(run.requests, fleet)}"}
    counts = {text: int((run.status == code).sum()) for code, text in texts.items()}
    lost = {text: n for text, n in counts.items() if text.startswith(("rejected", "failed", "timed out"))}
    lost["truncated to max_model_len"] = run.n_truncated
    lines = [f"{n:,} of {counted(run.requests.n, 'request')} {text}" for text, n in lost.items() if n]
    n_done = int(run.completed.sum())
    if not n_done:
        lines.append("no request was completed, so there are no latencies")
    elif n_done < 100:
        few = (
            f"the p99 of {n_done} requests is close to their maximum"
            if n_done > 1
            else "one request has no percentiles"
        )
        lines.append(f"{few}; simulate more requests")
    return lines


def _limit_words(requests: RequestSet, fleet: CompiledFleet) -> str:
    """Return the least max_model_len of the pools, the longest request, and the length that would do."""
    limit = min(pool.resolved.limits.max_model_len for pool in fleet.deployments)
    longest = int((requests.input_tokens + requests.output_tokens).max())
    if longest <= limit:  # the prompts or the outputs alone exceed the positions of an encoder or a decoder
        return f"{limit}"
    fit = LengthStatistics.of(requests.input_tokens, requests.output_tokens).within_words(limit)
    return f"{limit} (the longest has {longest:,} tokens; {fit})"
