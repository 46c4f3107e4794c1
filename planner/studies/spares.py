"""The fewest spare replicas that meet the objectives despite failures: a formula starts, and simulation decides.

A window of time (a day) is composed of simulated parts: requests while all replicas are available, and requests during
randomly drawn outages. An outage is simulated with the crash, the requests that are lost and sent again, the load on
the other replicas, and the return. Rare failures therefore take no more simulation than frequent ones. A window meets
an objective on a percentile if at most the permitted share of its requests is late, and an objective on the mean if the
mean is within the limit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Final

import numpy as np
from pydantic import Field

from calibration.accuracy.stated_error import StatedError
from catalogs.arrays import FloatArray
from catalogs.deployments.layout import Role
from catalogs.errors import InputError
from catalogs.io.json_block import JsonBlock
from catalogs.ui.progress import ProgressCallback
from catalogs.ui.words import exact_duration
from catalogs.units import HOUR_S
from planner.answer.answer_schema import Answer, chosen
from planner.answer.plan_schema import Plan
from planner.evaluation.confidence import LEVEL, allowance_for
from planner.problem.candidate import Candidate
from planner.problem.latency_metrics import LATENCY_METRICS
from planner.problem.slo import Slo
from planner.studies.outages import FailingFleet, FailingReplicas, Outage, binomial_bounds
from planner.studies.rerun import Rerun

#: Number of drawn windows. A judgement: the share of windows that hold is then known to 1 % (two standard errors at
#: 0.95).
WINDOWS: Final = 2000

#: Simulated outages of each depth. A judgement of cost: a simulated outage takes up to 120,000 requests, and the
#: windows draw their outages from these examples.
_EXAMPLES: Final = 3

#: Ratio of the share of late requests with one replica more, above which the replica is of no use. A judgement: a
#: replica that is of use lowers the share by much more than a tenth.
_LESS: Final = 0.9

#: Maximum number of spare replicas. A judgement of cost; a deployment that needs more has another fault.
MOST_SPARES: Final = 8

#: Maximum depth of an outage, in replicas; deeper outages are treated as outages of this depth. A judgement: four
#: replicas are rarely down at the same time.
_DEPTHS: Final = 4

#: The number of replicas of each kind: one, or prefill and decode replicas.
Counts = tuple[int, ...]

#: Returns the samples of each metric, in seconds, for a number of replicas of each kind, an outage (None: all are
#: available), the number of the example, and a factor on step times. Samples of unanswered requests are infinite.
Observe = Callable[[Counts, Outage | None, int, float], Mapping[str, FloatArray]]

Outages = list[tuple[Outage, Counts]]  # the outages of a window with the number of failed replicas of each kind


class SparesTried(JsonBlock):
    """The result of a number of replicas: the share of windows that meet the objectives, with its LEVEL interval.

    `late_by_down` is the share of late requests and `outages_by_down` the mean number of outages in a window, both by
    the number of failed replicas. `by_pool` has the replicas of each kind; it is empty where there is only one.
    """

    replicas: int
    spares: int
    by_pool: dict[str, int] = Field(default_factory=dict)
    enough_up: float
    windows_held: float
    ci_low: float
    ci_high: float
    holds: bool
    late_by_down: dict[str, float | None]
    outages_by_down: dict[str, float]


@dataclass(frozen=True, slots=True)
class SpareStudy:
    """Estimates the share of windows that meet the objectives with a number of replicas of each kind.

    `needed` replicas of each kind serve the load, a window lasts `length_s`, and a share `held` of the windows must
    meet the objectives. `roles` names the kinds, and `sizes` are the accelerators of a replica of each kind.
    """

    observe: Observe
    slos: tuple[Slo, ...]
    failing: FailingReplicas
    requests_per_s: float
    needed: Counts
    length_s: float
    held: float
    seed: int = 0
    n_windows: int = WINDOWS
    roles: tuple[Role, ...] = ("both",)
    sizes: Counts = (1,)

    @property
    def late_allowed(self) -> float:
        """Return the smallest share of requests that an objective permits to be late; 5 % without percentiles."""
        return min((1 - slo.quantile for slo in self.slos if slo.quantile is not None), default=0.05)

    def first_guess(self) -> Counts:
        """Return the replicas with which too few are available for at most the permitted share of late requests."""
        share = (1 - self.late_allowed) ** (1 / len(self.needed))  # of the time that enough of each kind are available
        return tuple(self.failing.fewest(n, share, n + MOST_SPARES) for n in self.needed)

    def fewest(
        self, tell: ProgressCallback = lambda _: None, speed: float = 1.0, start: Counts | None = None
    ) -> tuple[Counts | None, list[SparesTried]]:
        """Return the fewest replicas of each kind that meet the objectives, and all results, the fewest replicas first.

        The search starts from the formula. Where that is not enough, it adds a replica of the kind that causes the most
        late requests; then it takes away replicas as long as the objectives are met, the largest first. No replica of
        the result can be left out; since no kind replaces another, it is also the fewest. The result is None if
        MOST_SPARES spares are not enough, or if too many requests are late while all replicas are up and more replicas
        do not change that.

        Args:
            tell: Called with a description of each simulation before it starts.
            speed: Factor on step times.
            start: Replicas from which the search starts; None for those of the formula.
        """
        known: dict[Counts, SparesTried] = {}

        def holds(replicas: Counts) -> bool:
            if replicas not in known:
                tell(f"{self._words(replicas)}, {sum(replicas) - sum(self.needed)} of them spare")
                known[replicas] = self.tried(replicas, speed)
            return known[replicas].holds

        found = start or self.first_guess()
        late_up = math.inf
        while not holds(found) and sum(found) < sum(self.needed) + MOST_SPARES:
            before, late_up = late_up, known[found].late_by_down["0"] or 0.0
            if late_up > self.late_allowed and late_up > _LESS * before:
                break
            found = _with(found, self._weakest(known[found]), 1)
        enough = holds(found)
        for pool in sorted(range(len(found)), key=lambda pool: -self.sizes[pool]) if enough else ():
            while found[pool] > self.needed[pool] and holds(_with(found, pool, -1)):
                found = _with(found, pool, -1)
        tried = [known[n] for n in sorted(known, key=lambda n: (sum(n), n))]
        return (found if enough else None), tried

    def by_pool(self, replicas: Counts) -> dict[str, int]:
        """Return the replicas by kind; empty where there is only one kind."""
        return {} if len(replicas) == 1 else dict(zip(map(str, self.roles), replicas, strict=True))

    def _words(self, replicas: Counts) -> str:
        if len(replicas) == 1:
            return f"{replicas[0]} replicas"
        return " + ".join(f"{n} {role}" for n, role in zip(replicas, self.roles, strict=True)) + " replicas"

    def _weakest(self, tried: SparesTried) -> int:
        """Return the kind of replica whose outages cause the most late requests."""
        late = [0.0] * len(self.needed)
        for name, n in tried.outages_by_down.items():
            for pool, down in enumerate(self._down(name)):
                late[pool] += n * down * (tried.late_by_down.get(name) or 0.0)
        return late.index(max(late))

    def _name(self, down: Counts) -> str:
        """Return a number of failed replicas as a key: "1", or "1 prefill + 1 decode"."""
        if len(down) == 1 or not any(down):
            return str(sum(down))
        return " + ".join(f"{n} {role}" for n, role in zip(down, self.roles, strict=True) if n)

    def _down(self, name: str) -> Counts:
        """Return the number of failed replicas of each kind that a key names."""
        found = {role: int(n) for n, _, role in (part.partition(" ") for part in name.split(" + "))}
        return (found[""],) if len(self.needed) == 1 else tuple(found.get(role, 0) for role in self.roles)

    def tried(self, replicas: Counts, speed: float = 1.0) -> SparesTried:
        """Return the result of a number of replicas in randomly drawn windows, with a factor on step times."""
        rng = np.random.default_rng([self.seed, *replicas])
        drawn = [self.failing.window(rng, replicas, self.length_s) for _ in range(self.n_windows)]
        windows = [[(outage, self._depth(outage)) for outage in outages] for outages in drawn]
        up = self._counts(self.observe(replicas, None, 0, speed), 1.0)
        down = self._examples(replicas, windows, speed)
        n_held = sum(self._holds(outages, up, down, rng) for outages in windows)
        low, high = binomial_bounds(n_held, self.n_windows, LEVEL)
        depths = Counter(depth for outages in windows for _, depth in outages)
        none = (0,) * len(replicas)
        late = {depth: float(np.mean([_late(c) for c in found])) for depth, found in ({none: [up]} | down).items()}
        pools = zip(replicas, self.needed, strict=True)
        return SparesTried(
            replicas=sum(replicas),
            spares=sum(replicas) - sum(self.needed),
            by_pool=self.by_pool(replicas),
            enough_up=prod(self.failing.enough_up(n, needed) for n, needed in pools),
            windows_held=n_held / self.n_windows,
            ci_low=low,
            ci_high=high,
            holds=n_held / self.n_windows >= self.held,
            late_by_down={self._name(depth): share for depth, share in late.items()},
            outages_by_down={self._name(depth): n / self.n_windows for depth, n in sorted(depths.items())},
        )

    def _depth(self, outage: Outage) -> Counts:
        return tuple(min(n, _DEPTHS) for n in outage.most_down(len(self.needed)))

    def _counts(self, samples: Mapping[str, FloatArray], n_requests: float) -> FloatArray:
        """Return the requests, the late requests, and the total latency in seconds. Shape (3, objectives).

        The samples stand for `n_requests` requests. Samples that are not of requests, such as the gaps between tokens,
        are shares of them.
        """
        per_request = [len(values) for name, values in samples.items() if LATENCY_METRICS[name].is_per_request]
        columns = []
        for slo in self.slos:
            values = samples[slo.metric]
            of = max(per_request) if LATENCY_METRICS[slo.metric].is_per_request else len(values)
            column = np.array([len(values), np.sum(values > slo.limit_s), values.sum()])
            columns.append(column * n_requests / max(of, 1))
        return np.array(columns).T

    def _examples(self, replicas: Counts, windows: list[Outages], speed: float) -> dict[Counts, list[FloatArray]]:
        """Return the counts of some of the drawn outages by the number of failed replicas."""
        found: dict[Counts, list[FloatArray]] = {}
        for outage, depth in (pair for outages in windows for pair in outages):
            examples = found.setdefault(depth, [])
            if len(examples) < _EXAMPLES:
                samples = self.observe(replicas, outage, len(examples), speed)
                examples.append(self._counts(samples, self.requests_per_s * outage.length_s))
        return found

    def _holds(
        self, outages: Outages, up: FloatArray, down: Mapping[Counts, list[FloatArray]], rng: np.random.Generator
    ) -> bool:
        """Return True if a window meets every objective."""
        out_s = min(sum(outage.length_s for outage, _ in outages), self.length_s)
        counts = self.requests_per_s * (self.length_s - out_s) * up
        for _, depth in outages:
            counts = counts + down[depth][int(rng.integers(len(down[depth])))]
        for slo, (n, late, total_s) in zip(self.slos, counts.T.tolist(), strict=True):
            if slo.quantile is None:
                met = n == 0 or total_s / n <= slo.limit_s
            else:
                met = late <= (1 - slo.quantile) * n * (1 + 1e-9)
            if not met:
                return False
        return True


def _with(counts: Counts, pool: int, more: int) -> Counts:
    """Return the counts with `more` replicas of one kind."""
    return (*counts[:pool], counts[pool] + more, *counts[pool + 1 :])


def _late(counts: FloatArray) -> float:
    """Return the largest share of late requests of any objective."""
    return float(np.max(counts[1] / np.maximum(counts[0], 1e-12)))


def needed_replicas(requests_per_s: float, carries_per_s: float) -> int:
    """Return the replicas that serve a load if each serves `carries_per_s`."""
    return max(1, ceil(requests_per_s / carries_per_s - 1e-9))


class SparesDocument(JsonBlock):
    """The document of `plan spares --json`.

    `spares` and `replicas` are the fewest that meet the objectives, None if no tried number does. The keys ending in
    `_by_pool` hold the same by kind of replica and are empty where there is only one kind. All results are with the
    `confidence` of the answer: steps take `slow_factor` times as long as simulated. With steps as simulated,
    `held_as_simulated` is the share of windows that meet the objectives with these replicas, and `spares_as_simulated`
    the fewest spares that would be enough; None if no tried number is. `survive` is the loss that the answer had to
    survive (`--survive`), for example "1 replica lost", which is no part of this question; None without one.
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
    late_allowed: float
    spares: int | None
    replicas: int | None
    confidence: float
    slow_factor: float
    held_as_simulated: float | None
    spares_as_simulated: int | None
    needed_by_pool: dict[str, int] = Field(default_factory=dict)
    replicas_by_pool: dict[str, int] = Field(default_factory=dict)
    planned_by_pool: dict[str, int] = Field(default_factory=dict)
    tried: list[SparesTried]
    planned_replicas: int
    survive: str | None = None
    usd_per_hour_planned: float | None
    usd_per_hour: float | None
    most: int


