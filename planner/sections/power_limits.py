"""The effect of power limits on a plan: higher latency and lower capacity against lower energy.

The recommended plan is simulated again without a limit and under each limit (simulator/costs/power_limit.py), with the
same requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

from pydantic import Field

from calibration.bundles.lower_clock import LEAST_MEASURED, voltage_curve
from catalogs.errors import InputError
from catalogs.io.json_block import JsonBlock
from catalogs.ui.charts import BELOW, MARGIN, series_style
from catalogs.ui.html_page import Markup, chart, note, paragraph, table
from catalogs.ui.terminal import Line
from catalogs.ui.words import joules, percent, rate, seconds
from planner.answer.evaluated_plan import EvaluatedPlan
from planner.answer.plan_schema import ObjectiveRow, Plan
from planner.evaluation.multi_hardware import HardwareChoiceEvaluator
from planner.evaluation.observation import Load
from planner.evaluation.run_sizes import run_sizes
from planner.evaluation.simulated_evaluator import SimulatedEvaluator
from planner.evaluation.verdict import judge
from planner.problem.key_definition import refuse_if
from planner.problem.latency_metrics import E2E, TPOT, TTFT
from planner.problem.request import PlanRequest
from planner.problem.slo import Slo
from planner.search.candidate_tester import HALF_TIE, CandidateTester
from planner.sections.section import ChosenPlan, Section

#: Maximum number of requests of a run. The rows are only compared with each other, so short runs are enough. A
#: judgement of cost.
MOST_REQUESTS: Final = 4000

#: Name prefix of boards with a large known error of the predicted power draw
#: (`python benchmarks/power_caps.py --simulate`).
_INACCURATE_POWER_PREFIX: Final = "rtxpro6000"

DRAW_CAUTION: Final = (
    "on this board the predicted power draw was 24-31 % below the measured one (a 27B model in int4), so limits take "
    "effect earlier than predicted here"
)

_SHOWN: Final = ((TTFT.name, "p99"), (TPOT.name, "p99"), (E2E.name, "mean"))


class NamedSloValue(ObjectiveRow):
    """An objective with its name ("ttft.p99") and its simulated value in seconds."""

    name: str
    limit_s: float
    value_s: float | None


class LimitedRun(JsonBlock):
    """The plan under one power limit in watts per accelerator; `cap_w` is None for the run without a limit.

    `latency_s` and `latency_change` are keyed by statistic ("ttft.p99"). Changes are fractions relative to the run
    without a limit.
    """

    cap_w: float | None
    note: Literal[None] = None
    met: bool
    stable: bool = True
    slo: list[NamedSloValue] = Field(default_factory=list)
    latency_s: dict[str, float | None]
    capacity_requests_per_s: float | None
    gpu_w_mean: float | None
    w_mean: float | None = None
    j_per_output_token: float | None
    capacity_change: float | None = None
    energy_change: float | None = None
    latency_change: dict[str, float | None] = Field(default_factory=dict)

    @property
    def words(self) -> str:
        """Return the limit in words, "none" without one."""
        return "none" if self.cap_w is None else f"{self.cap_w:g} W"

    @property
    def figures(self) -> dict[str, str]:
        """Return the figures in words by their names, with their changes relative to no limit."""
        return {
            **{k: seconds(v) + self._change(self.latency_change.get(k)) for k, v in self.latency_s.items()},
            "Highest rate": rate(self.capacity_requests_per_s) + self._change(self.capacity_change),
            "Mean power": "unknown" if self.gpu_w_mean is None else f"{self.gpu_w_mean:.0f} W per accelerator",
            "Per output token": joules(self.j_per_output_token) + self._change(self.energy_change),
        }

    def _change(self, share: float | None) -> str:
        return "" if share is None or self.cap_w is None else f" ({percent(share, signed=True)})"


class UnusableLimit(JsonBlock):
    """A power limit that cannot be kept or has no effect; `note` has the reason."""

    cap_w: float
    note: str


class PowerLimits(JsonBlock):
    """The plan without a limit and under each limit, the highest first; `note` explains missing rows."""

    accelerator: str
    own_limit_w: float
    voltage_measured_on: str
    voltage_measured_here: bool
    source: str
    least_measured_clock: float
    caution: str | None
    rows: list[LimitedRun | UnusableLimit]
    note: str | None

    @property
    def measured(self) -> list[LimitedRun]:
        """Return the simulated runs, without the unusable limits."""
        return [row for row in self.rows if isinstance(row, LimitedRun)]


class PowerLimitsSection(Section[PowerLimits]):
    """The section of the recommended plan under each power limit in the request."""

    name = "power_caps"
    title = "Power limits: effect on latency, capacity and energy"
    short_title = "Power limits"
    schema = PowerLimits

    def wanted(self, request: PlanRequest) -> bool:
        """Return True if the request has power limits."""
        return bool(request.accounting.power_caps_w)

    def check(self, request: PlanRequest, evaluator: HardwareChoiceEvaluator) -> None:
        """Check that each limit is below the board's own, and that the default deployment can keep it.

        Whether the recommended plan can keep a limit is known only after the search; if it cannot, the section says so.

        Raises:
            InputError: A limit is not valid; the message names one that is.
        """
        boards = [e.names.hardware.accelerator for e in evaluator.evaluators.values()]
        caps_w, gpus = request.accounting.power_caps_w, [unit for unit in boards if unit.kind == "gpu"]
        if not gpus:
            return
        own_w, name = max((unit.tdp_w, unit.name) for unit in gpus)
        rule = f"a power limit must be below the {own_w:g} W that {name} has without one"
        refuse_if(max(caps_w) >= own_w, rule, max(caps_w), f"accounting.power_caps_w={0.7 * own_w:.0f}")
        if len(evaluator.evaluators) > 1:
            return
        (simulated,) = evaluator.evaluators.values()
        default = next((c for c in simulated.space() if simulated.discard(c) is None), None)
        if default is not None:
            simulated.with_(power_limit_w=min(caps_w)).deployments.compiled(default)

    def compute(self, chosen: ChosenPlan) -> PowerLimits:
        """Simulate the plan without a limit and under each limit."""
        return power_limits(chosen.evaluator, chosen.evaluated, chosen.request.accounting.power_caps_w)

    def screen(self, block: PowerLimits, plan: Plan) -> Iterator[Line]:  # noqa: ARG002
        """Yield a line for each limit, then the sources of the figures."""
        if not block.rows:
            yield "Power cap", str(block.note)
            return
        for number, row in enumerate(block.rows):
            if isinstance(row, UnusableLimit):
                text = f"{row.cap_w:g} W: {row.note}"
            else:
                text = f"{row.words}: {', '.join(f'{name.lower()} {value}' for name, value in row.figures.items())}"
                text += "" if row.met else "; misses the objectives at the planned rate"
            yield "" if number else "Power cap", text
        yield "", _provenance_words(block)

    def page(self, block: PowerLimits, plan: Plan) -> Iterator[Markup]:  # noqa: ARG002
        """Yield a table of the runs and a chart of the changes."""
        measured = block.measured
        if not measured:
            yield note(f"{block.note}.")
            return
        provenance = _provenance_words(block)
        yield paragraph(
            "The plan simulated again with the accelerators' power limited (nvidia-smi -pl; "
            f"the {block.accelerator}'s own limit is {block.own_limit_w:g} W). {provenance[0].upper()}{provenance[1:]}."
        )
        head = ("Limit", *measured[0].figures, "Meets objectives")
        rows = [(row.words, *row.figures.values(), "yes" if row.met else "no") for row in measured]
        yield table(head, rows, "Energy at the servers, including hosts.")
        yield from (note(f"{row.cap_w:g} W: {row.note}.") for row in block.rows if isinstance(row, UnusableLimit))
        if len(measured) > 1:
            caption = "Change relative to no limit at the planned rate; for capacity, of the highest sustainable rate."
            yield chart(_change_lines(measured, block.own_limit_w), caption, 380)


def _provenance_words(block: PowerLimits) -> str:
    """Return the measured and the assumed inputs in words."""
    board = "this board" if block.voltage_measured_here else f"{block.voltage_measured_on} and assumed for this board"
    effect = block.caution or "the predicted power draw decides when a limit takes effect (docs/costs.md)"
    return f"voltage as a function of clock measured on {board}; {effect}"


def _change_lines(rows: Sequence[LimitedRun], own_limit_w: float) -> Any:
    """Return a chart of the changes in per cent by limit; the run without a limit is at the board's own limit."""
    import plotly.graph_objects as go

    figure = go.Figure()
    limits = [own_limit_w if row.cap_w is None else row.cap_w for row in rows]
    series = {k: [row.latency_change.get(k) for row in rows] for k in rows[0].latency_s}
    series |= {"highest rate": [row.capacity_change for row in rows]}
    series |= {"energy per output token": [row.energy_change for row in rows]}
    for i, (name, values) in enumerate(series.items()):
        known = [(w, 100 * v) for w, v in zip(limits, values, strict=True) if v is not None]
        x, y = [w for w, _ in known], [v for _, v in known]
        figure.add_scatter(x=x, y=y, mode="lines+markers", name=name, **series_style(i))
    figure.update_xaxes(title={"text": "limit per accelerator (W)"})
    figure.update_yaxes(title={"text": "change relative to no limit (%)"})
    return figure.update_layout(legend=BELOW, margin=MARGIN)


