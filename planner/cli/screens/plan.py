"""The screen of `plan`: the recommended deployment, its confidence, cost, bottleneck, and the command to start it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final

from calibration.accuracy.stated_error import in_words
from catalogs.ui.terminal import LABEL, LEAST_WIDTH, PIPED, Line, labelled_rows
from catalogs.ui.words import digits, dollars, percent, seconds
from planner.answer.hardware_ranking import HardwareRow
from planner.answer.plan_schema import CalibrationBlock, Memory, Plan
from planner.answer.schema import GOALS, Answer, SearchSummary
from planner.economics.money import Energy
from planner.evaluation.confidence import LEVEL, SAFE
from planner.problem.candidate import deployment_words
from planner.problem.request import PlanRequest
from planner.search.objectives import TIE
from planner.sections.registry import section_lines
from planner.sections.section import interval_words, verdict_words

_BAR: Final = 40

#: Maximum number of rows of the hardware ranking on the screen.
_MAX_HARDWARE: Final = 12


def render(answer: Answer, width: int = PIPED) -> str:
    """Return the screen of an answer as plain text of about 32 lines, each at most `width` columns wide."""
    rows: list[str] = []
    for label, text in _refused(answer) if answer.best is None else _feasible(answer, answer.best):
        rows += _command_rows(text, width) if label == "Start" else labelled_rows(label, text, width)
    return "\n".join(rows)


def show(answer: Answer) -> None:
    """Print the screen of an answer, with coloured labels if stdout is a terminal."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        print(render(answer))
        return
    for row in render(answer, min(max(console.width, LEAST_WIDTH), PIPED)).split("\n"):
        styled = Text(row)
        styled.stylize("bold cyan", 0, LABEL if row[:1] != " " else 0)
        if row.startswith(("Recommended", "NO")):
            styled.stylize("bold", LABEL)
        console.print(styled)


def _command_rows(command: str, width: int) -> Iterator[str]:
    """Yield the rows of the start command; users copy it, so it only breaks between flags."""
    parts: list[str] = []
    for word in shlex.split(command):  # a flag stays on the row of its value
        if parts and parts[-1].startswith("--") and " " not in parts[-1] and not word.startswith("--"):
            parts[-1] += f" {shlex.quote(word)}"
        else:
            parts.append(shlex.quote(word))
    row, label = "", "Start"
    for part in parts:
        if row and len(row) + len(part) + 3 > width - LABEL:
            yield f"{label:<{LABEL}}{row} \\"
            row, label = f"  {part}", ""
        else:
            row = f"{row} {part}" if row else part
    yield f"{label:<{LABEL}}{row}"


def _feasible(answer: Answer, best: Plan) -> Iterator[Line]:
    request = answer.request
    yield _question(request)
    yield "", ""
    yield "Recommended", deployment_words(best.deployment)
    for words, row in zip(request.slo_words, best.slo, strict=True):
        yield "Objective", words
        interval = f"{100 * LEVEL:.0f} % interval: {interval_words(row.ci_low_s, row.ci_high_s)}"
        verdict = verdict_words(row.met, row.probability_met)
        yield "", f"{row.name} = {seconds(row.value_s)} ({interval}): {verdict}"
    yield from _capacity_lines(best)
    yield from _money_lines(best, request)
    yield from _machine_lines(best)
    survival = best.survival
    if survival is not None:
        values = ", ".join(f"{row.name} = {seconds(row.value_s)}" for row in survival.slo)
        count = f"{survival.replicas_left} remaining replica{'' if survival.replicas_left == 1 else 's'}"
        yield "Survives", f"{count} under the same load: {values}: {'met' if survival.met else 'MISSED'}"
    yield from section_lines(answer)
    for other in answer.alternatives:
        yield "Alternative", f"{deployment_words(other.deployment)}: {_difference(best, other)}"
    ranking = [
        f"{place}. {row.hardware}{'' if row.usd_per_hour is None else f', {dollars(row.usd_per_hour)}/h'}: {_rank(row)}"
        for place, row in enumerate(answer.hardware[:_MAX_HARDWARE], 1)
    ]
    for i, text in enumerate([*ranking, *answer.search.left_out]):
        yield "" if i else "Hardware", text
    if best.calibration is not None:
        yield from _calibration_lines(best.calibration)
    for notice in (*best.notices[:3], *best.command_notes):
        yield "Note", notice
    if best.versions:
        yield "Versions", best.versions
    yield "Start", best.command
    yield _search_line(answer.search)


