"""Verifications: results of load tests compared with their plan, the same result as `plan verify --json`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from catalogs.errors import InputError
from catalogs.io.json_files import check_values
from catalogs.io.yaml_files import YamlBlock, validate_as
from planner.web.jobs.kind import JobKind, JobResult, Prepared, Submission, Task, language_answer
from planner.web.uploads import PREFIX, refuse_paths

#: Most results of one verification. A judgement that keeps a form short.
_MOST_RESULTS: Final = 20


class VerificationQuestion(YamlBlock):
    """The body of a verification: the job of a plan, the uploaded results, and the name under which the model ran."""

    job: str
    results: Annotated[list[str], Field(min_length=1, max_length=_MOST_RESULTS)]
    served: str | None = None
    alternative: int = Field(default=0, ge=0)


def prepare(body: Mapping[str, Any], submission: Submission) -> Prepared:
    """Return the question of a verification."""
    check_values(body, "the verification")
    refuse_paths(body)
    question = validate_as(VerificationQuestion, dict(body), "the verification")
    for reference in question.results:
        if not reference.startswith(PREFIX):
            raise InputError("a result must be an upload", reference, f"{PREFIX}SHA256")
    names = [submission.uploads.find(reference, submission.owner).name for reference in question.results]
    plan = submission.finished(question.job, "plan")
    kept = question.model_dump(exclude={"job"}, exclude_none=True)
    return Prepared(f"{plan.title}, against {', '.join(names)}", kept, plan.id)


def run(task: Task) -> JobResult:
    """Compare the measured runs with the predictions of the plan."""
    from calibration.importers.load_clients.model_name import measured_model
    from calibration.importers.load_clients.results import measured_results
    from planner.answer.answer_schema import chosen
    from planner.verify.measured_load import LoadSimulator
    from planner.verify.prediction import Prediction
    from planner.verify.verification import runs_document, verify

    answer, alternative = language_answer(task), task.question["alternative"]
    prediction = Prediction.of(answer, chosen("verify", answer, alternative))
    simulator = lru_cache(maxsize=1)(partial(LoadSimulator.of, prediction, alternative))
    files = [Path(name) for name in task.question["results"]]
    runs = [(run, measured_model(file)) for file in files for run in measured_results(file)]
    found = []
    for done, (measured, model) in enumerate(runs):
        task.report(done, len(runs), "measured runs compared", None)
        found.append(verify(prediction, measured, model, simulator, task.question.get("served")))
    return JobResult(runs_document(found), all(each.holds for each in found))


SUMMARY: Final = "Compare results of load tests with their plan."

KIND = JobKind(
    "verification",
    "verifications",
    SUMMARY,
    prepare,
    run,
    lambda: VerificationQuestion.model_json_schema(),
    page="/calibrate",
)
