"""Reports: an answer as an HTML page and as tables, the same as `plan report --html --csv`."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from catalogs.io.yaml_files import YamlBlock, validate_as
from planner.web.jobs.kind import JobKind, JobResult, Prepared, Submission, Task, parent_answer
from planner.web.uploads import refuse_paths

if TYPE_CHECKING:
    from planner.networks.schema import NetworkAnswer

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
    from planner.networks.schema import NetworkAnswer
    from planner.report.material import gather
    from planner.report.page import answer_page
    from planner.report.write import write_tables
    from planner.search.workers import ProcessPool

    need_plotly()
    data = None if task.parent is None else json.loads(task.parent)
    if is_agents_answer(data):
        page = render(agents_page(parse_agents_answer(data, "the plan"))).encode()
        return JobResult({"tables": [], "page_bytes": len(page)}, None, {PAGE: page})
    answer = parent_answer(task)
    if isinstance(answer, NetworkAnswer):
        return _network(answer)
    steps = 0

    def progress(words: str) -> None:
        nonlocal steps
        steps += 1
        task.report(steps, None, words, None)

    material = replace(gather(answer, progress, task.question["sensitivity"], ProcessPool(task.cores)), fronts=())
    page = render(answer_page(material)).encode()
    folder = Path("tables")
    write_tables(material, folder)
    return _result(page, {path.name: path.read_bytes() for path in folder.iterdir()})


def _network(answer: NetworkAnswer) -> JobResult:
    """Write the page and the table of an answer for a network, which simulate nothing."""
    from catalogs.ui.html_page import render
    from planner.networks.report.files import write_network_tables
    from planner.networks.report.page import network_page

    folder = Path("tables")
    write_network_tables(answer, folder)
    tables = {path.name: path.read_bytes() for path in folder.iterdir()}
    return _result(render(network_page(answer)).encode(), tables)


def _result(page: bytes, tables: Mapping[str, bytes]) -> JobResult:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as files:
        for name, content in sorted(tables.items()):
            files.writestr(name, content)
    found = {"tables": sorted(tables), "page_bytes": len(page)}
    return JobResult(found, None, {PAGE: page, TABLES: archive.getvalue()})


SUMMARY: Final = "Write a plan as an HTML page and as tables."

KIND = JobKind("report", "reports", SUMMARY, prepare, run, lambda: ReportQuestion.model_json_schema(), derived=True)
