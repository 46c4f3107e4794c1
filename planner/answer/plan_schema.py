"""One plan of an answer: deployment, figures under load, objectives, cost, energy and memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, PositiveFloat, create_model, field_validator

from calibration.accuracy.regime import UNKNOWN, Regime
from calibration.accuracy.stated_error import ALL_WAITING, WAITING_METRICS, in_words
from calibration.operators.cost import MOSTLY
from catalogs.deployments.schema import Deployment
from catalogs.io.json_block import JsonBlock
from catalogs.io.yaml_files import validate_as
from catalogs.ui.words import percent, rate
from planner.economics.money import Energy, Money
from planner.economics.rack_power import unused_words
from planner.evaluation.confidence import LEVEL, Confidence
from planner.evaluation.facts import OTHER_SERVERS
from planner.problem.candidate import deployment_words
from planner.problem.latency_metrics import LATENCY_METRICS
from planner.problem.slo import Slo
from planner.search.candidate_tester import TIE_WORDS


class Stats(JsonBlock):
    """Statistics of one latency in seconds; None where a statistic is not finite or not known."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None

    def at(self, stat: str) -> float | None:
        """Return a statistic by its name; None also for a percentile that is not kept."""
        found: float | None = getattr(self, stat.replace(".", "_"), None)
        return found


class ObjectiveRow(JsonBlock):
    """Base of the rows that compare one objective with its simulated value."""

    @classmethod
    def of(
        cls,
        slo: Slo,
        value_s: float | None,
        bars: Confidence | None = None,
        required: float = 0.5,
        stable: bool = True,
        **more: object,
    ) -> Self:
        """Return the row of one objective, with the keys that this kind of row has.

        The value is in seconds. `bars` adds its interval, the probability that the limit is met, and whether this
        probability reaches the confidence `required` in a run that is `stable`. `more` holds the keys that only some
        rows have.
        """
        row: dict[str, object] = {"name": slo.name, "metric": slo.metric, "stat": slo.stat, "limit_s": slo.limit_s}
        row |= {"value_s": value_s, **more}
        if bars is not None:
            met = bool(stable and bars.probability_met >= required)  # then the value is within the limit too
            row |= {"ci_low_s": bars.low_s, "ci_high_s": bars.high_s, "met": met}
            row["value_at_confidence_s"] = bars.at_confidence_s
            row["probability_met"] = bars.probability_met if math.isfinite(bars.probability_met) else 0.0
        return cls.model_validate({key: value for key, value in row.items() if key in cls.model_fields})


class SloValue(ObjectiveRow):
    """One objective and its simulated value, without error bars."""

    metric: str
    stat: str
    limit_s: float
    value_s: float | None

    @property
    def name(self) -> str:
        """Return the objective's name, for example "ttft.p99"."""
        return f"{self.metric}.{self.stat}"

    @property
    def share(self) -> float:
        """Return the value over the limit; infinite where there is no value."""
        return float("inf") if self.value_s is None else self.value_s / self.limit_s


class SloResult(SloValue):
    """One objective against its simulated value, with the interval of level `ci_level` around the value.

    `met` tells whether the objective is met with the confidence of the request. The true value does not exceed
    `value_at_confidence_s` with this confidence; it is None if the queue might grow without limit.
    """

    ci_low_s: float | None
    ci_high_s: float | None
    ci_level: float | None = None  # None: the level stands once, in the block around the rows
    met: bool
    probability_met: float
    value_at_confidence_s: float | None = None
    n_requests: int | None = None  # simulated requests that fulfil the condition of the objective; None: it has none

    @property
    def has_no_value(self) -> bool:
        """Return whether no request has the metric, such as a time per output token where all outputs are one token.

        Such an objective is met. A value that is missing because the queue grows is not.
        """
        return self.met and self.value_s is None

    @property
    def share(self) -> float:
        """Return the value over the limit; 0 where no request has the metric, infinite where there is no end."""
        return 0.0 if self.has_no_value else super().share

    def excess(self) -> tuple[float, float]:
        """Return by how much the objective is missed: the objective with the largest pair is missed by most.

        The pair holds the value at the required confidence over the limit, infinite where it has no end, and `share`.
        """
        value_s = 0.0 if self.has_no_value else self.value_at_confidence_s
        return (float("inf") if value_s is None else value_s / self.limit_s), self.share


