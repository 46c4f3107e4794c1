"""The plan of a network with changes, simulated with the same seeds, and the objectives it misses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from catalogs.deployments.key_texts import parse_settings
from catalogs.deployments.network_deployment import NetworkDeployment, as_network_deployment
from catalogs.errors import InputError, nearest_name
from catalogs.hardware.catalog import parse_hardware
from catalogs.networks.files import load_network
from catalogs.ui.words import counted, digits, gigabytes, human_s, seconds, sure_percent, unused_accelerators_words
from planner.economics.money import offer_words
from planner.networks.candidate import JobCandidate, Setup
from planner.networks.evaluation import JobEvaluator
from planner.networks.job import BATCH
from planner.networks.job_assessor import JobAssessor
from planner.networks.job_service import JobService
from planner.networks.mix import read_jobs
from planner.networks.plan_builder import PlanBuilder
from planner.networks.request import NetworkRequest
from planner.networks.schema import NetworkAnswer, NetworkPlan
from planner.networks.studies.comparison import CAPACITY, PLANNED_RATE, SINGLE_JOB, figures, setup_differs
from planner.problem.reproduction import digest
from planner.problem.tariff import require_price
from planner.studies.comparison import USD_PER_HOUR, Figure, PlanComparison
from planner.studies.whatif import WhatIf
from simulator.jobs.compiled import compile_jobs, execution_of

#: Keys that have an option of their own.
ELSEWHERE: Final = {"hardware": "--hw", "job": "--job", "model": "plan --model"}

#: Keys of a deployment that a plan of a network simulates; the others keep their defaults.
_SIMULATED: Final = (
    "replicas", "mode", "precision", "ulysses", "ring", "guidance", "shard_weights", "offload", "max_batch",
    "queue_delay_s", "instances",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NetworkChanges:
    """The changes to a plan of a network; None and an empty mapping leave it as it is.

    Attributes:
        requests_per_s: Jobs per second.
        hardware: Other hardware.
        job: Other sizes of a job, as `--job` takes them.
        steps: Other denoising steps.
        keys: Keys of the deployment.
    """

    requests_per_s: float | None = None
    hardware: str | None = None
    job: str | None = None
    steps: int | None = None
    keys: dict[str, Any] = field(default_factory=dict)


def what_if_network(answer: NetworkAnswer, plan: NetworkPlan, changes: NetworkChanges) -> WhatIf:
    """Simulate the changed plan and compare it with the planned one.

    Raises:
        InputError: A change is invalid, or the answer was made with another calibration.
    """
    notes: list[str] = []
    if answer.request.users is not None and changes.requests_per_s is not None:
        raise InputError(
            "the plan is for users, who send jobs after each other", changes.requests_per_s, "plan --users N"
        )
    written = _written(answer, plan, changes, notes)
    request = _request(answer, plan, changes, written)
    candidate = candidate_of(written)
    require_price(candidate.setup.hardware, request.tariff)
    builder = builder_of(request)
    check_calibration(answer, plan, builder)
    changed_job = builder.assessor.evaluator.service.mix.words
    differs = [("job", answer.job.words, changed_job)] if answer.job.words != changed_job else []
    differs += setup_differs(plan.deployment, written.model_dump(mode="json"))
    planned, rate = plan.requests_per_s, changes.requests_per_s or plan.requests_per_s
    if digits(planned) != digits(rate):
        differs.insert(0, ("jobs/s", digits(planned), digits(rate)))
    broken = _cannot_start(builder, candidate, rate)
    if broken:
        found = tuple(_figures_without_load(plan, builder, candidate, rate, answer.job.unit))
        return WhatIf(PlanComparison(tuple(differs), found, tuple(notes)), (broken,), None)
    changed = builder.plan(builder.sized(candidate, rate))
    if changed.cost is not None and changed.usd_per_hour is not None:
        notes.append(f"billed: {offer_words(changed.cost)}")
    elif plan.usd_per_hour is not None:
        notes.append(f"no known price for {written.hardware}")
    notes += [notice for notice in changed.notices if notice not in plan.notices]
    found = tuple(figures(plan, changed, answer.job.unit, builder.assessor.evaluator.service.job.unit))
    return WhatIf(
        PlanComparison(tuple(differs), found, tuple(notes)), tuple(_breaks(changed, request.users is not None)), changed
    )


def parse_changes(settings: Sequence[str]) -> dict[str, Any]:
    """Return the keys of the deployment of a network that `KEY=VALUE` texts set; values are YAML.

    Raises:
        InputError: A key is unknown, is not simulated in a plan, or is set twice.
    """
    return parse_settings(settings, check_change)


def check_change(key: str) -> None:
    """Refuse a key that plans of networks do not simulate.

    Raises:
        InputError: It is not one of the keys; the message names the nearest one.
    """
    if key not in _SIMULATED:
        near = nearest_name(key, _SIMULATED) or ELSEWHERE.get(key) or ", ".join(_SIMULATED)
        raise InputError("a plan of a network has no such key to change", key, near)


def builder_of(request: NetworkRequest, service: JobService | None = None) -> PlanBuilder:
    """Return what builds plans of a request, with the prices of a service if one is given."""
    if service is None:
        service = JobService(read_jobs(load_network(request.model), request.job, request.steps), request.engine)
    return PlanBuilder(JobAssessor(request, JobEvaluator(request, service)))


def candidate_of(deployment: NetworkDeployment) -> JobCandidate:
    """Return the candidate of a deployment.

    Raises:
        InputError: A value is invalid, or the replicas need more accelerators than there are.
    """
    compiled = compile_jobs(deployment)  # checks the names, the degrees and the number of accelerators
    execution = execution_of(deployment)
    hardware = parse_hardware(deployment.hardware)
    setup = Setup(hardware, deployment.precision, execution.mode, execution.parallelism, deployment.offload)
    items = compiled.network.sizes_of(deployment.job).get(BATCH, 1)
    if deployment.max_batch % items:
        raise InputError(f"max_batch counts items, and a job has {items}", deployment.max_batch, str(items))
    batch, delay_s = deployment.max_batch // items, deployment.queue_delay_s
    return JobCandidate(setup, deployment.replicas, batch, delay_s, deployment.instances)


def _written(answer: NetworkAnswer, plan: NetworkPlan, changes: NetworkChanges, notes: list[str]) -> NetworkDeployment:
    """Return the changed deployment; other hardware keeps as many replicas as it holds.

    Raises:
        InputError: A key or a value is invalid, or is not simulated in a plan.
    """
    keys = dict(plan.deployment)
    for name, value in changes.keys.items():
        check_change(name)
        keys[name] = value
    if changes.job is not None or changes.steps is not None:
        text = changes.job if changes.job is not None else answer.request.job
        steps = changes.steps if changes.steps is not None else answer.request.steps
        items = int(keys["job"].get(BATCH, 1))
        keys["job"] = dict(read_jobs(load_network(answer.request.model), text, steps).first.sizes)
        if "max_batch" not in changes.keys:
            keys["max_batch"] = keys["max_batch"] // items * int(keys["job"].get(BATCH, 1))
    if changes.hardware is not None:
        hardware = parse_hardware(changes.hardware)
        keys["hardware"] = hardware.text
        ranks = keys["ulysses"] * keys["ring"] * keys["guidance"]
        most = hardware.n_nodes * (hardware.accelerators_per_node // ranks)
        if "replicas" not in changes.keys and 0 < most < keys["replicas"]:
            notes.append(f"{hardware.text} holds {counted(most, 'replica')}, not {keys['replicas']}")
            keys["replicas"] = most
        elif most > keys["replicas"]:
            idle = hardware.n_accelerators - keys["replicas"] * ranks
            notes.append(unused_accelerators_words(idle, hardware.n_accelerators, hardware.text))
    return as_network_deployment(keys, "the changed deployment")


def _request(
    answer: NetworkAnswer, plan: NetworkPlan, changes: NetworkChanges, written: NetworkDeployment
) -> NetworkRequest:
    request = answer.request
    same = changes.hardware is None or written.hardware == plan.deployment["hardware"]
    tariff = request.tariff if same else request.tariff.replace(usd_per_hour=None)
    if same and tariff.usd_per_hour is not None and plan.usd_per_hour is not None:
        tariff = tariff.replace(usd_per_hour=plan.usd_per_hour)  # the price of the chosen part of the hardware
    return request.replace(
        hardware=written.hardware,
        requests_per_s=None if request.users is not None else changes.requests_per_s or plan.requests_per_s,
        job=changes.job if changes.job is not None else request.job,
        steps=changes.steps if changes.steps is not None else request.steps,
        max_usd_per_hour=None,
        max_batch=None,
        precisions=(),
        modes=(),
        tariff=tariff,
    )


def check_calibration(answer: NetworkAnswer, plan: NetworkPlan, builder: PlanBuilder) -> None:
    """Refuse an answer whose prices are not those of this machine.

    Raises:
        InputError: The seconds of a single job differ from those in the answer.
    """
    request = answer.request
    service = JobService(read_jobs(load_network(request.model), request.job, request.steps), request.engine)
    here_s = service.seconds(candidate_of(as_network_deployment(plan.deployment, "the plan")).setup)
    if abs(here_s / plan.metrics.service_s - 1.0) > 1e-6:
        rule = "the answer was made with another calibration or version: plan again"
        made, here = answer.reproduce.calibration, digest(builder.assessor.evaluator.service.fingerprint)
        took = f"a single job took {seconds(plan.metrics.service_s)}, here {seconds(here_s)}"
        raise InputError(rule, f"{took}; {made}, here {here}")


def _figures_without_load(
    plan: NetworkPlan, builder: PlanBuilder, candidate: JobCandidate, jobs_per_s: float, unit: str
) -> Iterator[Figure]:
    """Yield the figures of a plan beside those that a changed one has although it cannot serve the rate."""
    service, fits = builder.assessor.evaluator.service, _fits(builder, candidate)
    known = {
        PLANNED_RATE: jobs_per_s,
        CAPACITY: builder.capacity(candidate) if fits else None,
        SINGLE_JOB: service.seconds(candidate.setup) if fits else None,
        USD_PER_HOUR: builder.assessor.usd_per_hour(candidate),
    }
    for figure in figures(plan, plan, unit):
        yield replace(figure, b=known.get(figure.name))


def _fits(builder: PlanBuilder, candidate: JobCandidate) -> bool:
    """Return whether the largest batches of a candidate are predicted to fit into memory."""
    return builder.assessor.evaluator.service.fits(candidate.setup, candidate.max_batch, candidate.instances)


def _cannot_start(builder: PlanBuilder, candidate: JobCandidate, jobs_per_s: float) -> str:
    """Return why a candidate cannot serve a rate at all; empty if it can."""
    evaluator = builder.assessor.evaluator
    setup = candidate.setup
    if not _fits(builder, candidate):
        need = evaluator.service.memory_bytes(setup, candidate.max_batch, candidate.instances)
        unit = setup.hardware.accelerator
        words = f"a batch of {candidate.max_batch:,} needs {gigabytes(need)} of {gigabytes(unit.memory_bytes)}"
        return f"{words} ({unit.name})"
    most = evaluator.fluid_per_s(candidate)
    if builder.assessor.request.users is None and jobs_per_s >= most:
        return f"full batches serve {digits(most)} jobs/s, not {digits(jobs_per_s)}: the queue grows"
    return ""


def _breaks(changed: NetworkPlan, of_users: bool) -> Iterator[str]:
    """Yield a sentence for each objective that is missed at the simulated rate."""
    rate, capacity = changed.requests_per_s, changed.capacity_requests_per_s
    for row in changed.slo:
        if row.met:
            continue
        value = "no value" if row.value_s is None else human_s(row.value_s)
        found = f"{row.name} is {value}, limit {human_s(row.limit_s)}, at {digits(rate)} jobs/s"
        late = row.value_s is None or row.value_s > row.limit_s
        yield found if late else f"{found}: met with only {sure_percent(row.probability_met)} confidence"
    if capacity is None and not of_users:
        yield "no rate meets every objective"
    elif capacity is not None and capacity < rate:
        limit = f" ({changed.limited_by})" if changed.limited_by else ""
        yield f"it serves {digits(capacity)} jobs/s{limit}, not {digits(rate)}"
