"""What a kind of job is: how a request becomes a question, and how a worker process answers it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from catalogs.errors import InputError
from catalogs.io.output_files import finite
from planner.web.settings import ServerSettings
from planner.web.store.jobs import DONE, RESULT, Job, JobStore, UnknownJobError
from planner.web.uploads import Uploads

if TYPE_CHECKING:
    from planner.answer.answer_schema import Answer
    from planner.networks.schema import NetworkAnswer

#: Called with the number of finished steps, of all steps (None: unknown), what is done, and the best result so far.
ProgressCallback = Callable[[int, int | None, str, Mapping[str, Any] | None], None]


@dataclass(frozen=True, slots=True)
class Submission:
    """Where a request comes from: its user, and what the server keeps for that user."""

    owner: str
    store: JobStore
    uploads: Uploads
    settings: ServerSettings

    def finished(self, id_: object, kind: str) -> Job:
        """Return a finished job of the user, of one kind.

        Raises:
            InputError: The user has no such job.
        """
        try:
            job = self.store.job(str(id_))
        except UnknownJobError:
            job = None
        if job is None or job.owner != self.owner or job.kind != kind:
            raise InputError(f"job must be the id of a {kind}", id_)
        if job.status != DONE:
            raise InputError(f"the {kind} must be done before others can build on it", job.status, DONE)
        return job


@dataclass(frozen=True, slots=True)
class Prepared:
    """A valid question of a job.

    Attributes:
        title: The question in a few words.
        question: The question in its canonical form, with uploads by their reference.
        parent: Id of the job that the question is about.
    """

    title: str
    question: dict[str, Any]
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker process has to do, in a folder of its own that holds the uploads under their names.

    Attributes:
        question: The question, with uploads by the names of their files.
        folder: The folder, which is the current one of the process and outlives a crash of the server.
        cores: Processes that the job may use.
        report: Reports progress.
        parent: Result of the job that the question is about.
        endpoints_file: File that lists the endpoints to which an inference task may be sent; None for none.
    """

    question: dict[str, Any]
    folder: Path
    cores: int
    report: ProgressCallback
    parent: bytes | None = None
    endpoints_file: Path | None = None


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a job.

    Attributes:
        document: What `result` returns, as JSON data.
        verdict: The answer to a yes-or-no question; None for other jobs.
        artifacts: Further results by name, for example `requests.csv`.
        interrupted: Whether the job was stopped early, so that the document is a partial result.
    """

    document: Mapping[str, Any]
    verdict: bool | None = None
    artifacts: Mapping[str, bytes] = field(default_factory=dict)
    interrupted: bool = False

    def files(self) -> dict[str, bytes]:
        """Return all results by name."""
        return {RESULT: json_bytes(self.document), **self.artifacts}


@dataclass(frozen=True, slots=True)
class JobKind:
    """One kind of job.

    Attributes:
        name: The kind as jobs state it, for example "plan".
        path: The address to which its questions are posted, for example "plans".
        summary: What the job does, for the documentation of the API.
        prepare: Returns the question of a JSON body; raises InputError if it is not valid.
        run: Answers the question, in a worker process.
        schema: Returns the JSON Schema of the body.
        measures: Whether the result depends on the outside world, so that an equal question is answered anew.
        uses_device: Whether the job may open an accelerator, which maps more addresses than a memory limit allows.
        page: The page that shows such a job; None if no page does.
        derived: Whether the job makes files of a finished job in a short time; such jobs run first and are not listed.
    """

    name: str
    path: str
    summary: str
    prepare: Callable[[Mapping[str, Any], Submission], Prepared]
    run: Callable[[Task], JobResult]
    schema: Callable[[], dict[str, Any]]
    measures: bool = False
    uses_device: bool = False
    page: str | None = None
    derived: bool = False


def parent_answer(task: Task) -> Answer | NetworkAnswer:
    """Return the answer of the plan that a task is about.

    Raises:
        InputError: The plan was deleted meanwhile.
    """
    from planner.networks.answer_file import any_answer

    if task.parent is None:
        raise InputError("the plan of this job was deleted")
    return any_answer(json.loads(task.parent), "the plan")


def language_answer(task: Task) -> Answer:
    """Return the answer of the plan of a language model that a task is about.

    Raises:
        InputError: The plan was deleted meanwhile, or is one of a network.
    """
    from planner.networks.schema import NetworkAnswer

    found = parent_answer(task)
    if isinstance(found, NetworkAnswer):
        raise InputError("this takes the plan of a language model, and this one is for a network", found.request.model)
    return found


def json_bytes(document: object) -> bytes:
    """Return JSON data as text in UTF-8; numbers that are not finite become null."""
    return json.dumps(finite(document), allow_nan=False).encode()
