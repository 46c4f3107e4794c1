"""What a power limit on the accelerators costs a plan in latency and capacity, and what it saves in energy.

The plan as chosen, simulated again without a limit and under each (simulator/costs/power_limit.py), with the same
requests.

The `power_caps` block of an answer on the screen: a line for each limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from calibration.bundles.clocked import LEAST_MEASURED, voltage_curve
from catalogs.errors import InputError
from catalogs.hardware.specs import Accelerator
from catalogs.ui.terminal import Line
from catalogs.ui.words import human_s
from planner.evaluation.evaluator import OfferedLoad, Verdict, judge
from planner.evaluation.simulated import SimulatedEvaluator
from planner.problem.candidate import Candidate
from planner.problem.slo import Slo
from planner.search.objectives import CandidateTester, RunSizes
from simulator.cluster.compiled import CompiledDeployment
from simulator.costs.power_limit import CappedStepCost, PowerLimitedBoard

#: Requests of a run at most: the rows are compared with each other, the answer's own figures stay as they are.
MOST_REQUESTS: Final = 4000

#: Boards whose predicted draw is known to be far off, and how (`python benchmarks/power_caps.py --simulate`).
_FAR_OFF: Final = "rtxpro6000"

DRAW_CAUTION: Final = (
    "on this board the predicted draw was 24-31 % under the measured (a 27B model in int4): limits are felt sooner "
    "than said here"
)

_SHOWN: Final = (("ttft", "p99"), ("tpot", "p99"), ("e2e", "mean"))


class PowerLimitedEvaluator(SimulatedEvaluator):
    """A world whose accelerators have a power limit."""

    def __init__(self, world: SimulatedEvaluator, boards: dict[Candidate, PowerLimitedBoard], cap_w: float) -> None:
        super().__init__(world.request, world.workload)
        self._world, self._boards, self._cap_w = world, boards, cap_w
        self._capped: dict[Candidate, CompiledDeployment] = {}

    def plant(self, candidate: Candidate) -> CompiledDeployment:
        """The other world's, its steps as long as the limit makes them. Raises InputError for one too low."""
        if candidate not in self._capped:
            plain = self._world.plant(candidate)
            if candidate not in self._boards:
                self._boards[candidate] = PowerLimitedBoard(plain.cost, plain.bundle)
            cost = CappedStepCost(self._boards[candidate], self._cap_w)
            self._capped[candidate] = replace(plain, cost=cost)
        return self._capped[candidate]


@dataclass(frozen=True, slots=True)
class PowerLimitedPlan:
    """A plan as chosen: its rate, and the capacity the answer says."""

    candidate: Candidate
    requests_per_s: float
    capacity_requests_per_s: float | None


def power_caps_block(world: SimulatedEvaluator, subject: PowerLimitedPlan, caps_w: Sequence[float]) -> dict[str, Any]:
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
    boards: dict[Candidate, PowerLimitedBoard] = {}
    plain = _Row(world, subject).measured(None)
    capped = [_capped_row(world, subject, boards, cap_w, unit) for cap_w in sorted(set(caps_w), reverse=True)]
    return head | {"rows": [_compared(row, plain, subject) for row in (plain, *capped)], "note": None}


def _capped_row(
    world: SimulatedEvaluator,
    subject: PowerLimitedPlan,
    boards: dict[Candidate, PowerLimitedBoard],
    cap_w: float,
    unit: Accelerator,
) -> dict[str, Any]:
    if cap_w >= unit.tdp_w:
        return {"cap_w": cap_w, "note": f"no limit: the board's own is {unit.tdp_w:g} W"}
    try:
        return _Row(PowerLimitedEvaluator(world, boards, cap_w), subject).measured(cap_w)
    except InputError as error:
        return {"cap_w": cap_w, "note": str(error)}


@dataclass(frozen=True, slots=True)
class _Row:
    world: SimulatedEvaluator
    subject: PowerLimitedPlan

    def measured(self, cap_w: float | None) -> dict[str, Any]:
        """At the planned rate, and the highest rate that holds."""
        request, rate = self.world.request, self.subject.requests_per_s
        detail = self.world.detail(self.subject.candidate, OfferedLoad(rate, self._sizes.full, request.seed))
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
        bench = CandidateTester(self.world, request.slos, self._sizes, request.seed, None)
        floor = bench.probe(candidate, self.world.light_requests_per_s(candidate), self._sizes.full)
        if not floor.met:
            return None
        guess = self.subject.capacity_requests_per_s or self.world.fluid_requests_per_s(candidate)
        return bench.capacity(candidate, floor, guess).requests_per_s


def _value(verdict: Verdict, metric: str, stat: str) -> float | None:
    if metric not in verdict.observations[0].samples_s:
        return None
    return verdict.value_s(Slo(metric, stat, 1.0))


def _compared(row: dict[str, Any], plain: dict[str, Any], subject: PowerLimitedPlan) -> dict[str, Any]:
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


def power_cap_lines(answer: dict[str, Any]) -> Iterator[Line]:
    """Nothing where no limit was asked for."""
    caps = answer.get("power_caps")
    if caps is None:
        return
    if not caps["rows"]:
        yield "Power cap", caps["note"]
        return
    for number, row in enumerate(caps["rows"]):
        yield "Power cap" if not number else "", row_words(row)
    yield "", provenance_words(caps)


def row_words(row: dict[str, Any]) -> str:
    """ "400 W: ttft.p99 120 ms (+20 %), ..., 0.41 J per output token (-18 %)"."""
    name = "none" if row["cap_w"] is None else f"{row['cap_w']:g} W"
    if row["note"]:
        return f"{name}: {row['note']}"
    changes = row["latency_change"]
    parts = [f"{k} {human_s(v)}{_change(row, changes[k])}" for k, v in row["latency_s"].items() if v is not None]
    capacity = row["capacity_requests_per_s"]
    held = "no rate holds" if capacity is None else f"{capacity:.3g} requests/s hold"
    parts.append(held + _change(row, row["capacity_change"]))
    parts.append(f"{row['j_per_output_token']:.3g} J per output token{_change(row, row['energy_change'])}")
    missed = "" if row["met"] else "; objectives MISSED at the planned rate"
    return f"{name}: {', '.join(parts)}{missed}"


def provenance_words(caps: dict[str, Any]) -> str:
    """What is measured, and what is assumed."""
    whose = "this board" if caps["voltage_measured_here"] else f"{caps['voltage_measured_on']}, assumed here"
    felt = caps["caution"] or "where a limit is felt rests on the predicted draw (docs/costs.md)"
    return f"voltage against clock as measured on {whose}; {felt}"


def _change(row: dict[str, Any], share: float | None) -> str:
    return "" if share is None or row["cap_w"] is None else f" ({100 * share:+.0f} %)"
