"""What must hold after every schedule and at the end of a run, whatever the policy. Raises LawBroken."""

from __future__ import annotations

from typing import Final

#: Parts of a link or of a transfer that rounding may make of nothing.
ROUNDING: Final = 1e-9


class InvariantViolation(AssertionError):
    """An invariant of the simulator does not hold: a bug in a policy, not bad input."""


def require(holds: bool, text: str) -> None:
    if not holds:
        raise InvariantViolation(text)
