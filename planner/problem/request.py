"""The planning request, from which all its written forms derive.

The command line, scenario files, the command that repeats an answer, and the request block of an answer all derive
from the fields of `PlanRequest`: a new option is a new field here.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Self, cast

from pydantic import BeforeValidator, ConfigDict, InstanceOf, model_validator

from catalogs.deployments.encoder_decoders import default_engine
from catalogs.hardware.catalog import canonical_order
from catalogs.launch.command import engine_family
from catalogs.models.catalog import load_model
from catalogs.models.media_items import Modality
from catalogs.ui.shared_options import DEFAULT_WORKLOAD, INPUT_TOKENS_HELP, OUTPUT_TOKENS_HELP, WORKLOAD_HELP
from catalogs.units import DTYPE_BYTES
from catalogs.workloads.workload import (
    Workload,
    default_workload,
    load_workload,
    served_modalities,
    with_constant_lengths,
)
from planner.problem.accounting import NO_ACCOUNTING, SPOT, Accounting
from planner.problem.candidate import Candidate, DeploymentOverrides
from planner.problem.demand import NOTHING, Demand, FailureTolerance
from planner.problem.hardware_choice import is_one
from planner.problem.key_definition import (
    CHOICE,
    LOAD,
    RUN_ONLY,
    SEARCH,
    Number,
    Rate,
    RequestModel,
    Texts,
    Whole,
    check_precision,
    key,
    need_one_of,
    read_by,
    refuse_if,
)
from planner.problem.latency_metrics import OF_SESSIONS
from planner.problem.overrides import NOT_FIXED, Overrides
from planner.problem.slo import Slo, parse_slos
from planner.problem.tariff import Tariff

OBJECTIVES: Final = ("cost", "energy", "carbon", "throughput", "goodput", "latency")

NATIVE: Final = "native"

#: Kinds of candidate beyond the default space: the values of the key `also`.
DISAGGREGATED: Final = "disaggregated"
PIPELINES: Final = "pipelines"
CONTEXT: Final = "context"
WIDE_EXPERTS: Final = "wide-experts"

EXTENSIONS: Final = (DISAGGREGATED, PIPELINES, CONTEXT, WIDE_EXPERTS)

#: Default probability with which each objective must be met. A judgement: one plan in ten may miss by the error.
DEFAULT_CONFIDENCE: Final = 0.9

#: Least probability that a request may require: even odds take simulated values as they are.
LEAST_CONFIDENCE: Final = 0.5

#: Beyond this level the stated error is constant: measured runs reach no further.
MOST_CONFIDENCE: Final = 0.98

MOST_SEED: Final = 2**31 - 1  # the sampler accepts this range, including the seeds that follow

#: Keys that the request block of every answer has, also at their defaults.
_ALWAYS_WRITTEN: Final = (
    "model", "hardware", "slo", "workload", "rate", "confidence", "objective", "precisions", "engine", "seed",
)  # fmt: skip

#: Keys of the request block that do not change the search, or that identify it separately.
_NOT_OF_THE_SEARCH: Final = ("search", "tariff", "accounting")


def _slos(value: object) -> object:
    """Return the objectives of a text, or of a list of texts and objectives."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or all(isinstance(slo, Slo) for slo in items):
        return tuple(items) if isinstance(items, list) else items
    return parse_slos([slo.text if isinstance(slo, Slo) else str(slo) for slo in items])


def _hardware(value: object) -> object:
    """Return the names of hardware in their canonical order, so that equal choices make equal requests."""
    return ",".join(map(canonical_order, value.split(","))) if isinstance(value, str) else value


def _spare(value: object) -> object:
    if isinstance(value, str | int) and not isinstance(value, bool):
        return FailureTolerance.parse(str(value))
    return NOTHING if value is None else value


_TEXTS: Final = {"type": "array", "items": {"type": "string"}}

#: The schema of the key that only a written request has.
WORDS_SCHEMA: Final = _TEXTS | {"description": "The objectives in words.", "readOnly": True, "title": "Slo Words"}

