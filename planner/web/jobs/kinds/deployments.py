"""Files of `plan deploy`: what starts a plan on a target, as a zip archive."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import Field

from catalogs.errors import InputError
from catalogs.io.json_files import check_values
from catalogs.io.yaml_files import YamlBlock, validate_as
from planner.web.jobs.kind import JobKind, JobResult, Prepared, Submission, Task, parent_answer

FILES: Final = "files.zip"

#: Most characters of the name of an image.
_LONGEST_IMAGE: Final = 300


class DeploymentQuestion(YamlBlock):
    """The body of a deployment: the job of a plan, the target, the number of the plan, and another image."""

    job: str
    target: str = "vllm"
    alternative: int = Field(default=0, ge=0)
    image: str | None = None


def prepare(body: Mapping[str, Any], submission: Submission) -> Prepared:
    """Return the question of a deployment."""
    from planner.deploy.targets.registry import find_target

    check_values(body, "the deployment")
    question = validate_as(DeploymentQuestion, dict(body), "the deployment")
    find_target(question.target)
    if question.image is not None and (len(question.image) > _LONGEST_IMAGE or not question.image.isprintable()):
        raise InputError("an image is a name such as vllm/vllm-openai:v0.11.0", question.image)
    plan = submission.finished(question.job, "plan")
    kept = question.model_dump(exclude={"job"}, exclude_none=True)
    return Prepared(f"Files for {question.target}: {plan.title}", kept, plan.id)


def run(task: Task) -> JobResult:
    """Write the files and pack them."""
    from planner.deploy.files import write_folder
    from planner.deploy.package import pack

    answer, source = parent_answer(task), Path("answer.json")
    source.write_bytes(task.parent or b"")
    target, image = task.question["target"], task.question.get("image")
    package = pack(answer, source, target, task.question["alternative"], image)
    folder = Path(target)
    write_folder(folder, package.files, True)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as files:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                files.write(path, str(path))
    return JobResult(package.document(), artifacts={FILES: archive.getvalue()})


SUMMARY: Final = "Write the files that start a plan."

KIND = JobKind(
    "deploy-files",
    "deploy-files",
    SUMMARY,
    prepare,
    run,
    lambda: DeploymentQuestion.model_json_schema(),
    derived=True,
)
