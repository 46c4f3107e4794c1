"""The screen of `plan`: the recommended deployment, its confidence, cost, bottleneck, and the command to start it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Final

from calibration.accuracy.stated_error import in_words
from catalogs.ui.terminal import LABEL, LEAST_WIDTH, PIPED, Line, labelled_rows, text_table
from catalogs.ui.words import counted, digits, dollars, evidence_words, kilowatts, percent, seconds, shares_words
from planner.answer.answer_schema import GOALS, Answer, Refusal, SearchSummary
from planner.answer.hardware_ranking import ESTIMATE_MARK, HardwareRow, marked_words
from planner.answer.plan_schema import CalibrationBlock, CheckpointBlock, Memory, Plan, SloResult, difference_words
from planner.economics.money import Energy, Money, calendar_words, grid_words, offer_words
from planner.problem.candidate import deployment_words
from planner.problem.request import PlanRequest
from planner.sections.refusal_words import NO_REASON, refused_lines, ruled_out_lines
from planner.sections.region_prices import OWN_GRID, region_lines
from planner.sections.registry import recommended_sentences, section_lines
from planner.sections.section import plan_near_miss_words, result_words

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

#: Width of the bar of memory, in characters.
_BAR: Final = 40


#: The changes that are tried for a refused request, and for one whose requests are longer than the closest plan admits.
_TRIED: Final = "more of this hardware, similar hardware, narrower weights"
_LENGTHS_TRIED: Final = "a longer max_model_len, or the longest constant length that fits"


def render(answer: Answer, width: int = PIPED) -> str:
    """Return the screen of an answer as plain text of about 32 lines, each at most `width` columns wide."""
    rows: list[str] = []
    for label, text in _refused(answer) if answer.best is None else _feasible(answer, answer.best, width):
        rows += (_command_rows if label in _COMMANDS else labelled_rows)(label, text, width)
    return "\n".join([*rows, *_hardware_table(answer.hardware, width)])


#: Labels of start commands: that of the only kind of server, or those of each kind.
_COMMANDS: Final = ("Start", "Encode", "Prefill", "Decode")

#: How sure the rows of the table of hardware are, below it.
_FEWER_SEEDS: Final = (
    "the hardware that is not recommended is simulated with fewer seeds, so its rates are less certain; plan --hw NAME "
    "answers for one kind alone"
)


#: Columns of the table of hardware that hold words, at its left.
_WORDS: Final = ("hardware", "weights", "limited by")

#: Columns that are left out where the table does not fit, in this order: a month follows from an hour.
_LEFT_OUT_FIRST: Final = ("$/month", "limited by", "J/token", "weights", "$/Mtok")

#: A width that every table fits, in columns.
_ANY_WIDTH: Final = 1000


def _hardware_table(hardware: Sequence[HardwareRow], width: int) -> list[str]:
    """Return the rows of the table of all kinds of accelerator, best first; [] if there was no choice."""
    if not hardware:
        return []
    from rich.console import Console

    first = next((row for row in hardware if row.state == "holds"), hardware[0])
    stats = [f"{name} {stat}" for name, stat in (("TTFT", first.ttft_stat), ("TPOT", first.tpot_stat)) if stat]
    head = ("hardware", "weights", "limited by", "$/h", "$/month", "$/Mtok", "J/token", "req/s", *stats)
    held = [_figures(row) for row in hardware if row.state == "holds"]
    lines = StringIO()
    console = Console(file=lines, width=width, highlight=False, markup=False, no_color=True)
    console.print(_fitting_table(console, head, held)) if held else None
    notes = [f"{row.hardware}: {row.why}" for row in hardware if row.state != "holds"]
    text, marked = [line.rstrip() for line in lines.getvalue().split("\n") if line.strip()], marked_words(hardware)
    return [
        *(["", *text] if text else []),
        *(labelled_rows(ESTIMATE_MARK, marked, width) if marked else ()),
        *(labelled_rows("Note", _FEWER_SEEDS, width) if len(held) > 1 else ()),
        *(labelled_rows("No plan", "; ".join(notes), width) if notes else ()),
    ]


def _fitting_table(console: Console, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return the table of hardware without the columns that do not fit the width, the least important left out first.

    The JSON file and the page have all of them.
    """
    from rich.measure import Measurement

    left_out = iter(_LEFT_OUT_FIRST)
    shown = list(head)
    while True:
        at = [head.index(name) for name in shown]
        found = text_table(shown, [[row[i] for i in at] for row in rows], sum(name in _WORDS for name in shown), "")
        wide = console.options.update(width=_ANY_WIDTH)
        dropped = next(left_out, None) if Measurement.get(console, wide, found).maximum > console.width else None
        if dropped is None:
            return found
        shown.remove(dropped)


