"""What operators of a server need: liveness, readiness and metrics."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from sqlalchemy.exc import SQLAlchemyError

from catalogs.ui.installation import own_version
from planner.web.api.state import State
from planner.web.metrics import RequestMetrics, label_values, series
from planner.web.problems import problem
from planner.web.store.jobs import ACTIVE, CANCELLED, DONE, FAILED

router = APIRouter(tags=["operations"])

_STARTED: float = time.time()


@router.get("/healthz")
def healthz() -> dict[str, str]:
    """Return whether the server answers."""
    return {"status": "ok", "version": own_version()}


@router.get(
    "/readyz",
    responses={503: {"description": "The database or the queue does not work, or the server still loads."}},
    response_model=None,
)
def readyz(state: State) -> dict[str, Any] | Response:
    """Return whether the server answers as fast as it will: its database and queue work, and calibrations are read."""
    try:
        state.database.check()
    except SQLAlchemyError:
        return problem(503, "Not ready", "the database does not answer")
    if not state.queue.is_running:
        return problem(503, "Not ready", "the queue of jobs does not work")
    if not state.warm_up.is_done:
        return problem(503, "Not ready", "the server still reads its catalogs and calibrations")
    return {"status": "ready", "workers": state.settings.n_workers}


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(request: Request, state: State) -> PlainTextResponse:
    """Return the metrics of the server in the text format of Prometheus."""
    requests: RequestMetrics = request.app.state.metrics
    counts = dict.fromkeys((*ACTIVE, DONE, FAILED, CANCELLED), 0) | state.store.counts()
    file, version = state.settings.file, own_version()
    upload_bytes = state.uploads.store.total_bytes()
    lines = [
        *series("planner_info", "gauge", "Version of the planner.", [((("version", version),), 1)]),
        *series("planner_start_time_seconds", "gauge", "Start of the server, seconds since 1970.", [((), _STARTED)]),
        *series("planner_jobs", "gauge", "Stored jobs by status.", label_values("status", counts)),
        *series("planner_job_processes", "gauge", "Jobs that run here.", [((), len(state.queue.processes()))]),
        *series("planner_workers", "gauge", "Processes that may run jobs here.", [((), state.settings.n_workers)]),
        *series("planner_queue_limit", "gauge", "Jobs that may wait.", [((), file.max_queued)]),
        *series("planner_upload_bytes", "gauge", "Size of all uploads, bytes.", [((), upload_bytes)]),
        *requests.lines(),
    ]
    return PlainTextResponse("\n".join([*lines, ""]), media_type="text/plain; version=0.0.4; charset=utf-8")
