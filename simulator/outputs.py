"""Files a run is written to. Each appears whole or not at all."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from catalogs.deployment import Deployment
from catalogs.files import write_whole
from catalogs.workloads import Workload
from simulator.metrics import FloatArray, streaming_notice, summarise
from simulator.results import STATUS
from simulator.run_record import Run

SCHEMA_VERSION = 1

CSV_COLUMNS = (
    "request_id,arrival_s,input_tokens,output_tokens,cached_tokens,"
    "ttft_s,tpot_s,e2e_s,queue_s,preemptions,replica,status"
)


def document(run: Run, deployment: Deployment, workload: Workload) -> dict[str, Any]:
    """OUT.json as a dictionary of plain values."""
    assert run.plant is not None
    summary = summarise(run)
    streaming = streaming_notice(run.plant.resolved, summary["metrics"]["output_tokens_per_s"])
    notices = (*([streaming] if streaming else []), *run.plant.notices, *workload.notices)
    return {
        "schema_version": SCHEMA_VERSION,
        "deployment": resolved_deployment(run, deployment),
        "workload": {
            "name": workload.name,
            "source": workload.source,
            "requests": run.requests.n,
            "concurrency": run.requests.concurrency,
        },
        "seed": run.requests.seed,
        "notices": list(dict.fromkeys(notices)),
        **summary,
    }


def resolved_deployment(run: Run, deployment: Deployment) -> dict[str, Any]:
    """deployment.yaml with every null filled in, and what follows from it."""
    assert run.plant is not None
    resolved, memory = run.plant.resolved, run.plant.memory
    return {
        **resolved.filled_in(deployment),
        "engine_version": resolved.engine.version,
        "model_id": resolved.model.hf_id,
        "kv_cache": memory.equation,
        "host_times": asdict(resolved.engine.host),
    }


def write_csv(run: Run, path: Path) -> None:
    """One row per request in workload order; empty where a time does not exist."""
    requests = run.requests
    columns = [
        map(str, range(requests.n)),
        _texts(run.arrival_s),
        map(str, requests.input_tokens.tolist()),
        map(str, requests.output_tokens.tolist()),
        map(str, run.cached_tokens.tolist()),
        _texts(run.ttft_s),
        _texts(run.tpot_s),
        _texts(run.e2e_s),
        _texts(run.queue_s),
        map(str, run.preemptions.tolist()),
        (str(r) if r >= 0 else "" for r in run.replica.tolist()),
        (STATUS[s] for s in run.status.tolist()),
    ]
    rows = (",".join(row) + "\n" for row in zip(*columns, strict=True))
    write_whole(path, (CSV_COLUMNS + "\n", *rows))


def _texts(values: FloatArray) -> list[str]:
    return ["" if v != v else repr(v) for v in np.asarray(values).tolist()]
