"""What-ifs: the deployment of a plan with changes, the same result as `plan whatif --json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pydantic import Field

from catalogs.errors import InputError
from catalogs.io.json_files import check_values
from catalogs.io.yaml_files import YamlBlock, validate_as
from planner.web.jobs.kind import JobKind, JobResult, Prepared, Submission, Task, parent_answer
from planner.web.uploads import references, refuse_paths

if TYPE_CHECKING:
    from planner.networks.schema import NetworkAnswer


class PlanChanges(YamlBlock):
    """The changes to a plan: its rate, its hardware, its workload or job, and keys of deployment.yaml."""

    rate: str | float | None = None
    hardware: str | None = None
    workload: str | None = None
    job: str | None = None
    steps: int | None = Field(default=None, ge=1)
    deployment: dict[str, Any] = Field(default_factory=dict)


class WhatIfQuestion(YamlBlock):
    """The body of a what-if: the job of a plan, the changes, and the number of the plan in its answer."""

    job: str
    changes: PlanChanges
    alternative: int = Field(default=0, ge=0)


def prepare(body: Mapping[str, Any], submission: Submission) -> Prepared:
    """Return the question of a what-if."""
    from planner.networks.studies.whatif import check_change
    from planner.problem.overrides import check_key
    from planner.studies.whatif import parse_rate
    from planner.web.questions import subject_of

    check_values(body, "the what-if")
    refuse_paths(body)
    question = validate_as(WhatIfQuestion, dict(body), "the what-if")
    changes = question.changes
    if not changes.model_dump(exclude_none=True, exclude_defaults=True):
        raise InputError("nothing is changed", hint='give changes such as {"rate": "x2", "hardware": "h200x8"}')
    if changes.rate is not None:
        parse_rate(str(changes.rate), 1.0)
    for reference in references(body):
        submission.uploads.find(reference, submission.owner)
    plan = submission.finished(question.job, "plan")
    subject = subject_of(plan.question, submission.uploads, submission.owner)
    if subject == "agents":
        raise InputError("a plan for agents has no what-if; plan again with the change", plan.title)
    is_network = subject == "network"
    for key in changes.deployment:
        if is_network:
            check_change(key)
        else:
            check_key(key.partition(".")[0], {})
    if is_network and changes.workload:
        raise InputError("a network has jobs, and no workload of tokens", changes.workload, "job")
    if not is_network and (changes.job or changes.steps):
        raise InputError("a language model has no job sizes and no steps", changes.job or changes.steps, "workload")
    given = changes.model_dump(exclude_none=True, exclude_defaults=True)
    words = ", ".join(f"{name} {value}" for name, value in (given | given.pop("deployment", {})).items())
    kept = {"changes": changes.model_dump(exclude_defaults=True), "alternative": question.alternative}
    return Prepared(f"{plan.title}, with {words}", kept, plan.id)


def run(task: Task) -> JobResult:
    """Simulate the changed deployment of a task, and return its comparison with the plan as the result of the job."""
    from planner.answer.answer_schema import chosen
    from planner.networks.schema import NetworkAnswer
    from planner.studies.whatif import Changes, parse_rate, what_if

    answer = parent_answer(task)
    given, alternative = PlanChanges.model_validate(task.question["changes"]), task.question["alternative"]
    if isinstance(answer, NetworkAnswer):
        return _network(task, answer, given, alternative)
    plan = chosen("whatif", answer, alternative)
    per_s = None if given.rate is None else parse_rate(str(given.rate), plan.requests_per_s or 0.0)
    task.report(0, None, "the changed deployment", None)
    found = what_if(answer, plan, Changes(per_s, given.hardware, given.workload, given.deployment))
    return JobResult(found.document(), not found.breaks)


def _network(task: Task, answer: NetworkAnswer, given: PlanChanges, alternative: int) -> JobResult:
    """Simulate the changed deployment of a network."""
    from planner.networks.answer_file import chosen_plan
    from planner.networks.studies.whatif import NetworkChanges, what_if_network
    from planner.studies.whatif import parse_rate

    plan = chosen_plan("whatif", answer, alternative)
    per_s = None if given.rate is None else parse_rate(str(given.rate), plan.requests_per_s)
    task.report(0, None, "the changed deployment", None)
    changes = NetworkChanges(per_s, given.hardware, given.job, given.steps, given.deployment)
    found = what_if_network(answer, plan, changes)
    return JobResult(found.document(), not found.breaks)


SUMMARY: Final = "Simulate the deployment of a plan with changes."

KIND = JobKind("whatif", "whatifs", SUMMARY, prepare, run, lambda: WhatIfQuestion.model_json_schema(), page="/compare")
