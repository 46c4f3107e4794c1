"""The error stated with every answer, from whole simulated runs against measured ones, by engine and statistic.

The held-out errors of operators do not include an engine's version, a host or a cold server: only whole runs show
these. Public runs give the error of answers for an engine. It is checked on runs of a model, and of a kind of GPU, that
were left out when it was learned (`benchmarks/stated_error.py`). The error corrects nothing: simulated values stay as
they are.

The error of a time to first token may grow with the share of it that a request waits for its first step: a queue turns
a small error of the step time into a large one. That share is known of every simulated run, whatever its load, so the
error at a light load can differ from that of a saturated server. The other statistics show no such dependence
(docs/accuracy.md).

The expected error of the operators adds to the spread with a weight that is learned for each engine and statistic: some
families are right more often than their held-out errors of single shapes say, because the errors of many operators
cancel out in a step, and others are not.

All of this is multiplied by a factor of the regime: the generation of the accelerator and the kind of layers, which are
known before a run (`calibration.accuracy.regime`). `calibration.accuracy.spread_fit` learns the errors from runs.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any, Final, Literal

import numpy as np
from pydantic import BaseModel, Field, NonNegativeFloat, PositiveFloat, PositiveInt, ValidationError

from calibration.accuracy.regime import UNKNOWN, Regime
from calibration.bundles.ranges import first_fault
from catalogs.arrays import FloatArray
from catalogs.errors import InputError
from catalogs.io.yaml_files import DATA
from catalogs.ui.words import percent

FILE_NAME: Final = "stated_error.json"

#: Version of the form of the file.
SCHEMA_VERSION: Final = 4

#: Probability that a stated interval holds the true value. A convention: nine of ten.
COVERAGE: Final = 0.9

#: Probability levels of the stored scores; beyond the outer two, scores are constant.
LEVELS: Final = (0.02, *(round(0.05 * i, 2) for i in range(1, 20)), 0.98)

#: Statistics with a stated error. Where no run reports itl, its error is that of tpot: the mean gap is the TPOT.
METRICS: Final = ("ttft", "tpot", "itl", "e2e", "power", "j_per_token")

#: The statistics whose error depends on the share of them that is waiting for the first step.
WAITING_METRICS: Final = ("ttft",)

#: A waiting share that is not known counts as this one: the widest error.
ALL_WAITING: Final = 1.0

#: Standard deviation of a normal distribution over its median absolute deviation: median error -> sigma.
MEDIAN_TO_SIGMA: Final = 0.6745

#: Equally likely factors that a share is counted over. A judgement: they resolve half a per cent.
_FACTORS: Final = 200


class Group(BaseModel, extra="forbid", frozen=True):
    """Whole runs of one engine and statistic: log(measured / simulated) = factor * (centre + score * spread).

    The spread of a run is hypot(typical + waiting * share, operator_weight * operators), where `share` is the part of
    the statistic that is waiting and `operators` the expected error of the run from its operators alone. The factor is
    that of its regime: the product of those of its generation and of its layers, 1 where none was learned.

    Attributes:
        typical: The median absolute deviation of the runs, or the standard deviation where they are few; if the error
            depends on waiting, the spread of a run in which nothing waits.
        waiting: Growth of the spread from a run in which nothing waits to one in which everything does.
        least_waiting: Smaller waiting shares count as this one.
        operator_weight: How far the expected error of the operators widens the interval. It is never 0, so that an
            answer whose operators are less certain always has a wider one.
        scores: Quantiles at LEVELS, ascending.
        by_generation: Factors by generation of the accelerator.
        by_layers: Factors by kind of layers.
        n_by_regime: Number of runs by `Regime.key`; empty where it was not counted.
    """

    engine: str
    metric: Literal["ttft", "tpot", "itl", "e2e", "power", "j_per_token"]
    n: PositiveInt
    centre: float
    typical: NonNegativeFloat
    waiting: NonNegativeFloat = 0.0
    least_waiting: float = Field(default=0.0, ge=0.0, le=1.0)
    operator_weight: float = Field(default=1.0, gt=0.0)
    scores: tuple[float, ...] = Field(min_length=len(LEVELS), max_length=len(LEVELS))
    source: str
    by_generation: dict[str, PositiveFloat] = Field(default_factory=dict)
    by_layers: dict[str, PositiveFloat] = Field(default_factory=dict)
    n_by_regime: dict[str, PositiveInt] = Field(default_factory=dict)

    def factor(self, regime: Regime) -> float:
        """Return the factor of a regime; 1, the runs of all regimes together, for what is not known of it."""
        return self.by_generation.get(regime.generation, 1.0) * self.by_layers.get(regime.layers, 1.0)

    def log_factor(
        self,
        level: float | FloatArray,
        operator_error: float,
        waiting_share: float | FloatArray = ALL_WAITING,
        regime: Regime = UNKNOWN,
    ) -> Any:
        """Return the quantile of log(measured / simulated), given the error of the operators.

        Args:
            level: The probability, or several. Shape (n,); the result has the same shape.
            operator_error: Median relative error of the operators.
            waiting_share: Share of the statistic that is waiting for the first step, one or shape (n,).
            regime: What is known of the deployment.
        """
        share = np.clip(waiting_share, self.least_waiting, 1.0)
        spread = spread_of(self.typical, self.waiting, share, self.operator_weight * operator_error)
        return self.factor(regime) * (self.centre + np.interp(level, LEVELS, self.scores) * spread)


def spread_of(typical: float, waiting: float, share: Any, operator_error: Any) -> Any:
    """Return the spread of runs, before the factor of their regime; see `Group`. Shapes (n,) or numbers."""
    return np.hypot(typical + waiting * share, operator_error)


class StatedErrorFile(BaseModel, extra="forbid", frozen=True):
    """The contents of the shipped file stated_error.json."""

    schema_version: Literal[4] = SCHEMA_VERSION
    calibration_set: str  # the measurements that were used, and so may not count as a check
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class StatedError:
    """The stated error of one answer.

    Attributes:
        operator_error: Expected median relative error of its step times from the operators alone.
        groups: Groups of runs by metric; empty for an engine without compared whole runs.
        waiting_share: Share of the mean time to first token of the answer that is waiting for the first step.
        regime: What is known of the deployment before it runs.
    """

    engine: str
    operator_error: float
    groups: Mapping[str, Group]
    waiting_share: float = ALL_WAITING
    regime: Regime = UNKNOWN

    @classmethod
    def of(cls, engine: str, operator_error: float, regime: Regime, waiting_share: float = ALL_WAITING) -> StatedError:
        """Return the stated error for an engine of the catalog, of any version, in a regime.

        `vllm-0.15` counts as `vllm`; `vllm-v0` is another engine.
        """
        known: dict[str, Group] = {g.metric: g for g in load_file().groups if g.engine == family_of(engine)}
        return cls(engine, operator_error, known, waiting_share, regime)

    def group(self, metric: str) -> Group | None:
        """Return the runs that give the error of this statistic, or None."""
        return self.groups.get(metric) or (self.groups.get("tpot") if metric == "itl" else None)

    def waits(self, metric: str) -> bool:
        """Return whether the error of this statistic depends on the share of it that is waiting."""
        group = self.group(metric)
        return group is not None and group.waiting > 0

    def factors(self, metric: str, levels: FloatArray, waiting_share: float | FloatArray | None = None) -> FloatArray:
        """Return the ratio of true to simulated values at probability levels, in the shape of the levels.

        Without whole runs they are log-normal, from the operators alone.

        Args:
            metric: The statistic.
            levels: Probabilities. Shape (n,).
            waiting_share: Share of the statistic that is waiting, one or of shape (n,); None for that of the answer.
        """
        group = self.group(metric)
        if group is not None:
            share = self.waiting_share if waiting_share is None else waiting_share
            logs = group.log_factor(levels, self.operator_error, share, self.regime)
            return np.asarray(np.exp(logs), dtype=np.float64)
        sigma, normal = self.operator_error / MEDIAN_TO_SIGMA, NormalDist()
        return np.exp([sigma * normal.inv_cdf(float(level)) for level in levels])

    def interval(self, metric: str) -> tuple[float, float] | None:
        """Return (low, high) so that the true value lies in simulated * (1 + low) .. simulated * (1 + high).

        It does so with probability COVERAGE. The result is None where no whole run gives the error.
        """
        if self.group(metric) is None:
            return None
        low, high = self.factors(metric, np.array([(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])) - 1.0
        return float(low), float(high)

    @property
    def expected_error(self) -> float:
        """Return the bound on |simulated / true - 1| of TPOT that holds with probability COVERAGE.

        Without whole runs it is the error of the operators.
        """
        if self.group("tpot") is None:
            return self.operator_error
        factors = self.factors("tpot", (np.arange(_FACTORS) + 0.5) / _FACTORS)
        return float(np.quantile(np.abs(1.0 / factors - 1.0), COVERAGE))

    def block(self) -> dict[str, Any]:
        """Return the block `stated_error` of an answer's calibration.

        Intervals by metric, and the number and source of their runs; of these runs, how many are of the same regime.
        """
        groups = {m: g for m in METRICS if (g := self.group(m)) is not None}
        if not groups:
            why = f"unknown: no whole run of {self.engine} was compared; the error stated is the operators' alone"
            return {"coverage": None, "n": {}, "source": why}
        sources: dict[str, list[str]] = {}
        for metric, group in groups.items():
            sources.setdefault(group.source, []).append(metric)
        counted = {m: g.n_by_regime.get(self.regime.key, 0) for m, g in groups.items() if g.n_by_regime}
        of_regime = {"n_of_regime": counted} if counted and self.regime.key else {}
        waits = {"ttft_waiting_share": round(self.waiting_share, 4)} if self.waits("ttft") else {}
        return {
            **{m: list(self.interval(m) or ()) for m in groups},
            **waits,
            **self.regime.block(),
            "coverage": COVERAGE,
            "n": {m: g.n for m, g in groups.items()},
            **of_regime,
            "source": "; ".join(f"{', '.join(metrics)}: {source}" for source, metrics in sources.items()),
        }


def family_of(engine: str) -> str:
    """Return the engine without its version and options: `vllm-0.15` is `vllm`, but `vllm-v0` is another engine."""
    name, _, version = engine.partition("-")
    return name if version[:1].isdigit() or version == "bare" else engine


@lru_cache(maxsize=1)
def load_file() -> StatedErrorFile:
    """Load the shipped file; without one, no engine has whole runs.

    Raises:
        InputError: The file is damaged.
    """
    path = DATA / "calibrations" / FILE_NAME
    if not path.is_file():
        return StatedErrorFile(calibration_set="none", groups=())
    try:
        return StatedErrorFile.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise InputError(f"stated errors are not valid ({first_fault(error)})", str(path)) from None


def stated_errors_digest() -> str:
    """Return a digest of the shipped stated errors: answers with another digest may differ."""
    return hashlib.sha256(load_file().model_dump_json().encode()).hexdigest()[:16]


def waiting_share(first_s: FloatArray, queue_s: FloatArray, statistic: Callable[[FloatArray], Any]) -> float:
    """Return the share of a statistic of the time to first token that is waiting for the first step.

    It is the fraction by which the statistic would be smaller if no request waited. The result is ALL_WAITING where it
    is not known: without requests, or where the statistic is not finite because a request was never served.

    Args:
        first_s: Time to first token of each request, seconds. Shape (n,).
        queue_s: The part of it before the first step of each request, seconds. Shape (n,).
        statistic: Returns the statistic of the times of the requests.
    """
    if not len(first_s):
        return ALL_WAITING
    with np.errstate(invalid="ignore"):
        served_s = np.where(np.isfinite(first_s), first_s - queue_s, first_s)
    whole, served = float(statistic(first_s)), float(statistic(served_s))
    if not (0 < whole < math.inf and math.isfinite(served)):
        return ALL_WAITING
    return min(max(1.0 - served / whole, 0.0), 1.0)


def in_words(stated: dict[str, Any]) -> str:
    """Return StatedError.block as a sentence about the values of an answer."""
    if stated["coverage"] is None:
        return str(stated["source"])
    waiting = stated.get("ttft_waiting_share")
    names = {"ttft": "ttft" if waiting is None else f"ttft, {percent(waiting)} of it waiting"}
    ranges = [
        f"{1 + stated[m][0]:.2g} to {1 + stated[m][1]:.2g} ({names.get(m, m)})"
        for m in ("ttft", "tpot", "itl", "e2e")
        if m in stated
    ]
    metric, n = max(stated["n"].items(), key=lambda item: item[1])
    runs, counted = f"{n} measured runs of this engine", stated.get("n_of_regime", {})
    if metric in counted:
        runs += f", {counted[metric] or 'none'} of them with {Regime.read(stated).in_words()}"
    covered = percent(stated["coverage"])
    return f"in {covered} of cases the true value is {', '.join(ranges)} times the simulated one; from {runs}"