def _figures(row: HardwareRow) -> tuple[str, ...]:
    month = "unknown" if row.usd_per_month is None else f"${row.usd_per_month:,.0f}"
    joules = "unknown" if row.j_per_output_token is None else digits(row.j_per_output_token)
    money = (dollars(row.usd_per_hour), month, dollars(row.usd_per_million_output_tokens))
    shown = ((row.ttft_s, row.ttft_stat), (row.tpot_s, row.tpot_stat))
    latencies = ["none" if value is None else seconds(value) for value, stat in shown if stat]
    names = (row.marked_hardware, row.weight_dtype or "", row.limited_by or "")
    return (*names, *money, joules, digits(row.capacity_requests_per_s or 0.0), *latencies)


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


def _command_rows(label: str, command: str, width: int) -> Iterator[str]:
    """Yield the rows of a start command; users copy it, so it only breaks between flags."""
    parts: list[str] = []
    for word in shlex.split(command):  # a flag stays on the row of its value
        if parts and parts[-1].startswith("--") and " " not in parts[-1] and not word.startswith("--"):
            parts[-1] += f" {shlex.quote(word)}"
        else:
            parts.append(shlex.quote(word))
    row = ""
    for part in parts:
        if row and len(row) + len(part) + 3 > width - LABEL:
            yield f"{label:<{LABEL}}{row} \\"
            row, label = f"  {part}", ""
        else:
            row = f"{row} {part}" if row else part
    yield f"{label:<{LABEL}}{row}"


def _feasible(answer: Answer, best: Plan, width: int) -> Iterator[Line]:
    request = answer.request
    yield _question(answer)
    yield "", ""
    yield "Recommended", deployment_words(best.deployment)
    caveats = recommended_sentences(answer, best)
    if caveats:
        yield "", caveats
    for words, row in zip(request.slo_words, best.slo, strict=True):
        yield "Objective", words
        yield "", result_words(row, best.interval_level)
    yield from _capacity_lines(best, request)
    yield from _money_lines(best, request)
    yield from _price_lines(answer, best.cost, width)
    yield from _machine_lines(best)
    survival = best.survival
    if survival is not None:
        values = ", ".join(f"{row.name} = {seconds(row.value_s)}" for row in survival.slo)
        sure = f"{percent(request.confidence)} confidence"
        verdict = "met with at least" if survival.met else "NOT met with"
        count = counted(survival.replicas_left, "remaining replica")
        yield "Survives", f"{count} under the same load: {values}: {verdict} {sure}"
    yield from section_lines(answer)
    for other in answer.alternatives:
        yield "Alternative", f"{deployment_words(other.deployment)}: {difference_words(best, other)}"
    for i, text in enumerate(answer.search.left_out):
        yield "" if i else "Hardware", text
    if best.calibration is not None:
        yield from _calibration_lines(best.calibration)
    sibling = best.checkpoint if best.checkpoint is not None and best.checkpoint.is_sibling else None
    said = () if sibling is None else (sibling.repository, sibling.of)  # by the row "Serves"
    others = best.other_commands
    notes = [n for n in best.command_notes if n.partition(": ")[0] not in others]  # the others have rows of their own
    for notice in (*best.notices, *(n for n in notes if not any(name in n for name in said))):
        yield "Note", notice
    if best.versions:
        yield "Versions", best.versions
    if sibling is not None:
        yield "Serves", _sibling_words(sibling)
    for role, command in others.items():
        yield role.capitalize(), command
    yield "Decode" if "prefill" in others else "Start", best.command
    yield _search_line(answer.search)


def _sibling_words(served: CheckpointBlock) -> str:
    """Return the words above a start command that does not serve the weights of the requested model."""
    return (
        f"{served.repository}, which is {served.kind} {served.of} in {served.dtype}, not the requested "
        f"{served.requested} (--precision native serves that, where it fits)"
    )


