"""What the handlers of one server share: its settings, store, uploads and queue, and the user of a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import Depends, FastAPI, Path, Request
from starlette.exceptions import HTTPException

from catalogs.units import MIB
from planner.web.jobs.kind import Submission
from planner.web.jobs.queue import JobQueue
from planner.web.problems import ProblemResponse, problem
from planner.web.settings import ServerSettings
from planner.web.store.database import Database
from planner.web.store.jobs import Job, JobStore, UnknownJobError
from planner.web.store.uploads import UploadStore
from planner.web.uploads import Uploads
from planner.web.warm_up import WarmUp

PREFIX: Final = "/api/v1"

#: The user of every request where no proxy names one.
EVERYONE: Final = ""

NO_SUCH_JOB: Final = "There is no such job"

#: Longest name of a user, in characters.
_LONGEST_OWNER: Final = 200


@dataclass(frozen=True, slots=True)
class ServerState:
    """The parts of one server."""

    settings: ServerSettings
    database: Database
    store: JobStore
    uploads: Uploads
    queue: JobQueue
    warm_up: WarmUp

    @classmethod
    def open(cls, settings: ServerSettings) -> ServerState:
        """Open the store and prepare the queue, which `queue.start()` begins to work.

        Raises:
            InputError: The database does not answer.
        """
        database, file = Database(settings.store_url), settings.file
        store = JobStore(database)
        most, most_together = file.max_upload_mib * MIB, file.max_uploads_mib * MIB
        uploads = Uploads(UploadStore(database), settings.folder, most, most_together)
        return cls(settings, database, store, uploads, JobQueue(store, uploads, settings), WarmUp())

    def submission(self, owner: str) -> Submission:
        """Return what the kinds of jobs may use for one user."""
        return Submission(owner, self.store, self.uploads, self.settings)


def _state(request: Request) -> ServerState:
    found: ServerState = request.app.state.server
    return found


def _owner(request: Request) -> str:
    """Return the user that the proxy names; without a proxy, all users share their jobs."""
    header = _state(request).settings.file.owner_header
    if header is None:
        return EVERYONE
    found = request.headers.get(header, "").strip()
    if not found or len(found) > _LONGEST_OWNER:
        raise HTTPException(401, f"The proxy must name the user in the header {header}")
    return found


def add_job_handler(app: FastAPI) -> None:
    """Make the app answer with 404 where there is no such job, also if another request has just deleted it."""

    @app.exception_handler(UnknownJobError)
    def missing(_: Request, __: UnknownJobError) -> ProblemResponse:
        return problem(404, NO_SUCH_JOB, NO_SUCH_JOB)


#: Parameters of handlers.
State = Annotated[ServerState, Depends(_state)]

Owner = Annotated[str, Depends(_owner)]


def _job(state: State, owner: Owner, id_: Annotated[str, Path(alias="id", max_length=32)]) -> Job:
    job = state.store.job(id_)
    if job.owner != owner:
        raise UnknownJobError(id_)
    return job


#: The job of the user that the address names.
FoundJob = Annotated[Job, Depends(_job)]
