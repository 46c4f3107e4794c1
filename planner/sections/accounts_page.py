"""What a plan costs and draws in full: tokens, users, spot, owned, racks, power limits; what is known of quality.

Figures of costs: owning against renting by use, and what power limits change.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from catalogs.ui.charts import BELOW, MARGIN, linear, place, vertical
from catalogs.ui.html_page import Markup, Section, chart, note, paragraph, table
from catalogs.ui.words import dollars, joules, percent, rate, seconds
from planner.answer.schema import AnswerFile
from planner.economics.money import CONTRACT_WORDS, instance_words
from planner.sections.accounts import owned_words
from planner.sections.power_limits import provenance_words

Rows = list[tuple[str, str, str]]

HEAD: Final = ("what", "value", "from")

AROUND_THE_CLOCK: Final = "the planned rate around the clock"


def accounts_sections(answer: AnswerFile) -> list[Section]:
    """One for costs and power; one for power limits and for quality where the answer has them."""
    found = [_costs(answer), *_power_caps(answer.power_caps), *_quality(answer.quality)]
    return [section for section in found if section is not None]


def _costs(answer: AnswerFile) -> Section | None:
    accounts = answer.accounts
    if accounts is None:
        return None
    rows = _price_rows(answer) + _user_rows(accounts["per_user"]) + _spot_rows(accounts["spot"])
    parts = [table(HEAD, rows, "Of tokens, each figure divides the whole cost by that kind alone.", words=3)]
    spot = accounts["spot"]
    if spot is not None and spot["note"]:
        parts.append(note(f"{spot['note']}."))
    parts += _owned(accounts["owned"])
    power = _rack_rows(accounts["rack"]) + _hour_rows(accounts["carbon_hours"])
    if power:
        parts.append(table(HEAD, power, words=3))
    return Section("Cost in full: per token, request and user; power of a rack", parts, "Cost in full")


def _price_rows(answer: AnswerFile) -> Rows:
    cost = None if answer.best is None else answer.best.cost
    if cost is None or cost.usd_per_hour is None:
        return [("Price", "unknown", "no price of this hardware is known (plan --price USD_PER_HOUR)")]
    machine = instance_words(cost.instance, cost.accelerators_per_instance, 1)
    source = "given with the question" if cost.price_as_of == "given" else f"{cost.price_source}, {cost.price_as_of}"
    named = CONTRACT_WORDS.get(cost.commitment or "", "")
    rows = [("Per hour", dollars(cost.usd_per_hour), "; ".join(p for p in (named, machine, source) if p))]
    for kind in ("output", "input", "total"):
        value = getattr(cost, f"usd_per_million_{kind}_tokens")
        rows.append((f"Per million {kind} tokens", dollars(value), "per hour over tokens an hour, simulated"))
    if cost.usd_per_request is not None:
        rows.append(("Per 1,000 requests", dollars(1000 * cost.usd_per_request), "per hour over requests an hour"))
    return rows


def _user_rows(users: dict[str, Any] | None) -> Rows:
    if users is None:
        return []
    per_day = f"{users['users']:,.0f} users of {users['requests_per_user_day']:,.3g} requests a day"
    month = f"{per_day}, {AROUND_THE_CLOCK}, {users['hours_per_month']:g} h a month"
    return [("Per user and month", dollars(users["usd_per_user_month"]), month)]


def _spot_rows(spot: dict[str, Any] | None) -> Rows:
    if spot is None or spot["interruptions_per_instance_hour"] is None:
        return []
    taken = f"{spot['interruptions_per_instance_hour']:g} an hour of each instance ({spot['instances']}), as you gave"
    one = {True: "yes", False: "NO", None: "unknown"}[spot["holds_with_one_down"]]
    capacity = spot["effective_capacity_requests_per_s"]
    return [
        ("Interruptions", f"{spot['interruptions_per_hour']:.3g} an hour", taken),
        ("Until a replacement serves", seconds(spot["recovery_s"]), str(spot["recovery_source"])),
        (
            "A unit is up",
            f"{spot['available_fraction']:.2%}",
            "lost one at a time: " + ("one unit" if spot["units"] == 1 else f"{spot['units']} units"),
        ),
        ("Requests that start again", f"{spot['hit_fraction']:.3%}", "in flight when their unit is taken"),
        ("Mean capacity", rate(capacity), "less what is down, and what is done again"),
        ("Holds with one unit down", one, "capacity of the others against the planned rate"),
        (
            "Spares for 99 % of the time",
            f"{spot['spares']}, {dollars(spot['usd_per_hour_with_spares'])} per hour",
            "units independent of each other",
        ),
    ]


def _owned(owned: dict[str, Any] | None) -> list[Markup]:
    if owned is None:
        return []
    given, u = owned["given"], owned["utilisation"]
    rows = [
        ("Capital", f"{dollars(owned['capital_usd_per_hour'])} per hour", _capital_words(given)),
        ("Power", f"{dollars(owned['energy_usd_per_hour'])} per hour", _power_words(owned)),
        ("Upkeep", f"{dollars(owned['upkeep_usd_per_hour'])} per hour", f"{dollars(given['upkeep'])} a year"),
        ("Owned", f"{dollars(owned['usd_per_hour'])} per hour", "every hour of the calendar"),
        ("Owned, per million output tokens", dollars(owned["usd_per_million_output_tokens"]), f"at {percent(u)} use"),
    ]
    parts = [table(HEAD, rows, f"Against renting: {owned_words(owned)}.", words=3)]
    if owned["rent_usd_per_hour"] is not None:
        said = "An hour of the calendar by how much of it the hardware is in use; where the lines cross is break-even."
        parts.append(chart(own_or_rent(owned), said, 320))
    return parts


def _capital_words(given: dict[str, Any]) -> str:
    words = f"{dollars(given['capex'])} over {given['years']:g} years"
    if given["residual"]:
        words += f", {given['residual']:.0%} of it got back"
    return words + (f", {given['interest']:.1%} interest" if given["interest"] else ", no interest")


def _power_words(owned: dict[str, Any]) -> str:
    price = f"{owned['usd_per_kwh']:g} USD per kWh ({owned['usd_per_kwh_source']})"
    return f"in use {percent(owned['utilisation'])} of the time, else idle; PUE {owned['pue']:g}; {price}"


def _rack_rows(rack: dict[str, Any] | None) -> Rows:
    if rack is None:
        return []
    most = "every accelerator at its limit, hosts busy"
    hosts = f"{rack['host_w_idle']:.0f} W idle, {rack['host_w_per_busy_accelerator']:.0f} W for each busy accelerator"
    full = min(rack["nodes_per_rack"] or rack["nodes"], rack["nodes"])
    rack_of = f"a rack of {full} node{'' if full == 1 else 's'}"
    return [
        ("Node, mean", f"{rack['node_w_mean'] / 1e3:.2f} kW", f"{rack['source']}: {hosts}"),
        ("Node, most", f"{rack['node_w_most'] / 1e3:.2f} kW", most),
        ("Rack, mean", f"{rack['rack_w_mean'] / 1e3:.1f} kW", f"{rack_of}; {rack['racks']} needed"),
        ("Rack, most", f"{rack['rack_w_most'] / 1e3:.1f} kW", most),
    ]


def _hour_rows(hours: dict[str, Any] | None) -> Rows:
    if hours is None:
        return []
    if hours["source"] is None:
        return [("Carbon by hour", "unknown", hours["note"])]
    mean, clean = hours["mean_gco2e_per_million_output_tokens"], hours["cleanest_gco2e_per_million_output_tokens"]
    named = ", ".join(str(h) for h in hours["cleanest_hours"])
    return [
        ("Carbon around the clock", f"{mean:,.0f} g CO2e", f"per million output tokens; {hours['source']}"),
        ("Carbon in the cleanest hours", f"{clean:,.0f} g CO2e", f"hours {named}: for work that can wait"),
    ]


def _power_caps(caps: dict[str, Any] | None) -> Iterable[Section]:
    if caps is None:
        return []
    name = "Power limits: what they cost and save"
    if not caps["rows"]:
        return [Section(name, [note(f"{caps['note']}.")], "Power limits")]
    measured = [row for row in caps["rows"] if not row["note"]]
    head = (
        "Limit",
        *(f"{k}" for k in measured[0]["latency_s"]),
        "Highest rate",
        "Mean power",
        "Per output token",
        "Holds",
    )
    rows = [_cap_row(row) for row in measured]
    said = provenance_words(caps)
    text = (
        "The plan simulated again with the accelerators' power limited (nvidia-smi -pl; "
        f"the {caps['accelerator']}'s own limit is {caps['own_limit_w']:g} W). {said[0].upper()}{said[1:]}."
    )
    parts = [paragraph(text), table(head, rows, "Energy at the servers, hosts included.")]
    parts += [note(f"{row['cap_w']:g} W: {row['note']}.") for row in caps["rows"] if row["note"]]
    if len(measured) > 1:
        below = "Change against no limit at the planned rate; capacity: of the highest rate that holds."
        parts.append(chart(cap_lines(measured, caps["own_limit_w"]), below, 380))
    return [Section(name, parts, "Power limits")]


def _cap_row(row: dict[str, Any]) -> tuple[str, ...]:
    latencies = [seconds(v) + _share(row, row["latency_change"][k]) for k, v in row["latency_s"].items()]
    capacity = rate(row["capacity_requests_per_s"]) + _share(row, row["capacity_change"])
    used = joules(row["j_per_output_token"]) + _share(row, row["energy_change"])
    power = "unknown" if row["gpu_w_mean"] is None else f"{row['gpu_w_mean']:.0f} W each"
    limit = "none" if row["cap_w"] is None else f"{row['cap_w']:g} W"
    return (limit, *latencies, capacity, power, used, "yes" if row["met"] else "NO")


def _share(row: dict[str, Any], share: float | None) -> str:
    return "" if share is None or row["cap_w"] is None else f" ({100 * share:+.0f} %)".replace("-", "−")


def _quality(entries: list[dict[str, Any]]) -> Iterable[Section]:
    if not entries:
        return []
    rows, notes = [], []
    for entry in entries:
        named = f"{entry['dtype']} {'weights' if entry['part'] == 'weights' else 'KV cache'}"
        notes += [note(f"{entry['note']}.")] if entry["note"] else []
        for e in entry["evaluations"]:
            found = e["finding"] or f"{e['benchmark']}: {e['recovery_percent']:.1f} %"
            scores = "" if e["score"] is None else f"{e['score']:g} against {e['baseline']:g}"
            whose = "; ".join(p for p in (e["method"], e["by"], e["as_of"]) if p)
            rows.append((named, found, scores, whose, e["source"].replace("https://", "")))
    parts: list[Markup] = [
        paragraph("Published by others, of the same model in its own precision; nothing here was measured.")
    ]
    if rows:
        parts.append(table(("Precision", "Kept", "Scores", "By", "Source"), rows, words=5))
    return [Section("Quality: what narrower numbers cost the answers", [*parts, *notes], "Quality")]


_POINTS: Final = 21


def own_or_rent(owned: dict[str, Any]) -> Any:
    """Dollars per hour of the calendar against the share of hours in use."""
    import plotly.graph_objects as go

    figure = go.Figure()
    shares = [i / (_POINTS - 1) for i in range(_POINTS)]
    fixed = owned["capital_usd_per_hour"] + owned["upkeep_usd_per_hour"]
    busy, idle = owned["busy_usd_per_hour"], owned["idle_usd_per_hour"]
    rent, always = owned["rent_usd_per_hour"], owned["rent_always"]
    lines = {
        "owned": [fixed + u * busy + (1 - u) * idle for u in shares],
        f"rented ({owned['rent_source']})": [rent if always else u * rent for u in shares],
    }
    for i, (name, values) in enumerate(lines.items()):
        x = [100 * u for u in shares]
        figure.add_scatter(x=x, y=values, mode="lines+markers", name=name, **place(i))
    if owned["break_even_utilisation"] is not None:
        even = 100 * owned["break_even_utilisation"]
        vertical(figure, even, f"break-even: {even:.0f} %")
    figure.update_xaxes(**linear("hours in use", "%", range=[0, 100]))
    figure.update_yaxes(**linear("an hour of the calendar", "USD"))
    return figure.update_layout(legend=BELOW, margin=MARGIN)


def cap_lines(rows: list[dict[str, Any]], own_limit_w: float) -> Any:
    """Changes against no limit, per cent, by limit; the row without one stands at the board's own."""
    import plotly.graph_objects as go

    figure = go.Figure()
    limits = [own_limit_w if row["cap_w"] is None else row["cap_w"] for row in rows]
    series = {k: [row["latency_change"][k] for row in rows] for k in rows[0]["latency_s"]}
    series |= {"highest rate": [row["capacity_change"] for row in rows]}
    series |= {"energy per output token": [row["energy_change"] for row in rows]}
    for i, (name, values) in enumerate(series.items()):
        known = [(w, 100 * v) for w, v in zip(limits, values, strict=True) if v is not None]
        x, y = [w for w, _ in known], [v for _, v in known]
        figure.add_scatter(x=x, y=y, mode="lines+markers", name=name, **place(i))
    figure.update_xaxes(title={"text": "limit of each accelerator (W)"})
    figure.update_yaxes(title={"text": "change against no limit (%)"})
    return figure.update_layout(legend=BELOW, margin=MARGIN)
