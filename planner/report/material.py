"""The data of a report: the answer, and the simulations that only the report needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from catalogs.deployments.layout import Layout
from catalogs.economics.electricity import DEFAULT_REGION, list_grids, load_grid
from catalogs.hardware.specs import Accelerator
from catalogs.ui.progress import ProgressCallback
from catalogs.ui.words import plan_name
from planner.answer.answer_schema import Answer
from planner.answer.plan_schema import Plan
from planner.problem.candidate import replicas_words
from planner.search.pareto_answer import FrontFile
from planner.search.workers import ONE_PROCESS, WorkerPool
from planner.studies.binding import find_binding
from planner.studies.bottleneck import PoolUse, ResourceUse, resource_uses, simulated_pool_uses
from planner.studies.capacity_growth import Growth, growth
from planner.studies.load_sweep import SweepPoint, sweep
from planner.studies.rerun import Rerun
from planner.studies.sensitivity import Sensitivity, sensitivity

#: Grids shown in addition to the grid of the answer: large markets for accelerators, and both ends of the table.
REGIONS: Final = (
    {"world", "us", "ca", "br"}
    | {"de", "fr", "gb", "ie", "nl", "fi", "se", "no"}
    | {"jp", "kr", "sg", "in", "cn", "au"}
)


@dataclass(frozen=True, slots=True)
class CarbonFigures:
    """Grams of CO2-equivalent per million output tokens on one grid, the facility included."""

    region: str
    name: str
    gco2e_per_million_output_tokens: float
    gco2e_per_kwh: float
    source: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class ReportSimulations:
    """Figures that are not in the answer, simulated with its seed.

    `parts` holds one entry for each kind of replica of the recommended plan. `sensitivity` is None if it was not
    requested.
    """

    points: list[SweepPoint]
    parts: list[PoolUse]
    uses: list[ResourceUse]
    sensitivity: Sensitivity | None
    growth: Growth | None
    accelerator: Accelerator


@dataclass(frozen=True, slots=True)
class ReportData:
    """The data of a report; `simulated` is None for an infeasible answer."""

    answer: Answer
    simulated: ReportSimulations | None
    carbon: list[CarbonFigures]
    fronts: tuple[FrontFile, ...] = ()


def gather(
    answer: Answer,
    progress: ProgressCallback = lambda _: None,
    swings: bool = True,
    workers: WorkerPool = ONE_PROCESS,
) -> ReportData:
    """Return the data of a report; takes some seconds, or up to a minute with `swings`, less with several workers.

    Raises:
        InputError: The answer cannot be simulated again.
    """
    best = answer.best
    if best is None:
        return ReportData(answer, None, [])
    rerun = Rerun.of(answer)
    progress("where the time goes")
    parts, capacity_per_s = simulated_pool_uses(rerun, best), best.capacity_requests_per_s
    binding = find_binding(rerun, capacity_per_s, progress, workers) if swings and capacity_per_s else None
    simulated = ReportSimulations(
        points=sweep(answer.plans, rerun, progress, workers),
        parts=parts,
        uses=resource_uses(best, parts, binding),
        sensitivity=sensitivity(answer, rerun, progress, workers) if swings else None,
        growth=growth(rerun, best, progress) if swings and capacity_per_s else None,
        accelerator=rerun.evaluator_of(0).names.hardware.accelerator,
    )
    return ReportData(answer, simulated, carbon(answer, best))


def carbon(answer: Answer, plan: Plan) -> list[CarbonFigures]:
    """Return the plan's carbon on several grids, the cleanest first; empty if its energy is unknown."""
    if plan.energy is None:
        return []
    own = plan.energy.grid_region or (answer.reproduce.tariff.grid or DEFAULT_REGION).strip().lower()
    found: list[CarbonFigures] = []
    for code in [code for code in list_grids() if code in REGIONS | {own}]:
        grid = load_grid(code)
        grams = plan.energy.kwh_per_million_output_tokens * grid.gco2e_per_kwh
        found.append(CarbonFigures(code, grid.name, grams, grid.gco2e_per_kwh, grid.gco2e_source, code == own))
    used = plan.energy
    if own not in list_grids() and used.grid_gco2e_per_kwh is not None:  # the user's own, of accounting.carbon_hours
        grams, source = used.kwh_per_million_output_tokens * used.grid_gco2e_per_kwh, used.grid_source or ""
        found.append(CarbonFigures(own, used.grid_name or own, grams, used.grid_gco2e_per_kwh, source, chosen=True))
    return sorted(found, key=lambda c: c.gco2e_per_million_output_tokens)


def label(answer: Answer, i: int) -> str:
    """Return a short label that distinguishes the plans of an answer, for example "Best: 4 x TP2, fp8, KV bf16"."""
    d = answer.plans[i].deployment
    layout = Layout.of(d)
    count = replicas_words(d) if d.get("disaggregation") else f"{d['replicas']} x {layout.words}"
    return f"{plan_name(i)}: {count} on {d['hardware']}, {d['weight_dtype']}, KV {d['kv_dtype']}"
