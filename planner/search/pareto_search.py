"""`plan front`: the Pareto-optimal deployments and loads, found by simulating few of them.

Each point that the sampler proposes is simulated once and reported to the study.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from pydantic import Field

from catalogs.errors import InputError
from catalogs.io.json_block import JsonBlock, every_key_set
from catalogs.ui.charts import number_text
from catalogs.ui.words import human_s
from planner.economics.money import SECONDS_PER_HOUR
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.multi_hardware import open_evaluator
from planner.problem.price_list import PriceList
from planner.problem.reproduction import digest
from planner.problem.request import PlanRequest
from planner.problem.slo import Slo
from planner.problem.tariff import Tariff
from planner.search.objectives import RunSizes
from planner.search.pareto_sampler import RESOLVED, ParetoSample, ParetoSampler, members
from planner.search.pareto_space import ParetoAxis, ParetoCandidate, ParetoSpace, parse_axes, trade_points
from planner.search.study import CandidateStudy, Params, SearchSettings, storage_faults

if TYPE_CHECKING:
    import optuna

    from planner.search.pareto_sampler import ParetoOptunaSampler


SCHEMA_VERSION: Final = 1

#: Limit of a statistic that is only observed: no system is that slow.
NO_LIMIT_S: Final = 1e6

_REASONS: Final = 3  # of what was ruled out, that are told


def asked_slos(axes: Sequence[ParetoAxis], limits: Sequence[Slo]) -> tuple[Slo, ...]:
    """Return the objectives to read from a run: the limits, and the axes without a limit."""
    named = {slo.name for slo in limits}
    extra = (axis.slo for axis in axes if axis.slo is not None and axis.slo.name not in named)
    return (*limits, *(Slo(s.metric, s.stat, NO_LIMIT_S) for s in extra))


class FrontRequest(JsonBlock):
    """The request that a front answers."""

    model: str
    hardware: str
    workload: str
    rate: float | None = None
    slo: list[str] = Field(default_factory=list)
    engine: str
    tariff: Tariff | None = None
    seed: int = 0
    trials: int | None = None


class FrontAxis(JsonBlock):
    """One axis of a front."""

    name: str
    words: str
    unit: str

    @property
    def is_latency(self) -> bool:
        """Return whether the axis is a latency in seconds."""
        return self.unit == "s"


class FrontPoint(JsonBlock):
    """One deployment at one load. values: by the axis' name, in its unit.

    A point of the front has its deployment; a simulated point says whether it holds and lies on the front.
    """

    words: str
    hardware: str
    requests_per_s: float
    usd_per_hour: float | None = None
    values: dict[str, float | None]
    n_requests: int = 0
    holds: bool = True
    stopped_early: bool = False
    on_front: bool = True
    deployment: dict[str, Any] = Field(default_factory=dict)

    def value(self, axis: FrontAxis) -> float | None:
        """Return the value on an axis; None if it is not finite or not known."""
        return self.values.get(axis.name)


class FrontSearch(JsonBlock):
    """How a front was found; `n_requests` counts the simulated requests, including resumed runs."""

    n_candidates: int = 0
    n_bounded_out: int = 0
    n_points: int
    n_simulated: int
    n_pruned: int = 0
    n_requests: int
    n_resumed: int = 0
    exhausted: bool
    interrupted: bool = False
    seconds: float = 0.0
    seed: int


class FrontFile(JsonBlock):
    """The document that `plan front --json` writes; it has two or three axes, at least one of them a latency."""

    schema_version: int
    request: FrontRequest
    axes: list[FrontAxis]
    resolution: float = RESOLVED
    front: list[FrontPoint]
    simulated: list[FrontPoint]
    search: FrontSearch
    calibration: str
    notices: list[str] = Field(default_factory=list)


@dataclass(slots=True)
class ParetoResult:
    """The result of a front search.

    `looks` holds the samples by index, in order; `exhausted` means that no other point is likely on the front.
    """

    looks: dict[int, ParetoSample] = field(default_factory=dict)
    exhausted: bool = False
    interrupted: bool = False
    n_resumed: int = 0

    @property
    def members(self) -> list[int]:
        """Return the indices of the points on the front."""
        return members(self.looks)

    @property
    def n_pruned(self) -> int:
        """Return the number of points whose simulation stopped early."""
        return sum(look.pruned for look in self.looks.values())

    @property
    def n_requests(self) -> int:
        """Return the simulated requests, including those of resumed runs."""
        return sum(look.n_requests for look in self.looks.values())


@dataclass(frozen=True, slots=True)
class ParetoAnswer:
    """A front with its request; every point meets `limits`, and `fingerprint` identifies the calibration."""

    request: PlanRequest
    limits: tuple[Slo, ...]
    trade: ParetoSpace
    result: ParetoResult
    n_space: int
    n_bounded_out: int
    seconds: float
    fingerprint: str
    notices: tuple[str, ...]

    @property
    def axes(self) -> tuple[ParetoAxis, ...]:
        """Return the axes of the front."""
        return self.trade.axes

    @property
    def members(self) -> list[tuple[ParetoCandidate, ParetoSample]]:
        """Return the points of the front with their samples, in order of the first objective."""
        return [(self.trade.points[i], self.result.looks[i]) for i in self.result.members]

    def document(self) -> dict[str, Any]:
        """Return what `plan front --json` writes. Numbers that are not finite are null."""
        on_front = set(self.result.members)
        facts = self.trade.evaluator.facts
        r = self.request
        asked = FrontRequest(
            model=r.model,
            hardware=r.hardware,
            workload=r.workload,
            rate=r.requests_per_s,
            slo=[slo.text for slo in self.limits],
            engine=r.engine,
            tariff=every_key_set(r.tariff),
            seed=r.seed,
            trials=r.trials,
        )
        looks = [
            self._point(self.trade.points[i], look, holds=look.holds, stopped_early=look.pruned, on_front=i in on_front)
            for i, look in self.result.looks.items()
        ]
        return FrontFile(
            schema_version=SCHEMA_VERSION,
            request=asked,
            axes=[FrontAxis(name=a.name, words=a.words, unit=a.unit) for a in self.axes],
            resolution=RESOLVED,
            front=[self._point(p, look, deployment=facts(p.candidate).deployment) for p, look in self.members],
            simulated=looks,
            search=self.search,
            calibration=self.fingerprint,
            notices=list(self.notices),
        ).document()

    def _point(self, point: ParetoCandidate, look: ParetoSample, **more: Any) -> FrontPoint:
        price = self.trade.prices.price(point.candidate.hardware)
        return FrontPoint(
            words=point.candidate.words,
            hardware=point.candidate.hardware.text,
            requests_per_s=point.requests_per_s,
            usd_per_hour=None if price is None else point.usd_per_s * SECONDS_PER_HOUR,
            values=dict(zip((a.name for a in self.axes), look.values, strict=True)),
            n_requests=look.n_requests,
            **more,
        )

    @property
    def search(self) -> FrontSearch:
        """Return how the front was found."""
        r = self.result
        return FrontSearch(
            n_candidates=self.n_space,
            n_bounded_out=self.n_bounded_out,
            n_points=len(self.trade.points),
            n_simulated=len(r.looks),
            n_pruned=r.n_pruned,
            n_requests=r.n_requests,
            n_resumed=r.n_resumed,
            exhausted=r.exhausted,
            interrupted=r.interrupted,
            seconds=self.seconds,
            seed=self.request.seed,
        )


def pareto_front(request: PlanRequest, axes: str = "cost,ttft.p99") -> ParetoAnswer:
    """Return the Pareto-optimal deployments and loads on these axes.

    Args:
        request: The question; every point of the front holds its objectives.
        axes: Two or three of cost, energy, carbon and latencies such as ttft.p99.

    Raises:
        InputError: An axis is unknown, or cost is an axis and no price of the hardware is known.
    """
    wanted = parse_axes(axes)
    names = {axis.name for axis in wanted}
    objective = "energy" if names & {"energy", "carbon"} else "cost"
    whole = request.replace(slos=asked_slos(wanted, request.slos), objective=objective)
    return make_front(whole, open_evaluator(whole), wanted, request.slos)


def make_front(
    request: PlanRequest,
    evaluator: Evaluator,
    axes: tuple[ParetoAxis, ...],
    limits: tuple[Slo, ...],
    tell: FrontTell | None = None,
) -> ParetoAnswer:
    """Return the front of a request.

    Raises:
        InputError: Cost is an axis and no price of the hardware is known.
        KeyboardInterrupt: The search was interrupted before a point was simulated.
    """
    started = time.perf_counter()
    space, prices = evaluator.space(), PriceList(request.tariff, evaluator.names.hardware)
    ruled_out = {c: d for c in space if (d := evaluator.discard(c)) is not None}
    left = [c for c in space if c not in ruled_out]
    unpriced = sorted({c.hardware.accelerator.name for c in left if prices.price(c.hardware) is None})
    if unpriced and any(axis.name == "cost" for axis in axes):
        rule = "no price is known of this hardware, so a front of cost has no dollars"
        raise InputError(rule, ", ".join(unpriced), "--price USD, or --axes energy,...")
    points = trade_points(evaluator, prices, left, request.requests_per_s)
    sizes = RunSizes.for_slos(asked_slos(axes, limits))
    trade = ParetoSpace(evaluator, prices, points, axes, limits, request.seed, sizes)
    settings = SearchSettings(
        request.trials,
        request.seed,
        _name(request, trade),
        request.study,
        request.storage,
        digest(evaluator.fingerprint),
    )
    result = search_front(trade, settings, tell) if points else ParetoResult(exhausted=True)
    if result.interrupted and not result.looks:
        raise KeyboardInterrupt
    counts = (len(space), len(ruled_out), time.perf_counter() - started)
    reasons = Counter(d.reason for d in ruled_out.values()).most_common(_REASONS)
    notices = (*evaluator.notices, *(f"ruled out, {n} candidates: {reason}" for reason, n in reasons))
    return ParetoAnswer(request, limits, trade, result, *counts, digest(evaluator.fingerprint), notices)


def _name(request: PlanRequest, trade: ParetoSpace) -> str:
    """Return the name of the study of a request, by which only a study of the same request is resumed."""
    axes, slos = [a.name for a in trade.axes], [s.text for s in trade.slos]
    asked = [request.question(), axes, slos, request.tariff.model_dump()]
    text = json.dumps([asked, trade.params], sort_keys=True, default=str)
    return f"front-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


FrontTell = Callable[[int, int, int], None]  # (points simulated, most points, points on the front)

#: Proposals per sample after which all other points are considered taken by other workers.
_PROPOSALS = 4


class ParetoSearchSpace(Protocol):
    """A finite set of points, each with an estimate and a simulation."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the parameters."""

    @property
    def params(self) -> list[Params]:
        """Return the parameters of every point, in the order of `names`; all differ."""

    def guide(self, seed: int) -> ParetoSampler:
        """Return the sampler that chooses the points to simulate."""

    def look(self, index: int, front: list[tuple[float, ...]]) -> ParetoSample:
        """Simulate one point, briefly if it is far behind the values of the `front` so far."""


