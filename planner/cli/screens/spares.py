"""Spare replicas on the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from catalogs.ui.terminal import Line, show_lines
from catalogs.ui.words import duration_text
from planner.studies.spares import SparesDocument, SparesTried

_BOLD: Final = ("Answer", "NO")


def show(found: SparesDocument) -> None:
    """Print the document of `plan spares`."""
    show_lines(_lines(found), _BOLD)


def _lines(found: SparesDocument) -> Iterator[Line]:
    yield (
        "Failing",
        f"each replica every {duration_text(found.mtbf_s)}, back {duration_text(found.restart_s)} later: up "
        f"{found.availability:.3%} of the time; {found.requests_per_s:.3g} requests/s, {', '.join(found.slo)}",
    )
    yield _BOLD[found.spares is None], _answer(found)
    yield "Formula", f"{found.formula} spare: enough are up but for the share of requests that may be late"
    for row in found.tried:
        yield "Simulated", _row(row)
    if found.held_if_slow is not None:
        yield "", f"were every step as slow as may be expected (1 in 20): {found.held_if_slow:.1%} of windows held"
    if found.usd_per_hour is not None:
        yield "Cost", f"${found.usd_per_hour:.2f}/h, ${found.usd_per_hour_planned:.2f}/h as planned"
    yield "Note", "replicas fail one by one: what takes several at once, a node or a release, is not in here"


def _answer(found: SparesDocument) -> str:
    windows = f"in {found.windows_must_hold:.0%} of windows of {duration_text(found.window_s)}"
    if found.spares is None or found.replicas is None:
        return f"not even {found.most} spare replicas hold the objectives {windows}"
    count = f"{found.spares} spare beside the {found.needed} needed"
    more = found.replicas - found.planned_replicas
    planned = "as planned" if not more else f"{abs(more)} {'more' if more > 0 else 'fewer'} than planned"
    return f"{count}, {found.replicas} replicas ({planned}), hold the objectives {windows}"


def _row(row: SparesTried) -> str:
    span = f"{row.ci_low:.1%} to {row.ci_high:.1%}"
    shares = {down: "unknown" if share is None else f"{share:.2%}" for down, share in row.late_by_down.items()}
    late = ", ".join(f"{share} with {down} down" for down, share in shares.items())
    verdict = "holds" if row.holds else "fails"
    up = f"enough up {row.enough_up:.3%} of the time"
    return f"{row.spares} spare: {row.windows_held:.1%} of windows held ({span}): {verdict}; {up}; late: {late}"