#: Minimum ratio of uptime to restart time; below it, outages overlap all the time. A judgement: one replica is then
#: down for 5 % of the time.
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
            raise InputError(rule, _option_text(self.mtbf_s), f"--mtbf {_option_text(_LONGER * self.restart_s)}")
        if self.window_s < 10 * self.restart_s:
            rule = "a window must be at least ten times as long as a restart"
            raise InputError(rule, _option_text(self.window_s), f"--window {_option_text(10 * self.restart_s)}")


def _option_text(value_s: float) -> str:
    """Return a duration as an option takes it, in days where it is whole days: "30d", "36h"."""
    days = value_s / (24 * HOUR_S)
    return f"{days:g}d" if days >= 1 and days == round(days) else exact_duration(value_s)


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
    rerun = Rerun.of(answer)
    fleet = FailingFleet.of(rerun, plan, alternative)
    study = _study(rerun, rerun.candidates[alternative], plan, fleet, terms)
    error = StatedError.of(rerun.request.engine, plan.operator_error, plan.regime)
    allowance = allowance_for(rerun.request.confidence, error)
    careful = replace(study, observe=replace(fleet, allowance=allowance).observe)
    fewest, tried = careful.fewest(tell, allowance.speed)
    tell("steps as simulated")
    held_as_simulated = None if fewest is None else study.tried(fewest).windows_held
    fewest_as_simulated, _ = study.fewest(tell, 1.0, fewest)
    planned = tuple(part.replicas for _, part in rerun.candidates[alternative].pools)
    needed = sum(study.needed)
    return SparesDocument(
        schema_version=1,
        mtbf_s=terms.mtbf_s,
        restart_s=terms.restart_s,
        availability=study.failing.availability,
        requests_per_s=study.requests_per_s,
        window_s=terms.window_s,
        windows_must_hold=terms.held,
        n_windows=study.n_windows,
        ci_level=LEVEL,
        slo=[slo.text for slo in study.slos],
        needed=needed,
        late_allowed=study.late_allowed,
        formula=sum(study.first_guess()) - needed,
        spares=None if fewest is None else sum(fewest) - needed,
        replicas=None if fewest is None else sum(fewest),
        confidence=rerun.request.confidence,
        slow_factor=allowance.speed,
        held_as_simulated=held_as_simulated,
        spares_as_simulated=None if fewest_as_simulated is None else sum(fewest_as_simulated) - needed,
        needed_by_pool=study.by_pool(study.needed),
        replicas_by_pool={} if fewest is None else study.by_pool(fewest),
        planned_by_pool=study.by_pool(planned),
        tried=tried,
        planned_replicas=sum(planned),
        survive=rerun.request.spare.words if rerun.request.spare else None,
        usd_per_hour_planned=plan.usd_per_hour,
        usd_per_hour=_usd_per_hour(rerun, rerun.candidates[alternative], plan, study.sizes, fewest),
        most=MOST_SPARES,
    )


