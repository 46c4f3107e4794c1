"""The planning request, from which all its written forms derive.

The command line, scenario files, the command that repeats an answer, and the request block of an answer all derive
from the fields of `PlanRequest`: a new option is a new field here.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import ConfigDict, Field, InstanceOf, model_validator

from catalogs.errors import InputError, nearest_name
from catalogs.launch.command import engine_family
from catalogs.units import DTYPE_BYTES
from planner.problem.accounting import NO_ACCOUNTING, SPOT, Accounting
from planner.problem.demand import NOTHING, Demand, FailureTolerance
from planner.problem.hardware_choice import is_one
from planner.problem.overrides import NOT_FIXED, Overrides
from planner.problem.request_model import CHOICE, LOAD, OF_RUN, SEARCH, Number, RequestModel, Texts, option, read_by
from planner.problem.slo import Slo, parse_slos
from planner.problem.tariff import Tariff

Objective = Literal["cost", "energy", "carbon", "throughput", "goodput", "latency"]

OBJECTIVES: Final[tuple[str, ...]] = get_args(Objective)

NATIVE: Final = "native"

#: Kinds of candidate beyond the default space, as values of the key `also`.
DISAGGREGATED: Final = "disaggregated"

PIPELINES: Final = "pipelines"

CONTEXT: Final = "context"

WIDE_EXPERTS: Final = "wide-experts"

ALSO: Final = (DISAGGREGATED, PIPELINES, CONTEXT, WIDE_EXPERTS)

DEFAULT_WORKLOAD: Final = "chat"

MOST_SEED: Final = 2**31 - 1  # the sampler accepts this range, including the seeds that follow

#: Keys that the request block of every answer has, also at their defaults.
_ALWAYS_WRITTEN: Final = (
    "model", "hardware", "slo", "workload", "rate", "objective", "precisions", "engine", "seed",
)  # fmt: skip

#: Keys of the request block that do not change the search, or that identify it separately.
_BESIDE_THE_QUESTION: Final = ("search", "tariff", "accounting")


def _slos(value: object) -> object:
    """Return the objectives of a text, or of a list of texts and objectives."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        return value
    if all(isinstance(slo, Slo) for slo in items):
        return tuple(items)
    return parse_slos([slo.text if isinstance(slo, Slo) else str(slo) for slo in items])


def _with_words(slo: Slo, words: str) -> Slo:
    """Return the objective; its metric counts as assumed if the words tell so."""
    assumed = replace(slo, metric_given=False)
    return assumed if assumed.words == words else slo


def _spare(value: object) -> object:
    if value is None:
        return NOTHING
    whole = isinstance(value, int) and not isinstance(value, bool)
    return FailureTolerance.parse(str(value)) if isinstance(value, str) or whole else value


def _fixed(value: object) -> object:
    if value is None:
        return NOT_FIXED
    return Overrides.of(value) if isinstance(value, dict) else value


_ONE_OR_MORE: Final = {"type": "array", "items": {"type": "string"}}

_SLOS: Final = read_by(_slos, lambda slos: [slo.text for slo in slos], _ONE_OR_MORE)

_SPARE: Final = read_by(_spare, lambda spare: spare.text if spare else None, {"type": "string"})

_FIXED: Final = read_by(_fixed, lambda fixed: dict(fixed.values), {"type": "object"})


class SearchOptions(RequestModel):
    """The size of a search, where it is stored, and where it runs."""

    trials: Annotated[
        int,
        Field(
            description="Most candidates to simulate.",
            json_schema_extra=option(panel=SEARCH, metavar="N", former=["--trials"]),
        ),
    ] = 40
    study: Annotated[
        str | None,
        Field(
            description="Store, resume and share the search: a file, or a database, e.g. sqlite:///s.db.",
            json_schema_extra=option("--study", SEARCH, metavar="PATH_OR_URL", former=["--storage"], of_run=True),
        ),
    ] = None
    workers: Annotated[
        int | None,
        Field(
            description="Processes that simulate on this machine (default: one per core).",
            json_schema_extra=option(panel=SEARCH, metavar="N", of_run=True),
        ),
    ] = None
    distributed: Annotated[
        str | None,
        Field(
            description="Simulate on a Ray cluster: ray://HOST:PORT, ray://local or auto.",
            json_schema_extra=option(panel=SEARCH, metavar="ADDRESS", former=["--distributed"], of_run=True),
        ),
    ] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.trials < 1:
            raise InputError("trials must be a whole number of at least 1", self.trials, "1")
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
_OF_RUN: Final = {
    name
    for name, field in SearchOptions.model_fields.items()
    if (field.json_schema_extra or {}).get(OF_RUN)  # type: ignore[union-attr]
}


