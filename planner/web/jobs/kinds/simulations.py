"""Simulations: the same result as `simulate --json`, with the requests, a time series and a trace."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import Field

from catalogs.errors import InputError
from catalogs.io.json_files import check_values, read_json
from catalogs.io.yaml_files import YamlBlock, validate_as
from catalogs.ui.shared_options import DEFAULT_WORKLOAD
from catalogs.workloads.limits import LEAST_REQUESTS_PER_S, MOST_COUNT, MOST_REQUESTS, MOST_REQUESTS_PER_S
from planner.web.jobs.kind import JobKind, JobResult, Prepared, Submission, Task
from planner.web.questions import refuse_network, shown_names

#: Names of the further results.
REQUESTS, SERIES, TRACE = "requests.csv", "time_series.csv", "trace.json"

#: Times in seconds that a simulation can state.
LEAST_STEP_S, MOST_STEP_S = 1e-6, 1e9

#: Highest seed. JSON readers of other languages keep integers up to here exact.
MOST_SEED: Final = 2**53 - 1


class SimulationQuestion(YamlBlock):
    """The body of a simulation: the keys of deployment.yaml, and the options of `simulate`."""

    deployment: dict[str, Any]
    workload: str = DEFAULT_WORKLOAD
    rate: float | None = Field(default=None, ge=LEAST_REQUESTS_PER_S, le=MOST_REQUESTS_PER_S)
    requests: int | None = Field(default=None, ge=1, le=MOST_REQUESTS)
    seed: int | None = Field(default=None, ge=0, le=MOST_SEED)
    input_tokens: int | None = Field(default=None, ge=1, le=MOST_COUNT)
    output_tokens: int | None = Field(default=None, ge=1, le=MOST_COUNT)
    router: str | None = None
    router_staleness: float | None = Field(default=None, ge=0, le=MOST_STEP_S)
    trace_window: str | None = None
    time_step: float = Field(default=1.0, ge=LEAST_STEP_S, le=MOST_STEP_S)


def prepare(body: Mapping[str, Any], submission: Submission) -> Prepared:
    """Return the question of a simulation; its deployment and workload are read to find faults at once."""
    from catalogs.deployments.resolve import resolve_pools
    from catalogs.deployments.routing import parse_router
    from catalogs.deployments.schema import Deployment
    from catalogs.workloads.workload import load_workload
    from simulator.cli.main import with_router
    from simulator.cli.outputs import parse_window

    check_values(body, "the simulation")
    question = validate_as(SimulationQuestion, dict(body), "the simulation")
    if question.trace_window is not None:
        parse_window(question.trace_window)
    local, files = submission.uploads.local(question.model_dump(), submission.owner)
    with shown_names(files):
        refuse_network(local["deployment"].get("model"))
        deployment = validate_as(Deployment, local["deployment"], "deployment")
        routed = with_router(deployment, question.router, question.router_staleness)
        parse_router(routed.router)
        resolve_pools(routed)
        workload = load_workload(local["workload"])
    named = validate_as(Deployment, question.deployment, "deployment")
    written = named.model_dump(mode="json", exclude_defaults=True)
    title = f"{named.model} on {named.hardware}: {workload.name}"
    for file in files:
        title = title.replace(file.reference, file.name)
    return Prepared(title, question.model_dump(exclude_defaults=True) | {"deployment": written})


def run(task: Task) -> JobResult:
    """Simulate with the command's own function, in the folder of the task."""
    from catalogs.io.yaml_loader import dump_yaml
    from simulator.cli.main import simulate

    question = SimulationQuestion.model_validate(task.question)
    (task.folder / "deployment.yaml").write_text(dump_yaml(question.deployment), encoding="utf-8")
    task.report(0, None, "simulating", None)
    options = question.model_dump(exclude={"deployment", "trace_window", "time_step", "workload"})
    simulate(
        deployment=Path("deployment.yaml"),
        workload=question.workload,
        json_file="out.json",
        requests_out=Path(REQUESTS),
        chrome_trace=Path(TRACE),
        trace_window=question.trace_window,
        time_series=Path(SERIES),
        time_step=question.time_step,
        explain=True,
        processes=1,
        **options,
    )
    document = read_json(Path("out.json"))
    if not isinstance(document, dict):
        raise InputError("the simulation wrote no result")
    files = {name: Path(name).read_bytes() for name in (REQUESTS, SERIES, TRACE)}
    return JobResult(document, artifacts=files | {"result.csv": files[REQUESTS]})


SUMMARY: Final = "Simulate how a deployment serves a workload."

KIND = JobKind(
    "simulation", "simulations", SUMMARY, prepare, run, lambda: SimulationQuestion.model_json_schema(), page="/simulate"
)
