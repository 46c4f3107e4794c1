"""Plans: the same answer as `plan --json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from planner.web.jobs.kind import JobKind, JobResult, Prepared, Submission, Task
from planner.web.questions import any_request, read_question, refuse_unknown, shown_names

if TYPE_CHECKING:
    from planner.networks.request import NetworkRequest
    from planner.problem.request import PlanRequest
    from planner.search.candidate_tester import Outcome


def prepare(body: Mapping[str, Any], submission: Submission) -> Prepared:
    """Return the question of a plan: the keys of a scenario file."""
    question = read_question(body, submission.uploads, submission.owner)
    with shown_names(question.files):
        refuse_unknown(any_request(question.keys))
    return Prepared(question.title, question.scenario)


def run(task: Task) -> JobResult:
    """Plan; an interrupted search ends with the best plan so far."""
    from planner.networks.request import NetworkRequest
    from planner.pipeline import plan
    from planner.problem.scenario import scenario_keys
    from planner.report.material import ReportData
    from planner.report.write import rows_as_csv, tables_of

    keys = scenario_keys(task.question, "the question")
    if keys.get("agents") is not None:
        return _run_agents(task, keys)
    search = {"search.study": "study.journal", "search.workers": task.cores}
    request = any_request(keys | search)
    if isinstance(request, NetworkRequest):
        return _network(task, request)
    answer = plan(request, SearchReport(task, request).report)
    tables = tables_of(ReportData(answer, None, []))
    table = {"result.csv": rows_as_csv(tables["plans"]).encode()} if "plans" in tables else {}
    return JobResult(answer.document(), answer.feasible, table, answer.interrupted)


def _network(task: Task, request: NetworkRequest) -> JobResult:
    """Answer a question about a network; the table of its plans is an artifact."""
    from planner.networks.plan import plan_network
    from planner.networks.report.tables import plan_rows
    from planner.report.write import rows_as_csv

    earlier = last = 0  # candidates of earlier searches, and of this one

    def report(done: int, planned: int) -> None:
        nonlocal earlier, last
        if done < last:  # the search on the next kind of accelerator has begun
            earlier += last
        last = done
        task.report(earlier + done, earlier + planned, "candidates simulated", None)

    answer = plan_network(request, report)
    rows = plan_rows(answer)
    table = {"result.csv": rows_as_csv(rows).encode()} if rows else {}
    return JobResult(answer.document(), answer.feasible, table, answer.search.interrupted)


def _run_agents(task: Task, keys: dict[str, Any]) -> JobResult:
    """Plan for a number of agents."""
    from planner.agents.plan import plan_agents
    from planner.problem.scenario import request_of_keys
    from planner.search.workers import ProcessPool

    steps = 0

    def progress(words: str) -> None:
        nonlocal steps
        steps += 1
        task.report(steps, None, words, None)

    answer = plan_agents(request_of_keys(keys), progress, ProcessPool(task.cores))
    return JobResult(answer.document(), answer.feasible)


class SearchReport:
    """Reports the progress of a search, which may go through several groups of candidates."""

    def __init__(self, task: Task, request: PlanRequest) -> None:
        self._task = task
        self._request = request
        self._earlier = 0  # candidates of earlier groups
        self._done = 0  # in this group

    def report(self, done: int, planned: int, best: Outcome | None) -> None:
        """Report one candidate; see `planner.search.search.Progress`."""
        if done < self._done:  # the next group has begun
            self._earlier += self._done
        self._done = done
        words = "candidates tried" if done < planned else "candidates tried; the figures of the answer follow"
        self._task.report(
            self._earlier + done, self._earlier + planned, words, None if best is None else self._best(best)
        )

    def _best(self, best: Outcome) -> dict[str, Any]:
        """Return the best outcome so far: in words, its rate, and its deployment."""
        candidate = best.candidate
        deployment = candidate.deployment(self._request.model, self._request.engine)
        return {
            "words": candidate.words,
            "hardware": candidate.hardware.text,
            "requests_per_s": best.requests_per_s,
            "deployment": deployment.model_dump(mode="json", exclude_none=True),
        }


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a question: the keys of language models, and those that only networks have."""
    from planner.problem.request_keys import NETWORK_SCHEMA_FILE, SCHEMA_FILE

    found, networks = (json.loads(file.read_text(encoding="utf-8")) for file in (SCHEMA_FILE, NETWORK_SCHEMA_FILE))
    whole: dict[str, Any] = found | {"properties": networks["properties"] | found["properties"]}
    return whole | {"$defs": networks.get("$defs", {}) | found.get("$defs", {})}


KIND = JobKind(
    "plan",
    "plans",
    "Find the deployment that serves a model within its objectives.",
    prepare,
    run,
    schema,
    page="/plan",
)
