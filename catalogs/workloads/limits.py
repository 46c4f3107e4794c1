"""The largest and smallest numbers of a load: far beyond practical use, and still finite in every calculation."""

from __future__ import annotations

import math
from typing import Final

from catalogs.errors import InputError

#: The highest count of requests, users or tokens. It fits arrays of 64-bit numbers.
MOST_COUNT: Final = 1_000_000_000

#: The highest number of requests of one simulation, which holds them in memory.
MOST_REQUESTS: Final = 10_000_000

#: The lowest rate, requests per second: times between requests stay finite in double precision.
LEAST_REQUESTS_PER_S: Final = 1e-6

#: The highest rate, requests per second: times between requests stay finite in double precision.
MOST_REQUESTS_PER_S: Final = 1e9

#: The highest rate of a question to the planner, which also simulates rates above it.
MOST_PLANNED_PER_S: Final = 1e8


def check_rate(requests_per_s: object, name: str = "a rate", most_per_s: float = MOST_REQUESTS_PER_S) -> float:
    """Return a rate in requests per second.

    Args:
        requests_per_s: The rate; any number of Python or numpy.
        name: What the message calls it, for example "--rate".
        most_per_s: The highest rate.

    Raises:
        InputError: It is not a number, or not between the lowest and the highest rate.
    """
    try:
        rate = math.nan if isinstance(requests_per_s, str | bool) else float(requests_per_s)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        rate = math.inf if isinstance(requests_per_s, int) else math.nan
    least, most = f"{LEAST_REQUESTS_PER_S:g}", f"{most_per_s:.0f}"
    if not rate > 0:
        raise InputError(f"{name} is a number of requests per second above zero", requests_per_s, "1")
    if rate < LEAST_REQUESTS_PER_S:
        raise InputError(f"{name} is a number of requests per second of at least {least}", requests_per_s, least)
    if rate > most_per_s:
        rule = f"{name} is a number of requests per second of at most {most_per_s:,.0f}"
        raise InputError(rule, requests_per_s, most)
    return rate