_SLOS: Final = read_by(_slos, lambda slos: [slo.text for slo in slos], _TEXTS)

_SPARE: Final = read_by(_spare, lambda spare: spare.text if spare else None, {"type": "string"})

_FIXED: Final = read_by(Overrides.read, lambda fixed: dict(fixed.values), {"type": "object"})


# ---- keys that every kind of request has

ModelName = Annotated[
    str, key("Model: alias, Hugging Face id, path of a config.json, or a network of the catalog.", option="--model")
]

HardwareText = Annotated[
    str,
    BeforeValidator(_hardware),
    key(
        "Hardware: h100x8 (or 8xh100), two nodes of it 2xh100x8 (or '2*h100x8'), local; several with commas; any.",
        option="--hw",
    ),
]

Objectives = Annotated[
    tuple[InstanceOf[Slo], ...],
    *_SLOS,
    key("Objective METRIC.STAT=LIMIT, e.g. ttft.p99=2s; repeat or use commas.", option="--slo", alias="slo"),
]

RequiredRate = Annotated[
    Rate | None,
    key("Required requests per second (default: the highest sustainable rate).", LOAD, "--rate", alias="rate"),
]

Users = Annotated[Whole | None, key("Required number of concurrent users; replaces --rate.", LOAD, "--users")]

ThinkTime = Annotated[
    Number,
    key(
        "Think time of a user between an answer and the next request, seconds.",
        LOAD,
        metavar="S",
        former="--think-time",
    ),
]

RequiredConfidence = Annotated[
    Number, key("Probability with which each objective must be met, from 0.5 to 0.98.", option="--confidence")
]

Budget = Annotated[Number | None, key("Budget, US dollars per hour.", option="--max-usd-per-hour")]

Seed = Annotated[int, key("Seed of workload and search.", SEARCH, "--seed")]


def check_certainty(confidence: float, seed: int) -> None:
    """Refuse a confidence or a seed that is out of range.

    Raises:
        InputError: One of them is.
    """
    refuse_if(seed > MOST_SEED, f"a seed must be a whole number up to {MOST_SEED}", seed, "0")
    least, most = LEAST_CONFIDENCE, MOST_CONFIDENCE
    rule = f"a confidence is a probability from {least:g} to {most:g}"
    share = confidence / 100 if 100 * least <= confidence <= 100 else confidence  # 90 means 90 %
    nearest = f"{min(max(share, least), most):g}" if math.isfinite(share) else "0.9"
    refuse_if(not least <= confidence <= most, rule, confidence, nearest)


def check_budget(usd_per_hour: float | None, tariff: Tariff, hardware: str) -> None:
    """Refuse a budget that is no price, and a price of the user's own for more than one piece of hardware.

    Raises:
        InputError: One of them is given.
    """
    if usd_per_hour is not None:
        rule = "a budget is a number of US dollars per hour above zero"
        refuse_if(not 0 < usd_per_hour < math.inf, rule, usd_per_hour, "100")
    if tariff.usd_per_hour is not None:
        rule = "--price needs exactly one hardware"
        refuse_if(not is_one(hardware), rule, hardware, "--max-usd-per-hour")


class SearchOptions(RequestModel):
    """The size of a search, where it is stored, and where it runs."""

    trials: Annotated[Whole, key("Most candidates to simulate.", SEARCH, metavar="N", former="--trials")] = 40
    study: Annotated[
        str | None,
        key(
            "Store, resume and share the search: a file, or a database, e.g. sqlite:///s.db.",
            SEARCH,
            "--study",
            "PATH_OR_URL",
            former="--storage",
            run_only=True,
        ),
    ] = None
    workers: Annotated[
        int | None,
        key("Processes that simulate on this machine (default: one per core).", SEARCH, metavar="N", run_only=True),
    ] = None
    distributed: Annotated[
        str | None,
        key(
            "Simulate on a Ray cluster: ray://HOST:PORT, ray://local or auto.",
            SEARCH,
            metavar="ADDRESS",
            former="--distributed",
            run_only=True,
        ),
    ] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        refuse_if(self.trials < 1, "trials must be a whole number of at least 1", self.trials, "1")
        return self

    @property
    def journal(self) -> Path | None:
        """Return the journal file that stores the search; None if a database stores it, or if it is not stored."""
        return None if self.study is None or "://" in self.study else Path(self.study)

    @property
    def storage(self) -> str | None:
        """Return the URL of the database that stores the search; None if a file stores it, or if it is not stored."""
        return self.study if self.study is not None and "://" in self.study else None


