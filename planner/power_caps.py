"""What a power limit on the accelerators costs a plan in latency and capacity, and what it saves in energy.

The plan as chosen, simulated again without a limit and under each (simulator/power_cap.py), with the same requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from calibration.clocks import LEAST_MEASURED, voltage_curve
from catalogs.errors import InputError
from catalogs.hardware import Accelerator
from planner.assess import Bench, RunSizes
from planner.candidate import Candidate
from planner.observation import Load, Verdict, judge
from planner.simulated import SimulatedWorld
from planner.slo import Slo
from simulator.plant import Plant
from simulator.power_cap import Board, CappedStepCost

#: Requests of a run at most: the rows are compared with each other, the answer's own figures stay as they are.
MOST_REQUESTS: Final = 4000
#: Boards whose predicted draw is known to be far off, and how (`python benchmarks/power_caps.py --simulate`).
_FAR_OFF: Final = "rtxpro6000"
DRAW_CAUTION: Final = (
    "on this board the predicted draw was 24-31 % under the measured (a 27B model in int4): limits are felt sooner "
    "than said here"
)
_SHOWN: Final = (("ttft", "p99"), ("tpot", "p99"), ("e2e", "mean"))


class CappedWorld(SimulatedWorld):
    """A world whose accelerators have a power limit."""

    def __init__(self, world: SimulatedWorld, boards: dict[Candidate, Board], cap_w: float) -> None:
        super().__init__(world.request, world.workload)
        self._world, self._boards, self._cap_w = world, boards, cap_w
        self._capped: dict[Candidate, Plant] = {}

    def plant(self, candidate: Candidate) -> Plant:
        """The other world's, its steps as long as the limit makes them. Raises InputError for one too low."""
        if candidate not in self._capped:
            plain = self._world.plant(candidate)
            if candidate not in self._boards:
                self._boards[candidate] = Board(plain.cost, plain.bundle)
            cost = CappedStepCost(self._boards[candidate], self._cap_w)
            self._capped[candidate] = replace(plain, cost=cost)
        return self._capped[candidate]


@dataclass(frozen=True, slots=True)
class Subject:
    """A plan as chosen: its rate, and the capacity the answer says."""

    candidate: Candidate
    requests_per_s: float
    capacity_requests_per_s: float | None


def power_caps_block(world: SimulatedWorld, subject: Subject, caps_w: Sequence[float]) -> dict[str, Any]:
    """The `power_caps` block: a row without a limit, then one for each, the highest first.

    A limit that cannot be kept, or changes nothing, is a row that says why. Capacities: found with one seed, scaled so
    that the row without a limit has the answer's own.
    """
    unit = world.names_of(subject.candidate).hardware.accelerator
    curve, here = voltage_curve(unit)
    head = {
        "accelerator": unit.name,
        "own_limit_w": unit.tdp_w,
        "voltage_measured_on": curve.measured_on,
        "voltage_measured_here": here,
        "source": curve.source,
        "least_measured_clock": LEAST_MEASURED,
        "caution": DRAW_CAUTION if unit.name.startswith(_FAR_OFF) else None,
    }
    if unit.kind != "gpu":
        return head | {"rows": [], "note": "power limits are of GPUs"}
    boards: dict[Candidate, Board] = {}
    plain = _Row(world, subject).measured(None)
    capped = [_capped_row(world, subject, boards, cap_w, unit) for cap_w in sorted(set(caps_w), reverse=True)]
    return head | {"rows": [_compared(row, plain, subject) for row in (plain, *capped)], "note": None}


def _capped_row(
    world: SimulatedWorld, subject: Subject, boards: dict[Candidate, Board], cap_w: float, unit: Accelerator
) -> dict[str, Any]:
    if cap_w >= unit.tdp_w:
        return {"cap_w": cap_w, "note": f"no limit: the board's own is {unit.tdp_w:g} W"}
    try:
        return _Row(CappedWorld(world, boards, cap_w), subject).measured(cap_w)
    except InputError as error:
        return {"cap_w": cap_w, "note": str(error)}


@dataclass(frozen=True, slots=True)
class _Row:
    world: SimulatedWorld
    subject: Subject

    def measured(self, cap_w: float | None) -> dict[str, Any]:
        """At the planned rate, and the highest rate that holds."""
        request, rate = self.world.request, self.subject.requests_per_s
        detail = self.world.detail(self.subject.candidate, Load(rate, self._sizes.full, request.seed))
        verdict = judge([detail.observation], request.slos)
        tokens = detail.output_tokens_per_s
        power = detail.metrics["power"]
        assert isinstance(power, dict)
        return {
            "cap_w": cap_w,
            "note": None,
            "met": verdict.met,
            "stable": verdict.stable,
            "slo": [{"name": s.name, "limit_s": s.limit_s, "value_s": verdict.value_s(s)} for s in request.slos],
            "latency_s": {f"{m}.{stat}": _value(verdict, m, stat) for m, stat in _SHOWN},
            "capacity_requests_per_s": self._capacity(),
            "gpu_w_mean": power["gpu_w_mean"],
            "w_mean": detail.power_w,
            "j_per_output_token": detail.power_w / tokens if tokens else None,
        }

    @property
    def _sizes(self) -> RunSizes:
        return RunSizes.for_slos(self.world.request.slos).at_most(MOST_REQUESTS)

    def _capacity(self) -> float | None:
        """Of one seed; None where not even a light load holds."""
        request, candidate = self.world.request, self.subject.candidate
        bench = Bench(self.world, request.slos, self._sizes, request.seed, None)
        floor = bench.probe(candidate, self.world.light_requests_per_s(candidate), self._sizes.full)
        if not floor.met:
            return None
        guess = self.subject.capacity_requests_per_s or self.world.fluid_requests_per_s(candidate)
        return bench.capacity(candidate, floor, guess).requests_per_s


def _value(verdict: Verdict, metric: str, stat: str) -> float | None:
    if metric not in verdict.observations[0].samples_s:
        return None
    return verdict.value_s(Slo(metric, stat, 1.0))


def _compared(row: dict[str, Any], plain: dict[str, Any], subject: Subject) -> dict[str, Any]:
    """Capacity on the answer's scale, and changes against no limit, as shares."""
    if row.get("j_per_output_token") is None:
        return row
    found = dict(row)
    ours, own, stated = (
        row["capacity_requests_per_s"],
        plain["capacity_requests_per_s"],
        subject.capacity_requests_per_s,
    )
    if ours and own and stated:
        found["capacity_requests_per_s"] = stated * ours / own
    found["capacity_change"] = None if not own or ours is None else ours / own - 1
    found["energy_change"] = row["j_per_output_token"] / plain["j_per_output_token"] - 1
    pairs = {k: (v, plain["latency_s"][k]) for k, v in row["latency_s"].items()}
    found["latency_change"] = {k: a / b - 1 if a is not None and b else None for k, (a, b) in pairs.items()}
    return found
