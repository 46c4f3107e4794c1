"""The request for a plan of a network: the keys that it shares with other requests, and those of jobs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Final, Self, get_args

from pydantic import ConfigDict, model_validator

from catalogs.deployments.network_deployment import NetworkEngine
from catalogs.errors import InputError
from catalogs.workloads.jobs import load_job_workload
from planner.networks.mix import is_file_of_jobs
from planner.problem.key_definition import CHOICE, LOAD, RequestModel, Texts, Whole, key, need_one_of, refuse_if
from planner.problem.latency_metrics import E2E
from planner.problem.request import (
    DEFAULT_CONFIDENCE,
    WORDS_SCHEMA,
    Budget,
    HardwareText,
    ModelName,
    Objectives,
    RequiredConfidence,
    RequiredRate,
    SearchOptions,
    Seed,
    ThinkTime,
    Users,
    check_budget,
    check_certainty,
)
from planner.problem.request_keys import network_keys, request_keys
from planner.problem.scenario import nested
from planner.problem.slo import Slo
from planner.problem.tariff import Tariff
from simulator.networks.execution import ACTIVATION_BYTES, Mode

OBJECTIVES: Final = ("cost", "energy", "carbon", "throughput", "latency")

#: The servers of networks that a plan can choose: all engines but `torch`, a loop without a server.
ENGINES: Final[tuple[str, ...]] = tuple(name for name in get_args(NetworkEngine) if name != "torch")

#: What launches the operators of a network.
MODES: Final[tuple[Mode, ...]] = get_args(Mode)

EXAMPLE: Final = "plan --model sam2.1-large --slo e2e.p99=50ms --rate 200 --hw l40sx4"


def _as_written(schema: dict[str, Any]) -> None:
    """Add the key that only a written request has: the objectives in words."""
    schema["properties"]["slo_words"] = WORDS_SCHEMA


class NetworkRequest(RequestModel):
    """A request for a plan of a network.

    Without `requests_per_s` the planner searches for the highest rate of jobs that the hardware serves. Keys of a
    scenario file are the aliases of the fields, or their names if they have no alias.
    """

    model_config = ConfigDict(json_schema_extra=_as_written)

    model: ModelName
    hardware: HardwareText
    slos: Objectives
    job: Annotated[
        str | None,
        key(
            "Job of a network: 1280x720x81 (width, height, frames), sizes as height=512,tokens=77, several with shares "
            "as 1280x720x81:0.7,832x480x81:0.3, or a file of jobs (.yaml, .csv).",
            LOAD,
            "--job",
            "SIZES",
        ),
    ] = None
    steps: Annotated[
        Whole | None, key("Denoising steps of a job (default: those of the network).", LOAD, "--steps", "N")
    ] = None
    requests_per_s: RequiredRate = None
    users: Users = None
    think_s: ThinkTime = 0.0
    confidence: RequiredConfidence = DEFAULT_CONFIDENCE
    max_usd_per_hour: Budget = None
    objective: Annotated[
        str, key("Quantity to optimise: cost, energy, carbon, throughput or latency.", CHOICE, "--objective")
    ] = "cost"
    precisions: Annotated[
        Texts,
        key(
            "Number formats to choose from, e.g. bf16 (default: 16 bits, and fp8 if the hardware has it).",
            CHOICE,
            "--precision",
        ),
    ] = ()
    modes: Annotated[
        Texts,
        key("Executions of a network to consider: eager, compiled, tensorrt (default: the first two).", CHOICE),
    ] = ()
    engine: Annotated[
        str | None,
        key("Server of a network: triton, sglang-diffusion or vllm (for texts).", CHOICE, "--engine"),
    ] = None
    max_batch: Annotated[
        Whole | None, key("Most jobs of a network that are executed together (default: chosen by the plan).", CHOICE)
    ] = None
    max_instances: Annotated[
        Whole, key("Most copies of a network on an accelerator, for Triton (1, 2 and 4 are considered).", CHOICE)
    ] = 4
    tariff: Annotated[Tariff, key("Prices of hardware and electricity.")] = Tariff()
    search: Annotated[SearchOptions, key("How the search runs.")] = SearchOptions()
    seed: Seed = 0

    @model_validator(mode="before")
    @classmethod
    def _read_block(cls, values: Any) -> Any:
        """Read the request block of an answer, which also holds the objectives in words."""
        return {k: v for k, v in values.items() if k != "slo_words"} if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _check(self) -> Self:
        need_one_of("an objective of networks", self.objective, OBJECTIVES)
        check_certainty(self.confidence, self.seed)
        rate = self.requests_per_s
        if rate is not None:
            refuse_if(not 0 < rate < math.inf, "a rate is a number of jobs per second above zero", rate, "1")
        if self.users is not None:
            refuse_if(rate is not None, "users replace the rate of jobs", rate, "--users without --rate")
            refuse_if(self.users < 1, "users are a whole number of at least 1", self.users, "1")
        refuse_if(
            self.think_s < 0 or not math.isfinite(self.think_s), "a think time is at least 0 s", self.think_s, "0"
        )
        refuse_if(self.think_s > 0 and self.users is None, "a think time needs users", self.think_s, "--users N")
        limits = ("steps", self.steps), ("max_batch", self.max_batch), ("max_instances", self.max_instances)
        for name, count in limits:
            refuse_if(count is not None and count < 1, f"{name} must be a whole number of at least 1", count, "1")
        if self.engine is not None:
            need_one_of("an engine of networks", self.engine, ENGINES)
        for precision in self.precisions:
            need_one_of("a precision of networks", precision, tuple(ACTIVATION_BYTES))
        for mode in self.modes:
            need_one_of("an execution", mode, MODES)
        for slo in self.slos:
            if slo.metric != E2E.name and slo.metric_given:
                rule = "a job of a network has no tokens, so its objectives are on e2e"
                raise InputError(rule, slo.text, replace(slo, metric=E2E.name).text)
        check_budget(self.max_usd_per_hour, self.tariff, self.hardware)
        rule = "jobs of networks are simulated on this machine"
        refuse_if(self.search.distributed is not None, rule, self.search.distributed, "without search.distributed")
        return self

    @property
    def objectives(self) -> tuple[Slo, ...]:
        """Return the objectives; one without a metric is on the end-to-end latency."""
        return tuple(replace(slo, metric=E2E.name, metric_given=True) for slo in self.slos)

    @property
    def is_required(self) -> bool:
        """Return whether a load is required: a rate, or users; otherwise the highest rate is searched."""
        return self.requests_per_s is not None or self.users is not None

    @property
    def slo_words(self) -> list[str]:
        """Return each objective as a sentence."""
        return [slo.words.replace("requests", "jobs") for slo in self.objectives]

    def scenario(self) -> dict[str, Any]:
        """Return the keys that differ from their defaults, as a scenario file holds them."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)

    def as_dict(self) -> dict[str, Any]:
        """Return the request block of an answer: the scenario, what every answer has, and the objectives in words."""
        block = {
            "model": self.model,
            "hardware": self.hardware,
            "slo": [slo.text for slo in self.objectives],
            "job": self.job,
            "rate": self.requests_per_s,
            "users": self.users,
            "confidence": self.confidence,
            "objective": self.objective,
            "seed": self.seed,
        }
        return block | self.scenario() | {"slo": block["slo"], "slo_words": self.slo_words}


def network_request(keys: Mapping[str, Any]) -> NetworkRequest:
    """Return the request for a network that the keys describe.

    Raises:
        InputError: A key is missing, unknown, invalid, or a key of language models.
    """
    given = {name: value for name, value in keys.items() if value is not None}
    for name in given:
        if name not in network_keys():
            known = request_keys().get(name)
            typed = known.option if known is not None and known.option else name.removeprefix("fixed.")
            rule = f"{typed} is for language models, and {given.get('model')} is a network"
            raise InputError(rule, given[name], "--job SIZES" if name in ("workload", "input_tokens") else None)
    for name in ("model", "hardware"):
        if not given.get(name):
            raise InputError(f"{network_keys()[name].option} is needed", hint=EXAMPLE)
    if not given.get("slo"):
        raise InputError("an SLO is needed, written e2e.STAT=LIMIT", None, "e2e.p99=2s")
    if given.get("rate") is None and given.get("users") is None and is_file_of_jobs(given.get("job")):
        rate = load_job_workload(str(given["job"])).requests_per_s
        given |= {} if rate is None else {"rate": rate}
    return NetworkRequest(**nested(given))
