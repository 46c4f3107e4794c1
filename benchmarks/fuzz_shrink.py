"""Reduces a failing case while it still fails: to fewer keys, fewer requests and smaller numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from fuzz_cases import Case

Fails = Callable[[Case], bool]
#: Longest time to reduce one case, seconds. A judgement: a soak run has many cases.
MOST_SHRINK_S: Final = 40.0
#: Keys that a valid case needs.
NEEDED: Final = ("model", "hardware", "arrivals", "input_tokens", "output_tokens", "requests", "trace")


def shrink(case: Case, fails: Fails, most_s: float = MOST_SHRINK_S) -> Case:
    """Return the smallest case that still fails and that is found within `most_s` seconds."""
    until_s = time.monotonic() + most_s
    found = True
    while found and time.monotonic() < until_s:
        found = False
        for smaller in smaller_cases(case):
            if time.monotonic() > until_s:
                break
            if fails(smaller):
                case, found = smaller, True
                break
    return case


def smaller_cases(case: Case) -> Iterator[Case]:
    """Yield cases with one reduction each, the largest reductions first."""
    if case.options:
        yield replace(case, options={})
    lines = case.trace.splitlines(keepends=True)
    if len(lines) > 2:
        yield replace(case, trace="".join(lines[: 1 + len(lines) // 2]))
        yield replace(case, trace="".join(lines[:1] + lines[1 + len(lines) // 2 :]))
        yield replace(case, trace="".join(lines[:-1]))
    for data in _less(case.deployment):
        yield replace(case, deployment=data)
    for data in _less(case.workload):
        yield replace(case, workload=data)


def _less(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the block without each of its keys, then with each value reduced."""
    for key in data:
        if key not in NEEDED:
            yield {k: v for k, v in data.items() if k != key}
    for key, value in data.items():
        for smaller in _smaller(value):
            yield data | {key: smaller}


def _smaller(value: Any) -> Iterator[Any]:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return
    if isinstance(value, dict):
        yield from _less(value)
    elif isinstance(value, list):
        for i in range(len(value)):
            yield value[:i] + value[i + 1 :]
        for i, item in enumerate(value):
            for smaller in _smaller(item):
                yield [*value[:i], smaller, *value[i + 1 :]]
    elif isinstance(value, int) and value > 1:
        yield from dict.fromkeys((1, value // 2, value - 1))
    elif isinstance(value, float) and value > 1.0:
        yield float(round(value / 2))
