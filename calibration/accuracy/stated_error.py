"""The error stated with every answer, from whole simulated runs against measured ones, by engine and statistic.

The held-out errors of operators do not include an engine's version, a host or a cold server: only whole runs show
these. A declared part of the public runs gives the error of answers for an engine, and the rest checks it
(`benchmarks/coverage.py`). The error corrects nothing: simulated values stay as they are.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any, Final, Literal

import numpy as np
from pydantic import BaseModel, Field, NonNegativeFloat, PositiveInt, ValidationError

from calibration.bundles.ranges import first_fault
from catalogs.arrays import FloatArray
from catalogs.errors import InputError
from catalogs.io.yaml_files import DATA

FILE_NAME: Final = "stated_error.json"

SCHEMA_VERSION: Final = 1

COVERAGE: Final = 0.9  # of the stated intervals

#: Probability levels of the stored scores; beyond the outer two, scores are constant.
LEVELS: Final = (0.02, *(round(0.05 * i, 2) for i in range(1, 20)), 0.98)

#: Statistics with a stated error. Where no run reports itl, its error is that of tpot: the mean gap is the TPOT.
METRICS: Final = ("ttft", "tpot", "itl", "e2e", "power", "j_per_token")

#: With fewer runs than this, the order statistics do not reach 5 and 95 %, and a Student's t interval for one more run
#: is used.
LEAST_CONFORMAL: Final = 19

#: Standard deviation of a normal distribution over its median absolute deviation: median error -> sigma.
MEDIAN_TO_SIGMA: Final = 0.6745

_FACTORS: Final = 200  # equally likely factors that a share is counted over


class Group(BaseModel, extra="forbid", frozen=True):
    """Whole runs of one engine and statistic: log(measured / simulated) = centre + score * hypot(typical, operators).

    Attributes:
        typical: The median absolute deviation of the runs, or the standard deviation where they are few.
        operators: The expected error of a run from its operators alone.
        scores: Quantiles at LEVELS, ascending.
    """

    engine: str
    metric: Literal["ttft", "tpot", "itl", "e2e", "power", "j_per_token"]
    n: PositiveInt
    centre: float
    typical: NonNegativeFloat
    scores: tuple[float, ...] = Field(min_length=len(LEVELS), max_length=len(LEVELS))
    source: str

    def log_factor(self, level: float | FloatArray, operator_error: float) -> Any:
        """Return the quantile of log(measured / simulated), given the error of the operators.

        Args:
            level: The probability, or several. Shape (n,); the result has the same shape.
            operator_error: Median relative error of the operators.
        """
        return self.centre + np.interp(level, LEVELS, self.scores) * math.hypot(self.typical, operator_error)


class StatedErrorFile(BaseModel, extra="forbid", frozen=True):
    """The contents of the shipped file stated_error.json."""

    schema_version: Literal[1] = SCHEMA_VERSION
    calibration_set: str  # the measurements that were used, and so may not count as a check
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class StatedError:
    """The stated error of one answer.

    Attributes:
        operator_error: Expected median relative error of its step times from the operators alone.
        groups: Groups of runs by metric; empty for an engine without compared whole runs.
    """

    engine: str
    operator_error: float
    groups: Mapping[str, Group]

    @classmethod
    def of(cls, engine: str, operator_error: float) -> StatedError:
        """Return the stated error for an engine of the catalog, of any version.

        `vllm-0.15` counts as `vllm`; `vllm-v0` is another engine.
        """
        name, _, version = engine.partition("-")
        family = name if version[:1].isdigit() or version == "bare" else engine
        known: dict[str, Group] = {g.metric: g for g in load_file().groups if g.engine == family}
        return cls(engine, operator_error, known)

    def group(self, metric: str) -> Group | None:
        """Return the runs that give the error of this statistic, or None."""
        return self.groups.get(metric) or (self.groups.get("tpot") if metric == "itl" else None)

    def factors(self, metric: str, levels: FloatArray) -> FloatArray:
        """Return the ratio of true to simulated values at probability levels, in the shape of the levels.

        Without whole runs they are log-normal, from the operators alone.
        """
        group = self.group(metric)
        if group is not None:
            return np.asarray(np.exp(group.log_factor(levels, self.operator_error)), dtype=np.float64)
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

        Intervals by metric, and the number and source of their runs.
        """
        groups = {m: g for m in METRICS if (g := self.group(m)) is not None}
        if not groups:
            why = f"unknown: no whole run of {self.engine} was compared; the error stated is the operators' alone"
            return {"coverage": None, "n": {}, "source": why}
        sources: dict[str, list[str]] = {}
        for metric, group in groups.items():
            sources.setdefault(group.source, []).append(metric)
        return {
            **{m: list(self.interval(m) or ()) for m in groups},
            "coverage": COVERAGE,
            "n": {m: g.n for m, g in groups.items()},
            "source": "; ".join(f"{', '.join(metrics)}: {source}" for source, metrics in sources.items()),
        }


def fit_group(engine: str, metric: Any, log_ratios: FloatArray, operator_errors: FloatArray, source: str) -> Group:
    """Return the group of runs with these log(measured / simulated) and operator errors, both of shape (n,).

    Split-conformal: order statistics k of n at k / (n + 1), rounded outwards, so that one more exchangeable run lies
    between levels a and b with probability b - a at least (Vovk et al. 2005; Lei et al. 2018), as far out as n runs
    reach. With fewer than LEAST_CONFORMAL runs it is a Student's t prediction interval.

    Raises:
        ValueError: There are fewer than 2 runs.
    """
    n = len(log_ratios)
    if n < 2:
        raise ValueError(f"{engine} {metric}: {n} runs are too few to estimate a spread")
    centre = float(np.median(log_ratios))
    few = n < LEAST_CONFORMAL
    typical = float(np.std(log_ratios, ddof=1) if few else np.median(np.abs(log_ratios - centre)))
    scores = np.sort((log_ratios - centre) / np.maximum(np.hypot(typical, operator_errors), 1e-9))
    levels = np.array(LEVELS)
    if few:
        from scipy.stats import t

        at = scores.mean() + t.ppf(levels, n - 1) * scores.std(ddof=1) * math.sqrt(1.0 + 1.0 / n)
    else:
        exact = levels * (n + 1)
        rank = np.where(levels < 0.5, np.floor(exact + 1e-9), np.ceil(exact - 1e-9))
        at = scores[np.clip(rank, 1, n).astype(np.int64) - 1]
        at[levels == 0.5] = np.median(scores)
    kept = tuple(round(float(s), 4) for s in at)
    spread = {"centre": round(centre, 4), "typical": round(typical, 4)}
    return Group(engine=engine, metric=metric, n=n, **spread, scores=kept, source=source)


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


def in_words(stated: dict[str, Any]) -> str:
    """Return StatedError.block as a sentence about the values of an answer."""
    if stated["coverage"] is None:
        return str(stated["source"])
    ranges = [
        f"{1 + stated[m][0]:.2g} to {1 + stated[m][1]:.2g} ({m})" for m in ("ttft", "tpot", "itl", "e2e") if m in stated
    ]
    return (
        f"in {100 * stated['coverage']:.0f} % of cases the true value is {', '.join(ranges)} times the simulated one; "
        f"from {max(stated['n'].values())} measured runs of this engine"
    )
