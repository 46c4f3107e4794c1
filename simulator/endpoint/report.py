"""The result of a measurement of an endpoint: as a JSON document and on the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from calibration.complexity.summary import complexity_of
from calibration.serve.reply_statistics import TokenPrices, load_summary
from catalogs.ui.terminal import open_console
from catalogs.ui.words import counted, percent
from simulator.endpoint.identification import DISAGREES, Identification
from simulator.endpoint.measurement import EndpointMeasurement, MeasuredLevel, records
from simulator.endpoint.target import without_key

#: Version of the form of a measurement of an endpoint.
SCHEMA_VERSION: Final = 1

#: Most candidates in the document.
_SHOWN_CANDIDATES: Final = 50

#: Most hardware on the screen.
_SHOWN_HARDWARE: Final = 8

#: Longest text of an answer in the document and on the screen, in characters.
_SHOWN_TEXT: Final = 2_000


def document(
    found: EndpointMeasurement, tariff: TokenPrices, identified: Identification | None, not_identified: str
) -> dict[str, Any]:
    """Return the document of `--json`.

    Args:
        found: The measurement.
        tariff: What the endpoint costs.
        identified: The candidates of the catalog, or None.
        not_identified: Why there are none; empty if there are.
    """
    target, plan = found.target, found.plan
    return {
        "schema_version": SCHEMA_VERSION,
        "endpoint": {
            "address": target.server.url.base,
            "form": target.settings.form,
            "model": target.settings.model,
            "streams": target.settings.stream and target.settings.form != "vertex",
            "round_trip_s": target.round_trip_s,
            "network_s": target.network_s,
        },
        "plan": {
            "workload": None if plan.workload is None else plan.workload.name,
            "prompt": plan.prompt,
            "requests_per_level": plan.requests,
            "concurrency": list(plan.concurrency),
            "seed": plan.seed,
            "reply_limit_s": plan.reply_s,
            "limit_s": plan.total_s,
        },
        "duration_s": found.duration_s,
        "levels": [_level(level, tariff) for level in found.levels],
        "failures": found.failures,
        "complexity": _complexity(found),
        "text": _text(found),
        "identified": None if identified is None else _identified(identified),
        "not_identified": not_identified or None,
        "notes": list(found.notes),
    }


def _level(level: MeasuredLevel, tariff: TokenPrices) -> dict[str, Any]:
    summary = load_summary(level.load, tariff)
    n = len(level.load.replies)
    usd = {"by_token": summary["usd"], "by_machine": summary["usd_of_machines"]}
    per_answer = {name: None if total is None or not n else total / n for name, total in usd.items()}
    return {"concurrency": level.concurrency, **summary, "usd_per_answer": per_answer}


def _complexity(found: EndpointMeasurement) -> dict[str, Any] | None:
    """Return the latency by complexity of the first level that has replies."""
    level = next((level for level in found.levels if level.load.replies), None)
    if level is None:
        return None
    return {"concurrency": level.concurrency, **complexity_of(records([level])).block()}


def _text(found: EndpointMeasurement) -> str | None:
    """Return the answer to the prompt of the user, without the key."""
    if found.plan.prompt is None or not found.replies:
        return None
    return without_key(found.replies[0].text, found.target.settings.key)[:_SHOWN_TEXT]


def _identified(identified: Identification) -> dict[str, Any]:
    return {
        "model": identified.model,
        "agreement": identified.agreement,
        "agrees": identified.agreement >= DISAGREES,
        "hardware": [
            {"name": name, "probability": sum(engines.values()), "engines": engines}
            for name, engines in identified.hardware.items()
        ],
        "candidates": [
            {
                "hardware": each.candidate.hardware,
                "count": each.candidate.count,
                "engine": each.candidate.engine,
                "weight_dtype": each.weight_dtype,
                "probability": each.probability,
                "log_likelihood": each.log_likelihood,
                "deviation": each.deviation,
                "simulated_s": list(each.simulated_s),
            }
            for each in identified.ranked[:_SHOWN_CANDIDATES]
        ],
        "compared": [
            {
                "metric": x.metric,
                "concurrency": x.level.concurrency,
                "measured_s": x.mean_s,
                "relative_standard_error": x.noise,
            }
            for x in identified.observed
        ],
        "n_simulated": len(identified.ranked),
        "n_far": identified.n_far,
        "refused": identified.refused,
    }


def show(found: dict[str, Any]) -> None:
    """Print a document as tables and lines."""
    from rich import box
    from rich.table import Table

    console = open_console()
    endpoint = found["endpoint"]
    served = f" serving {endpoint['model']}" if endpoint["model"] else ""
    console.print(
        f"{endpoint['address']}{served}; a round trip takes {_ms(endpoint['round_trip_s'])} ms; times in ms\n"
    )
    if found["text"] is not None:
        console.print(f"{found['text']}\n")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    heads = ("at once", "sent", "failed", "TTFT p50", "p99", "ITL p50", "p99", "E2E p50", "p99", "tok/s", "req/s")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for level in found["levels"]:
        table.add_row(*_cells(level))
    console.print(table)
    for line in (*_fit_lines(found), *_price_lines(found), *_failure_lines(found), *_identity_lines(found)):
        console.print(line)
    for note in found["notes"]:
        console.print(f"note: {note}")


def _ms(value_s: float | None) -> str:
    return "" if value_s is None else f"{value_s * 1e3:.3g}" if value_s < 0.9995 else f"{value_s * 1e3:,.0f}"


def _cells(level: dict[str, Any]) -> list[str]:
    times = [_ms((level[name] or {}).get(stat)) for name in ("ttft_s", "itl_s", "e2e_s") for stat in ("p50", "p99")]
    rates = [level["output_tokens_per_s"], level["requests_per_s"]]
    counts = [str(level[name]) for name in ("concurrency", "n", "n_failed")]
    return [*counts, *times, *("" if rate is None else f"{rate:.3g}" for rate in rates)]


def _fit_lines(found: dict[str, Any]) -> Iterator[str]:
    fit = (found["complexity"] or {}).get("fit")
    if fit is None:
        yield "E2E by length: too few requests succeeded for a fit"
        return
    law, parts = fit["mean"], []
    for name, words in (("input_token_s", "input token"), ("output_token_s", "output token")):
        parts.append(f"no {words} part (one length)" if law[name] is None else f"{_ms(law[name])} ms per {words}")
    if law["input_token_s"] is None and law["output_token_s"] is None:
        yield "E2E by length: all requests have one length, so there is no fit"
        return
    explained = "" if fit["explained"] is None else f"; it explains {percent(fit['explained'], 1)} of the variance"
    head = f"E2E at {found['complexity']['concurrency']} at once = {_ms(law['constant_s'])} ms"
    yield f"{head} + {' + '.join(parts)}{explained}, from {counted(fit['requests'], 'request')}"


def _price_lines(found: dict[str, Any]) -> Iterator[str]:
    known = False
    for level in found["levels"]:
        for name, words in (("by_token", "by its tokens"), ("by_machine", "by the hours of its machines")):
            usd = level["usd_per_answer"][name]
            if usd is not None:
                known = True
                yield f"an answer costs ${usd:.3g} {words} at {level['concurrency']} at once"
    if not known:
        yield "price per answer: not known; give --usd-per-million-input and -output, or --usd-per-hour"


def _failure_lines(found: dict[str, Any]) -> Iterator[str]:
    for reason, n in found["failures"].items():
        yield f"{counted(n, 'request')} failed: {reason}"


def _identity_lines(found: dict[str, Any]) -> Iterator[str]:
    identified = found["identified"]
    if identified is None:
        yield f"hardware and engine: {found['not_identified']}"
        return
    compared = f"{identified['n_simulated'] + identified['n_far']} deployments of {identified['model']}"
    if not identified["hardware"]:
        yield f"hardware and engine: none of {compared} is near the measured latencies"
        return
    if not identified["agrees"]:
        yield (
            f"no hardware of the catalog behaves so: the nearest of {compared} has a deviation that occurs with "
            f"probability {identified['agreement']:.2g}"
        )
    yield f"hardware and engine that would behave so, of {compared}, one replica each:"
    for each in identified["hardware"][:_SHOWN_HARDWARE]:
        best = next((c for c in identified["candidates"] if c["hardware"] == each["name"]), None)
        engines = sorted(each["engines"].items(), key=lambda item: -item[1])[:3]
        shares = ", ".join(f"{engine} {percent(share)}" for engine, share in engines)
        size = "" if best is None else f"; most likely x{best['count']} {best['engine']} {best['weight_dtype']}"
        yield f"  {percent(each['probability']):>4}  {each['name']:22} {shares}{size}"