def power_limits(evaluator: SimulatedEvaluator, subject: EvaluatedPlan, caps_w: Sequence[float]) -> PowerLimits:
    """Simulate the plan without a limit and under each limit of `caps_w`, watts per accelerator, the highest first.

    A limit that cannot be kept or has no effect becomes an `UnusableLimit`. The capacities are found with one seed and
    scaled so that the row without a limit has the capacity stated in the answer. A row meets the objectives if its
    capacity reaches the planned rate.
    """
    unit = evaluator.names_of(subject.candidate).hardware.accelerator
    rows: list[LimitedRun | UnusableLimit] = []
    if unit.kind == "gpu":
        plain = _run(evaluator, subject, None)
        rows.append(_compared(plain, plain, subject))
        for cap_w in sorted(set(caps_w), reverse=True):
            try:
                if cap_w >= unit.tdp_w:
                    raise InputError(f"not below the board's own limit of {unit.tdp_w:g} W")
                rows.append(_compared(_run(evaluator.with_(power_limit_w=cap_w), subject, cap_w), plain, subject))
            except InputError as error:
                rows.append(UnusableLimit(cap_w=cap_w, note=str(error)))
    curve, here = voltage_curve(unit)
    return PowerLimits(
        accelerator=unit.name,
        own_limit_w=unit.tdp_w,
        voltage_measured_on=curve.measured_on,
        voltage_measured_here=here,
        source=curve.source,
        least_measured_clock=LEAST_MEASURED,
        caution=DRAW_CAUTION if unit.name.startswith(_INACCURATE_POWER_PREFIX) else None,
        rows=rows,
        note=None if rows else "power limits apply to GPUs only",
    )


