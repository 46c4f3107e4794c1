"""The answer on one screen: the plan, how sure it is, what it costs, what limits it, and the command to start it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any, Final

from calibration.accuracy.stated_error import in_words
from catalogs.ui.terminal import LABEL, LEAST_WIDTH, PIPED, Line, beside
from catalogs.ui.words import digits, dollars, seconds
from planner.evaluation.confidence import LEVEL, SAFE
from planner.problem.candidate import deployment_words
from planner.search.objectives import TIE
from planner.sections.registry import section_lines

_BAR: Final = 40

#: Rows of the ranking that fit on a screen.
_MOST_HARDWARE: Final = 12


def render(answer: dict[str, Any], width: int = PIPED) -> str:
    """The screen of an answer (CONTRACT's `plan --json`), at most about 32 lines of `width` columns, plain text."""
    lines = _yes(answer) if answer["feasible"] else _no(answer)
    return "\n".join(row for label, text in lines for row in _rows(label, text, width))


def show(answer: dict[str, Any]) -> None:
    """Print the screen; labels are coloured on a terminal."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        print(render(answer))
        return
    for row in render(answer, min(max(console.width, LEAST_WIDTH), PIPED)).split("\n"):
        styled = Text(row)
        styled.stylize("bold cyan", 0, LABEL if row[:1] != " " else 0)
        if row.startswith(("Answer", "NO")):
            styled.stylize("bold", LABEL)
        console.print(styled)


def _rows(label: str, text: str, width: int) -> list[str]:
    if label == "Start":  # a command is copied: never broken in the middle of a word
        return _command_rows(text, width)
    return list(beside(label, text, width))


def _command_rows(command: str, width: int) -> list[str]:
    rows, row = [], ""
    for part in _flags(command):
        if row and len(row) + len(part) + 3 > width - LABEL:
            rows.append(row + " \\")
            row = "  " + part
        else:
            row = f"{row} {part}" if row else part
    rows.append(row)
    return [f"{'Start' if i == 0 else '':<{LABEL}}{r}" for i, r in enumerate(rows)]


def _flags(command: str) -> list[str]:
    """A flag stays with its value."""
    found: list[str] = []
    for word in shlex.split(command):
        if found and found[-1].startswith("--") and " " not in found[-1] and not word.startswith("--"):
            found[-1] += f" {shlex.quote(word)}"
        else:
            found.append(shlex.quote(word))
    return found


def _yes(answer: dict[str, Any]) -> Iterator[Line]:
    best, request = answer["best"], answer["request"]
    yield _question(request)
    yield "", ""
    yield "Answer", deployment_words(best["deployment"])
    yield from _slo_lines(best, request)
    yield from _capacity_lines(best)
    yield from _money_lines(best, request)
    yield from _machine_lines(best)
    yield from _survival_lines(best)
    yield from section_lines(answer)
    for other in answer["alternatives"]:
        yield "Instead", f"{deployment_words(other['deployment'])}: {_difference(best, other)}"
    yield from _hardware_lines(answer)
    yield from _foot(answer, best)


def _question(request: dict[str, Any]) -> Line:
    free = "a light load" if request["objective"] == "latency" else "the highest rate it holds"
    rate = free if request["rate"] is None else f"{request['rate']:g} requests/s"
    if "users" in request:
        rate = f"{request['users']} users who each wait {request['think_s']:g} s between answer and next request"
    rate += f", {request['survive']}" if "survive" in request else ""
    best = {"throughput": "highest throughput", "goodput": "highest goodput per accelerator"}
    goal = best.get(request["objective"], f"lowest {request['objective']}")
    return "Plan", f"{request['model']} on {request['hardware']}, workload {request['workload']}, {rate}, {goal}"


def _slo_lines(entry: dict[str, Any], request: dict[str, Any]) -> Iterator[Line]:
    for words, row in zip(request["slo_words"], entry["slo"], strict=True):
        yield "Objective", words
        span = f"{seconds(row['ci_low_s'])} to {seconds(row['ci_high_s'])}"
        sure = f"{_sure(row['probability_met'])} sure at {digits(entry['requests_per_s'])} requests/s"
        verdict = "met" if row["met"] else "MISSED"
        name = f"{row['metric']}.{row['stat']}"
        yield "", f"{name} = {seconds(row['value_s'])} ({LEVEL:.0%} interval {span}): {verdict}, {sure}"


def _capacity_lines(entry: dict[str, Any]) -> Iterator[Line]:
    capacity, safe = entry["capacity_requests_per_s"], entry["safe_requests_per_s"]
    tokens, rate = entry["metrics"]["output_tokens_per_s"], entry["requests_per_s"]
    why = f" ({entry['limited_by']})" if entry.get("limited_by") else ""
    if capacity is None:
        yield "Capacity", "none"
    elif safe is None:
        yield "Capacity", f"{digits(capacity)} requests/s at even odds{why}; no rate looked at is {SAFE:.0%} sure"
    elif safe >= capacity:
        yield "Capacity", f"{digits(capacity)} requests/s, {SAFE:.0%} sure of each objective{why}"
    else:
        sure = f"{digits(safe)} requests/s to be {SAFE:.0%} sure of each objective"
        yield "Capacity", f"{sure}; {digits(capacity)} at even odds{why}"
    yield "", f"{tokens:,.0f} output tokens/s at {digits(rate)} requests/s; cost and energy are of that rate"


def _survival_lines(entry: dict[str, Any]) -> Iterator[Line]:
    survival = entry.get("survival")
    if survival is None:
        return
    values = ", ".join(f"{r['metric']}.{r['stat']} = {seconds(r['value_s'])}" for r in survival["slo"])
    held = "met" if survival["met"] else "MISSED"
    left = survival["replicas_left"]
    count = "1 replica" if left == 1 else f"{left} replicas"
    yield "Survives", f"with {count} left under the same load: {values}: {held}"


def _hardware_lines(answer: dict[str, Any]) -> Iterator[Line]:
    label = "Hardware"
    for place, row in enumerate(answer.get("hardware", [])[:_MOST_HARDWARE], 1):
        usd = "" if row["usd_per_hour"] is None else f", {dollars(row['usd_per_hour'])}/h"
        if row["state"] == "holds":
            said = f"holds {digits(row['requests_per_s'])} requests/s in the search: {row['candidate']}"
        elif row["at_most_requests_per_s"] is not None:
            said = f"under {digits(row['at_most_requests_per_s'])} requests/s ({row['why']})"
        else:
            said = f"{row['state']}: {row['why']}"
        yield label, f"{place}. {row['hardware']}{usd}: {said}"
        label = ""
    for notice in answer["search"].get("left_out", []):
        yield label, notice
        label = ""


def _money_lines(entry: dict[str, Any], request: dict[str, Any]) -> Iterator[Line]:
    cost, energy = entry["cost"], entry["energy"]
    idles = request["objective"] == "latency" and request["rate"] is None  # a light load: per token says nothing
    if cost is None or cost["usd_per_hour"] is None:
        yield "Cost", "unknown: no price for this hardware (give one with --price USD_PER_HOUR)"
    else:
        kinds = ("output", "input", "total")
        each = [f"{dollars(cost.get(f'usd_per_million_{k}_tokens'))} per million {k} tokens" for k in kinds]
        request_usd = cost.get("usd_per_request")
        each += [] if request_usd is None else [f"{dollars(request_usd)} per request"]
        per_token = "" if idles else "; " + ", ".join(each)
        yield "Cost", f"${cost['usd_per_hour']:.2f}/h{per_token}"
        given = cost["price_as_of"] == "given"
        dated = "the price you gave" if given else f"price of {cost['price_as_of']}, {cost['price_source']}"
        yield "", dated + _note(cost["price_note"])
    if energy is None:
        yield "Energy", "unknown"
        return
    if idles:
        yield "Energy", f"{energy['w_mean'] / 1e3:.2f} kW at this light load"
        return
    carbon = energy["gco2e_per_million_output_tokens"]
    grams = "unknown carbon" if carbon is None else f"{carbon:.0f} gCO2e"
    yield (
        "Energy",
        f"{energy['w_mean'] / 1e3:.2f} kW; {energy['j_per_output_token']:.3g} J per output token; "
        f"{energy['kwh_per_million_output_tokens']:.3g} kWh, {grams} per million output "
        f"tokens ({_assumed(energy)})",
    )


def _assumed(energy: dict[str, Any]) -> str:
    """ "PUE 1.3, grid us at 384 g/kWh"."""
    intensity, region = energy.get("grid_gco2e_per_kwh"), energy.get("grid_region")
    grid = "" if intensity is None else f", grid{f' {region}' if region else ''} at {intensity:.0f} g/kWh"
    return f"PUE {energy['pue']:g}{grid}"


def _machine_lines(entry: dict[str, Any]) -> Iterator[Line]:
    if entry["memory"]:
        yield "Memory", memory_bar(entry["memory"])
    breakdown = {k: v for k, v in (entry["time_breakdown"] or {}).items() if v > 0}
    total = sum(breakdown.values())
    if total:
        top = sorted(breakdown.items(), key=lambda item: -item[1])[:5]
        shares = ", ".join(f"{k.replace('_', ' ')} {v / total:.0%}" for k, v in top)
        metrics = entry["metrics"]
        kv, queue = metrics.get("kv_peak_fraction"), (metrics.get("queue_s") or {}).get("mean")
        more = "" if kv is None else f"; KV cache peaks at {kv:.0%}"
        more += "" if queue is None else f"; mean queue {seconds(queue)}"
        yield "Time", shares + more


def memory_bar(memory: dict[str, Any]) -> str:
    """Weights, activations and runtime, KV, and what is left, of one accelerator."""
    total = memory["device_bytes"]
    parts = [
        ("#", "weights", memory["weights_bytes"]),
        ("+", "activations", memory["activation_bytes"] + memory["non_torch_bytes"]),
        ("=", "KV", memory["kv_bytes"]),
    ]
    bar = "".join(mark * round(_BAR * size / total) for mark, _, size in parts)[:_BAR]
    free = max(total - sum(size for *_, size in parts), 0.0)
    named = ", ".join(f"{mark} {name} {size / 1e9:.1f}" for mark, name, size in parts)
    return f"[{bar:.<{_BAR}}] GB of each accelerator: {named}, . free {free / 1e9:.1f}"


def _difference(best: dict[str, Any], other: dict[str, Any]) -> str:
    found = []
    ours, theirs = best["capacity_requests_per_s"], other["capacity_requests_per_s"]
    if ours and theirs:
        found.append(f"{digits(theirs)} requests/s ({theirs / ours - 1:+.0%})")
        if abs(theirs / ours - 1) <= TIE:
            found.append("a tie, of which the plainer is the answer")
    for block, key, name in (
        ("cost", "usd_per_million_output_tokens", "cost"),
        ("energy", "kwh_per_million_output_tokens", "energy"),
    ):
        a, b = (best[block] or {}).get(key), (other[block] or {}).get(key)
        if a and b:
            found.append(f"{name} per output token {b / a - 1:+.0%}")
    return ", ".join(found) or "no figures"


def _foot(answer: dict[str, Any], entry: dict[str, Any]) -> Iterator[Line]:
    c = entry["calibration"] or {}
    if c:
        shares = ", ".join(
            f"{_percent(c[f'{k}_fraction'])} {w}"
            for k, w in (("measured", "measured"), ("interpolated", "interpolated"), ("roofline", "roofline only"))
        )
        yield "Known", f"step time {shares} ({c['bundle']}); operators expect {c['operator_error']:.1%} error"
        yield "Error", in_words(c["stated_error"])
    for notice in entry["notices"][:3]:
        yield "Note", notice
    for note in entry["command_notes"]:
        yield "Note", note
    yield "Start", entry["command"]
    yield _search_line(answer["search"])


def _search_line(search: dict[str, Any]) -> Line:
    return "Search", (
        f"{search['n_space']} candidates, {search['n_bounded_out']} ruled out by bounds, "
        f"{search['n_simulated']} simulated ({search['n_pruned']} stopped early) with {search.get('n_requests', 0):,} "
        f"requests, {search['method']}, {search['seconds']:.1f} s"
    )


def _no(answer: dict[str, Any]) -> Iterator[Line]:
    refusal = answer["infeasible"]
    yield _question(answer["request"])
    yield "", ""
    yield "NO", refusal["binding_constraint"]
    for words in answer["request"]["slo_words"]:
        yield "Objective", words
    closest = refusal["closest"]
    if closest is not None:
        yield "Closest", deployment_words(closest["deployment"])
        for row in closest["slo"]:
            met = "met" if row["met"] else "missed"
            found = f"{seconds(row['value_s'])} against {seconds(row['limit_s'])}"
            yield "", f"{row['metric']}.{row['stat']} = {found}: {met}"
        if closest["memory"]:
            yield "Memory", memory_bar(closest["memory"])
    label = "Instead"
    for change in refusal["what_would_meet_it"]:
        yield label, f"{change['change']} (checked by {change['verified_by']})"
        label = ""
    if not refusal["what_would_meet_it"]:
        yield "Instead", "nothing tried would meet it: other counts of this hardware, its neighbours, narrower weights"
    for reason, n in list(answer["search"]["bounded_out"].items())[:3]:
        yield "Ruled out", f"{n} candidates: {reason}"
    yield _search_line(answer["search"])


def _percent(share: float) -> str:
    return (
        f"{share:.0%}"
        if 0.01 <= share <= 0.99
        else "under 1%"
        if 0 < share < 0.01
        else f"{share:.1%}".replace(".0%", "%")
    )


def _sure(probability: float) -> str:
    return "over 99%" if probability > 0.99 else _percent(probability)


def _note(note: str | None) -> str:
    return f" ({note})" if note else ""
