"""Results of jobs: as JSON, tables, pages and archives."""

from __future__ import annotations

import io
import json
import re
import time
from typing import Annotated, Any, Final

from anyio import sleep, to_thread
from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from planner.web.api.jobs import RETRY_AFTER_S
from planner.web.api.state import PREFIX, FoundJob, Owner, ServerState, State
from planner.web.jobs.kinds.deployments import FILES
from planner.web.jobs.kinds.reports import PAGE
from planner.web.jobs.queue import QueueFull
from planner.web.jobs.registry import KINDS
from planner.web.problems import ProblemResponse
from planner.web.store.jobs import DONE, RESULT, Job

router = APIRouter(prefix=PREFIX, tags=["results"])

#: Longest wait for files that are made on demand, seconds.
_LONGEST_WAIT_S: Final = 180.0

#: Time between two looks for files that are made on demand, seconds.
_LOOK_EVERY_S: Final = 0.1

_MEDIA_TYPES: Final = {
    ".json": "application/json",
    ".csv": "text/csv; charset=utf-8",
    ".parquet": "application/vnd.apache.parquet",
    ".zip": "application/zip",
    ".html": "text/html; charset=utf-8",
    ".yaml": "application/yaml; charset=utf-8",
}

#: The page of a report is a document of its own, which may not reach the server.
_PAGE_POLICY: Final = (
    "sandbox allow-scripts allow-downloads allow-popups; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data: blob:; font-src data:; form-action 'none'; base-uri 'none'"
)


def _answer(job: Job, name: str, content: bytes) -> Response:
    """Return a result as a file with its name and type."""
    end = name[name.rindex(".") :]
    headers = {"Content-Disposition": f'attachment; filename="{job.kind}-{job.id[:8]}-{name}"'}
    if end == ".html":
        headers = {"Content-Security-Policy": _PAGE_POLICY}
    return Response(content, media_type=_MEDIA_TYPES[end], headers=headers)


def _missing(job: Job, what: str) -> HTTPException:
    return HTTPException(409 if job.is_active else 404, f"The job is {job.status} and has no {what}")


@router.get("/jobs/{id}/result", response_model=None)
def result(state: State, job: FoundJob) -> Response:
    """Return the result of a job, for a plan the document of `plan --json`."""
    content = state.store.artifact(job.id)
    if content is None:
        raise _missing(job, "result")
    return Response(content, media_type="application/json")


@router.get("/jobs/{id}/result.html", response_model=None)
async def page(state: State, owner: Owner, job: FoundJob, sensitivity: bool = False) -> Response:
    """Return the report of a plan as an HTML page, which is made when it is first asked for."""
    return await _made(state, owner, job, "report", {"sensitivity": sensitivity}, PAGE)


@router.get("/jobs/{id}/files.zip", response_model=None)
async def files(
    state: State,
    owner: Owner,
    job: FoundJob,
    target: Annotated[str | None, Query(max_length=64)] = None,
    alternative: Annotated[int, Query(ge=0, le=100)] = 0,
    image: Annotated[str | None, Query(max_length=300)] = None,
) -> Response:
    """Return the files that start a plan on a target, as `plan deploy` writes them."""
    question = {"target": target, "alternative": alternative, "image": image}
    return await _made(state, owner, job, "deploy-files", question, FILES)


async def _made(state: ServerState, owner: str, job: Job, kind: str, question: dict[str, Any], name: str) -> Response:
    """Return a file of the job that makes it from a plan; wait for that job."""

    def submit() -> Job:
        prepared = KINDS[kind].prepare(question | {"job": job.id}, state.submission(owner))
        try:
            return state.queue.submit(kind, prepared, owner)[0]
        except QueueFull as full:
            raise HTTPException(429, f"{full}; try again later", {"Retry-After": str(RETRY_AFTER_S)}) from None

    maker, until = await to_thread.run_sync(submit), time.monotonic() + _LONGEST_WAIT_S
    while maker.is_active and time.monotonic() < until:
        await sleep(_LOOK_EVERY_S)
        maker = await to_thread.run_sync(state.store.job, maker.id)
    if maker.is_active:
        raise HTTPException(503, "The file is not ready yet; try again later", {"Retry-After": str(RETRY_AFTER_S)})
    content = await to_thread.run_sync(state.store.artifact, maker.id, name)
    if maker.status != DONE or content is None:
        error = maker.error or {"title": "The file could not be made", "status": 500, "detail": maker.status}
        return ProblemResponse(error, int(error["status"]))
    return _answer(job, name, content)


@router.get("/jobs/{id}/deployment.yaml", response_model=None)
def deployment(state: State, job: FoundJob, alternative: Annotated[int, Query(ge=0, le=100)] = 0) -> Response:
    """Return the deployment of a plan, which `simulate` reads, as `plan --deployment-out` writes it."""
    from catalogs.io.yaml_loader import dump_yaml

    content = state.store.artifact(job.id)
    document = {} if content is None or job.kind != "plan" else json.loads(content)
    plans = [plan for plan in (document.get("best"), *document.get("alternatives", ())) if plan]
    if alternative >= len(plans):
        raise _missing(job, "plan with this number")
    computed = {} if document.get("kind") == "network" else {"kv_blocks": None}  # `simulate` computes it
    text = dump_yaml(plans[alternative]["deployment"] | computed)
    return _answer(job, "deployment.yaml", text.encode())


@router.get("/jobs/{id}/{name}", response_model=None)
def artifact(state: State, job: FoundJob, name: str) -> Response:
    """Return a further result, for example `result.csv`; a table also as `.parquet`, or with its columns as `.json`."""
    if re.fullmatch(r"[a-z][a-z_]*\.(json|csv|parquet|zip)", name) is None:
        raise HTTPException(404, "The job has no such result")
    content = state.store.artifact(job.id, name)
    if content is not None:
        return _answer(job, name, content)
    stem, _, end = name.partition(".")
    table = state.store.artifact(job.id, f"{stem}.csv")
    if table is None or end not in ("parquet", "json") or name == RESULT:
        raise _missing(job, name)
    if end == "json":
        return JSONResponse(_columns(table))
    return _answer(job, name, _parquet(table))


def _columns(table: bytes) -> dict[str, list[Any]]:
    """Return the columns of a CSV table; empty cells are null."""
    import pandas as pd

    frame = pd.read_csv(io.BytesIO(table))
    return {str(name): [None if pd.isna(x) else x for x in frame[name].tolist()] for name in frame.columns}


def _parquet(table: bytes) -> bytes:
    import pandas as pd

    out = io.BytesIO()
    pd.read_csv(io.BytesIO(table)).to_parquet(out, index=False)
    return out.getvalue()