def _study(rerun: Rerun, candidate: Candidate, plan: Plan, fleet: FailingFleet, terms: SpareObjective) -> SpareStudy:
    """Return the study of a plan, with the replicas of each kind that serve its load while none fails."""
    needed = tuple(part.replicas for _, part in candidate.pools)
    if len(needed) == 1:  # of prefill and decode replicas, the capacity of each kind alone is not known
        carries = max(plan.capacity_requests_per_s or 0.0, fleet.requests_per_s) / candidate.replicas
        needed = (min(candidate.replicas, needed_replicas(fleet.requests_per_s, carries)),)
    return SpareStudy(
        fleet.observe,
        rerun.request.slos,
        FailingReplicas(terms.mtbf_s, terms.restart_s),
        fleet.requests_per_s,
        needed,
        terms.window_s,
        terms.held,
        rerun.request.seed,
        roles=tuple(role for role, _ in candidate.pools),
        sizes=tuple(part.layout.accelerators for _, part in candidate.pools),
    )


def _usd_per_hour(
    rerun: Rerun, candidate: Candidate, plan: Plan, sizes: Counts, replicas: Counts | None
) -> float | None:
    """Return the price of an hour of the replicas; None if it is unknown.

    Prefill and decode replicas share instances, so their price is that of the plan in proportion to the accelerators.
    """
    if plan.usd_per_hour is None or replicas is None:
        return None
    if len(replicas) == 1:
        return rerun.prices.usd_per_hour_of_replicas(candidate, replicas[0])
    planned = tuple(part.replicas for _, part in candidate.pools)
    used, in_plan = (sum(n * size for n, size in zip(counts, sizes, strict=True)) for counts in (replicas, planned))
    return float(plan.usd_per_hour * used / in_plan)
