"""The answer for a network as one schema: what `plan --json` writes, and what its screen and page show."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field, field_serializer

from catalogs.io.json_block import JsonBlock
from planner.answer.answer_schema import Reproduce, SearchSummary, Suggestion, main_reasons
from planner.answer.plan_schema import SloResult, Stats
from planner.economics.money import Money, RegionPrice
from planner.economics.rack_power import unused_words
from planner.networks.request import NetworkRequest

#: Version of the form of an answer for a network.
SCHEMA_VERSION: Final = 1

#: Reasons why candidates are not the answer that a screen states for a refused request.
_SHOWN: Final = 6


class JobPart(JsonBlock):
    """One of several jobs: its share of all jobs, and its sizes."""

    share: float
    sizes: dict[str, int]


class JobBlock(JsonBlock):
    """The job of a plan: its sizes, and what it yields.

    Attributes:
        network: The network.
        family: What it does.
        sizes: Every size of the job, the first one of several.
        words: The sizes in words.
        unit: What a job yields, such as "image"; figures per unit count these.
        units_per_job: How many one job yields.
        parts: The different jobs; empty where all jobs are equal.
    """

    network: str
    family: str
    sizes: dict[str, int]
    words: str
    unit: str
    units_per_job: int
    parts: list[JobPart] = Field(default_factory=list)


class JobMetrics(JsonBlock):
    """A plan under load, at the predicted speed.

    Attributes:
        e2e_s: Seconds from arrival to end of a job.
        queue_s: Seconds from arrival to the start of its batch.
        service_s: Seconds of a single job.
        jobs_per_batch: Mean jobs of a batch.
        busy_fraction: Share of the time in which an accelerator executes kernels.
        n_jobs: Simulated jobs behind these figures.
    """

    e2e_s: Stats
    queue_s: Stats
    service_s: float
    jobs_per_batch: float
    busy_fraction: float
    n_jobs: int


class UnitEnergy(JsonBlock):
    """The energy of a plan: watts and joules are at the servers, Wh and grams include the facility (`pue`).

    `unused_w` is the part of `w_mean` that accelerators draw that are rented with the plan and not used; it is in all
    other figures too. Answers of earlier versions do not have it.
    """

    w_mean: float
    unused_w: float = 0.0
    j_per_unit: float
    wh_per_unit: float
    gco2e_per_unit: float | None
    pue: float
    grid_gco2e_per_kwh: float | None
    grid_region: str | None
    grid_reason: str | None
    grid_assumed: bool


class JobMemory(JsonBlock):
    """The memory of one accelerator at the largest batch, bytes.

    `peak_at_confidence_bytes` is the predicted peak times the published error at the confidence of the request.
    """

    device_bytes: float
    peak_bytes: float
    peak_at_confidence_bytes: float


class StageRow(JsonBlock):
    """One stage of a job on one replica: how often it runs, the seconds of all runs, and where its time is known.

    `borrowed_fraction` is the share from tables of another accelerator; the rest is from the roofline. `compute_s` and
    `memory_s` are the seconds of kernels that are bound by arithmetic and by bytes, `fixed_s` those of short kernels,
    and `host_s` the seconds of launches on the host. All of them are of all runs.
    """

    name: str
    runs: int
    total_s: float
    communication_s: float
    host_bound: bool
    measured_fraction: float
    interpolated_fraction: float
    borrowed_fraction: float = 0.0
    compute_s: float = 0.0
    memory_s: float = 0.0
    fixed_s: float = 0.0
    host_s: float = 0.0


class PriceError(JsonBlock):
    """The error of the predicted seconds: 90 % of measurements are expected within `interval_factor` either way.

    The factor is the published one of a class; it is wider where no operator was measured on the hardware. `slowdown`
    is the factor at the confidence of the request, with which the plan was sized.
    """

    error_class: str
    interval_factor: float
    slowdown: float
    bundle: str
    hardware_measured: bool = True


class LoadPoint(JsonBlock):
    """A plan under another load, at the predicted speed: one short run with the seed of the request."""

    requests_per_s: float
    e2e_s: Stats
    usd_per_unit: float | None
    wh_per_unit: float


class NetworkPlan(JsonBlock):
    """One plan of an answer: a deployment that `simulate` reads, and its figures at `requests_per_s` jobs/s.

    `ties` is true for an alternative that is as good by the objective as the recommended plan, which is simpler.
    `curve` holds the plan from a light load to its capacity. The capacity is `capacity_requests_per_s` for a rate of
    jobs and `capacity_users` for users.
    """

    deployment: dict[str, Any]
    words: str
    requests_per_s: float
    units_per_hour: float
    capacity_requests_per_s: float | None
    capacity_users: int | None = None
    limited_by: str | None
    metrics: JobMetrics
    slo: list[SloResult]
    cost: Money | None
    usd_per_unit: float | None
    energy: UnitEnergy
    memory: JobMemory
    stages: list[StageRow]
    error: PriceError
    curve: list[LoadPoint] = Field(default_factory=list)
    notices: list[str] = Field(default_factory=list)
    ties: bool = False

    @property
    def usd_per_hour(self) -> float | None:
        """Return the price of the plan; None if it is unknown."""
        return None if self.cost is None else self.cost.usd_per_hour

    @property
    def unused_words(self) -> str:
        """Return the share of the energy that rented accelerators that are not used take; empty without any."""
        idle = None if self.cost is None else self.cost.idle_accelerators
        return unused_words(self.energy.unused_w, self.energy.w_mean, idle or 0)


class UnitPriceLine(RegionPrice):
    """The price of a plan in one region under one contract, per hour and per unit of the plan.

    The carbon per unit is None if the grid of the region is unknown.
    """

    usd_per_unit: float | None
    gco2e_per_unit: float | None = None


class NetworkHardwareRow(JsonBlock):
    """The best candidate of the search on one kind of accelerator; `why` states why there is none."""

    hardware: str
    state: Literal["holds", "refused"]
    words: str | None = None
    requests_per_s: float | None = None
    usd_per_hour: float | None = None
    usd_per_unit: float | None = None
    why: str | None = None


class NetworkRefusal(JsonBlock):
    """Why no plan meets the request: the binding constraint, the closest plan, and changes that would meet it.

    `reasons` counts each candidate once, by the reason why it is not the answer.
    `n_searches` and `n_jobs` are the searches for these changes, and the jobs that they simulated; the summary of the
    search does not include them.
    """

    binding_constraint: str
    closest: NetworkPlan | None
    what_would_meet_it: list[Suggestion]
    reasons: dict[str, int] = Field(default_factory=dict)
    n_searches: int = 0
    n_jobs: int = 0

    @property
    def main_reasons(self) -> dict[str, int]:
        """Return the most common reasons, and the number of the other candidates in one entry."""
        return main_reasons(self.reasons, "infeasible.reasons", _SHOWN)


class NetworkAnswer(JsonBlock):
    """The answer to a request for a plan of a network."""

    schema_version: int
    kind: Literal["network"]
    request: NetworkRequest
    job: JobBlock
    feasible: bool
    best: NetworkPlan | None
    alternatives: list[NetworkPlan]
    infeasible: NetworkRefusal | None
    search: SearchSummary
    hardware: list[NetworkHardwareRow] = Field(default_factory=list)
    prices: list[UnitPriceLine] = Field(default_factory=list)
    assumptions: list[str]
    reproduce: Reproduce

    @field_serializer("request")
    def _written(self, request: NetworkRequest) -> dict[str, Any]:
        return request.as_dict()

    @property
    def plans(self) -> list[NetworkPlan]:
        """Return the plans, best first; empty if the request is refused."""
        return [*([self.best] if self.best else []), *self.alternatives]
