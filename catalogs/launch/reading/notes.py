"""Notes of the reader of start commands on each flag."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final, Literal

#: "read": the flag states keys of deployment.yaml. "no effect": the times of requests do not depend on it. "not
#: simulated": they may, and the simulation does not show it. "unknown": the engine has no such flag. "deprecated": the
#: engine does nothing for it. "trap": the flag does something else than it seems to. "assumed": what the command leaves
#: open, and what is taken for it.
Kind = Literal["read", "no effect", "not simulated", "unknown", "deprecated", "trap", "assumed"]

#: The kinds that a user should read, the most important first.
WORTH_READING: Final[tuple[Kind, ...]] = ("trap", "unknown", "not simulated", "deprecated", "assumed")


@dataclass(frozen=True, slots=True)
class Note:
    """One sentence about a part of a command; `flag` is that part as it is written."""

    kind: Kind
    flag: str
    text: str

    @property
    def line(self) -> str:
        """Return the note as one line of a screen."""
        head = f"{self.flag}: " if self.flag else ""
        return f"{self.kind}: {head}{self.text}"

    def document(self) -> dict[str, str]:
        """Return the note as JSON data."""
        return asdict(self)
