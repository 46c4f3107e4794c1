"""The controls of the plan form that follow from the schema of a request, so that every key has a control.

The keys that the form presents by hand are in `ESSENTIAL`: what most users set, with presets, search and sliders. All
others are listed under the headings of `plan keys`, from the same schema: a new key of `PlanRequest` has a control
without a change here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, get_args

from catalogs.economics.instances import COMMITMENTS
from catalogs.economics.locations import list_cloud_regions
from catalogs.economics.prices import Reading
from catalogs.engines.files import list_engines
from catalogs.errors import InputError
from catalogs.launch.command import engine_family
from planner.answer.answer_schema import GOALS
from planner.networks.request import OBJECTIVES as NETWORK_OBJECTIVES
from planner.problem.request import OBJECTIVES
from planner.problem.request_keys import RequestKey, network_keys, plan_keys, request_keys

#: Keys that the template of the form presents itself.
ESSENTIAL: Final = (
    "model", "hardware", "slo", "job", "steps", "workload", "input_tokens", "output_tokens", "over_time",
    "rate", "users", "think_s", "agents",
    "confidence", "objective", "max_usd_per_hour", "tariff.cloud", "tariff.region", "tariff.commitment",
)  # fmt: skip

#: Keys that name a file of the user's machine, which a server does not read.
_FILES: Final = ("accounting.carbon_hours",)

#: Names of controls whose key alone would not explain them.
_LABELS: Final = {
    "survive": "Failures to survive",
    "precisions": "Weight precisions",
    "also": "Further kinds of deployment",
    "speculative": "Speculative decoding",
    "fixed": "Fixed keys of the deployment",
    "tariff.usd_per_hour": "Your own price, USD per hour",
    "tariff.reading": "Which list price",
    "tariff.discount": "Your discount",
    "tariff.grid": "Electricity grid",
    "accounting.owned": "Hardware that you own",
    "accounting.power_caps_w": "Power limits, W",
    "search.trials": "Candidates to simulate",
}


#: Headings of groups whose other keys the form presents by hand.
_TITLES: Final = {
    "Choice": "Engine, precision and kinds of deployment",
    "Price": "Your own prices, and spot",
    "Load": "Failures",
}


@dataclass(frozen=True, slots=True)
class Preset:
    """A starting point for users, which they change: a workload, its objectives, and the agents at work if any."""

    name: str
    workload: str
    slo: tuple[str, ...]
    agents: int | None = None


PRESETS: Final = (
    Preset("Chat", "chat", ("ttft.p99=2s", "tpot.p95=60ms")),
    Preset("Code", "azure-code", ("ttft.p95=1s", "tpot.p95=40ms")),
    Preset("Reasoning", "reasoning", ("ttft.p95=3s", "tpot.p95=40ms")),
    Preset("Summaries", "summarization", ("e2e.p95=20s",)),
    Preset("Agents", "agentic-coding", ("interactivity.p90=30", "ttft.p95=5s"), 16),
)


@dataclass(frozen=True, slots=True)
class FormField:
    """A control of the form.

    Attributes:
        name: The key of the request, dotted if it is nested.
        label: The name of the control.
        hint: What the key means.
        kind: "number", "text", "list" (texts with commas), "numbers" (with commas), "keys" (lines of KEY=VALUE),
            "choice" or "switch".
        default: The value that stands in the control; empty without a default.
        choices: The values of a choice.
        only: "language" or "network" for a key of one kind of model; empty for a key of both.
    """

    name: str
    label: str
    hint: str
    kind: str
    default: str
    choices: tuple[str, ...] = ()
    only: str = ""


@dataclass(frozen=True, slots=True)
class FormGroup:
    """A group of controls of the form, which stand under one heading."""

    title: str
    fields: tuple[FormField, ...]

    @property
    def only(self) -> str:
        """Return the kind of model of all of its controls; empty where they are of several kinds."""
        kinds = {field.only for field in self.fields}
        return kinds.pop() if len(kinds) == 1 else ""


def further_groups() -> tuple[FormGroup, ...]:
    """Return the controls of the keys that are not essential, under the headings of `plan keys`."""
    groups: dict[str, list[FormField]] = {}
    for key in plan_keys().values():
        if key.name not in ESSENTIAL and key.name not in _FILES and not key.run_only:
            groups.setdefault(key.panel or "Request", []).append(_field(key))
    return tuple(FormGroup(_TITLES.get(title, title), tuple(fields)) for title, fields in groups.items())


def goals() -> dict[str, str]:
    """Return the quantities to optimise, in words."""
    return {name: GOALS.get(name, f"lowest {name}") for name in OBJECTIVES}


def language_goals() -> tuple[str, ...]:
    """Return the quantities to optimise that networks do not have."""
    return tuple(name for name in OBJECTIVES if name not in NETWORK_OBJECTIVES)


def essential_choices() -> dict[str, tuple[str, ...]]:
    """Return the values of the essential keys that have a fixed set of values."""
    places = list_cloud_regions()
    return {
        "tariff.commitment": COMMITMENTS,
        "tariff.cloud": tuple(sorted({cloud for cloud, _ in places})),
        "tariff.region": tuple(sorted({region for _, region in places})),
    }


def _field(key: RequestKey) -> FormField:
    choices = _choices().get(key.name, ())
    kinds = {"boolean": "switch", "integer": "number", "number": "number", "object": "keys", "array": "list"}
    kind = "choice" if choices else kinds.get(key.kind, "text")
    if key.name == "accounting.power_caps_w":
        kind = "numbers"
    default = key.default if isinstance(key.default, str | int | float) and not isinstance(key.default, bool) else ""
    words = key.name.rpartition(".")[2].replace("_", " ")
    label = _LABELS.get(key.name, words[:1].upper() + words[1:])
    return FormField(key.name, label, key.description, kind, str(default), choices, only_of(key.name))


def only_of(name: str) -> str:
    """Return the kind of model that alone has a key: "language" or "network"; empty for a key of both."""
    if name not in network_keys():
        return "language"
    return "" if name in request_keys() else "network"


def _choices() -> dict[str, tuple[str, ...]]:
    engines = tuple(filter(_starts, list_engines(supported_only=True)))
    return {"engine": engines, "tariff.reading": get_args(Reading)}


def _starts(engine: str) -> bool:
    try:
        engine_family(engine)
    except InputError:
        return False
    return True
