"""Jobs: submit, list, follow, cancel, and their results."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from anyio import sleep, to_thread
from fastapi import APIRouter, Body, Header, Query, Request, Response
from fastapi.responses import JSONResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from catalogs.errors import InputError, nearest_name
from planner.web.api.state import PREFIX, FoundJob, Owner, ServerState, State
from planner.web.jobs.kind import JobKind
from planner.web.jobs.queue import QueueFull
from planner.web.jobs.registry import DERIVED, KINDS
from planner.web.questions import subject_of
from planner.web.store.jobs import RESULT, Job, UnknownJobError

router = APIRouter(prefix=PREFIX, tags=["jobs"])

#: What is made of a plan when someone asks for it.
ON_DEMAND: Final = ("result.html", "files.zip", "deployment.yaml")

#: Time between two looks for new events, seconds.
_LOOK_EVERY_S: Final = 0.25

#: Highest number of a job or an event that a database stores.
_LAST_NUMBER: Final = 2**63 - 1

#: Characters of a question as JSON. The longest that a person writes has a few thousand; every list repeats them.
_LONGEST_QUESTION: Final = 100_000

#: Seconds after which a client may try again when the queue is full.
RETRY_AFTER_S: Final = 5


class JobProgress(BaseModel):
    """How far a job is; `total` is null where it is not known, and `best` is the best result so far."""

    done: int
    total: int | None
    words: str
    best: dict[str, Any] | None


class JobView(BaseModel):
    """A job as the API shows it. Times are in UTC; `links` are addresses of its page, events and results."""

    id: str
    kind: str
    status: str = Field(description="queued, running, done, failed or cancelled")
    title: str
    created: str
    started: str | None
    ended: str | None
    progress: JobProgress | None
    verdict: str | None = Field(description="yes or no; null for a job that is not a yes-or-no question")
    key: str = Field(description="equal for equal questions, with this version and the same calibration")
    question: dict[str, Any]
    subject: str | None = Field(
        description="what a plan is for: language, agents or network; only plans for one subject can be compared"
    )
    parent: str | None = Field(description="id of the job that the question is about")
    error: dict[str, Any] | None = Field(description="problem details of a failed job")
    links: dict[str, str]


class JobList(BaseModel):
    """Jobs, newest first; `next` is the value of `before` for the page that follows."""

    items: list[JobView]
    next: str | None


def view(state: ServerState, job: Job, artifacts: list[str]) -> dict[str, Any]:
    """Return a job as the API shows it."""
    subject = subject_of(job.question, state.uploads, job.owner) if job.kind == "plan" else None
    here = f"{PREFIX}/jobs/{job.id}"
    links = {"self": here, "events": f"{here}/events"}
    if (kind := KINDS.get(job.kind)) is not None and kind.page is not None:
        links["page"] = f"{kind.page}?job={job.id}"
    links |= {name.removesuffix(".json") if name == RESULT else name: f"{here}/{name}" for name in artifacts}
    if RESULT in artifacts:
        links["result"] = f"{here}/result"
    if "result.csv" in artifacts:  # results.py makes the other form on demand
        links["result.parquet"] = f"{here}/result.parquet"
    if job.kind == "plan" and job.verdict == "yes":
        links |= {name: f"{here}/{name}" for name in ON_DEMAND}
        if subject == "agents":  # `plan deploy` does not take an answer for agents
            del links["files.zip"]
    kept = ("id", "kind", "status", "title", "verdict", "key", "question", "parent", "error", "progress")
    times = {name: _utc(getattr(job, name)) for name in ("created", "started", "ended")}
    return {name: getattr(job, name) for name in kept} | times | {"links": links, "subject": subject}


def _utc(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _view(state: ServerState, job: Job) -> dict[str, Any]:
    return view(state, job, state.store.artifact_names([job.id])[job.id])


# ---- submit


def _submit(kind: JobKind) -> Callable[..., Response]:
    def submit(state: State, owner: Owner, body: Annotated[dict[str, Any], Body()]) -> Response:
        prepared = kind.prepare(body, state.submission(owner))
        size = len(json.dumps(prepared.question))
        if size > _LONGEST_QUESTION:
            rule = f"a question has at most {_LONGEST_QUESTION:,} characters"
            raise InputError(rule, size, str(_LONGEST_QUESTION), "upload what is long as a file")
        try:
            job, new = state.queue.submit(kind.name, prepared, owner)
        except QueueFull as full:
            headers = {"Retry-After": str(RETRY_AFTER_S)}
            raise HTTPException(429, f"{full}; try again later", headers) from None
        status = 200 if not new and not job.is_active else 202
        location = {"Location": f"{PREFIX}/jobs/{job.id}"}
        return JSONResponse(_view(state, job), status, headers=location)

    submit.__doc__ = f"{kind.summary} The body is the question; the answer is a job."
    return submit


_ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    200: {"model": JobView, "description": "The same question was answered before: its job."},
    202: {"model": JobView, "description": "The job waits or runs; Location is its address."},
    429: {"description": "The queue is full."},
}


def _inlined(schema: Any, parts: dict[str, Any]) -> Any:
    """Return a JSON Schema with each `$ref` to its own parts replaced by the part."""
    if isinstance(schema, list):
        return [_inlined(item, parts) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(schema.get("$ref"), str):
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return _inlined(parts[schema["$ref"].rpartition("/")[2]], parts) | rest
    return {key: _inlined(value, parts) for key, value in schema.items() if key not in ("$defs", "$schema")}


def _body(kind: JobKind) -> dict[str, Any]:
    """Return the part of the documentation of the API that describes the question of a kind of job."""
    schema = kind.schema()
    content = {"application/json": {"schema": _inlined(schema, schema.get("$defs", {}))}}
    return {"requestBody": {"required": True, "content": content}}


for _kind in KINDS.values():
    router.post(
        f"/{_kind.path}",
        name=_kind.path,
        summary=_kind.summary,
        status_code=202,
        responses=_ANSWERS,
        response_model=None,
        openapi_extra=_body(_kind),
    )(_submit(_kind))


# ---- follow


@router.get("/jobs")
def list_jobs(
    state: State,
    owner: Owner,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    kind: Annotated[str | None, Query(max_length=32)] = None,
    before: Annotated[int | None, Query(ge=1, le=_LAST_NUMBER, description="`next` of the page before")] = None,
) -> JobList:
    """Return the jobs of the user, newest first."""
    if kind is not None and kind not in KINDS:
        raise InputError("no such kind of job", kind, nearest_name(kind, KINDS) or ", ".join(KINDS))
    without = () if kind in DERIVED else DERIVED
    jobs = state.store.jobs(owner, limit + 1, kind, without, before or 0)
    names = state.store.artifact_names([job.id for job in jobs])
    items = [JobView.model_validate(view(state, job, names[job.id])) for job in jobs[:limit]]
    return JobList(items=items, next=str(jobs[limit - 1].number) if len(jobs) > limit else None)


@router.get("/jobs/{id}")
def show_job(state: State, job: FoundJob) -> JobView:
    """Return a job of the user, by its id."""
    return JobView.model_validate(_view(state, job))


@router.get("/jobs/{id}/events", response_class=EventSourceResponse)
async def follow(
    request: Request, state: State, job: FoundJob, last_event_id: Annotated[str | None, Header(max_length=32)] = None
) -> AsyncIterator[ServerSentEvent]:
    """Send an event `progress` for each step, and `done` with the job at its end; `Last-Event-ID` resumes."""
    number = min(int(last_event_id), _LAST_NUMBER) if last_event_id is not None and last_event_id.isdecimal() else 0
    while not await request.is_disconnected():
        try:
            current = await to_thread.run_sync(state.store.job, job.id)  # before the events: none is missed at the end
        except UnknownJobError:  # deleted meanwhile
            return
        for number, data in await to_thread.run_sync(state.store.events, job.id, number):  # noqa: B020
            yield ServerSentEvent(raw_data=data, event="progress", id=str(number))
        if not current.is_active:
            shown = await to_thread.run_sync(_view, state, current)
            yield ServerSentEvent(raw_data=json.dumps(shown), event="done", id=str(number))
            return
        await sleep(_LOOK_EVERY_S)


@router.delete("/jobs/{id}", responses={200: {"model": JobView}, 204: {"description": "The job is deleted."}})
def end_job(state: State, job: FoundJob) -> Response:
    """Cancel a job that waits or runs, which keeps its best result so far; delete a finished one."""
    if job.is_active:
        return JSONResponse(_view(state, state.queue.cancel(job.id)))
    state.store.delete(job.id)
    return Response(status_code=204)
