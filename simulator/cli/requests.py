"""`simulate` for a deployment of a language model: the load, the run and its outputs."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from catalogs.deployments.schema import Deployment, Multimodal
from catalogs.errors import InputError
from catalogs.io.output_files import write_json
from catalogs.models.catalog import load_model
from catalogs.ui.progress import status_line
from catalogs.ui.words import counted
from catalogs.workloads.length_statistics import LengthStatistics
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
    texts = dict(enumerate(STATUS))
    if (run.status == TOO_LONG).any():
        texts[TOO_LONG] = _too_long_words(run, fleet)
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


def _too_long_words(run: Run, fleet: CompiledFleet) -> str:
    """Return the status of requests that are too long, with the limit of their model and the lengths that would fit.

    Only the pools of the model of the rejected requests count. If several models reject requests, no limit is stated.
    """
    requests, rejected = run.requests, run.status == TOO_LONG
    status, pools = STATUS[TOO_LONG], [pool.resolved for pool in fleet.deployments]
    concerned = np.ones(requests.n, dtype=np.bool_)
    if requests.requested_models is not None:
        wanted = np.unique(requests.requested_models[rejected])
        if len(wanted) > 1:
            return status
        names = list(dict.fromkeys(pool.model.name for pool in pools))
        pools = [pool for pool in pools if pool.model.name == names[wanted[0]]]
        concerned = requests.requested_models == wanted[0]
    limit = min(pool.limits.max_model_len for pool in pools)
    inputs, outputs = requests.input_tokens[concerned], requests.output_tokens[concerned]
    if pools[0].side_tokens:
        longest = int(np.maximum(inputs, outputs).max())
        sides = f"{pools[0].side_tokens} positions for the prompt and as many for the output"
        return f"{status} {limit}, which is {sides} (the longest prompt or output has {longest:,} tokens)"
    longest, fit = int((inputs + outputs).max()), LengthStatistics.of(inputs, outputs).within_words(limit)
    return f"{status} {limit} (the longest has {longest:,} tokens; {fit})"
