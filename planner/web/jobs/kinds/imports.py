"""Imports: a calibration from `calibrate export` installed on the server, or results of load clients as one table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from catalogs.errors import InputError
from catalogs.io.json_files import check_values
from catalogs.io.yaml_files import YamlBlock, validate_as
from planner.web.jobs.kind import JobKind, JobResult, Prepared, Submission, Task
from planner.web.uploads import PREFIX, refuse_paths

_MOST_RESULTS: Final = 20


class ImportQuestion(YamlBlock):
    """The body of an import: either an uploaded archive with a calibration, or uploaded results of load clients."""

    calibration: str | None = None
    hardware: str | None = None
    results: Annotated[list[str], Field(min_length=1, max_length=_MOST_RESULTS)] | None = None


def prepare(body: Mapping[str, Any], submission: Submission) -> Prepared:
    """Return the question of an import."""
    check_values(body, "the import")
    refuse_paths(body)
    question = validate_as(ImportQuestion, dict(body), "the import")
    if (question.calibration is None) == (question.results is None):
        raise InputError("an import has either a calibration or results", hint="upload a file and name it")
    files = [question.calibration] if question.calibration is not None else question.results or []
    for reference in files:
        if not reference.startswith(PREFIX):
            raise InputError("an import must be an upload", reference, f"{PREFIX}SHA256")
    names = ", ".join(submission.uploads.find(reference, submission.owner).name for reference in files)
    what = "calibration" if question.calibration is not None else "results"
    return Prepared(f"Import of {what} {names}", question.model_dump(exclude_none=True))


def run(task: Task) -> JobResult:
    """Install the calibration, or read the results."""
    question = ImportQuestion.model_validate(task.question)
    if question.calibration is not None:
        return JobResult(_installed(Path(question.calibration), question.hardware), True)
    return JobResult(_results([Path(name) for name in question.results or []]))


def _installed(archive: Path, hardware: str | None) -> dict[str, Any]:
    from calibration.bundles.archive import install_bundle
    from calibration.bundles.files import read_bundle

    folder = install_bundle(archive, hardware)
    facts = read_bundle(folder)[0]
    return {
        "schema_version": 1,
        "hardware": facts.hardware,
        "errors": facts.held_out,
        "notices": list(facts.notices),
    }


def _results(files: list[Path]) -> dict[str, Any]:
    from calibration.commands.importing import run_document
    from calibration.importers.results import measured_runs

    return {"schema_version": 1, "runs": [run_document(run) for file in files for run in measured_runs(file)]}


SUMMARY: Final = "Install a calibration from `calibrate export`, or read results of load clients."

#: `measures`: the same calibration is installed anew, because another one may have been installed since.
KIND = JobKind(
    "import",
    "imports",
    SUMMARY,
    prepare,
    run,
    lambda: ImportQuestion.model_json_schema(),
    measures=True,
    page="/calibrate",
)
