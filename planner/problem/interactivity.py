"""Interactivity, the output tokens per second of one user, as an objective.

`interactivity.p90=30` means that 90 % of the requests receive at least 30 output tokens per second after their first.
Interactivity is the inverse of the time per output token, so this is the objective `tpot.p90=33.3ms`.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from catalogs.arrays import FloatArray
from catalogs.errors import InputError

#: The name in objectives.
INTERACTIVITY: Final = "interactivity"

_RATE = re.compile(r"(\d+\.?\d*|\.\d+)\s*(tok(ens)?/s|/s)?")

#: Rates beyond which an objective is a mistake, tokens per second.
_LEAST_PER_S, _MOST_PER_S = 1e-4, 1e6


def tpot_limit_s(limit: str) -> float:
    """Return the time per output token that an objective of interactivity allows, in seconds.

    Raises:
        InputError: The limit is not a number of tokens per second.
    """
    match = _RATE.fullmatch(limit.strip().lower())
    rate = float(match[1]) if match else 0.0
    if rate <= 0:
        raise InputError("interactivity is a number of output tokens per second above zero", limit, "30")
    if not _LEAST_PER_S <= rate <= _MOST_PER_S:
        rule = f"interactivity is from {_LEAST_PER_S:g} to {_MOST_PER_S:,.0f} output tokens per second"
        raise InputError(rule, limit, f"{_LEAST_PER_S:g}" if rate < _LEAST_PER_S else f"{_MOST_PER_S:.0f}")
    return 1.0 / rate


def rate_text(limit_s: float) -> str:
    """Return the rate of a limit of the time per output token, in seconds, so that `tpot_limit_s` reads it back.

    That is exact for limits which `tpot_limit_s` returned for rates of up to 12 digits, and a rounding error otherwise.
    """
    short = f"{1.0 / limit_s:.12g}"
    return short if tpot_limit_s(short) == limit_s else repr(1.0 / limit_s)


def interactivity(tpot_s: FloatArray, share: float) -> float | None:
    """Return the output tokens per second that a share of the requests reach; None without requests.

    Args:
        tpot_s: Time per output token of each request, in seconds. Shape (n,).
        share: The share, for example 0.9.
    """
    if not len(tpot_s):
        return None
    value_s = float(np.quantile(tpot_s, share, method="higher"))
    return 1.0 / value_s if value_s > 0 else None
