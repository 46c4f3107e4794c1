"""The fewest spare replicas that meet the objectives despite failures: a formula starts, and simulation decides.

A window of time (a day) is composed of simulated parts: requests while all replicas are available, and requests during
randomly drawn outages. An outage is simulated with the crash, the requests that are lost and sent again, the load on
the other replicas, and the return. Rare failures therefore take no more simulation than frequent ones. A window meets
an objective on a percentile if at most the permitted share of its requests is late, and an objective on the mean if the
mean is within the limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Final

import numpy as np

from calibration.accuracy.stated_error import StatedError
from catalogs.arrays import FloatArray
from catalogs.errors import InputError
from catalogs.io.json_block import JsonBlock
from catalogs.ui.terminal import ProgressCallback
from planner.answer.capabilities import chosen
from planner.answer.plan_schema import Plan
from planner.answer.schema import Answer
from planner.evaluation.confidence import LEVEL, LEVELS, SPEED
from planner.problem.slo import Slo
from planner.studies.outages import FailingFleet, FailingReplicas, Outage, binomial_bounds
from planner.studies.rerun import Rerun

#: Number of drawn windows, simulated outages of each depth, and maximum number of spare replicas.
WINDOWS: Final = 2000

_EXAMPLES: Final = 3

MOST_SPARES: Final = 8

#: Maximum depth of an outage; deeper outages are treated as outages of this depth.
_DEPTHS: Final = 4

#: Returns the samples of each metric, in seconds, for a number of replicas, an outage (None: all are available), the
#: number of the example, and a factor on step times. Samples of unanswered requests are infinite.
Observe = Callable[[int, Outage | None, int, float], Mapping[str, FloatArray]]

Outages = list[tuple[Outage, int]]  # the outages of a window with the number of failed replicas


@dataclass(frozen=True, slots=True)
class LatenessCount:
    """Counts by objective: requests, late requests, and total latency in seconds. Shape (objectives,)."""

    requests: FloatArray
    late: FloatArray
    total_s: FloatArray

    @classmethod
    def of(cls, samples: Mapping[str, FloatArray], slos: tuple[Slo, ...], scale: float) -> LatenessCount:
        """Return the counts of the samples, multiplied by `scale`."""
        seen = [samples[slo.metric] for slo in slos]
        late = [float(np.sum(values > slo.limit_s)) for values, slo in zip(seen, slos, strict=True)]
        counts = [float(len(values)) for values in seen]
        totals = [float(values.sum()) for values in seen]
        return cls(*(scale * np.array(each) for each in (counts, late, totals)))

    @property
    def late_share(self) -> float:
        """Return the largest share of late requests of any objective."""
        return float(np.max(self.late / np.maximum(self.requests, 1e-12)))


@dataclass(frozen=True, slots=True)
class SpareStudy:
    """Estimates the share of windows that meet the objectives with a number of replicas.

    `needed` replicas carry the load, a window lasts `length_s`, and a share `held` of the windows must meet the
    objectives.
    """

    observe: Observe
    slos: tuple[Slo, ...]
    failing: FailingReplicas
    requests_per_s: float
    needed: int
    length_s: float
    held: float
    seed: int = 0
    n_windows: int = WINDOWS

    @property
    def late_allowed(self) -> float:
        """Return the permitted share of late requests of the strictest objective on a percentile."""
        shares = [1 - slo.quantile for slo in self.slos if slo.quantile is not None]
        return min(shares, default=0.05)

    def first_guess(self) -> int:
        """Return the replicas with which too few are available for at most the permitted share of late requests."""
        return self.failing.fewest(self.needed, 1 - self.late_allowed, self.needed + MOST_SPARES)

    def tried(self, replicas: int, speed: float = 1.0) -> TriedSpares:
        """Return the result of a number of replicas in randomly drawn windows."""
        rng = np.random.default_rng([self.seed, replicas])
        drawn = [self.failing.window(rng, replicas, self.length_s) for _ in range(self.n_windows)]
        windows = [[(outage, min(outage.most_down, _DEPTHS)) for outage in outages] for outages in drawn]
        up = LatenessCount.of(self.observe(replicas, None, 0, speed), self.slos, 1.0)
        up = LatenessCount(up.requests / up.requests.max(), up.late / up.requests.max(), up.total_s / up.requests.max())
        down = self._examples(replicas, windows, speed)
        held = [self._holds(outages, up, down, rng) for outages in windows]
        late = {0: up.late_share} | {depth: float(np.mean([t.late_share for t in ts])) for depth, ts in down.items()}
        depths = Counter(depth for outages in windows for _, depth in outages)
        per_window = {depth: n / self.n_windows for depth, n in sorted(depths.items())}
        return TriedSpares(replicas, sum(held), self.n_windows, late, per_window)

    def _examples(self, replicas: int, windows: list[Outages], speed: float) -> dict[int, list[LatenessCount]]:
        """Return the counts of some of the drawn outages by the number of failed replicas."""
        found: dict[int, list[LatenessCount]] = {}
        for outage, depth in (pair for outages in windows for pair in outages):
            tallies = found.setdefault(depth, [])
            if len(tallies) < _EXAMPLES:
                samples = self.observe(replicas, outage, len(tallies), speed)
                scale = self.requests_per_s * outage.length_s / max(max(map(len, samples.values())), 1)
                tallies.append(LatenessCount.of(samples, self.slos, scale))
        return found

    def _holds(
        self, outages: Outages, up: LatenessCount, down: Mapping[int, list[LatenessCount]], rng: np.random.Generator
    ) -> bool:
        """Return True if a window meets every objective."""
        out_s = min(sum(outage.length_s for outage, _ in outages), self.length_s)
        healthy = self.requests_per_s * (self.length_s - out_s)
        requests, late, total_s = (healthy * each for each in (up.requests, up.late, up.total_s))
        for _, depth in outages:
            tallies = down[depth]
            tally = tallies[int(rng.integers(len(tallies)))]
            requests, late, total_s = requests + tally.requests, late + tally.late, total_s + tally.total_s
        means = [float(t / n) if n else 0.0 for t, n in zip(total_s, requests, strict=True)]
        return all(
            mean <= slo.limit_s if slo.quantile is None else lates <= (1 - slo.quantile) * n * (1 + 1e-9)
            for slo, mean, lates, n in zip(self.slos, means, late.tolist(), requests.tolist(), strict=True)
        )


@dataclass(frozen=True, slots=True)
class TriedSpares:
    """The result of a number of replicas.

    `late` is the share of late requests and `outages` the mean number of outages in a window, both by the number of
    failed replicas.
    """

    replicas: int
    n_held: int
    n_windows: int
    late: dict[int, float]
    outages: dict[int, float]

    @property
    def held(self) -> float:
        """Return the share of windows that meet the objectives."""
        return self.n_held / self.n_windows

    @property
    def bounds(self) -> tuple[float, float]:
        """Return the LEVEL interval of the share of windows that meet the objectives."""
        return binomial_bounds(self.n_held, self.n_windows, LEVEL)


@dataclass(slots=True)
class Spares:
    """Searches the fewest replicas, starting from the formula."""

    ward: SpareStudy
    known: dict[int, TriedSpares] = field(default_factory=dict)

    def find(self, tell: ProgressCallback = lambda _: None) -> int | None:
        """Return the fewest replicas that meet the objectives; None if MOST_SPARES spares are not enough."""
        ward = self.ward
        replicas = ward.first_guess()
        if self._holds(replicas, tell):
            while replicas > ward.needed and self._holds(replicas - 1, tell):
                replicas -= 1
            return replicas
        more = range(replicas + 1, ward.needed + MOST_SPARES + 1)
        return next((n for n in more if self._holds(n, tell)), None)

    def _holds(self, replicas: int, tell: ProgressCallback) -> bool:
        tell(f"{replicas} replicas, {replicas - self.ward.needed} of them spare")
        self.known[replicas] = self.ward.tried(replicas)
        return self.known[replicas].held >= self.ward.held


def needed_replicas(requests_per_s: float, carries_per_s: float) -> int:
    """Return the replicas that carry a load if each carries `carries_per_s`."""
    return max(1, ceil(requests_per_s / carries_per_s - 1e-9))


class SparesTried(JsonBlock):
    """The result of a number of replicas; late requests and outages are by the number of failed replicas."""

    replicas: int
    spares: int
    enough_up: float
    windows_held: float
    ci_low: float
    ci_high: float
    holds: bool
    late_by_down: dict[str, float | None]
    outages_by_down: dict[str, float]

    @classmethod
    def of(cls, ward: SpareStudy, tried: TriedSpares) -> SparesTried:
        """Return the row of a tried number of replicas."""
        low, high = tried.bounds
        return cls(
            replicas=tried.replicas,
            spares=tried.replicas - ward.needed,
            enough_up=ward.failing.enough_up(tried.replicas, ward.needed),
            windows_held=tried.held,
            ci_low=low,
            ci_high=high,
            holds=tried.held >= ward.held,
            late_by_down={str(k): v for k, v in tried.late.items()},
            outages_by_down={str(k): v for k, v in tried.outages.items()},
        )


class SparesDocument(JsonBlock):
    """The document of `plan spares --json`.

    `spares` and `replicas` are the fewest that meet the objectives, None if no tried number does. `held_if_slow` is the
    share of windows that meet them with steps as slow as at the upper level of the stated error.
    """

    schema_version: int
    mtbf_s: float
    restart_s: float
    availability: float
    requests_per_s: float
    window_s: float
    windows_must_hold: float
    n_windows: int
    ci_level: float
    slo: list[str]
    needed: int
    formula: int
    spares: int | None
    replicas: int | None
    held_if_slow: float | None
    tried: list[SparesTried]
    planned_replicas: int
    usd_per_hour_planned: float | None
    usd_per_hour: float | None
    most: int


#: Minimum ratio of uptime to restart time; below it, outages overlap all the time.
_LONGER: Final = 20


@dataclass(frozen=True, slots=True)
class SpareObjective:
    """The failures of replicas, and the share `held` of windows of `window_s` that must meet the objectives."""

    mtbf_s: float
    restart_s: float
    window_s: float
    held: float

    def __post_init__(self) -> None:
        if not 0 < self.held < 1:
            raise InputError("the share of windows must be between 0 and 1", self.held, "0.9")
        if self.mtbf_s < _LONGER * self.restart_s:
            rule = f"the mean time between failures must be at least {_LONGER} times the restart time"
            raise InputError(rule, f"{self.mtbf_s:g} s", f"--mtbf {_LONGER * self.restart_s / 3600:g}h")
        if self.window_s < 10 * self.restart_s:
            rule = "a window must be at least ten times as long as a restart"
            raise InputError(rule, f"{self.window_s:g} s", f"--window {10 * self.restart_s / 3600:g}h")


def spares(
    answer: Answer, terms: SpareObjective, alternative: int = 0, tell: ProgressCallback = lambda _: None
) -> SparesDocument:
    """Return the fewest spare replicas with which the objectives hold although replicas fail.

    Args:
        answer: An answer with at least one plan.
        terms: How replicas fail, and in which share of windows the objectives must hold.
        alternative: The plan's number; 0 is the recommended one.
        tell: Called with a description of each simulation before it starts.

    Raises:
        InputError: The command cannot read the plan.
    """
    plan = chosen("spares", answer, alternative)
    rerun = Rerun.of(answer, "spares")
    fleet, candidate = FailingFleet.of(rerun, plan, alternative), rerun.candidates[alternative]
    rate = fleet.requests_per_s
    carries = max(plan.capacity_requests_per_s or 0.0, rate) / candidate.replicas
    failing = FailingReplicas(terms.mtbf_s, terms.restart_s, settle_s=terms.restart_s)
    needed = min(candidate.replicas, needed_replicas(rate, carries))
    request = rerun.request
    ward = SpareStudy(fleet.observe, request.slos, failing, rate, needed, terms.window_s, terms.held, request.seed)
    found = Spares(ward)
    fewest = found.find(tell)
    slower = None
    if fewest is not None:
        tell("slower steps, as in 1 of 20 cases")
        slower = ward.tried(fewest, _slow(answer, plan))
    each = None if plan.usd_per_hour is None else plan.usd_per_hour / candidate.replicas
    return SparesDocument(
        schema_version=1,
        mtbf_s=failing.mtbf_s,
        restart_s=failing.restart_s,
        availability=failing.availability,
        requests_per_s=ward.requests_per_s,
        window_s=ward.length_s,
        windows_must_hold=ward.held,
        n_windows=ward.n_windows,
        ci_level=LEVEL,
        slo=[slo.text for slo in ward.slos],
        needed=ward.needed,
        formula=ward.first_guess() - ward.needed,
        spares=None if fewest is None else fewest - ward.needed,
        replicas=fewest,
        held_if_slow=None if slower is None else slower.held,
        tried=[SparesTried.of(ward, tried) for _, tried in sorted(found.known.items())],
        planned_replicas=candidate.replicas,
        usd_per_hour_planned=plan.usd_per_hour,
        usd_per_hour=None if each is None or fewest is None else each * fewest,
        most=MOST_SPARES,
    )


def _slow(answer: Answer, plan: Plan) -> float:
    """Return the factor on step times at the upper level of the stated error."""
    error = StatedError.of(answer.request.engine, plan.operator_error)
    return float(error.factors(SPEED, np.array([LEVELS[-1]]))[0])
