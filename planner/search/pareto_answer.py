"""`plan front`: the Pareto-optimal deployments and loads of a request, the document of a front, and its texts."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from pydantic import Field

from catalogs.errors import InputError
from catalogs.io.json_block import JsonBlock, every_key_set
from catalogs.ui.charts import number_text
from catalogs.ui.words import human_s, percent
from catalogs.units import HOUR_S
from planner.evaluation.evaluator import Evaluator, apply_bounds
from planner.evaluation.multi_hardware import open_evaluator
from planner.evaluation.run_sizes import run_sizes
from planner.evaluation.workload_statistics import WorkloadBlock
from planner.problem.front import ParetoAxis, observed_slos, parse_axes, simulated_objective
from planner.problem.price_list import PriceList
from planner.problem.reproduction import digest
from planner.problem.request import PlanRequest
from planner.problem.slo import Slo
from planner.problem.tariff import Tariff
from planner.search.optuna_study import SearchSettings
from planner.search.pareto_sampler import RESOLVED, ParetoSample, best_balance
from planner.search.pareto_search import FrontProgress, ParetoResult, search_front
from planner.search.pareto_space import ParetoCandidate, ParetoSpace, points_under_load

#: Version of the form of a front.
SCHEMA_VERSION: Final = 1

#: What the samples of a study are: with another number, a study is searched again.
_SAMPLES: Final = 2

_REASONS: Final = 3  # most reasons for discarded candidates that are printed


class FrontRequest(JsonBlock):
    """The request that a front answers."""

    model: str
    hardware: str
    workload: str
    rate: float | None = None
    slo: list[str] = Field(default_factory=list)
    confidence: float = 0.5  # fronts of earlier versions met the limits as simulated
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
    """One deployment at one load; `values` are by the name of the axis and in its unit.

    A point of the front has its deployment; a simulated point states whether it holds and whether it is on the front.
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
    """The document that `plan front --json` writes; it has two or three axes, at least one of them a latency.

    `best_balance` is the index in `front` of the point that is nearest to the best value of every axis; it is null if
    the front is empty, and absent from fronts of earlier versions.
    """

    schema_version: int
    request: FrontRequest
    axes: list[FrontAxis]
    resolution: float = RESOLVED
    front: list[FrontPoint]
    best_balance: int | None = None
    simulated: list[FrontPoint]
    search: FrontSearch
    calibration: str
    notices: list[str] = Field(default_factory=list)
    workload: WorkloadBlock | None = None  # None: a front of an earlier version


