"""What `plan deploy` wrote, on the terminal."""

from __future__ import annotations

from pathlib import Path

from planner.deploy.package import Package
from planner.terminal import LABEL, beside


def show(package: Package, folder: Path) -> None:
    """Files, steps, and what to mind."""
    names = ", ".join(sorted(package.files))
    _print("Deploys", package.words)
    _print("Wrote", f"{folder}: {names}")
    for i, step in enumerate(("cd " + str(folder), *package.steps)):
        print(f"{'Start' if i == 0 else '':<{LABEL}}{step}")  # a command is copied: never broken
    _print("Verify", "./verify.sh")
    for note in package.notes:
        _print("Note", note)


def _print(label: str, text: str) -> None:
    for row in beside(label, text):
        print(row)