def _question(request: PlanRequest) -> Line:
    if request.users is not None:
        rate = f"{request.users} users with a think time of {request.think_s:g} s"
    elif request.requests_per_s is not None:
        rate = f"{request.requests_per_s:g} requests/s"
    else:
        rate = "a light load" if request.objective == "latency" else "highest sustainable rate"
    rate += f", {request.spare.words}" if request.spare else ""
    goal = GOALS.get(request.objective, f"lowest {request.objective}")
    return "Request", f"{request.model} on {request.hardware}, workload {request.workload}, {rate}, {goal}"


def _capacity_lines(plan: Plan) -> Iterator[Line]:
    capacity, safe = plan.capacity_requests_per_s, plan.safe_requests_per_s
    why = f" ({plan.limited_by})" if plan.limited_by else ""
    if capacity is None:
        yield "Capacity", "none"
    elif safe is None:
        found = f"{digits(capacity)} requests/s with 50 % confidence{why}"
        yield "Capacity", f"{found}; no simulated rate reaches {percent(SAFE)}"
    elif safe >= capacity:
        yield "Capacity", f"{digits(capacity)} requests/s with {percent(SAFE)} confidence in each objective{why}"
    else:
        confident = f"{digits(safe)} requests/s with {percent(SAFE)} confidence in each objective"
        yield "Capacity", f"{confident}; {digits(capacity)} with 50 %{why}"
    tokens, rate = plan.metric("output_tokens_per_s") or 0.0, digits(plan.requests_per_s or 0.0)
    yield "", f"{tokens:,.0f} output tokens/s at {rate} requests/s; latency, cost and energy refer to this rate"


def _rank(row: HardwareRow) -> str:
    if row.state == "holds":
        return f"carries {digits(row.requests_per_s or 0.0)} requests/s in the search: {row.candidate}"
    if row.at_most_requests_per_s is not None:
        return f"less than {digits(row.at_most_requests_per_s)} requests/s ({row.why})"
    return f"{row.state}: {row.why}"


def _money_lines(plan: Plan, request: PlanRequest) -> Iterator[Line]:
    cost, energy = plan.cost, plan.energy
    idles = request.objective == "latency" and request.requests_per_s is None  # the cost per token has no meaning
    if cost is None or cost.usd_per_hour is None:
        yield "Cost", "unknown: no price for this hardware (give one with --price USD_PER_HOUR)"
    else:
        kinds = ("output", "input", "total")
        each = [f"{dollars(getattr(cost, f'usd_per_million_{k}_tokens'))} per million {k} tokens" for k in kinds]
        each += [] if cost.usd_per_request is None else [f"{dollars(cost.usd_per_request)} per request"]
        yield "Cost", f"${cost.usd_per_hour:.2f}/h{'' if idles else '; ' + ', '.join(each)}"
        given = cost.price_as_of == "given"
        dated = "price given on the command line" if given else f"price of {cost.price_as_of}, {cost.price_source}"
        yield "", dated + (f" ({cost.price_note})" if cost.price_note else "")
    if energy is None:
        yield "Energy", "unknown"
    elif idles:
        yield "Energy", f"{energy.w_mean / 1e3:.2f} kW at this light load"
    else:
        yield "Energy", _energy_words(energy)


def _energy_words(energy: Energy) -> str:
    carbon, intensity = energy.gco2e_per_million_output_tokens, energy.grid_gco2e_per_kwh
    grams = "unknown carbon" if carbon is None else f"{carbon:.0f} gCO2e"
    region = f" {energy.grid_region}" if energy.grid_region else ""
    grid = "" if intensity is None else f", grid{region} at {intensity:.0f} g/kWh"
    return (
        f"{energy.w_mean / 1e3:.2f} kW; {energy.j_per_output_token:.3g} J per output token; "
        f"{energy.kwh_per_million_output_tokens:.3g} kWh, {grams} per million output tokens (PUE {energy.pue:g}{grid})"
    )


