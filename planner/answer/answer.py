"""The answer as data: what `plan --json` writes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from catalogs.io.output_files import finite
from planner.answer.hardware_ranking import HardwareRow
from planner.answer.measure import MOST_REPLICAS, MeasuredPlan
from planner.economics.money import price_rows
from planner.problem.reproduction import reproduce_block
from planner.problem.request import PlanRequest

SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class SearchBlock:
    """How the answer was found. n_space = n_bounded_out + what the search could choose from."""

    n_space: int
    n_bounded_out: int
    n_simulated: int
    n_pruned: int
    seconds: float
    seed: int
    method: str
    n_resumed: int = 0
    bounded_out: dict[str, int] = field(default_factory=dict)
    n_requests: int = 0  # simulated by the search, of resumed outcomes too; the measurement of the winner comes on top


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not: the constraint that binds (with its number), the closest plan, and what would meet the request."""

    binding_constraint: str
    closest: dict[str, object] | None  # its block
    what_would_meet_it: tuple[dict[str, object], ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """entries: the best plan, then alternatives; empty where refused."""

    request: PlanRequest
    entries: Sequence[MeasuredPlan]
    refusal: Refusal | None
    search: SearchBlock
    fingerprint: str = ""  # of the calibration
    ranking: Sequence[HardwareRow] = ()  # of the hardware there was to choose from, the best first
    notices: Sequence[str] = ()  # of what was left out
    interrupted: bool = False
    sections: Mapping[str, object] = field(default_factory=dict)  # what was looked at once the plan was chosen, by name

    @property
    def feasible(self) -> bool:
        return bool(self.entries)

    def as_dict(self) -> dict[str, Any]:
        """CONTRACT's `plan --json`. Numbers that are not finite are null."""
        blocks = [e.block for e in self.entries]
        refusal = self.refusal
        answer = {
            "schema_version": SCHEMA_VERSION,
            "request": self.request.as_dict(),
            "feasible": self.feasible,
            "best": blocks[0] if blocks else None,
            "alternatives": blocks[1:],
            "pareto": [e.block for e in pareto(self.entries)],
            "infeasible": None
            if refusal is None
            else {
                "binding_constraint": refusal.binding_constraint,
                "closest": refusal.closest,
                "what_would_meet_it": list(refusal.what_would_meet_it),
            },
            "search": asdict(self.search) | {"interrupted": self.interrupted, "left_out": list(self.notices)},
            "hardware": [asdict(row) for row in self.ranking],
            "assumptions": assumptions(self.request),
            "prices": _prices(blocks),
            "reproduce": reproduce_block(self.request, self.fingerprint),
            **self.sections,
        }
        clean: dict[str, Any] = finite(answer)
        return clean


def _prices(blocks: Sequence[dict[str, Any]]) -> list[dict[str, object]]:
    """Of the best plan's hardware."""
    return price_rows(blocks[0]["deployment"]["hardware"], blocks[0]["metrics"]) if blocks else []


def assumptions(request: PlanRequest) -> list[str]:
    """What the figures take for granted, one sentence each."""
    lines = [
        f"workload {request.workload}: its lengths and arrivals, only the rate is scaled",
        "the search and the alternatives look at one replica under its share of the requests; the best plan's figures "
        f"come from all its replicas behind one round-robin router, up to {MOST_REPLICAS} of them",
        "latencies of the steady part of each run, as a client sees them",
    ]
    if request.requests_per_s is None:
        at = "a light load" if request.objective == "latency" else "the highest rate that holds every objective"
        lines.append(f"no rate given: figures are at {at}")
    return lines


def pareto(entries: Sequence[MeasuredPlan]) -> list[MeasuredPlan]:
    """Entries that no other beats in cost (or capacity, where no price is known), energy and latency at once."""
    axes = [_axes(e) for e in entries]
    return [e for e, a in zip(entries, axes, strict=True) if not any(_dominates(b, a) for b in axes)]


def _axes(entry: MeasuredPlan) -> tuple[float, float, float]:
    cost, energy = entry.block["cost"], entry.block["energy"]
    usd = cost["usd_per_million_output_tokens"] if isinstance(cost, dict) else None
    kwh = energy["kwh_per_million_output_tokens"] if isinstance(energy, dict) else math.inf
    money = -(entry.capacity_requests_per_s or 0.0) if usd is None else usd
    return float(money), float(kwh), entry.verdict.ratio


def _dominates(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a != b and all(x <= y for x, y in zip(a, b, strict=True))
