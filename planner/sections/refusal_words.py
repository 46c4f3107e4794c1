"""A refused request in words, on the screens and pages of all kinds of models.

Both state why no plan meets the request, the objectives, the closest plan, the changes that would meet the objectives,
and how many candidates each reason rules out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from catalogs.ui.html_page import Markup, PageSection, bullets, cards, note, table
from catalogs.ui.terminal import Line
from planner.answer.answer_schema import SearchSummary, Suggestion

#: What is printed where an answer of an earlier version has no reason.
NO_REASON: Final = "no reason recorded"


def refused_lines(
    reason: str,
    objectives: Iterable[str],
    closest: Iterable[Line],
    changes: Sequence[Suggestion],
    tried: str,
) -> Iterator[Line]:
    """Yield the lines of a screen between the question and the candidates that are ruled out.

    Args:
        reason: The binding constraint.
        objectives: The objectives in words.
        closest: The lines about the closest plan.
        changes: Changes that would meet the objectives.
        tried: The changes that were tried, for a request that none of them meets.
    """
    yield "", ""
    yield "NO", reason
    for words in objectives:
        yield "Objective", words
    yield from closest
    for i, change in enumerate(changes):
        yield "" if i else "Would meet", f"{change.change} (checked by {change.verified_by})"
    if not changes:
        yield "Would meet", f"no change that was tried meets the objectives ({tried})"


def ruled_out_lines(reasons: Mapping[str, int], search: SearchSummary) -> Iterator[Line]:
    """Yield a line for each reason why candidates are not the answer."""
    for i, (reason, n) in enumerate(reasons.items()):
        yield "" if i else "Candidates", f"{n} of {search.n_space} {reason}"


def refused_section(
    reason: str,
    objectives: Sequence[str],
    closest: Iterable[Markup],
    changes: Sequence[Suggestion],
    search: SearchSummary,
) -> PageSection:
    """Return the section of a page that stands in place of the recommended plan."""
    parts = [cards([("Recommended", "NO deployment"), ("Reason", reason)]), bullets(objectives), *closest]
    if changes:
        rows = [(change.change, change.verified_by) for change in changes]
        parts.append(table(("Would meet the objectives", "Checked by"), rows, words=2))
    else:
        parts.append(note("No change that was tried meets the objectives."))
    if search.bounded_out:
        reasons = [(why, f"{n:,}") for why, n in search.main_reasons.items()]
        parts.append(table(("Ruled out by bounds, because", "Candidates"), reasons))
    return PageSection("Result", parts)


def unexplained_section() -> PageSection:
    """Return the section of a page about an answer with neither a plan nor a reason."""
    return PageSection("Recommended", [note(f"No plan, and {NO_REASON}.")])


def refused_view(
    reason: str,
    stages: Iterable[str],
    ways: Iterable[tuple[Suggestion, Mapping[str, Any]]],
    reasons: Mapping[str, int],
    closest: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return what the plan page shows of a refusal.

    Args:
        reason: The binding constraint.
        stages: What takes the time of the missed objective, one sentence each.
        ways: Changes that would meet the objectives, each with the keys of the question that it sets.
        reasons: The number of candidates by the reason why they are not the answer.
        closest: The closest plan: its words, its table of objectives, and the figure of its memory.
    """
    return {
        "reason": reason,
        "stages": [capital(stage) for stage in stages],
        "ways": [
            {"words": capital(change.change), "verified_by": change.verified_by, "changes": dict(keys)}
            for change, keys in ways
        ],
        "reasons": [[why, n] for why, n in reasons.items()],
        "closest": None if closest is None else dict(closest),
    }


def capital(text: str) -> str:
    """Return a text with a capital letter at its beginning."""
    return text[:1].upper() + text[1:]
