"""What `plan deploy` wrote, on the terminal."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Final

from catalogs.console import PIPED
from planner.deploy.package import Package

_LABEL: Final = 10


def show(package: Package, folder: Path) -> None:
    """Files, steps, and what to mind."""
    names = ", ".join(sorted(package.files))
    _print("Deploys", package.words)
    _print("Wrote", f"{folder}: {names}")
    for i, step in enumerate(("cd " + str(folder), *package.steps)):
        print(f"{'Start' if i == 0 else '':<{_LABEL}}{step}")  # a command is copied: never broken
    _print("Verify", "./verify.sh")
    for note in package.notes:
        _print("Note", note)


def _print(label: str, text: str) -> None:
    rows = textwrap.wrap(text, PIPED - _LABEL, break_long_words=False, break_on_hyphens=False)
    for i, row in enumerate(rows):
        print(f"{label if i == 0 else '':<{_LABEL}}{row}")
