"""Plans for agents in `plan serve`: the job and what the page shows of its answer."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from catalogs.errors import InputError
from planner.agents.answer import AgentsAnswer, parse_agents_answer
from planner.problem.request import PlanRequest
from planner.problem.slo import parse_slos
from planner.web.api.answers import view
from planner.web.api.jobs import view as job_view
from planner.web.api.state import ServerState
from planner.web.documents.guess import guess_document
from planner.web.jobs.kind import JobResult, Task
from planner.web.jobs.kinds import plans, reports
from planner.web.store.jobs import Job
from tests.planner.agents.small_runs import SESSIONS, short_runs

__all__ = ["short_runs"]


def answered(folder: Path, slo: str) -> tuple[JobResult, AgentsAnswer]:
    """Return the result of a job of two agents on one GPU, and its answer."""
    question: dict[str, Any] = {"model": "llama3.1-8b", "hardware": "h100", "workload": SESSIONS, "agents": 2}
    steps: list[str] = []
    task = Task(question | {"slo": [slo]}, folder, 1, lambda _done, _most, words, _best: steps.append(words))
    found = plans.KIND.run(task)
    assert steps
    return found, parse_agents_answer(json.loads(json.dumps(dict(found.document))))


def test_a_job_of_agents_has_its_answer_and_its_page(tmp_path: Path) -> None:
    found, answer = answered(tmp_path, "ttft.p95=2s")
    assert found.verdict is True
    shown = view(answer.document())
    assert shown["feasible"] is True
    assert shown["headline"].startswith(answer.best.words)
    assert shown["figures"] == []
    assert [label for label, _ in shown["sections"] if label == "Per task"] == ["Per task"]
    parent = json.dumps(dict(found.document)).encode()
    page = reports.run(Task({"sensitivity": False}, tmp_path, 1, lambda *_: None, parent))
    assert answer.best.words.encode() in page.artifacts["result.html"]


def test_a_refused_job_states_ways_out_that_change_the_question(tmp_path: Path) -> None:
    found, answer = answered(tmp_path, "interactivity.p90=5000")
    assert found.verdict is False
    shown = view(answer.document())
    assert shown["feasible"] is False
    refusal = shown["refusal"]
    assert refusal["reason"].startswith("Interactivity.p90 is")
    assert refusal["stages"]
    assert {key for way in refusal["ways"] for key in way["changes"]} <= {"slo", "agents", "hardware", "confidence"}
    assert "slo" in refusal["ways"][0]["changes"]


def test_agents_have_no_first_guess() -> None:
    request = PlanRequest(model="llama3.1-8b", hardware="h100", slos=parse_slos(["ttft.p95=2s"]), agents=2)
    with pytest.raises(InputError, match="no first guess for agents"):
        guess_document(request)


@pytest.mark.parametrize("agents", [None, 2])
def test_a_page_offers_only_the_files_that_an_answer_has(agents: int | None) -> None:
    keys = dict.fromkeys(Job.__dataclass_fields__)
    question = {"model": "llama3.1-8b", "agents": agents}
    job = Job(**keys | {"id": "1", "kind": "plan", "verdict": "yes", "question": question})  # type: ignore[arg-type]
    state = cast("ServerState", SimpleNamespace(uploads=None))  # no upload is read: the model is one of the catalog
    links = job_view(state, job, ["result.json"])["links"]
    assert ("files.zip" in links) == (agents is None)
    assert "deployment.yaml" in links