def _run(evaluator: SimulatedEvaluator, subject: EvaluatedPlan, cap_w: float | None) -> LimitedRun:
    """Return the figures at the planned rate, and the highest sustainable rate with one seed."""
    request, candidate = evaluator.request, subject.candidate
    sizes = run_sizes(request).at_most(MOST_REQUESTS)
    detail = evaluator.detail(candidate, Load(subject.requests_per_s, sizes.full, request.seed))
    verdict, tokens = judge([detail.observation], request.slos), detail.output_tokens_per_s
    power = detail.metrics["power"]
    assert isinstance(power, dict)
    tester, capacity = CandidateTester(evaluator, request.slos, sizes, request.seed, request.confidence, None), None
    floor = tester.probe(candidate, evaluator.light_requests_per_s(candidate), sizes.full)
    if floor.met:
        guess = subject.capacity_requests_per_s or evaluator.fluid_requests_per_s(candidate)
        capacity = tester.capacity(candidate, floor, guess).requests_per_s
    known = detail.observation.samples_s
    return LimitedRun(
        cap_w=cap_w,
        note=None,
        met=tester.probe(candidate, subject.requests_per_s, sizes.full).met,
        stable=verdict.stable,
        slo=[NamedSloValue.of(slo, verdict.value_s(slo)) for slo in request.slos],
        latency_s={f"{m}.{stat}": verdict.value_s(Slo(m, stat, 1.0)) if m in known else None for m, stat in _SHOWN},
        capacity_requests_per_s=capacity,
        gpu_w_mean=power["gpu_w_mean"],
        w_mean=detail.power_w,
        j_per_output_token=detail.power_w / tokens if tokens else None,
    )


def _compared(row: LimitedRun, plain: LimitedRun, subject: EvaluatedPlan) -> LimitedRun:
    """Return the row with its capacity on the answer's scale and its changes relative to no limit."""
    if row.j_per_output_token is None or plain.j_per_output_token is None:
        return row
    ours, own = row.capacity_requests_per_s, plain.capacity_requests_per_s
    stated = subject.capacity_requests_per_s
    pairs = {k: (v, plain.latency_s[k]) for k, v in row.latency_s.items()}
    update: dict[str, Any] = {
        "capacity_change": None if not own or ours is None else ours / own - 1,
        "energy_change": row.j_per_output_token / plain.j_per_output_token - 1,
        "latency_change": {k: a / b - 1 if a is not None and b else None for k, (a, b) in pairs.items()},
    }
    if ours and own and stated:
        update["capacity_requests_per_s"] = capacity = stated * ours / own
        # One seed may miss or meet at the planned rate what all seeds of the answer do not, also without a limit.
        update["met"] = capacity * (1 + HALF_TIE) >= subject.requests_per_s
    return row.model_copy(update=update)