#: Options of a search that neither answers nor commands repeat: where it is stored, and where it runs.
_RUN_ONLY: Final = {
    name
    for name, field in SearchOptions.model_fields.items()
    if RUN_ONLY in cast(dict[str, Any], field.json_schema_extra)
}


def _usual_choices(model: str, hardware: str) -> dict[str, str]:
    """Return the engine and the workload of a model on hardware where a request names none; empty for most models."""
    usual = {"engine": default_engine(model, hardware), "workload": default_workload(model)}
    return {key: value for key, value in usual.items() if value != PlanRequest.model_fields[key].default}


def _as_written(schema: dict[str, Any]) -> None:
    """Add the keys that only a written request has: the objectives in words, and null precisions."""
    schema["properties"]["slo_words"] = WORDS_SCHEMA
    precisions = schema["properties"]["precisions"]
    precisions["anyOf"] = [{"type": precisions.pop("type"), "items": precisions.pop("items")}, {"type": "null"}]


class PlanRequest(RequestModel):
    """A planning request.

    Without `requests_per_s` and `users` the planner searches for the highest rate that the hardware serves.

    `PlanRequest(model="llama3.1-8b", hardware="h100x8", slos=parse_slos(["p99=2s"]))` is the request that `plan` makes
    of these options. Keys of a scenario file are the aliases of the fields, or their names if they have no alias.
    """

    model_config = ConfigDict(json_schema_extra=_as_written)

    model: ModelName
    hardware: HardwareText
    slos: Objectives
    workload: Annotated[str, key(WORKLOAD_HELP, option="--workload")] = DEFAULT_WORKLOAD
    input_tokens: Annotated[int | None, key(INPUT_TOKENS_HELP, LOAD, "--input-tokens", "N")] = None
    output_tokens: Annotated[int | None, key(OUTPUT_TOKENS_HELP, LOAD, "--output-tokens", "N")] = None
    requests_per_s: RequiredRate = None
    over_time: Annotated[
        bool,
        key(
            "Use the changing rate of workload W; replaces --workload and --rate.",
            LOAD,
            "--trace",
            "W",
            value_of="workload",
        ),
    ] = False
    users: Users = None
    think_s: ThinkTime = 0.0
    agents: Annotated[
        Whole | None,
        key(
            "Plan for N agents at work in a closed loop; --workload holds their sessions.",
            LOAD,
            "--agents",
            "N",
        ),
    ] = None
    spare: Annotated[
        InstanceOf[FailureTolerance],
        *_SPARE,
        key(
            "Replicas (or nodes) that may fail without an objective being missed.",
            LOAD,
            "--survive",
            "N|node",
            alias="survive",
        ),
    ] = NOTHING
    confidence: RequiredConfidence = DEFAULT_CONFIDENCE
    max_usd_per_hour: Budget = None
    objective: Annotated[
        str, key("Quantity to optimise: cost, energy, carbon, throughput, goodput or latency.", CHOICE, "--objective")
    ] = "cost"
    precisions: Annotated[
        Texts,
        key(
            "Weight dtypes to choose from, e.g. native (default: native, and fp8 if the hardware has it).",
            CHOICE,
            "--precision",
        ),
    ] = ()
    extensions: Annotated[
        Texts,
        key(
            "Extend the search: disaggregated, pipelines, context, wide-experts.", CHOICE, alias="also", former="--also"
        ),
    ] = ()
    speculative: Annotated[
        str | None,
        key(
            "Speculative decoding to consider: method=ngram,k=3,acceptance=0.6.",
            CHOICE,
            metavar="KEY=VALUE,..",
            former="--speculative",
        ),
    ] = None
    engine: Annotated[str, key("Serving engine.", CHOICE, "--engine")] = "vllm"
    fixed: Annotated[
        InstanceOf[Overrides],
        *_FIXED,
        key("Fix a key of deployment.yaml for every candidate, e.g. kv_dtype: fp8.", CHOICE),
    ] = NOT_FIXED
    tariff: Annotated[Tariff, key("Prices of hardware and electricity.")] = Tariff()
    accounting: Annotated[Accounting, key("Costs and power beyond the price tag.")] = NO_ACCOUNTING
    search: Annotated[SearchOptions, key("How the search runs.")] = SearchOptions()
    seed: Seed = 0

    @model_validator(mode="before")
    @classmethod
    def _with_usual_choices(cls, values: Any) -> Any:
        """Fill in the engine and the workload of a model that has others than most models."""
        named = isinstance(values, dict) and all(isinstance(values.get(key), str) for key in ("model", "hardware"))
        return _usual_choices(values["model"], values["hardware"]) | values if named else values

    @model_validator(mode="before")
    @classmethod
    def _read_block(cls, values: Any) -> Any:
        """Read the request block of an answer, in which the objectives in words state whether a metric was assumed."""
        if not isinstance(values, dict) or "slo_words" not in values:
            return values
        found = {key: value for key, value in values.items() if key != "slo_words"}
        texts, words = found.get("slo"), values["slo_words"]
        if isinstance(texts, list) and isinstance(words, list):
            pairs = zip((replace(slo, metric_given=False) for slo in parse_slos(texts)), words, strict=False)
            found["slo"] = tuple(replace(slo, metric_given=slo.words != text) for slo, text in pairs)
        return found

    @model_validator(mode="after")
    def _check(self) -> Self:
        need_one_of("an objective", self.objective, OBJECTIVES)
        engine_family(self.engine)  # refuses an engine that has no start command
        check_certainty(self.confidence, self.seed)
        rule = "agents are simulated with every replica running, so --survive and --agents exclude each other"
        both = self.agents is not None and bool(self.spare)
        refuse_if(both, rule, f"--survive {self.spare.text}", "--agents without --survive")
        self.demand  # noqa: B018 - refuses an invalid load
        for name, tokens in (("input_tokens", self.input_tokens), ("output_tokens", self.output_tokens)):
            refuse_if(tokens is not None and tokens < 1, f"{name} must be a whole number of at least 1", tokens, "1")
        self._check_agents()
        self._check_space()
        self._check_money()
        return self

    def _check_agents(self) -> None:
        if self.agents is None:
            of_sessions = next((slo for slo in self.slos if slo.metric in OF_SESSIONS), None)
            rule = "an objective on sessions or tasks needs agents (--agents N)"
            refuse_if(of_sessions is not None, rule, "" if of_sessions is None else of_sessions.text, "e2e.p99=30s")
            return
        refuse_if(self.agents < 1, "agents must be a whole number of at least 1", self.agents, "1")
        rule = "agents are a load of their own, without a rate, users and a load over time"
        loads = {"--rate": self.requests_per_s, "--users": self.users, "--trace": self.over_time or None}
        other = next((option for option, value in loads.items() if value is not None), "")
        refuse_if(bool(other), rule, f"--agents {self.agents} and {other}", f"--agents without {other}")

    def _check_space(self) -> None:
        for kind in self.extensions:
            need_one_of("a kind of candidate in `also`", kind, EXTENSIONS)
        for precision in self.precisions:
            check_precision(precision, (NATIVE, *DTYPE_BYTES))
        disaggregated = DISAGGREGATED in self.extensions and (self.over_time or bool(self.spare))
        rule = "--trace and --survive support one kind of replica, not disaggregation"
        refuse_if(disaggregated, rule, DISAGGREGATED, "--rate or --users without --survive")
        autoscaling = "autoscaling" in self.fixed.values and not self.over_time
        refuse_if(autoscaling, "autoscaling needs a load that changes with time", "autoscaling", "--trace FILE")

    def _check_money(self) -> None:
        accounting, several = self.accounting, not is_one(self.hardware)
        check_budget(self.max_usd_per_hour, self.tariff, self.hardware)
        if accounting.requests_per_user_day is not None:
            rule = "users and accounting.requests_per_user_day exclude each other"
            nearest = "users or accounting.requests_per_user_day"
            refuse_if(self.users is not None, rule, accounting.requests_per_user_day, nearest)
        if accounting.owned is not None:
            refuse_if(several, "accounting.owned needs exactly one hardware", self.hardware, "h100x8")
        if accounting.spot_interruptions is not None:
            rule, committed = "accounting.spot_interruptions needs tariff.commitment spot", self.tariff.committed
            refuse_if(committed != SPOT, rule, committed, "tariff.commitment=spot")

    @property
    def demand(self) -> Demand:
        """Return the required load.

        Raises:
            InputError: The load is not valid.
        """
        return Demand(self.requests_per_s, self.users, self.think_s, self.spare)

    def read_workload(self) -> Workload:
        """Return the workload, with constant lengths where the request gives them.

        Raises:
            InputError: The workload is unknown, or its lengths cannot be replaced.
        """
        found = with_constant_lengths(load_workload(self.workload), self.input_tokens, self.output_tokens)
        return found.for_model(load_model(self.model)) if found.sends_media else found

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """Return the kinds of items of the workload that the model reads as tokens of its prompts."""
        return served_modalities(self.workload, load_model(self.model))

    @property
    def further_keys(self) -> DeploymentOverrides:
        """Return the keys of deployment.yaml that every candidate has and that the search does not choose.

        A workload with images, videos or audio needs engines that serve them.
        """
        rest = self.fixed.rest
        if not self.modalities or "multimodal" in rest.values:
            return rest
        return DeploymentOverrides({**rest.values, "multimodal": {"modalities": list(self.modalities)}})

    @property
    def given(self) -> bool:
        """Return whether the request names a load; otherwise the highest sustainable rate is wanted."""
        return self.demand.given

    @property
    def slo_words(self) -> list[str]:
        """Return each objective as a sentence."""
        return [slo.words for slo in self.slos]

    def admits(self, candidate: Candidate) -> str | None:
        """Return why the request excludes a candidate, whatever its performance is; None if the request admits it."""
        if self.spare and math.isinf(self.spare.factor(candidate)):
            return f"{self.spare.words} of {candidate.replicas} leaves no replica"
        return None

    def scenario(self) -> dict[str, Any]:
        """Return the keys that differ from their defaults, as a scenario file holds them."""
        derived = {"requests_per_s"} if self.over_time else set()  # a load over time has the rate of its workload
        written = self.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=derived)
        usual = _usual_choices(self.model, self.hardware)
        kept = {key: value for key, value in written.items() if value not in (usual.get(key), {})}
        return kept | {key: getattr(self, key) for key, value in usual.items() if getattr(self, key) != value}

    def as_dict(self) -> dict[str, Any]:
        """Return the request block of an answer.

        It holds the scenario without the keys that concern the run only, the objectives in full and in words, and the
        keys that every answer has.
        """
        written = self.model_dump(mode="json", by_alias=True)
        block = {key: written[key] or None if key == "precisions" else written[key] for key in _ALWAYS_WRITTEN}
        block |= self.scenario() | {"slo_words": self.slo_words}
        if "search" in block:
            block["search"] = self.search.model_dump(exclude_defaults=True, exclude=_RUN_ONLY)
        if self.users is not None:
            block["think_s"] = self.think_s
        if self.spare:
            block["survive"] = self.spare.words
        return {key: value for key, value in block.items() if value != {}}

    def search_identity(self) -> dict[str, Any]:
        """Return the part of the request block that identifies a search: equal parts mean the same search."""
        return {k: v for k, v in self.as_dict().items() if k not in _NOT_OF_THE_SEARCH}