def _as_written(schema: dict[str, Any]) -> None:
    """Add the keys that only a written request has: the objectives in words, and null precisions."""
    schema["properties"]["slo_words"] = {
        "description": "The objectives in words.",
        "items": {"type": "string"},
        "readOnly": True,
        "title": "Slo Words",
        "type": "array",
    }
    precisions = schema["properties"]["precisions"]
    precisions["anyOf"] = [{"type": precisions.pop("type"), "items": precisions.pop("items")}, {"type": "null"}]


class PlanRequest(RequestModel):
    """A planning request.

    Without `requests_per_s` and `users` the planner looks for the highest rate that the hardware carries.

    `PlanRequest(model="llama3.1-8b", hardware="h100x8", slos=parse_slos(["p99=2s"]))` is the request that `plan` makes
    of these options. Keys of a scenario file are the aliases of the fields, or their names if they have no alias.
    """

    model_config = ConfigDict(json_schema_extra=_as_written)

    model: Annotated[
        str,
        Field(
            description="Model: alias, Hugging Face id, or path of a config.json.",
            json_schema_extra=option("--model"),
        ),
    ]
    hardware: Annotated[
        str,
        Field(
            description="Hardware to choose from: h100x8, 2*h100x8, local; several with commas; or any.",
            json_schema_extra=option("--hw"),
        ),
    ]
    slos: Annotated[
        tuple[InstanceOf[Slo], ...],
        *_SLOS,
        Field(
            alias="slo",
            description="Objective METRIC.STAT=LIMIT, e.g. ttft.p99=2s; repeat or use commas.",
            json_schema_extra=option("--slo"),
        ),
    ]
    workload: Annotated[
        str,
        Field(description="Workload: name, trace file or YAML file.", json_schema_extra=option("--workload")),
    ] = DEFAULT_WORKLOAD
    requests_per_s: Annotated[
        Number | None,
        Field(
            alias="rate",
            description="Required requests per second (default: the highest sustainable rate).",
            json_schema_extra=option("--rate", LOAD),
        ),
    ] = None
    over_time: Annotated[
        bool,
        Field(
            description="Use the changing rate of workload W; replaces --workload and --rate.",
            json_schema_extra=option("--trace", LOAD, metavar="W", value_of="workload"),
        ),
    ] = False
    users: Annotated[
        int | None,
        Field(
            description="Required number of concurrent users; replaces --rate.",
            json_schema_extra=option("--users", LOAD),
        ),
    ] = None
    think_s: Annotated[
        Number,
        Field(
            description="Think time of a user between an answer and the next request, seconds.",
            json_schema_extra=option(panel=LOAD, metavar="S", former=["--think-time"]),
        ),
    ] = 0.0
    spare: Annotated[
        InstanceOf[FailureTolerance],
        *_SPARE,
        Field(
            alias="survive",
            description="Number of replicas (or nodes) that may fail while the objectives are met.",
            json_schema_extra=option("--survive", LOAD, metavar="N|node"),
        ),
    ] = NOTHING
    max_usd_per_hour: Annotated[
        Number | None,
        Field(description="Budget, US dollars per hour.", json_schema_extra=option("--max-usd-per-hour")),
    ] = None
    objective: Annotated[
        str,
        Field(
            description="Quantity to optimise: cost, energy, carbon, throughput, goodput or latency.",
            json_schema_extra=option("--objective", CHOICE),
        ),
    ] = "cost"
    precisions: Annotated[
        Texts,
        Field(
            description="Weight dtypes to choose from, e.g. native (default: native, and fp8 if the hardware has it).",
            json_schema_extra=option("--precision", CHOICE),
        ),
    ] = ()
    also: Annotated[
        Texts,
        Field(
            description="Extend the search: disaggregated, pipelines, context, wide-experts.",
            json_schema_extra=option(panel=CHOICE, former=["--also"]),
        ),
    ] = ()
    speculative: Annotated[
        str | None,
        Field(
            description="Speculative decoding to consider: method=ngram,k=3,acceptance=0.6.",
            json_schema_extra=option(panel=CHOICE, metavar="KEY=VALUE,..", former=["--speculative"]),
        ),
    ] = None
    engine: Annotated[str, Field(description="Serving engine.", json_schema_extra=option("--engine", CHOICE))] = "vllm"
    fixed: Annotated[
        InstanceOf[Overrides],
        *_FIXED,
        Field(
            description="Fix a key of deployment.yaml for every candidate, e.g. kv_dtype: fp8.",
            json_schema_extra=option(panel=CHOICE),
        ),
    ] = NOT_FIXED
    tariff: Annotated[Tariff, Field(description="Prices of hardware and electricity.")] = Tariff()
    accounting: Annotated[Accounting, Field(description="Costs and power beyond the price tag.")] = NO_ACCOUNTING
    search: Annotated[SearchOptions, Field(description="How the search runs.")] = SearchOptions()
    seed: Annotated[
        int, Field(description="Seed of workload and search.", json_schema_extra=option("--seed", SEARCH))
    ] = 0

    @model_validator(mode="before")
    @classmethod
    def _read_block(cls, values: Any) -> Any:
        """Read the request block of an answer, in which the objectives in words tell whether a metric was assumed."""
        if not isinstance(values, dict) or "slo_words" not in values:
            return values
        found = {key: value for key, value in values.items() if key != "slo_words"}
        texts, words = found.get("slo"), values["slo_words"]
        if isinstance(texts, list) and isinstance(words, list):
            found["slo"] = tuple(map(_with_words, parse_slos(texts), words))
        return found

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.objective not in OBJECTIVES:
            near = nearest_name(self.objective, OBJECTIVES) or OBJECTIVES[0]
            raise InputError(f"an objective is one of {', '.join(OBJECTIVES)}", self.objective, near)
        engine_family(self.engine)  # refuses an engine that has no start command
        if self.seed > MOST_SEED:
            raise InputError(f"a seed must be a whole number up to {MOST_SEED}", self.seed, "0")
        self.demand  # noqa: B018 - refuses an invalid load
        self._check_space()
        self._check_money()
        return self

    def _check_space(self) -> None:
        for kind in self.also:
            if kind not in ALSO:
                raise InputError(f"also takes {', '.join(ALSO)}", kind, nearest_name(kind, ALSO))
        if DISAGGREGATED in self.also and (self.over_time or self.spare):
            rule = "--trace and --survive support one kind of replica, not disaggregation"
            raise InputError(rule, DISAGGREGATED, "--rate or --users without --survive")
        if not self.over_time and "autoscaling" in self.fixed.values:
            raise InputError("autoscaling needs a load that changes with time", "autoscaling", "--trace FILE")
        for precision in self.precisions:
            if precision not in (NATIVE, *DTYPE_BYTES):
                known = (NATIVE, *DTYPE_BYTES)
                raise InputError(f"a precision is one of {', '.join(known)}", precision, nearest_name(precision, known))

    def _check_money(self) -> None:
        budget, accounting = self.max_usd_per_hour, self.accounting
        if budget is not None and not 0 < budget < float("inf"):
            raise InputError("a budget is a number of US dollars per hour above zero", budget, "100")
        if self.tariff.usd_per_hour is not None and not is_one(self.hardware):
            raise InputError("--price needs exactly one hardware in --hw", self.hardware, "--max-usd-per-hour")
        if accounting.requests_per_user_day is not None and self.users is not None:
            nearest = "users or accounting.requests_per_user_day"
            rule = "users and accounting.requests_per_user_day exclude each other"
            raise InputError(rule, accounting.requests_per_user_day, nearest)
        if accounting.owned is not None and not is_one(self.hardware):
            raise InputError("accounting.owned needs exactly one hardware in --hw", self.hardware, "h100x8")
        if accounting.spot_interruptions is not None and self.tariff.committed != SPOT:
            rule = "accounting.spot_interruptions needs tariff.commitment spot"
            raise InputError(rule, self.tariff.committed, "tariff.commitment=spot")

    @property
    def demand(self) -> Demand:
        """Return the required load.

        Raises:
            InputError: The load is not valid.
        """
        return Demand(self.requests_per_s, self.users, self.think_s, self.spare)

    @property
    def given(self) -> bool:
        """Return whether the request names a load; otherwise the highest sustainable rate is wanted."""
        return self.demand.given

    @property
    def slo_words(self) -> list[str]:
        """Return each objective as a sentence."""
        return [slo.words for slo in self.slos]

    @property
    def trials(self) -> int:
        """Return the most candidates to simulate."""
        return self.search.trials

    @property
    def study(self) -> Path | None:
        """Return the journal file of the search, if there is one."""
        return self.search.journal

    @property
    def storage(self) -> str | None:
        """Return the URL of the database of the search, if there is one."""
        return self.search.storage

    def scenario(self) -> dict[str, Any]:
        """Return the keys that differ from their defaults, as a scenario file holds them."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)

    def as_dict(self) -> dict[str, Any]:
        """Return the request block of an answer.

        It holds the scenario without the keys that concern the run only, the objectives in full and in words, and the
        keys that every answer has.
        """
        written = self.model_dump(mode="json", by_alias=True)
        block = {key: written[key] or None if key == "precisions" else written[key] for key in _ALWAYS_WRITTEN}
        block |= self.scenario() | {"slo_words": self.slo_words}
        if "search" in block:
            block["search"] = self.search.model_dump(exclude_defaults=True, exclude=_OF_RUN)
        if self.users is not None:
            block["think_s"] = self.think_s
        if self.spare:
            block["survive"] = self.spare.words
        return {key: value for key, value in block.items() if value != {}}

    def question(self) -> dict[str, Any]:
        """Return the part of the request block that identifies a search: equal parts mean the same search."""
        return {k: v for k, v in self.as_dict().items() if k not in _BESIDE_THE_QUESTION}
