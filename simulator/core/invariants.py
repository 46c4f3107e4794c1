"""Support for invariants that hold after every schedule and at the end of a run, under every policy."""

from __future__ import annotations

from typing import Final

#: Tolerated rounding error, as a fraction of a link's capacity or of a transfer's size.
ROUNDING: Final = 1e-9


class InvariantViolation(AssertionError):
    """An invariant of the simulator does not hold, which indicates a bug in a policy and not invalid input."""


def require(holds: bool, text: str) -> None:
    """Raise InvariantViolation with `text` unless `holds` is true."""
    if not holds:
        raise InvariantViolation(text)
