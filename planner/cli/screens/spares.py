"""The screen of `plan spares`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from catalogs.ui.terminal import Line, show_lines
from catalogs.ui.words import duration_text
from planner.studies.spares import SparesDocument, SparesTried

_BOLD: Final = ("Recommended", "NO")


def show(found: SparesDocument) -> None:
    """Print the document of `plan spares`."""
    show_lines(_lines(found), _BOLD)


def _lines(found: SparesDocument) -> Iterator[Line]:
    yield (
        "Failures",
        f"a replica fails every {duration_text(found.mtbf_s)} and restarts in {duration_text(found.restart_s)}: "
        f"available "
        f"{100 * found.availability:.3f} % of the time; {found.requests_per_s:.3g} requests/s, {', '.join(found.slo)}",
    )
    yield _BOLD[found.spares is None], _answer(found)
    spares = f"{found.formula} spare{'' if found.formula == 1 else 's'}"
    late = "too few replicas are available for at most the permitted share of late requests"
    yield "Formula", f"{spares}: {late}"
    for row in found.tried:
        yield "Simulated", _row(row)
    if found.held_if_slow is not None:
        yield (
            "",
            f"with steps as slow as in 1 of 20 cases, {100 * found.held_if_slow:.1f} % of windows meet the objectives",
        )
    if found.usd_per_hour is not None:
        yield "Cost", f"${found.usd_per_hour:.2f}/h, ${found.usd_per_hour_planned:.2f}/h as planned"
    yield "Note", "replicas fail independently; failures of several at once (a node, a release) are not included"


def _answer(found: SparesDocument) -> str:
    required, window = 100 * found.windows_must_hold, duration_text(found.window_s)
    if found.spares is None or found.replicas is None:
        missed = f"{100 - required:.3g} % of windows of {window}"
        return f"with {found.most} spare replicas the objectives are still missed in more than {missed}"
    count = f"{found.needed} required and {found.spares} spare replicas"
    more = found.replicas - found.planned_replicas
    planned = "as planned" if not more else f"{abs(more)} {'more' if more > 0 else 'fewer'} than planned"
    meets = f"meet the objectives in {required:.3g} % of windows of {window}"
    return f"{count} ({found.replicas} in total, {planned}) {meets}"


def _row(row: SparesTried) -> str:
    span = f"{row.ci_low:.1%} to {row.ci_high:.1%}"
    shares = {down: "unknown" if share is None else f"{share:.2%}" for down, share in row.late_by_down.items()}
    late = ", ".join(f"{share} with {down} down" for down, share in shares.items())
    verdict = "enough" if row.holds else "not enough"
    up = f"enough replicas available {row.enough_up:.3%} of the time"
    windows = f"{row.windows_held:.1%} of windows meet the objectives ({span})"
    return f"{row.spares} spare{'' if row.spares == 1 else 's'}: {windows}: {verdict}; {up}; late requests: {late}"