class RatePoint(JsonBlock):
    """Base of `CurvePoint`, which also has a field for each latency metric."""

    requests_per_s: float
    whole_cluster: bool
    n_seeds: int
    n_measured: int
    stable: bool
    met: bool
    ttft_waiting: Stats | None = None  # share of each statistic that is waiting for the first step; None: not known
    conditioned: dict[str, Stats] | None = None  # of the metrics of objectives with conditions, by name, seconds

    def waiting(self, metric: str, stat: str) -> float:
        """Return the share of a statistic that is waiting; ALL_WAITING where it is not known or does not matter."""
        share = self.ttft_waiting.at(stat) if metric in WAITING_METRICS and self.ttft_waiting is not None else None
        return ALL_WAITING if share is None else share

    def of(self, metric: str) -> Stats:
        """Return the statistics of one latency metric; empty where it was not measured."""
        if LATENCY_METRICS[metric].condition is not None:
            return (self.conditioned or {}).get(metric, Stats())
        found: Stats | None = getattr(self, LATENCY_METRICS[metric].key)
        return found or Stats()


if TYPE_CHECKING:
    CurvePoint = RatePoint
else:
    _LATENCIES = {m.key: (Stats, ...) if m.in_every_answer else (Stats | None, None) for m in LATENCY_METRICS.values()}
    CurvePoint = create_model(
        "CurvePoint",
        __base__=RatePoint,
        __module__=__name__,
        __doc__="Latencies at one rate; `met` tells whether all objectives are met.",
        **_LATENCIES,
    )


class Memory(JsonBlock):
    """The memory of one accelerator, bytes; `why` explains what does not fit."""

    device_bytes: PositiveFloat
    usable_bytes: float
    weights_bytes: float
    activation_bytes: float
    non_torch_bytes: float
    kv_bytes: float
    kv_blocks: int
    kv_tokens_per_replica: int
    equation: str
    fits: bool = True
    why: str | None = None


