"""The capacity of a deployment in agents: the most for which it meets the objectives."""

from __future__ import annotations

from typing import Final

from planner.agents.choices import Choice
from planner.agents.rating import Judge
from planner.agents.search import QUICK_TURNS

#: The search for a capacity ends when its bounds differ by at most this factor. A judgement of cost: runs of agents are
#: long.
TOLERANCE: Final = 1.1

#: The search for a capacity ends at this multiple of the requested agents. A judgement: many more agents need other
#: hardware.
MOST_FACTOR: Final = 8


def capacity(judge: Judge, choice: Choice, agents: int, met: bool) -> int:
    """Return the most agents for which the objectives were found to be met, within a factor TOLERANCE.

    Single short runs state where to search. What is returned has been judged as the answer is, so that a plan for this
    number of agents agrees.

    Args:
        judge: Judges the runs.
        choice: The recommended deployment.
        agents: The agents of the request.
        met: Whether the objectives are met for them.
    """
    most = agents * MOST_FACTOR
    low, failed = (agents, most + 1) if met else (0, agents)
    n = _estimated(judge, choice, low, min(failed, most))
    if n <= low:
        n = _above(low)
    step, bounded = TOLERANCE, met
    while failed - low > 1 and (failed > low * TOLERANCE or failed > most):
        if judge.full(choice, n).met:
            low, bounded = n, True
        else:
            failed = n
        if failed > most:
            n = min(most, _above(low, step))
            step *= step
        elif not bounded:  # nothing is known to be met: what is met may be just below
            n = max(1, min(failed - 1, round(failed / step)))
            step *= step
        else:
            n = min(max(round((max(low, 1) * failed) ** 0.5), low + 1), failed - 1)
    return low


def _above(n: int, step: float = TOLERANCE) -> int:
    """Return the number of agents that is tried next after n, for which the objectives are met."""
    return max(n + 1, round(n * step))


def _estimated(judge: Judge, choice: Choice, low: int, high: int) -> int:
    """Return the most agents from low to high, within a factor TOLERANCE, that meet the objectives in a short run."""

    def meets(n: int) -> bool:
        return judge.rate([(choice, 0)], n, QUICK_TURNS)[0].meets

    n = low
    while low and n < high:
        n = min(high, n * 2)
        if not meets(n):
            high = n
            break
        low = n
    while high > max(low, 1) * TOLERANCE and high - low > 1:
        n = min(max(round((max(low, 1) * high) ** 0.5), low + 1), high - 1)
        if meets(n):
            low = n
        else:
            high = n
    return low
