"""The page of a Pareto front, and fronts on the page of an answer.

The page of an answer shows the fronts of `plan front --json` with the answer's own plans. The files must have the
model, the workload and the engine of the answer.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from catalogs.errors import InputError
from catalogs.io.input_files import nearest_file
from catalogs.io.json_files import read_json
from catalogs.ui.charts import COLOURS, MARKS, logarithmic_axis, number_text
from catalogs.ui.html_page import (
    Markup,
    Page,
    PageSection,
    bullets,
    chart,
    command,
    footer_of,
    note,
    paragraph,
    table,
)
from catalogs.ui.words import percent
from planner.answer.answer_schema import Answer, same_model
from planner.answer.plan_schema import Plan
from planner.problem.key_definition import input_error
from planner.problem.scenario import arguments_of, keys_of
from planner.report.plots import MS, PlotlyFigure, Trace, big_mark, draw, line
from planner.search.pareto_answer import (
    SCHEMA_VERSION,
    FrontAxis,
    FrontFile,
    FrontPoint,
    ParetoAnswer,
    best_balance_words,
    footnotes,
    shown,
    shown_unit,
)

FOOTER: Final = footer_of("plan front")

HOW: Final = "write it with plan front ... --json FRONT.json"

#: One mark: the values on both axes, and its text.
Mark = tuple[float | None, float | None, str]


def _is_front(path: Path) -> bool:
    """Return whether a file holds a front of `plan front --json`."""
    try:
        data = read_json(path)
    except InputError:
        return False
    return isinstance(data, dict) and {"axes", "front"} <= set(data)


def read_front(path: Path, answer: Answer) -> FrontFile:
    """Return a front from its file, for display with an answer.

    Raises:
        InputError: The file is not a front, its model, workload or engine differ from the answer, or it was made with
            another calibration of the same hardware.
    """
    try:
        found = FrontFile.model_validate_json(json.dumps(read_json(path, "cannot read the front")))
    except InputError as error:
        raise InputError(error.rule, error.value, nearest_file(path, _is_front), HOW) from None
    except ValidationError as error:
        raise input_error(FrontFile, error, f"{path} is not a front of `plan front --json`") from None
    if found.schema_version != SCHEMA_VERSION:
        raise InputError(f"a front of schema_version {SCHEMA_VERSION} is needed", found.schema_version, hint=HOW)
    theirs, ours = found.request, answer.request
    if not same_model(theirs.model, ours.model):
        raise InputError(
            f"the front was computed for another model; the answer uses {ours.model}", theirs.model, ours.model
        )
    for name in ("workload", "engine"):
        of_front, of_answer = getattr(theirs, name), getattr(ours, name)
        if of_front != of_answer:
            rule = f"the front was computed for another {name}; the answer uses {of_answer}"
            raise InputError(rule, of_front, f"--{name} {of_answer}")
    calibration = answer.reproduce.calibration
    if theirs.hardware == ours.hardware and found.calibration != calibration:
        both = f"{found.calibration}, the answer has {calibration}"
        raise InputError(f"the front was computed with another calibration ({both}): search again", str(path), hint=HOW)
    return found


def front_page(found: ParetoAnswer) -> Page:
    """Return the page of a front: a chart for each objective after the first, a table of the front, and its command."""
    request = found.request
    text = (
        "Every mark is a simulated deployment at one load. The line is the Pareto front: no other mark is better than "
        "its marks in every objective."
    )
    none = "No simulated deployment serves the load within every limit."
    parts = [paragraph(text) if found.members else note(none)]
    balance = best_balance_words(found)
    parts += [paragraph(f"{balance} (the star).")] if balance else []
    if found.result.samples:
        s, written = found.search, FrontFile.model_validate(found.document())
        caption = f"{s.n_simulated:,} of {s.n_points:,} points simulated, {s.n_requests:,} requests, seed {s.seed}."
        parts += [chart(_figure(written, axis, "simulated"), caption, 480) for axis in written.axes[1:]]
    sure = f"Every point meets with {percent(request.confidence)} confidence:"
    parts += [paragraph(sure), bullets([s.words for s in found.limits])] if found.limits else []
    head = ("Deployment", "Hardware", "Requests/s", *(f"{a.name} ({shown_unit(a)})" for a in found.axes))
    rows = [
        (
            point.candidate.words,
            point.candidate.hardware.text,
            number_text(point.requests_per_s),
            *(shown(a, v) for a, v in zip(found.axes, sample.values, strict=True)),
        )
        for point, sample in found.members
    ]
    parts += [table(head, rows, "The front.", words=2)] if rows else []
    again = PageSection("How to reproduce", [command(_command(found)), bullets(footnotes(found))], "Reproduce")
    subtitle = f"workload {found.workload.words}, {' against '.join(a.name for a in found.axes)}"
    return Page(f"{request.model} on {request.hardware}", subtitle, [PageSection("Front", parts), again], FOOTER)


def _command(found: ParetoAnswer) -> str:
    given = keys_of(found.request) | {"search.trials": found.request.search.trials, "seed": found.request.seed}
    given |= {"slo": [slo.text for slo in found.limits]}
    kept = {name: value for name, value in given.items() if name != "objective" and value != []}
    return shlex.join(["plan", "front", *arguments_of(kept), "--axes", ",".join(a.name for a in found.axes)])


def front_charts(answer: Answer, fronts: Sequence[FrontFile]) -> list[Markup]:
    """Return the charts of the fronts with the plans of an answer; without fronts, the command that makes one."""
    if not fronts:
        request, name = answer.request, answer.plans[0].tightest.name
        question = ["plan", "front", "--model", request.model, "--hw", request.hardware, "--workload", request.workload]
        lengths = {"--input-tokens": request.input_tokens, "--output-tokens": request.output_tokens}
        question += [word for option, n in lengths.items() if n is not None for word in (option, str(n))]
        search = shlex.join([*question, "--engine", request.engine, "--axes", f"cost,{name}", "--json", "front.json"])
        text = (
            "The lines above are the plans of this answer. To add the front over all deployments and loads to this "
            "page, run:"
        )
        return [paragraph(text), command(f"{search}\nplan report answer.json --front front.json --html answer.html")]
    charts = []
    for front in fronts:
        s, first = front.search, front.axes[0]
        star = "" if front.best_balance is None else " The star: the point of best balance."
        ends = "no other point is expected on the front" if s.exhausted else "more trials may find more points"
        for axis in front.axes[1:]:
            caption = (
                f"Front of {first.words} and {axis.words} over all deployments and loads of {front.request.hardware}: "
                f"{s.n_simulated:,} of {s.n_points:,} points simulated ({ends}), {s.n_requests:,} requests, seed "
                f"{s.seed}. Crosses: the plans of this answer at their planned rates.{star}"
            )
            charts.append(chart(_figure(front, axis, "simulated, dominated", answer.plans), caption, 480))
    return charts


def _figure(front: FrontFile, y: FrontAxis, others: str, plans: Sequence[Plan] = ()) -> PlotlyFigure:
    """Return a chart of a front over its first axis: other points (named `others`), the front, and plans as crosses.

    The points of a front with two axes are joined by a line. A star is the point of best balance, if the file has it.
    """
    x = front.axes[0]

    def marks(points: Sequence[FrontPoint]) -> Iterator[Mark]:
        for p in points:
            yield p.value(x), p.value(y), f"{_rate(p.requests_per_s)}<br>{p.hardware}: {p.words}"

    dominated = marks([p for p in front.simulated if p.holds and not p.stopped_early and not p.on_front])
    own = ((_of(p, x), _of(p, y), _rate(p.requests_per_s)) for p in plans)
    small: Trace = {"mode": "markers", "marker": {"color": COLOURS[6], "symbol": MARKS[6], "size": 6}}
    large: Trace = {"mode": "markers", "marker": {"color": COLOURS[0], "symbol": MARKS[0], "size": 9}}
    if len(front.axes) == 2:
        large |= {"mode": "lines+markers", "line": {"color": COLOURS[0], "shape": "hv", "width": 2}}
    star: Trace = {"mode": "markers", "marker": {"color": COLOURS[1], "symbol": "star", "size": 16}}
    balance = [] if front.best_balance is None else [front.front[front.best_balance]]
    crosses: Trace = {"mode": "markers", "marker": big_mark("x-thin", COLOURS[3], size=13, color=COLOURS[3])}
    series = [
        (others, dominated, small),
        ("Pareto front", marks(front.front), large),
        ("best balance", marks(balance), star),
        ("plans of this answer", own, crosses),
    ]
    traces, drawn = [], []
    for name, points, style in series:
        known = [(_scale(x) * a, _scale(y) * b, text) for a, b, text in points if a is not None and b is not None]
        drawn += [mark[:2] for mark in known]
        if known:
            traces.append(line(known, name, hovertemplate="%{text}<br>%{x:.4g}, %{y:.4g}<extra></extra>", **style))
    units = ["ms" if axis.is_latency else axis.unit for axis in (x, y)]
    x_axis = logarithmic_axis(x.words, units[0], [value for value, _ in drawn])
    return draw(traces, x_axis, logarithmic_axis(y.words, units[1], [value for _, value in drawn]))


def _scale(axis: FrontAxis) -> float:
    return MS if axis.is_latency else 1.0


def _of(plan: Plan, axis: FrontAxis) -> float | None:
    """Return the value of a plan on an axis, in the unit of the axis."""
    if axis.is_latency:
        metric, _, stat = axis.name.partition(".")
        return plan.latency_s(metric, stat)
    block, name = {
        "cost": (plan.cost, "usd_per_million_output_tokens"),
        "energy": (plan.energy, "j_per_output_token"),
        "carbon": (plan.energy, "gco2e_per_million_output_tokens"),
    }.get(axis.name, (None, ""))
    return getattr(block, name, None)


def _rate(per_s: float | None) -> str:
    return "" if per_s is None else f"{number_text(per_s)} requests/s"
