"""The service level of requests: priority, deadline of the first token, and timeout of the client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Annotated, Any, Final

import numpy as np
from pydantic import Field, PositiveFloat

from catalogs.arrays import FloatArray, IntArray
from catalogs.errors import InputError
from catalogs.io.yaml_files import YamlBlock, check_keys
from catalogs.workloads.arrivals import Weight

#: Columns of a trace, and keys of a service class.
COLUMNS: Final = ("priority", "deadline_s", "timeout_s")

#: Largest priority, so that it fits arrays of 64-bit integers.
MOST_PRIORITY: Final = 10**12


@dataclass(frozen=True, slots=True)
class ServiceLevels:
    """The service level of n requests; arrays have shape (n,), seconds count from arrival, and inf means none."""

    priority: IntArray  # lower is served first, as with vLLM
    deadline_s: FloatArray  # latest time of the first token
    timeout_s: FloatArray  # when the client cancels

    def __getitem__(self, rows: Any) -> ServiceLevels:
        """Return the service levels of some requests, by index."""
        return ServiceLevels(self.priority[rows], self.deadline_s[rows], self.timeout_s[rows])

    @classmethod
    def of(cls, columns: Mapping[str, Sequence[Any]], where: str) -> ServiceLevels | None:
        """Return the service levels in the columns of a trace, or None where it has none of them.

        An empty cell means priority 0, no deadline or no timeout.

        Raises:
            InputError: A cell is not a number or out of range; the message names the row.
        """
        if not any(name in columns for name in COLUMNS):
            return None
        n = len(next(iter(columns.values())))
        cells = {name: columns.get(name, [None] * n) for name in COLUMNS}
        priority, deadline_s, timeout_s = (_numbers(cells[name], name, where) for name in COLUMNS)
        return cls(priority.astype(np.int64), deadline_s, timeout_s)


def _numbers(values: Sequence[Any], name: str, where: str) -> FloatArray:
    default = 0.0 if name == "priority" else inf
    found = np.array([default if is_empty(v) else number_or_nan(v) for v in values])
    wrong = ~(np.abs(found) <= MOST_PRIORITY) | (found != np.floor(found)) if name == "priority" else ~(found > 0)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        rule = f"a whole number of at most {MOST_PRIORITY:,}" if name == "priority" else "positive seconds"
        raise InputError(f"{where}: {name} of row {row + 1} must be {rule}", values[row])
    return found


def is_empty(cell: Any) -> bool:
    """Return whether a cell holds nothing: null, only spaces, or NaN (the null of tables in parquet)."""
    return cell is None or (isinstance(cell, str) and not cell.strip()) or bool(cell != cell)


def number_or_nan(value: Any) -> float:
    """Return the number in a cell of a trace, or NaN where it holds none; true and false are no numbers."""
    try:
        return float("nan") if isinstance(value, bool) else float(value)
    except (ValueError, TypeError, OverflowError):
        return float("nan")


class ServiceClass(YamlBlock):
    """A class of requests; `share` is its fraction of all requests, relative to the shares of the other classes."""

    share: Weight
    priority: Annotated[int, Field(ge=-MOST_PRIORITY, le=MOST_PRIORITY)] = 0
    deadline_s: PositiveFloat | None = None
    timeout_s: PositiveFloat | None = None


def parse_classes(data: object, where: str) -> tuple[ServiceClass, ...]:
    """Return the checked entries under `classes`.

    Raises:
        InputError: An entry breaks a rule; the message names the entry and the key.
    """
    if not isinstance(data, list) or not data:
        raise InputError(f"{where}: classes must be a list", data, "[{share: 0.2, priority: 0}, …]")
    return tuple(check_keys(ServiceClass, item, f"classes[{i}]") for i, item in enumerate(data))


def draw_service_levels(classes: Sequence[ServiceClass], rng: np.random.Generator, n: int) -> ServiceLevels:
    """Return the service levels of n requests, each of a random class."""
    shares = np.array([c.share for c in classes])
    chosen = rng.choice(len(classes), n, p=shares / shares.sum())
    return ServiceLevels(
        np.array([c.priority for c in classes])[chosen],
        np.array([c.deadline_s or inf for c in classes])[chosen],
        np.array([c.timeout_s or inf for c in classes])[chosen],
    )