class _StatedErrorKeys(BaseModel):
    """The types of the block of stated errors: every other key is an interval of relative errors."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, list[FiniteFloat]] = Field(init=False)

    coverage: FiniteFloat | None
    n: dict[str, int]
    n_of_regime: dict[str, int] = Field(default_factory=dict)
    source: str
    ttft_waiting_share: FiniteFloat | None = None
    generation: str = ""
    layers: Literal["dense", "other", ""] = ""


#: Where the operator times of a plan come from: measured on its own accelerator, borrowed from another one, or mostly
#: estimated by the roofline.
Evidence = Literal["measured", "borrowed", "roofline"]


def estimate_words(borrowed_from: str | None, is_roofline: bool) -> str:
    """Return why figures are estimates; empty where the operator times were measured.

    Args:
        borrowed_from: The accelerator that lends the operator times; None for none.
        is_roofline: Whether most of the step time is a roofline estimate.
    """
    if borrowed_from is not None:
        return f"its operator times are borrowed from {borrowed_from}"
    return "most of its step time is a roofline estimate, not comparable with measured hardware" if is_roofline else ""


def estimate_sentence(words: str) -> str:
    """Return that a plan is an estimate in a sentence, from the words of `estimate_words`; empty without them."""
    return f"This is an estimate: {words}." if words else ""


class CalibrationBlock(JsonBlock):
    """The calibration block: the sources of the step time by share, and the errors of whole runs.

    `borrowed_from` names the accelerator that lends its operator times; None if they were measured on the plan's own.
    `borrowed_fraction` is the share of the step time from its tables; answers of earlier versions count it as roofline.
    """

    bundle: str
    borrowed_from: str | None = None
    measured_fraction: float
    interpolated_fraction: float
    borrowed_fraction: float = 0.0
    roofline_fraction: float
    operator_error: float | None = None
    expected_error: float
    stated_error: dict[str, Any] = Field(default_factory=dict)  # intervals by metric; coverage, n, source

    @field_validator("stated_error")
    @classmethod
    def _readable(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            if value:
                _StatedErrorKeys.model_validate(value)
                in_words(value)
        except (LookupError, ValueError):  # no interval, or a number of runs for none
            raise ValueError("must hold coverage, source, n and one interval for each metric") from None
        return value

    @property
    def evidence(self) -> Evidence:
        """Return where most of the step time comes from."""
        if self.borrowed_from is not None:
            return "borrowed"
        return "roofline" if self.roofline_fraction > MOSTLY else "measured"

    @property
    def estimate_words(self) -> str:
        """Return why the figures are estimates; empty where the operator times were measured."""
        return estimate_words(self.borrowed_from, self.evidence == "roofline")

    @property
    def of_operators(self) -> float:
        """Return the median relative error of a step's time, as the operators' own rows show it."""
        return self.expected_error if self.operator_error is None else self.operator_error

    @property
    def regime(self) -> Regime:
        """Return the regime for which the errors are stated; an answer of an older version states none."""
        return Regime.read(self.stated_error)

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """Return (low, high) of true over simulated, minus one, by metric."""
        return {k: (v[0], v[1]) for k, v in self.stated_error.items() if isinstance(v, list) and len(v) == 2}


class CheckpointBlock(JsonBlock):
    """The published quantised checkpoint that the start command serves: `repository` holds the weights of `of`.

    `kind` states what these weights are: those of the `requested` model, or of a sibling such as the instruction-tuned
    model of a base model. Answers of earlier versions have neither.
    """

    repository: str
    of: str
    dtype: str
    source: str
    as_of: str
    requested: str | None = None
    kind: str | None = None

    @property
    def is_sibling(self) -> bool:
        """Return whether the weights are not those of the requested model."""
        return self.requested is not None and self.requested.lower() != self.of.lower()


class Survival(JsonBlock):
    """The objectives after the loss that the request names; `met` tells whether the remaining replicas meet all."""

    replicas_left: int
    requests_per_s: float | None = None
    met: bool
    stable: bool = True
    slo: list[SloValue] = Field(default_factory=list)


#: `limited_by` of a plan whose queue grows beyond its capacity before an objective is missed.
QUEUE: Final = "queue"


def missed_words(limited_by: str) -> str:
    """Return what happens beyond a capacity, from the name of an objective or QUEUE."""
    return "the queue grows without limit" if limited_by == QUEUE else f"{limited_by} is missed"


class Plan(JsonBlock):
    """One plan of an answer. A plan that cannot start has None for every figure.

    Attributes:
        capacity_requests_per_s: The highest rate that is known to meet each objective with the confidence of the
            request: a lower bound if `limited_by` is None. None if no rate does.
        limited_by: The objective that is missed beyond the capacity, or "queue"; None if it is not known how much more
            than the capacity the plan carries.
        missed_requests_per_s: The lowest simulated rate above the capacity at which `limited_by` is missed; None if the
            capacity was derived from the latency curve.
        ties: Whether an alternative is as good by the objective as the recommended plan, which is simpler.
    """

    deployment: dict[str, Any]
    requests_per_s: float | None
    metrics: dict[str, Any] | None
    slo: list[SloResult]
    curve: list[CurvePoint] = Field(default_factory=list)
    latency_cdf: dict[str, list[float | None]] = Field(default_factory=dict)
    capacity_requests_per_s: float | None
    limited_by: str | None = None
    missed_requests_per_s: float | None = None
    cost: Money | None
    energy: Energy | None
    memory: Memory | None = None
    time_breakdown: dict[str, float] | None
    calibration: CalibrationBlock | None
    command: str = ""
    command_notes: list[str] = Field(default_factory=list)
    notices: list[str] = Field(default_factory=list)
    survival: Survival | None = None
    checkpoint: CheckpointBlock | None = None  # None: the command serves the model's own weights
    versions: str = ""
    ties: bool = False

    @property
    def other_commands(self) -> dict[str, str]:
        """Return the start commands of the plan's other servers by role; empty if `command` starts all of them."""
        notes = (note.partition(": ") for note in self.command_notes)
        return {role: command for role, _, command in notes if role in OTHER_SERVERS}

    @field_validator("deployment")
    @classmethod
    def with_defaults(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Check the keys of deployment.yaml, and fill in those that were added since the answer was written."""
        complete = Deployment(model="", hardware="").model_dump() | given
        own = {key: complete[key] for key in Deployment.model_fields if key != "kv_blocks"}  # 0 where nothing fits
        validate_as(Deployment, own, "deployment")
        try:
            deployment_words(complete)
        except (LookupError, TypeError):
            raise ValueError("must hold the layout of every pool") from None
        return complete

    @property
    def interval_level(self) -> float:
        """Return the level of the intervals of the objectives: LEVEL in answers that do not state it."""
        return next((row.ci_level for row in self.slo if row.ci_level is not None), LEVEL)

    @classmethod
    def unstarted(cls, deployment: dict[str, object], memory: Memory | None) -> Self:
        """Return a plan that cannot start: its deployment and memory, and no figures."""
        figures = {name: None for name, field in cls.model_fields.items() if field.is_required()}
        return cls.model_validate(figures | {"deployment": deployment, "slo": [], "memory": memory})

    @property
    def hardware(self) -> str:
        """Return the hardware of the deployment, as `--hw` names it."""
        return str(self.deployment["hardware"])

    @property
    def capacity_words(self) -> str:
        """Return the capacity, which is a lower bound where nothing is known to limit it."""
        if self.capacity_requests_per_s is None:
            return "none"
        bound = "at least " if self.limited_by is None else ""
        return f"{bound}{rate(self.capacity_requests_per_s)}"

    @property
    def limit_words(self) -> str:
        """Return what limits the capacity in words; empty without a capacity."""
        if self.capacity_requests_per_s is None:
            return ""
        if self.limited_by is None:
            return "how much more is not known"
        per_s = self.missed_requests_per_s
        where = "beyond it" if per_s is None else f"at {rate(per_s)}"
        return f"{where} {missed_words(self.limited_by)}"

    @property
    def tightest(self) -> SloResult:
        """Return the objective nearest to its limit, or furthest beyond."""
        return max(self.slo, key=lambda row: row.share)

    @property
    def usd_per_hour(self) -> float | None:
        """Return the price of an hour; None where no price is known."""
        return None if self.cost is None else self.cost.usd_per_hour

    @property
    def estimate_words(self) -> str:
        """Return why the figures are estimates; empty where the operator times were measured, or nothing is known."""
        return "" if self.calibration is None else self.calibration.estimate_words

    @property
    def estimate_clause(self) -> str:
        """Return that the plan is an estimate, and why, to be added to its description; empty if it is none."""
        return f"an estimate: {self.estimate_words}" if self.estimate_words else ""

    @property
    def operator_error(self) -> float:
        """Return the median relative error of a step's time; 0 where no calibration is known."""
        return 0.0 if self.calibration is None else self.calibration.of_operators

    @property
    def regime(self) -> Regime:
        """Return what was known of the deployment before it ran; unknown where no calibration is known."""
        return UNKNOWN if self.calibration is None else self.calibration.regime

    @property
    def unused_w(self) -> float:
        """Return the part of the power of the plan that rented accelerators draw that are not used, watts."""
        found = ((self.metrics or {}).get("power") or {}).get("unused_w")
        return float(found) if isinstance(found, int | float) else 0.0

    @property
    def unused_words(self) -> str:
        """Return the share of the energy that rented accelerators that are not used take; empty without any."""
        if self.energy is None:
            return ""
        idle = None if self.cost is None else self.cost.idle_accelerators
        return unused_words(self.unused_w, self.energy.w_mean, idle or 0)

    def metric(self, name: str) -> float | None:
        """Return a number of the metrics block; None where there is none."""
        found = (self.metrics or {}).get(name)
        return float(found) if isinstance(found, int | float) else None

    def latency_s(self, metric: str, stat: str) -> float | None:
        """Return a latency statistic of the metrics block in seconds; None where there is none."""
        found = ((self.metrics or {}).get(f"{metric}_s") or {}).get(stat)
        return float(found) if isinstance(found, int | float) else None


def difference_words(best: Plan, other: Plan) -> str:
    """Return how an alternative differs from the recommended plan: capacity, cost and energy."""
    found = []
    ours, theirs = best.capacity_requests_per_s, other.capacity_requests_per_s
    if ours and theirs:
        found.append(f"{rate(theirs)} ({percent(theirs / ours - 1, signed=True)})")
    if other.ties:
        found.append(TIE_WORDS)
    for block, key in (("cost", "usd_per_million_output_tokens"), ("energy", "kwh_per_million_output_tokens")):
        a, b = (getattr(getattr(plan, block), key, None) for plan in (best, other))
        if a and b:
            found.append(f"{block} per output token {percent(b / a - 1, signed=True)}")
    if other.estimate_clause:
        found.append(other.estimate_clause)
    return ", ".join(found) or "no figures"
