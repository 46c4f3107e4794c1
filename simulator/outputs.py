"""Files a run is written to. Each appears whole or not at all."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from catalogs.deployment import SHARED_KEYS, Deployment
from catalogs.files import write_whole
from catalogs.workloads import Workload
from simulator.fleet_metrics import fleet_metrics
from simulator.hybrid_cache import blocks_notice
from simulator.metrics import FloatArray, streaming_notice, summarise
from simulator.plant import Plant
from simulator.results import STATUS
from simulator.run_record import Run

SCHEMA_VERSION = 1

CSV_COLUMNS = (
    "request_id,arrival_s,input_tokens,output_tokens,cached_tokens,"
    "ttft_s,tpot_s,e2e_s,queue_s,preemptions,replica,status"
)


def document(run: Run, deployment: Deployment, workload: Workload) -> dict[str, Any]:
    """OUT.json as a dictionary of plain values."""
    summary = summarise(run)
    summary["metrics"] |= fleet_metrics(run)
    per_s = summary["metrics"]["output_tokens_per_s"]
    streaming = streaming_notice(run.plants[-1].resolved, per_s)  # the last pool streams all tokens but the first
    notices = [streaming] if streaming else []
    notices += [notice for plant in run.plants for notice in plant.notices]
    notices += [told for pool in run.pools if pool.plant and (told := blocks_notice(pool.plant, pool.rules.kv_blocks))]
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
        "notices": list(dict.fromkeys([*notices, *workload.notices])),
        **summary,
    }


def resolved_deployment(run: Run, deployment: Deployment) -> dict[str, Any]:
    """deployment.yaml with every null filled in, and what follows from it."""
    parts = deployment.slices
    blocks = [_pool(plant, part.written) for plant, part in zip(run.plants, parts, strict=True)]
    shared = {key: getattr(deployment, key) for key in SHARED_KEYS if key not in ("disaggregation", "pools")}
    if len(blocks) == 1:
        return blocks[0] | shared
    whole = {**blocks[0], "hardware": deployment.hardware, "replicas": len(run.replicas), **shared}
    if deployment.disaggregation is None:
        return whole | {"pools": [{"role": part.role} | block for part, block in zip(parts, blocks, strict=True)]}
    apart = deployment.disaggregation.model_dump()
    return whole | {"disaggregation": apart | {part.role: b for part, b in zip(parts, blocks, strict=True)}}


def _pool(plant: Plant, written: Deployment) -> dict[str, Any]:
    resolved = plant.resolved
    return {
        **resolved.filled_in(written),
        "engine_version": resolved.engine.version,
        "model_id": resolved.model.hf_id,
        "kv_cache": plant.memory.equation,
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