def search_front(space: ParetoSearchSpace, settings: SearchSettings, tell: FrontTell | None = None) -> ParetoResult:
    """Simulate at most `settings.n_trials` points; after Ctrl-C, return the result so far."""
    from planner.search.pareto_sampler import ParetoOptunaSampler

    params, guide = space.params, space.guide(settings.seed)
    sampler = ParetoOptunaSampler(guide, space.names, params)
    with storage_faults(settings):
        by_params = {p: i for i, p in enumerate(params)}
        study = CandidateStudy(space.names, by_params, settings, sampler, n_objectives=len(guide.known))
        run = _Run(space, study, sampler, min(settings.n_trials, len(params)))
        try:
            run.go(tell)
        except KeyboardInterrupt:
            run.result.interrupted = True
    return run.result


@dataclass(slots=True)
class _Run:
    space: ParetoSearchSpace
    study: CandidateStudy[int]
    sampler: ParetoOptunaSampler
    most: int
    result: ParetoResult = field(default_factory=ParetoResult)

    def go(self, tell: FrontTell | None) -> None:
        self._learn()
        self.result.n_resumed = len(self.result.looks)
        for _ in range(_PROPOSALS * self.most):
            if len(self.result.looks) >= self.most:
                break
            trial, point = self.study.ask()
            if self.sampler.exhausted or point is None:
                self.study.give_up(trial)
                break
            if self.study.is_begun_elsewhere(trial):
                self.study.give_up(trial)
            else:
                self._look(trial, point)
            self._learn()
            if tell is not None:
                tell(len(self.result.looks), self.most, len(self.result.members))
        self.result.exhausted = self.sampler.exhausted or len(self.result.looks) == len(self.space.params)

    def _look(self, trial: optuna.Trial, point: int) -> None:
        try:
            front = [self.result.looks[i].values for i in self.result.members]
            look = self.space.look(point, front)
        except BaseException:  # release the point for other processes
            self.study.give_up(trial)
            raise
        self._learn()
        if point not in self.result.looks:  # otherwise another process was first
            self.result.looks[point] = look
            self.study.store(trial, as_dict(look))
        _tell(self.study.optuna, trial, look)

    def _learn(self) -> None:
        """Add the stored samples that this worker does not have yet."""
        for point, stored in self.study.stored():
            self.result.looks.setdefault(point, from_dict(stored))