def _question(answer: Answer) -> Line:
    request = answer.request
    if request.users is not None:
        rate = f"{counted(request.users, 'user')} with a think time of {request.think_s:g} s"
    elif request.requests_per_s is not None:
        rate = f"{digits(request.requests_per_s)} requests/s"
    else:
        rate = "a light load" if request.objective == "latency" else "highest sustainable rate"
    rate += f", {request.spare.words}" if request.spare else ""
    goal = GOALS.get(request.objective, f"lowest {request.objective}")
    return "Request", f"{request.model} on {request.hardware}, workload {answer.workload_words}, {rate}, {goal}"


def _capacity_lines(plan: Plan, request: PlanRequest) -> Iterator[Line]:
    if plan.capacity_requests_per_s is None:
        yield "Capacity", "none"
    else:
        sure = percent(request.confidence)
        running = " with every replica running," if plan.survival is not None else ""
        yield (
            "Capacity",
            f"{plan.capacity_words}{running} with {sure} confidence in each objective ({plan.limit_words})",
        )
        near_miss = plan_near_miss_words(plan, request.confidence)
        if near_miss:
            yield "", near_miss
    tokens, rate = plan.metric("output_tokens_per_s") or 0.0, digits(plan.requests_per_s or 0.0)
    yield "", f"{tokens:,.0f} output tokens/s at {rate} requests/s; latency, cost and energy refer to this rate"


def _money_lines(plan: Plan, request: PlanRequest) -> Iterator[Line]:
    cost, energy = plan.cost, plan.energy
    idles = request.objective == "latency" and not request.given  # the cost per token has no meaning
    if cost is None or cost.usd_per_hour is None:
        yield "Cost", "unknown: no price for this hardware (give one with --price USD_PER_HOUR)"
    else:
        calendar = calendar_words(cost)
        yield "Cost", calendar if idles else f"{calendar}; {_unit_costs(cost)}"
        yield "", offer_words(cost)
    if energy is None:
        yield "Energy", "unknown"
    elif idles:
        yield "Energy", f"{kilowatts(energy.w_mean)} at this light load"
    else:
        yield "Energy", _energy_words(energy)
    if plan.unused_words:
        yield "", plan.unused_words


def _unit_costs(cost: Money) -> str:
    """Return the whole bill spread over each kind of tokens, and over the requests, in words."""
    kinds = ("output", "input", "total")
    spread = [f"{dollars(getattr(cost, f'usd_per_million_{k}_tokens'))} per million {k} tokens" for k in kinds]
    each = "" if cost.usd_per_request is None else f"; {dollars(cost.usd_per_request)} per request"
    return f"the whole bill is {', or '.join(spread)}{each}"


def _price_lines(answer: Answer, cost: Money | None, width: int) -> Iterator[Line]:
    """Yield the table of the prices by region."""
    grams, request = [p.gco2e_per_million_output_tokens for p in answer.prices], answer.request
    lines = list(region_lines(answer.prices, grams, "M output", cost, width))
    yield from lines
    if lines and (request.tariff.grid is not None or request.accounting.carbon_hours is not None):
        yield "", OWN_GRID


def _energy_words(energy: Energy) -> str:
    carbon, intensity = energy.gco2e_per_million_output_tokens, energy.grid_gco2e_per_kwh
    grams = "unknown carbon" if carbon is None else f"{digits(carbon)} gCO2e"
    grid = "" if intensity is None else f" ({grid_words(energy)} at {intensity:.0f} g/kWh)"
    return (
        f"{kilowatts(energy.w_mean)}, {digits(energy.j_per_output_token)} J per output token at the servers; "
        f"with PUE {energy.pue:g}: {digits(energy.kwh_per_million_output_tokens)} kWh, "
        f"{grams} per million output tokens{grid}"
    )


