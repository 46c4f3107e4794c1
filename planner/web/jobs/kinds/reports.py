"""Reports: an answer as an HTML page and as tables, the same as `plan report --html --csv`."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from catalogs.io.yaml_files import YamlBlock, validate_as
from planner.web.jobs.kind import JobKind, JobResult, Prepared, Submission, Task, parent_answer
from planner.web.uploads import refuse_paths

PAGE, TABLES = "result.html", "tables.zip"


class ReportQuestion(YamlBlock):
    """The body of a report: the job of a plan, and whether to simulate which inputs change the answer."""

    job: str
    sensitivity: bool = False


def prepare(body: Mapping[str, Any], submission: Submission) -> Prepared:
    """Return the question of a report."""
    refuse_paths(body)
    question = validate_as(ReportQuestion, dict(body), "the report")
    plan = submission.finished(question.job, "plan")
    return Prepared(f"Report: {plan.title}", {"sensitivity": question.sensitivity}, plan.id)


def run(task: Task) -> JobResult:
    """Simulate the figures that the answer does not hold, and write the page and the tables."""
    from dataclasses import replace

    from catalogs.ui.html_page import need_plotly, render
    from planner.agents.answer import is_agents_answer, parse_agents_answer
    from planner.agents.page import agents_page
    from planner.report.material import gather
    from planner.report.page import answer_page
    from planner.report.write import write_tables

    need_plotly()
    data = None if task.parent is None else json.loads(task.parent)
    if is_agents_answer(data):
        page = render(agents_page(parse_agents_answer(data, "the plan"))).encode()
        return JobResult({"tables": [], "page_bytes": len(page)}, None, {PAGE: page})
    steps = 0

    def progress(words: str) -> None:
        nonlocal steps
        steps += 1
        task.report(steps, None, words, None)

    material = replace(gather(parent_answer(task), progress, task.question["sensitivity"]), fronts=())
    page = render(answer_page(material)).encode()
    folder = Path("tables")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as files:
        for path in write_tables(material, folder):
            files.write(path, path.name)
    names = sorted(path.name for path in folder.iterdir())
    return JobResult({"tables": names, "page_bytes": len(page)}, None, {PAGE: page, TABLES: archive.getvalue()})


SUMMARY: Final = "Write a plan as an HTML page and as tables."

KIND = JobKind("report", "reports", SUMMARY, prepare, run, lambda: ReportQuestion.model_json_schema(), derived=True)
