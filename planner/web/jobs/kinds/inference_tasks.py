"""Inference tasks: requests to an endpoint of the operator's list, measured, beside what is simulated for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from catalogs.io.json_files import check_values
from planner.web.inference import InferenceTask, checked_task, send_task
from planner.web.jobs.kind import JobKind, JobResult, Prepared, Submission, Task
from planner.web.listed_endpoints import read_endpoints


def prepare(body: Mapping[str, Any], submission: Submission) -> Prepared:
    """Return the question of an inference task, which names an endpoint of the server's list."""
    check_values(body, "the inference task")
    task, _ = checked_task(read_endpoints(submission.settings.endpoints_file), dict(body))
    what = f"{task.requests} requests" if task.requests > 1 else "1 request"
    return Prepared(f"{what} to {task.endpoint}", task.model_dump(exclude_none=True))


def run(task: Task) -> JobResult:
    """Send the requests; an interrupted task keeps what it has measured."""
    from planner.report.write import rows_as_csv
    from planner.web.documents.inference_result import task_document

    question, endpoint = checked_task(read_endpoints(task.endpoints_file), task.question)
    sent = send_task(question, endpoint, lambda done, n: task.report(done, n, "requests finished", None))
    document = task_document(sent)
    left_out = ("text", "text_is_cut", "itl_s")
    rows = [{k: v for k, v in row.items() if k not in left_out} for row in document["requests"]]
    complete = [{name: row.get(name) for name in _columns(rows)} for row in rows]
    return JobResult(document, None, {"result.csv": rows_as_csv(complete).encode()}, sent.load.interrupted)


def _columns(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


SUMMARY: Final = "Send requests to an endpoint of the server's list, and measure them."

KIND = JobKind(
    "inference-task",
    "inference-tasks",
    SUMMARY,
    prepare,
    run,
    lambda: InferenceTask.model_json_schema(),
    measures=True,
    page="/run",
)
