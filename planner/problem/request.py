"""What the user asked, in full: the first block of every answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, get_args

from catalogs.errors import InputError, nearest_name
from catalogs.launch.command import family
from catalogs.units import DTYPE_BYTES
from planner.problem.accounting import NO_ACCOUNTS, SPOT, Accounting
from planner.problem.demand import NOTHING, Demand, FailureTolerance
from planner.problem.hardware_choice import is_one
from planner.problem.overrides import NOT_FIXED, Overrides
from planner.problem.slo import Slo
from planner.problem.tariff import Tariff

Objective = Literal["cost", "energy", "carbon", "throughput", "goodput", "latency"]

OBJECTIVES: Final[tuple[str, ...]] = get_args(Objective)

NATIVE: Final = "native"

#: Kinds of candidate beyond the default space, by the name `--also` takes.
DISAGGREGATED: Final = "disaggregated"

PIPELINES: Final = "pipelines"

CONTEXT: Final = "context"

WIDE_EXPERTS: Final = "wide-experts"

ALSO: Final = (DISAGGREGATED, PIPELINES, CONTEXT, WIDE_EXPERTS)

DEFAULT_WORKLOAD: Final = "chat"

MOST_SEED: Final = 2**31 - 1  # what the sampler of the search takes, with room for the seeds after it


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """One question to the planner. requests_per_s and users None: whatever the hardware can carry.

    hardware may name several, with commas, or be `any`; max_usd_per_hour then says how much may be spent.
    """

    model: str
    hardware: str
    slos: tuple[Slo, ...]
    workload: str = DEFAULT_WORKLOAD
    requests_per_s: float | None = None
    objective: str = "cost"
    precisions: tuple[str, ...] = ()  # weight dtypes to choose from; empty: native, and fp8 where computed natively
    engine: str = "vllm"
    trials: int = 40
    seed: int = 0
    study: Path | None = None
    tariff: Tariff = field(default_factory=Tariff)
    max_usd_per_hour: float | None = None
    users: int | None = None
    think_s: float = 0.0
    spare: FailureTolerance = NOTHING
    storage: str | None = None  # an Optuna storage URL, instead of a study file
    also: tuple[str, ...] = ()  # kinds of candidate beyond the default space
    fixed: Overrides = NOT_FIXED  # what every candidate has
    speculative: str | None = None  # drafts that candidates may use, with their measured acceptance
    over_time: bool = False  # the load is the workload's own, as it changes with time; requests_per_s is its peak
    accounts: Accounting = NO_ACCOUNTS  # changes no plan, only what is said of its costs

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            near = nearest_name(self.objective, OBJECTIVES) or OBJECTIVES[0]
            raise InputError(f"an objective is one of {', '.join(OBJECTIVES)}", self.objective, near)
        family(self.engine)  # what cannot be started is not planned
        if self.trials < 1:
            raise InputError("trials is a whole number of at least 1", self.trials, "1")
        if self.seed > MOST_SEED:
            raise InputError(f"a seed is a whole number up to {MOST_SEED}", self.seed, "0")
        self.demand  # noqa: B018 - refuses a load that is none
        self._check_search()
        self._check_over_time()
        self._check_accounts()
        for kind in self.also:
            if kind not in ALSO:
                raise InputError(f"beyond the default space lie {', '.join(ALSO)}", kind, nearest_name(kind, ALSO))
        if DISAGGREGATED in self.also and (self.over_time or self.spare):
            rule = "sizes over time and survival are reckoned of one kind of replica"
            raise InputError(rule, DISAGGREGATED, "--rate or --users without --survive")
        price = self.tariff.usd_per_hour
        if price is not None and not is_one(self.hardware):
            raise InputError("a price of one's own is of one piece of hardware", self.hardware, "--max-usd-per-hour")
        for precision in self.precisions:
            if precision not in (NATIVE, *DTYPE_BYTES):
                known = (NATIVE, *DTYPE_BYTES)
                raise InputError(f"a precision is one of {', '.join(known)}", precision, nearest_name(precision, known))

    def _check_accounts(self) -> None:
        daily, owned = self.accounts.requests_per_user_day, self.accounts.owned
        if daily is not None and self.users is not None:
            raise InputError("users are said at once or by requests a day", daily, "--users or --requests-per-user-day")
        if owned is not None and not is_one(self.hardware):
            raise InputError("owned hardware is one piece of hardware", self.hardware, "h100x8")
        if self.accounts.spot_interruptions is not None and self.tariff.committed != SPOT:
            raise InputError("interruptions are of spot instances", self.tariff.committed, "--commitment spot")

    def _check_over_time(self) -> None:
        if not self.over_time and "autoscaling" in self.fixed.values:
            raise InputError("autoscaling follows a load that changes", "autoscaling", "--trace FILE")

    def _check_search(self) -> None:
        budget = self.max_usd_per_hour
        if budget is not None and not 0 < budget < float("inf"):
            raise InputError("a budget is a number of US dollars per hour above zero", budget, "100")
        if self.storage is not None and self.study is not None:
            raise InputError("the study is a file or a storage, not both", self.storage, "--study or --storage")

    @property
    def demand(self) -> Demand:
        """Raises InputError for a load that is none."""
        return Demand(self.requests_per_s, self.users, self.think_s, self.spare)

    def as_dict(self) -> dict[str, object]:
        """The request block of the answer; the SLO in full and in words."""
        return self._named() | self._sized()

    def _sized(self) -> dict[str, object]:
        """Only what was asked for."""
        given = {
            "max_usd_per_hour": self.max_usd_per_hour,
            "users": self.users,
            "think_s": self.think_s if self.users is not None else None,
            "survive": self.spare.words if self.spare else None,
            "also": list(self.also) or None,
            "fixed": dict(self.fixed.values) or None,
            "speculative": self.speculative,
            "over_time": self.over_time or None,
        }
        return {k: v for k, v in given.items() if v is not None}

    def _named(self) -> dict[str, object]:
        return {
            "model": self.model,
            "hardware": self.hardware,
            "slo": [slo.text for slo in self.slos],
            "slo_words": [slo.words for slo in self.slos],
            "workload": self.workload,
            "rate": self.requests_per_s,
            "objective": self.objective,
            "precisions": list(self.precisions) or None,
            "engine": self.engine,
            "seed": self.seed,
        }