def _machine_lines(plan: Plan) -> Iterator[Line]:
    if plan.memory is not None:
        yield "Memory", memory_bar(plan.memory)
    breakdown = {k.replace("_", " "): v for k, v in (plan.time_breakdown or {}).items() if v > 0}
    if breakdown:
        shares = shares_words(dict(sorted(breakdown.items(), key=lambda item: -item[1])), 5)
        kv, queue = plan.metric("kv_peak_fraction"), plan.latency_s("queue", "mean")
        more = "" if kv is None else f"; peak KV cache utilisation {percent(kv)}"
        more += "" if queue is None else f"; mean queueing time {seconds(queue)}"
        yield "Time", shares + more


def memory_bar(memory: Memory) -> str:
    """Return a text bar of one accelerator's memory: weights, activations and runtime, KV cache, free."""
    total = memory.device_bytes
    parts = [
        ("#", "weights", memory.weights_bytes),
        ("+", "activations and runtime", memory.activation_bytes + memory.non_torch_bytes),
        ("=", "KV", memory.kv_bytes),
    ]
    bar = "".join(mark * round(_BAR * min(size / total, 1.0)) for mark, _, size in parts)[:_BAR]
    free = max(total - sum(size for *_, size in parts), 0.0)
    named = ", ".join(f"{mark} {name} {size / 1e9:.1f}" for mark, name, size in parts)
    return f"[{bar:.<{_BAR}}] GB per accelerator: {named}, . free {free / 1e9:.1f}"


def _calibration_lines(known: CalibrationBlock) -> Iterator[Line]:
    shares = evidence_words(known.model_dump())
    error = f"operator error {percent(known.of_operators, 1)}"
    yield "Evidence", f"step time: {shares} (calibration {known.bundle}); {error}"
    yield "Accuracy", in_words(known.stated_error)


def _search_line(search: SearchSummary) -> Line:
    return "Search", (
        f"{counted(search.n_space, 'candidate')}: {search.n_bounded_out:,} ruled out by bounds, "
        f"{search.n_not_simulated:,} not simulated, {search.n_simulated:,} simulated "
        f"({search.n_pruned:,} stopped early) with {counted(search.n_requests, 'request')}{_searches_words(search)}; "
        f"{search.method}; {search.seconds:.1f} s"
    )


def _searches_words(search: SearchSummary) -> str:
    """Return how many searches there were and their trials, if there were several."""
    return f", in {search.n_searches} searches with {search.n_trials} trials together" if search.n_searches > 1 else ""


def _refused(answer: Answer) -> Iterator[Line]:
    refusal = answer.infeasible
    yield _question(answer)
    yield from refused_lines(
        NO_REASON if refusal is None else refusal.binding_constraint,
        answer.request.slo_words,
        () if refusal is None or refusal.closest is None else _closest(refusal.closest, refusal, answer),
        () if refusal is None else refusal.what_would_meet_it,
        _TRIED if refusal is None else _tried(refusal.closest),
    )
    yield from ruled_out_lines({} if refusal is None else refusal.reasons, answer.search)
    yield _search_line(answer.search)


def _tried(closest: Plan | None) -> str:
    """Return the changes that were tried for a refused request.

    A closest plan that fits in memory and has no objectives was not simulated, because its requests are too long.
    """
    too_long = closest is not None and not closest.slo and closest.memory is not None and closest.memory.fits
    return _LENGTHS_TRIED if too_long else _TRIED


def _closest(closest: Plan, refusal: Refusal, answer: Answer) -> Iterator[Line]:
    yield "Closest", deployment_words(closest.deployment)
    for row in closest.slo:
        if row.has_no_value:
            yield "", result_words(row, closest.interval_level)
            continue
        most = row.value_at_confidence_s
        sure = f"{percent(answer.request.confidence)} confidence"
        high = "no upper limit" if most is None else f"at most {seconds(most)}"
        found = f"{seconds(row.value_s)}, {high} with {sure}; limit {seconds(row.limit_s)}"
        yield "", f"{row.name} = {found}: {_missed_words(row)}"
    for sentence in refusal.stages:
        yield "Time", sentence
    if closest.memory is not None:
        yield "Memory", memory_bar(closest.memory)


def _missed_words(row: SloResult) -> str:
    """Return whether an objective is met, and otherwise by how much it is missed."""
    if row.met:
        return "met"
    if row.value_at_confidence_s is None:
        return "not met, because the queue grows without limit"
    return f"missed by {percent(row.value_at_confidence_s / row.limit_s - 1)}"
