"""An answer read back from its JSON (`plan --json`), typed: a word is no number, "yes" is no truth value.

Keys that a newer minor version added are passed over.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from catalogs.deployments.schema import Deployment
from catalogs.economics.prices import ON_DEMAND
from catalogs.errors import InputError
from planner.answer.answer import SCHEMA_VERSION
from planner.answer.hardware_ranking import HardwareRow
from planner.economics.money import Energy, Money

HOW = "plan ... --json ANSWER.json"


class AnswerBlock(BaseModel):
    """A part of the answer."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class Stats(AnswerBlock):
    """Of one latency, seconds; None where it is not finite or there is nothing."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None

    def at(self, stat: str) -> float | None:
        """By name; None also for a percentile that is not kept."""
        found: float | None = getattr(self, stat.replace(".", "_"), None)
        return found


class RequestBlock(AnswerBlock):
    """The request block."""

    model: str
    hardware: str
    slo: list[str]
    slo_words: list[str]
    workload: str
    rate: float | None
    objective: str
    precisions: list[str] | None
    engine: str
    seed: int
    max_usd_per_hour: float | None = None
    users: int | None = None
    think_s: float = 0.0
    survive: str | None = None
    also: list[str] = []
    fixed: dict[str, Any] = {}
    over_time: bool = False
    speculative: str | None = None

    @property
    def given(self) -> bool:
        """Whether a load was asked for, not all that the hardware can carry."""
        return self.rate is not None or self.users is not None


class SloRow(AnswerBlock):
    """One objective against its simulated value."""

    metric: str
    stat: str
    limit_s: float
    value_s: float | None
    ci_low_s: float | None
    ci_high_s: float | None
    ci_level: float
    met: bool
    probability_met: float

    @property
    def name(self) -> str:
        return f"{self.metric}.{self.stat}"

    @property
    def share(self) -> float:
        """Value over limit; infinite where there is no value."""
        return float("inf") if self.value_s is None else self.value_s / self.limit_s


class CurvePoint(AnswerBlock):
    """Latencies at one rate. met: all objectives hold."""

    requests_per_s: float
    whole_cluster: bool
    n_seeds: int
    n_measured: int
    stable: bool
    met: bool
    ttft_s: Stats
    tpot_s: Stats
    e2e_s: Stats
    itl_s: Stats | None = None

    def of(self, metric: str) -> Stats:
        found: Stats | None = getattr(self, f"{metric}_s")
        return found or Stats()


class Memory(AnswerBlock):
    """Bytes of one accelerator."""

    device_bytes: float
    usable_bytes: float
    weights_bytes: float
    activation_bytes: float
    non_torch_bytes: float
    kv_bytes: float
    kv_blocks: int
    kv_tokens_per_replica: int
    equation: str


class Known(AnswerBlock):
    """The calibration block."""

    bundle: str
    measured_fraction: float
    interpolated_fraction: float
    roofline_fraction: float
    expected_error: float
    operator_error: float | None = None
    stated_error: dict[str, Any] = {}  # of whole runs: intervals by metric, and coverage, n, source

    @property
    def of_operators(self) -> float:
        """Median relative error of a step's time by what the operators' own rows tell."""
        return self.expected_error if self.operator_error is None else self.operator_error

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """(low, high) of true over simulated, minus one, by metric."""
        return {k: (v[0], v[1]) for k, v in self.stated_error.items() if isinstance(v, list) and len(v) == 2}


class Survival(AnswerBlock):
    """The objectives when what was asked for is lost. met: all of them."""

    replicas_left: int
    met: bool


class Plan(AnswerBlock):
    """One plan of the answer. What a plan that cannot even start has no figures of is None."""

    deployment: dict[str, Any]
    requests_per_s: float | None
    metrics: dict[str, Any] | None
    slo: list[SloRow]
    capacity_requests_per_s: float | None
    safe_requests_per_s: float | None = None
    limited_by: str | None = None
    survival: Survival | None = None
    cost: Money | None
    energy: Energy | None
    memory: Memory | None = None
    time_breakdown: dict[str, float] | None
    calibration: Known | None
    curve: list[CurvePoint] = []
    latency_cdf: dict[str, list[float | None]] = {}
    command: str = ""
    command_notes: list[str] = []
    notices: list[str] = []

    @field_validator("deployment")
    @classmethod
    def with_defaults(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Keys that deployments have learned since then are at their defaults."""
        return Deployment(model="", hardware="").model_dump() | given

    @property
    def tightest(self) -> SloRow:
        """The objective nearest to its limit, or furthest beyond."""
        return max(self.slo, key=lambda row: row.share)

    @property
    def usd_per_hour(self) -> float | None:
        return None if self.cost is None else self.cost.usd_per_hour

    def metric(self, name: str) -> float | None:
        """A number of the metrics block."""
        found = (self.metrics or {}).get(name)
        return float(found) if isinstance(found, int | float) else None


