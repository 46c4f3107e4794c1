"""Profiles: measure this machine and install its calibration, as `calibrate run` does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import Field

from catalogs.io.json_files import check_values
from catalogs.io.yaml_files import YamlBlock, validate_as
from planner.web.jobs.kind import JobKind, JobResult, Prepared, Submission, Task
from planner.web.uploads import references, refuse_paths

#: Version of the form of the result.
SCHEMA_VERSION: Final = 1

#: Longest profile of a server, seconds.
MOST_BUDGET_S: Final = 3600.0


class ProfileQuestion(YamlBlock):
    """The body of a profile: the time to spend, the threads to use, and a model to measure first.

    `allow_contended` also installs what was measured while other processes used the machine.
    """

    budget_s: float = Field(default=300.0, ge=5.0, le=MOST_BUDGET_S)
    threads: int | None = Field(default=None, ge=1)
    model: str | None = None
    allow_contended: bool = False


def prepare(body: Mapping[str, Any], submission: Submission) -> Prepared:
    """Return the question of a profile."""
    check_values(body, "the profile")
    refuse_paths(body)
    question = validate_as(ProfileQuestion, dict(body), "the profile")
    files = [submission.uploads.find(reference, submission.owner) for reference in references(body)]
    if question.model is not None:
        from catalogs.models.catalog import load_model

        load_model(str(files[0].path) if files else question.model)
    for_model = f", first for {files[0].name if files else question.model}" if question.model else ""
    return Prepared(f"Profile of this machine{for_model}", question.model_dump(exclude_none=True))


def run(task: Task) -> JobResult:
    """Profile this machine, fit its cost models and install them; the result has their errors."""
    from calibration.bundles.files import read_bundle
    from calibration.profile.dry_run import machine_lines
    from calibration.profile.local_run import ProfileOptions, fit_and_install, run_profile
    from calibration.profile.run import ProgressReporter

    question = ProfileQuestion.model_validate(task.question)
    models = () if question.model is None else (question.model,)
    options = ProfileOptions("local", question.budget_s, task.folder / "profile", None, question.threads, models=models)
    lines: list[str] = []

    def step(spent_s: float, what: str) -> None:
        task.report(min(int(spent_s), int(question.budget_s)), int(question.budget_s), what, None)

    done = run_profile(options, ProgressReporter(lines.append, step))
    task.report(int(question.budget_s), int(question.budget_s), "fitting", None)
    made = fit_and_install(done, question.allow_contended)
    facts, unit = read_bundle(made.bundle)[0], done.accelerator
    document = {
        "schema_version": SCHEMA_VERSION,
        "hardware": unit.name,
        "installed": made.folder is not None,
        "not_installed": made.why_not or None,
        "counts": done.counts,
        "peak_flops": unit.peak_flops,
        "memory_bandwidth_bytes_per_s": unit.memory_bandwidth_bytes_per_s,
        "machine": machine_lines(done.session.rows),
        "drift": done.facts.get("drift") or None,
        "errors": facts.held_out,
        "notices": [*facts.notices, *lines],
    }
    return JobResult(document, made.folder is not None)


SUMMARY: Final = "Measure this machine and install its calibration."

KIND = JobKind(
    "profile",
    "profiles",
    SUMMARY,
    prepare,
    run,
    lambda: ProfileQuestion.model_json_schema(),
    measures=True,
    uses_device=True,
    page="/calibrate",
)