def as_dict(look: ParetoSample) -> dict[str, Any]:
    """Return a sample as JSON types."""
    return {"values": look.values, "slack": look.slack, "n_requests": look.n_requests, "pruned": look.pruned}


def from_dict(stored: dict[str, Any]) -> ParetoSample:
    """Return the sample of a stored dict."""
    return ParetoSample(tuple(stored["values"]), stored["slack"], stored["n_requests"], stored["pruned"])


def _tell(study: optuna.Study, trial: optuna.Trial, look: ParetoSample) -> None:
    """Report a sample to Optuna: finite values of every objective, and the slack as a constraint."""
    from planner.search.pareto_sampler import CONSTRAINT, PRUNED_KEY

    trial.set_constraint(CONSTRAINT, look.slack if look.slack < float("inf") else 1e9)
    if look.pruned:
        trial.set_user_attr(PRUNED_KEY, True)
    study.tell(trial, [min(v, 1e12) for v in look.values])


def shown_unit(axis: ParetoAxis) -> str:
    """Return the unit in the heading of an axis."""
    return "time" if axis.slo is not None else axis.unit


def shown(axis: ParetoAxis, value: float) -> str:
    """Return a value for display, with the unit of a time, which differs between rows."""
    return human_s(value) if axis.slo is not None else number_text(value)


def footnotes(found: ParetoAnswer) -> list[str]:
    """Return footnotes that explain the figures and the search."""
    s = found.search
    lines = [f"{axis.name}: {axis.words} ({axis.unit})" for axis in found.axes]
    if s.interrupted:
        end = "interrupted"
    elif s.exhausted:
        end = f"no other point is thought to be ahead by more than {RESOLVED:.0%}"
    else:
        end = f"stopped at search.trials={found.request.trials}: more may be found with more"
    lines.append(
        f"Search: {s.n_candidates} candidates, {s.n_bounded_out} ruled out by bounds, {s.n_points} points "
        f"(deployments at loads), {s.n_simulated} simulated ({s.n_pruned} stopped early, {s.n_resumed} "
        f"resumed), {s.n_requests} requests, seed {s.seed}, {s.seconds:.1f} s; {end}"
    )
    return [*lines, *(f"Note: {notice}" for notice in found.notices)]