class SuggestedChange(AnswerBlock):
    kind: str
    change: str
    verified_by: str


class Refused(AnswerBlock):
    binding_constraint: str
    closest: Plan | None
    what_would_meet_it: list[SuggestedChange]


class SearchFacts(AnswerBlock):
    n_space: int
    n_bounded_out: int
    n_simulated: int
    n_pruned: int
    n_requests: int = 0  # answers of earlier versions did not count them
    seconds: float
    seed: int
    method: str
    bounded_out: dict[str, int] = {}
    left_out: list[str] = []


class PriceLine(AnswerBlock):
    cloud: str
    contract: str
    usd_per_hour: float
    usd_per_million_output_tokens: float | None
    usd_per_million_total_tokens: float | None
    instance: str | None
    region: str | None
    as_of: str
    source: str
    note: str | None
    accelerators_per_instance: int | None = None
    instances: int | None = None


class TariffBlock(AnswerBlock):
    usd_per_hour: float | None
    reading: str
    cloud: str | None
    region: str | None
    grid: str | None
    commitment: str = ON_DEMAND
    discount: float | None = None


class Reproduce(AnswerBlock):
    command: str
    seed: int
    trials: int
    tariff: TariffBlock
    calibration: str
    versions: dict[str, str]


class AnswerFile(AnswerBlock):
    """The whole answer."""

    schema_version: int
    request: RequestBlock
    feasible: bool
    best: Plan | None
    alternatives: list[Plan]
    infeasible: Refused | None
    search: SearchFacts
    assumptions: list[str]
    prices: list[PriceLine] = Field(default_factory=list)
    hardware: list[HardwareRow] = []
    closed_loop: dict[str, Any] | None = None  # see planner/sections/users.py
    over_time: dict[str, Any] | None = None  # see planner/sections/daily_load.py
    accounts: dict[str, Any] | None = None  # see planner/sections/accounts.py
    power_caps: dict[str, Any] | None = None  # see planner/sections/power_limits.py
    quality: list[dict[str, Any]] = []  # see planner/sections/quality.py
    reproduce: Reproduce

    @property
    def plans(self) -> list[Plan]:
        """The best first; empty where refused."""
        return [*([self.best] if self.best else []), *self.alternatives]


def read_answer(path: Path) -> AnswerFile:
    """Raises InputError for a file that is no answer, or of another version."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the answer ({error.strerror})", str(path), HOW) from None
    except ValueError:
        raise InputError("an answer is a JSON file", str(path), HOW) from None
    return parse_answer(data, str(path))


def parse_answer(data: object, where: str = "answer") -> AnswerFile:
    """See read_answer. where: what to call it in an error."""
    if not isinstance(data, dict) or not {"schema_version", "request", "feasible", "search"} <= set(data):
        raise InputError("not an answer of `plan --json`", where, HOW)
    if data["schema_version"] != SCHEMA_VERSION:
        rule = f"{where}: an answer of schema_version {SCHEMA_VERSION} is needed; plan again with this version"
        raise InputError(rule, data["schema_version"], str(SCHEMA_VERSION))
    if "reproduce" not in data:
        raise InputError("this answer does not say how to make it again; plan again with this version", where, HOW)
    try:
        return AnswerFile.model_validate_json(json.dumps(data))  # JSON has no instances of ours
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        given = first["input"] if isinstance(first["input"], str | int | float) else None
        raise InputError(f"{where}: {place}: {first['msg']}", given, HOW) from None


def parse_plan(block: dict[str, Any]) -> Plan:
    """One plan as `plan` has just written it."""
    return Plan.model_validate_json(json.dumps(block))


def same_model(name: str, planned: str) -> bool | None:
    """Whether a name is of the planned model; None for a name that is no model's the catalog knows."""
    from catalogs.models.catalog import load_model

    if name.lower() == planned.lower():
        return True
    try:
        return load_model(name).name == load_model(planned).name
    except InputError:
        return None