@dataclass(frozen=True, slots=True)
class ParetoAnswer:
    """A front with its request; every point meets `limits` with the confidence of the request.

    `calibration` identifies the calibration.
    """

    request: PlanRequest
    limits: tuple[Slo, ...]
    space: ParetoSpace
    result: ParetoResult
    search: FrontSearch
    calibration: str
    notices: tuple[str, ...]
    workload: WorkloadBlock

    @property
    def axes(self) -> tuple[ParetoAxis, ...]:
        """Return the axes of the front."""
        return self.space.axes

    @property
    def members(self) -> list[tuple[ParetoCandidate, ParetoSample]]:
        """Return the points of the front with their samples, in order of the first objective."""
        return [(self.space.points[i], self.result.samples[i]) for i in self.result.members]

    @property
    def best_balance(self) -> int | None:
        """Return the position in `members` of the point that is nearest to the best value of every axis."""
        return best_balance([sample.values for _, sample in self.members])

    def document(self) -> dict[str, Any]:
        """Return what `plan front --json` writes. Numbers that are not finite are null."""
        r, points, on_front = self.request, self.space.points, set(self.result.members)
        facts = self.space.evaluator.facts
        return FrontFile(
            schema_version=SCHEMA_VERSION,
            request=FrontRequest(
                **{name: getattr(r, name) for name in ("model", "hardware", "workload", "engine", "seed")},
                confidence=r.confidence,
                rate=r.requests_per_s,
                slo=[slo.text for slo in self.limits],
                tariff=every_key_set(r.tariff),
                trials=r.search.trials,
            ),
            axes=[FrontAxis(name=a.name, words=a.words, unit=a.unit) for a in self.axes],
            resolution=RESOLVED,
            front=[self._point(p, sample, deployment=facts(p.candidate).deployment) for p, sample in self.members],
            best_balance=self.best_balance,
            simulated=[
                self._point(points[i], each, holds=each.holds, stopped_early=each.pruned, on_front=i in on_front)
                for i, each in self.result.samples.items()
            ],
            search=self.search,
            calibration=self.calibration,
            notices=list(self.notices),
            workload=self.workload,
        ).document()

    def _point(self, point: ParetoCandidate, sample: ParetoSample, **more: Any) -> FrontPoint:
        hardware = point.candidate.hardware
        priced = self.space.prices.price(point.candidate) is not None
        return FrontPoint(
            words=point.candidate.words,
            hardware=hardware.text,
            requests_per_s=point.requests_per_s,
            usd_per_hour=point.usd_per_s * HOUR_S if priced else None,
            values=dict(zip((a.name for a in self.axes), sample.values, strict=True)),
            n_requests=sample.n_requests,
            **more,
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
    whole = request.replace(slos=observed_slos(wanted, request.slos), objective=simulated_objective(wanted))
    return make_front(whole, open_evaluator(whole), wanted, request.slos)


def make_front(
    request: PlanRequest,
    evaluator: Evaluator,
    axes: tuple[ParetoAxis, ...],
    limits: tuple[Slo, ...],
    progress: FrontProgress | None = None,
) -> ParetoAnswer:
    """Return the front of a request.

    Raises:
        InputError: Cost is an axis and no price of the hardware is known.
        KeyboardInterrupt: The search was interrupted before a point was simulated.
    """
    started = time.perf_counter()
    prices = PriceList.of(request.tariff, evaluator.names.hardware, request.accounting)
    left, ruled_out = apply_bounds(request, evaluator)
    unpriced = sorted({c.hardware.accelerator.name for c in left if prices.price(c) is None})
    if unpriced and any(axis.name == "cost" for axis in axes):
        rule = "the price of this hardware is unknown, so cost cannot be an axis"
        raise InputError(rule, ", ".join(unpriced), hint="give --price USD or --axes energy,...")
    points = points_under_load(evaluator, prices, left, request.requests_per_s)
    observed = observed_slos(axes, limits)
    sizes, options = run_sizes(request, observed), request.search
    space = ParetoSpace(evaluator, prices, points, axes, limits, request.seed, sizes, request.confidence)
    names, limit_texts = [axis.name for axis in axes], [slo.text for slo in limits]
    identity = [_SAMPLES, request.search_identity(), names, limit_texts, request.tariff.model_dump()]
    name = f"front-{digest(json.dumps([identity, space.params], sort_keys=True, default=str))}"
    calibration = digest(evaluator.fingerprint)
    settings = SearchSettings(options.trials, request.seed, name, options.journal, options.storage, calibration)
    result = search_front(space, settings, progress) if points else ParetoResult(exhausted=True)
    if result.interrupted and not result.samples:
        raise KeyboardInterrupt
    samples = result.samples.values()
    search = FrontSearch(
        n_candidates=len(left) + len(ruled_out),
        n_bounded_out=len(ruled_out),
        n_points=len(points),
        n_simulated=len(samples),
        n_pruned=sum(sample.pruned for sample in samples),
        n_requests=sum(sample.n_requests for sample in samples),
        n_resumed=result.n_resumed,
        exhausted=result.exhausted,
        interrupted=result.interrupted,
        seconds=time.perf_counter() - started,
        seed=request.seed,
    )
    reasons = Counter(d.reason for d in ruled_out.values()).most_common(_REASONS)
    notices = (*evaluator.notices, *(f"ruled out, {n} candidates: {reason}" for reason, n in reasons))
    workload = WorkloadBlock.of(request.read_workload())
    return ParetoAnswer(request, limits, space, result, search, calibration, notices, workload)


def shown_unit(axis: ParetoAxis) -> str:
    """Return the unit in the heading of an axis."""
    return "time" if axis.slo is not None else axis.unit


def shown(axis: ParetoAxis, value: float) -> str:
    """Return a value for display, with the unit of a time, which differs between rows."""
    return human_s(value) if axis.slo is not None else number_text(value)


def best_balance_words(found: ParetoAnswer) -> str | None:
    """Return the point of best balance as a sentence; None if the front is empty."""
    if found.best_balance is None:
        return None
    point, _ = found.members[found.best_balance]
    return (
        f"Best balance: {point.candidate.hardware.text}: {point.candidate.words} at "
        f"{number_text(point.requests_per_s)} requests/s, the point nearest to the best value of every axis"
    )


def footnotes(found: ParetoAnswer) -> list[str]:
    """Return footnotes that explain the figures and the search."""
    s = found.search
    lines = [f"{axis.name}: {axis.words} ({axis.unit})" for axis in found.axes]
    stopped = f"stopped at search.trials={found.request.search.trials}: more trials may find more points"
    ended = f"no other point is expected to be ahead by more than {percent(RESOLVED)}" if s.exhausted else stopped
    end = "interrupted" if s.interrupted else ended
    summary = (
        f"Search: {s.n_candidates:,} candidates, {s.n_bounded_out:,} ruled out by bounds, {s.n_points:,} points "
        f"(deployments at loads), {s.n_simulated:,} simulated ({s.n_pruned:,} stopped early, {s.n_resumed:,} "
        f"resumed), {s.n_requests:,} requests, seed {s.seed}, {s.seconds:.1f} s; {end}"
    )
    return [*lines, summary, *(f"Note: {notice}" for notice in found.notices)]
