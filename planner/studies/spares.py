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
from dataclasses import dataclass
from itertools import islice, takewhile
from math import ceil
from typing import Final

import numpy as np

from calibration.accuracy.stated_error import StatedError
from catalogs.arrays import FloatArray
from catalogs.errors import InputError
from catalogs.io.json_block import JsonBlock
from catalogs.ui.terminal import ProgressCallback
from catalogs.ui.words import HOUR_S, exact_duration
from planner.answer.capabilities import chosen
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


class SparesTried(JsonBlock):
    """The result of a number of replicas: the share of windows that meet the objectives, with its LEVEL interval.

    `late_by_down` is the share of late requests and `outages_by_down` the mean number of outages in a window, both by
    the number of failed replicas.
    """

    replicas: int
    spares: int
    enough_up: float
    windows_held: float
    ci_low: float
    ci_high: float
    holds: bool
    late_by_down: dict[str, float | None]
    outages_by_down: dict[str, float]


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

    def first_guess(self) -> int:
        """Return the replicas with which too few are available for at most the permitted share of late requests."""
        late_allowed = min((1 - slo.quantile for slo in self.slos if slo.quantile is not None), default=0.05)
        return self.failing.fewest(self.needed, 1 - late_allowed, self.needed + MOST_SPARES)

    def fewest(self, tell: ProgressCallback = lambda _: None) -> tuple[int | None, list[SparesTried]]:
        """Return the fewest replicas that meet the objectives, and all results in ascending number of replicas.

        The search starts from the formula. The number is None if MOST_SPARES spares are not enough.
        """
        known: dict[int, SparesTried] = {}

        def holds(replicas: int) -> bool:
            tell(f"{replicas} replicas, {replicas - self.needed} of them spare")
            known[replicas] = self.tried(replicas)
            return known[replicas].holds

        first = self.first_guess()
        fewer, more = range(first, self.needed - 1, -1), range(first + 1, self.needed + MOST_SPARES + 1)
        enough = list(takewhile(holds, fewer)) or list(islice(filter(holds, more), 1))
        return min(enough, default=None), [known[n] for n in sorted(known)]

    def tried(self, replicas: int, speed: float = 1.0) -> SparesTried:
        """Return the result of a number of replicas in randomly drawn windows, with a factor on step times."""
        rng = np.random.default_rng([self.seed, replicas])
        drawn = [self.failing.window(rng, replicas, self.length_s) for _ in range(self.n_windows)]
        windows = [[(outage, min(outage.most_down, _DEPTHS)) for outage in outages] for outages in drawn]
        up = self._counts(self.observe(replicas, None, 0, speed))
        up /= up[0].max()
        down = self._examples(replicas, windows, speed)
        n_held = sum(self._holds(outages, up, down, rng) for outages in windows)
        low, high = binomial_bounds(n_held, self.n_windows, LEVEL)
        depths = Counter(depth for outages in windows for _, depth in outages)
        return SparesTried(
            replicas=replicas,
            spares=replicas - self.needed,
            enough_up=self.failing.enough_up(replicas, self.needed),
            windows_held=n_held / self.n_windows,
            ci_low=low,
            ci_high=high,
            holds=n_held / self.n_windows >= self.held,
            late_by_down={str(n): float(np.mean([_late(c) for c in found])) for n, found in ({0: [up]} | down).items()},
            outages_by_down={str(depth): n / self.n_windows for depth, n in sorted(depths.items())},
        )

    def _counts(self, samples: Mapping[str, FloatArray]) -> FloatArray:
        """Return the requests, the late requests, and the total latency in seconds. Shape (3, objectives)."""
        seen = [(samples[slo.metric], slo.limit_s) for slo in self.slos]
        return np.array([[len(values), np.sum(values > limit_s), values.sum()] for values, limit_s in seen]).T

    def _examples(self, replicas: int, windows: list[Outages], speed: float) -> dict[int, list[FloatArray]]:
        """Return the counts of some of the drawn outages by the number of failed replicas."""
        found: dict[int, list[FloatArray]] = {}
        for outage, depth in (pair for outages in windows for pair in outages):
            examples = found.setdefault(depth, [])
            if len(examples) < _EXAMPLES:
                samples = self.observe(replicas, outage, len(examples), speed)
                scale = self.requests_per_s * outage.length_s / max(max(map(len, samples.values())), 1)
                examples.append(scale * self._counts(samples))
        return found

    def _holds(
        self, outages: Outages, up: FloatArray, down: Mapping[int, list[FloatArray]], rng: np.random.Generator
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


def _late(counts: FloatArray) -> float:
    """Return the largest share of late requests of any objective."""
    return float(np.max(counts[1] / np.maximum(counts[0], 1e-12)))


def needed_replicas(requests_per_s: float, carries_per_s: float) -> int:
    """Return the replicas that carry a load if each carries `carries_per_s`."""
    return max(1, ceil(requests_per_s / carries_per_s - 1e-9))


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
    rerun = Rerun.of(answer, "spares")
    request, candidate = rerun.request, rerun.candidates[alternative]
    fleet = FailingFleet.of(rerun, plan, alternative)
    rate = fleet.requests_per_s
    carries = max(plan.capacity_requests_per_s or 0.0, rate) / candidate.replicas
    failing = FailingReplicas(terms.mtbf_s, terms.restart_s)
    needed = min(candidate.replicas, needed_replicas(rate, carries))
    study = SpareStudy(fleet.observe, request.slos, failing, rate, needed, terms.window_s, terms.held, request.seed)
    fewest, tried = study.fewest(tell)
    held_if_slow = None
    if fewest is not None:
        tell("slower steps, as in 1 of 20 cases")
        error = StatedError.of(request.engine, plan.operator_error)
        held_if_slow = study.tried(fewest, float(error.factors(SPEED, np.array([LEVELS[-1]]))[0])).windows_held
    return SparesDocument(
        schema_version=1,
        mtbf_s=failing.mtbf_s,
        restart_s=failing.restart_s,
        availability=failing.availability,
        requests_per_s=rate,
        window_s=terms.window_s,
        windows_must_hold=terms.held,
        n_windows=study.n_windows,
        ci_level=LEVEL,
        slo=[slo.text for slo in request.slos],
        needed=needed,
        formula=study.first_guess() - needed,
        spares=None if fewest is None else fewest - needed,
        replicas=fewest,
        held_if_slow=held_if_slow,
        tried=tried,
        planned_replicas=candidate.replicas,
        usd_per_hour_planned=plan.usd_per_hour,
        usd_per_hour=None if fewest is None else rerun.prices.usd_per_hour_of_replicas(candidate, fewest),
        most=MOST_SPARES,
    )
