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

#: What starts the plan of a language model where the question names no target.
USUAL_TARGET: Final = "vllm"

#: Most characters of the name of an image.
_LONGEST_IMAGE: Final = 300


class DeploymentQuestion(YamlBlock):
    """The body of a deployment: the job of a plan, the target, the number of the plan, and another image.

    Without a target: vLLM for a language model, and the target of its engine for a network.
    """

    job: str
    target: str | None = None
    alternative: int = Field(default=0, ge=0)
    image: str | None = None


def prepare(body: Mapping[str, Any], submission: Submission) -> Prepared:
    """Return the question of a deployment."""
    from planner.deploy.targets.registry import find_target

    check_values(body, "the deployment")
    question = validate_as(DeploymentQuestion, dict(body), "the deployment")
    if question.target is not None:
        find_target(question.target)
    if question.image is not None and (len(question.image) > _LONGEST_IMAGE or not question.image.isprintable()):
        raise InputError("an image is a name such as vllm/vllm-openai:v0.11.0", question.image)
    plan = submission.finished(question.job, "plan")
    kept = question.model_dump(exclude={"job"}, exclude_none=True)
    return Prepared(f"Files for {question.target or 'the usual target'}: {plan.title}", kept, plan.id)


def run(task: Task) -> JobResult:
    """Write the files and pack them."""
    from planner.deploy.files import write_folder
    from planner.deploy.package import Package, pack
    from planner.networks.answer_file import chosen_plan
    from planner.networks.deploy import NetworkPackage, pack_network, usual_target
    from planner.networks.schema import NetworkAnswer

    answer, source = parent_answer(task), Path("answer.json")
    source.write_bytes(task.parent or b"")
    target, image = task.question.get("target"), task.question.get("image")
    alternative: int = task.question["alternative"]
    package: Package | NetworkPackage
    if isinstance(answer, NetworkAnswer):
        if image is not None:
            raise InputError("the files of a network name no image of your own", image, "no image")
        target = target or usual_target(chosen_plan("deploy", answer, alternative))
        package = pack_network(answer, target, alternative)
    else:
        target = target or USUAL_TARGET
        package = pack(answer, source, target, alternative, image)
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
