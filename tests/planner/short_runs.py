"""Answers and studies from short simulated runs, for tests of what an answer states rather than of its precision.

The figures of an answer must agree with each other, and a study must answer in full, for runs of any length. So every
test of the planner has short runs, except slow tests and those that need runs of the usual length: these are marked
`usual_runs`. `pytest --usual-runs` gives the others the usual length too, where they do not call `shortened`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from planner.evaluation.closed_forms import queueing
from planner.evaluation.run_sizes import RunSizes
from planner.studies import binding, sensitivity

#: Requests of the longest runs with few requests in flight.
MOST_REQUESTS = 100

#: Runs with many requests in flight have up to this many times as many.
MOST_LONGER = 2

#: What sets the lengths of runs: the sizes of runs, how much longer they may get, and the least lengths of studies.
_PLACES: Final = (
    (RunSizes, "for_slos"),
    (queueing, "_MAX_LONGER"),
    (binding, "LEAST_REQUESTS"),
    (sensitivity, "SETTLED"),
)

_USUAL: Final = tuple(vars(owner)[name] for owner, name in _PLACES)

_usual_sizes = RunSizes.for_slos


class _Lengths:
    """Lengths of runs that a test or a fixture has asked for: the values of `_PLACES`."""

    def __init__(self, values: Sequence[object]) -> None:
        self.values = values


#: The lengths that were asked for and have not ended, the present ones last. A fixture may end after the test that set
#: it up, so the first does not always end last.
_asked: list[_Lengths] = []


@contextmanager
def shortened(most_requests: int = MOST_REQUESTS) -> Iterator[None]:
    """Simulate at most `most_requests` in every run with few requests in flight, of a search, answer or study."""

    def sizes(*slos: Any) -> RunSizes:
        return _usual_sizes(*slos).at_most(most_requests)

    with _lengths(_Lengths((staticmethod(sizes), MOST_LONGER, most_requests, most_requests))):
        yield


@contextmanager
def usual() -> Iterator[None]:
    """Simulate as many requests as users do, also in a test whose runs are short."""
    with _lengths(_Lengths(_USUAL)):
        yield


@contextmanager
def _lengths(lengths: _Lengths) -> Iterator[None]:
    _asked.append(lengths)
    _apply()
    try:
        yield
    finally:
        _asked.remove(lengths)
        _apply()


def _apply() -> None:
    values = _asked[-1].values if _asked else _USUAL
    for (owner, name), value in zip(_PLACES, values, strict=True):
        setattr(owner, name, value)