def _machine_lines(plan: Plan) -> Iterator[Line]:
    if plan.memory is not None:
        yield "Memory", memory_bar(plan.memory)
    breakdown = {k: v for k, v in (plan.time_breakdown or {}).items() if v > 0}
    total = sum(breakdown.values())
    if total:
        top = sorted(breakdown.items(), key=lambda item: -item[1])[:5]
        shares = ", ".join(f"{k.replace('_', ' ')} {percent(v / total)}" for k, v in top)
        kv, queue = plan.metric("kv_peak_fraction"), plan.latency_s("queue", "mean")
        more = "" if kv is None else f"; peak KV cache utilisation {100 * kv:.0f} %"
        more += "" if queue is None else f"; mean queueing time {seconds(queue)}"
        yield "Time", shares + more


def memory_bar(memory: Memory) -> str:
    """Return a text bar of one accelerator's memory: weights, activations and runtime, KV cache, free."""
    total = memory.device_bytes
    parts = [
        ("#", "weights", memory.weights_bytes),
        ("+", "activations", memory.activation_bytes + memory.non_torch_bytes),
        ("=", "KV", memory.kv_bytes),
    ]
    bar = "".join(mark * round(_BAR * size / total) for mark, _, size in parts)[:_BAR]
    free = max(total - sum(size for *_, size in parts), 0.0)
    named = ", ".join(f"{mark} {name} {size / 1e9:.1f}" for mark, name, size in parts)
    return f"[{bar:.<{_BAR}}] GB per accelerator: {named}, . free {free / 1e9:.1f}"


def _difference(best: Plan, other: Plan) -> str:
    found = []
    ours, theirs = best.capacity_requests_per_s, other.capacity_requests_per_s
    if ours and theirs:
        found.append(f"{digits(theirs)} requests/s ({100 * (theirs / ours - 1):+.0f} %)")
        if abs(theirs / ours - 1) <= TIE:
            found.append("a tie: the simpler deployment is recommended")
    for block, key in (("cost", "usd_per_million_output_tokens"), ("energy", "kwh_per_million_output_tokens")):
        a, b = (getattr(getattr(plan, block), key, None) for plan in (best, other))
        if a and b:
            found.append(f"{block} per output token {100 * (b / a - 1):+.0f} %")
    return ", ".join(found) or "no figures"


def _calibration_lines(known: CalibrationBlock) -> Iterator[Line]:
    fractions = (known.measured_fraction, known.interpolated_fraction, known.roofline_fraction)
    measured, interpolated, roofline = map(percent, fractions)
    shares = f"{measured} measured, {interpolated} interpolated, {roofline} roofline only"
    error = f"operator error {100 * known.of_operators:.1f} %"
    yield "Evidence", f"step time: {shares} (calibration {known.bundle}); {error}"
    yield "Accuracy", in_words(known.stated_error)


def _search_line(search: SearchSummary) -> Line:
    return "Search", (
        f"{search.n_space} candidates: {search.n_bounded_out} ruled out by bounds, "
        f"{search.n_simulated} simulated ({search.n_pruned} stopped early) with {search.n_requests:,} "
        f"requests; {search.method}; {search.seconds:.1f} s"
    )


def _refused(answer: Answer) -> Iterator[Line]:
    refusal = answer.infeasible
    yield _question(answer.request)
    yield "", ""
    yield "NO", "no reason recorded" if refusal is None else refusal.binding_constraint
    for words in answer.request.slo_words:
        yield "Objective", words
    if refusal is not None and refusal.closest is not None:
        closest = refusal.closest
        yield "Closest", deployment_words(closest.deployment)
        for row in closest.slo:
            found = f"{seconds(row.value_s)}, limit {seconds(row.limit_s)}"
            yield "", f"{row.name} = {found}: {'met' if row.met else 'missed'}"
        if closest.memory is not None:
            yield "Memory", memory_bar(closest.memory)
    changes = [] if refusal is None else refusal.what_would_meet_it
    for i, change in enumerate(changes):
        yield "" if i else "Would meet", f"{change.change} (checked by {change.verified_by})"
    if not changes:
        tried = "more of this hardware, similar hardware, narrower weights"
        yield "Would meet", f"no change that was tried meets the objectives ({tried})"
    for reason, n in list(answer.search.bounded_out.items())[:3]:
        yield "Ruled out", f"{n} candidates: {reason}"
    yield _search_line(answer.search)
