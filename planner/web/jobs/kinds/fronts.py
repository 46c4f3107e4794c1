"""Pareto fronts: the same result as `plan front --json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from catalogs.errors import InputError
from planner.web.jobs.kind import JobKind, JobResult, Prepared, Submission, Task
from planner.web.questions import read_keys, refuse_unknown, shown_names, with_references

if TYPE_CHECKING:
    from planner.search.pareto_answer import ParetoAnswer

DEFAULT_AXES: Final = ("cost", "ttft.p99")


def prepare(body: Mapping[str, Any], submission: Submission) -> Prepared:
    """Return the question of a front: keys of a scenario file, and `axes`."""
    from planner.problem.front import front_request, parse_axes

    given = dict(body)
    axes = parse_axes(*_names(given.pop("axes", DEFAULT_AXES)))
    keys, files = read_keys(given, submission.uploads, submission.owner, "the front")
    with shown_names(files):
        request, limits = front_request(keys, axes)
        refuse_unknown(request)
    scenario = with_references(request.scenario(), files)
    scenario |= {"slo": [slo.text for slo in limits], "axes": [axis.name for axis in axes]}
    scenario.pop("objective", None)
    title = f"{scenario['model']} on {scenario['hardware']}: {' and '.join(scenario['axes'])}"
    return Prepared(title, scenario)


def _names(axes: object) -> Sequence[str]:
    if isinstance(axes, str):
        return [axes]
    if isinstance(axes, list | tuple) and all(isinstance(axis, str) for axis in axes):
        return axes
    raise InputError("axes must be a list of texts", axes, '["cost", "ttft.p99"]')


def run(task: Task) -> JobResult:
    """Search the front; an interrupted search ends with the points so far."""
    from planner.evaluation.multi_hardware import open_evaluator
    from planner.problem.front import front_request, parse_axes
    from planner.problem.scenario import scenario_keys
    from planner.report.write import rows_as_csv
    from planner.search.pareto_answer import make_front

    given = dict(task.question)
    axes = parse_axes(*given.pop("axes"))
    keys = scenario_keys(given, "the front") | {"search.study": "study.journal"}
    request, limits = front_request(keys, axes)

    def report(done: int, most: int, n_front: int) -> None:
        task.report(done, most, "points simulated", {"words": f"{n_front} points on the front"})

    found = make_front(request, open_evaluator(request), axes, limits, report)
    document = found.document()
    tables = {"result.csv": rows_as_csv(_rows(found, document)).encode()}
    return JobResult(document, bool(found.members), tables, found.result.interrupted)


def _rows(found: ParetoAnswer, document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each simulated point, with its values in the units of the axes."""
    units = {axis.name: f"{axis.name.replace('.', '_')}_{axis.unit.lower()}" for axis in found.axes}
    kept = ("hardware", "words", "requests_per_s", "usd_per_hour", "holds", "stopped_early", "on_front")
    return [
        {name: point.get(name) for name in kept} | {units[name]: v for name, v in point["values"].items()}
        for point in document["simulated"]
    ]


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a question: that of a plan, with the axes, and without what a front does not take."""
    from planner.problem.request_keys import FRONT_KEYS
    from planner.web.jobs.kinds.plans import schema as of_plan

    found = of_plan()
    names = {key.partition(".")[0] for key in FRONT_KEYS}
    kept = {name: part for name, part in found["properties"].items() if name in names}
    axes = {"type": "array", "items": {"type": "string"}, "description": "Two or three axes, e.g. cost, ttft.p99."}
    return found | {"properties": kept | {"axes": axes}, "required": ["model", "hardware"]}


KIND = JobKind(
    "front", "fronts", "Find the Pareto front of deployments and loads.", prepare, run, schema, page="/fronts"
)
