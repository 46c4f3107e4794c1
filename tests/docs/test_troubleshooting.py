"""Every message that the page on troubleshooting quotes is a message of the program."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")


def program_text() -> str:
    """Return the source of all packages, with strings that continue on the next line joined."""
    files = [f for p in ("catalogs", "calibration", "simulator", "planner") for f in sorted((ROOT / p).rglob("*.py"))]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    return " ".join(re.sub(r'"\s*\n\s*f?"', "", text).split())


def quoted(page: str) -> list[str]:
    """Return the quoted messages in the first cells of all tables."""
    cells = [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| ")]
    return [message.strip() for cell in cells for _, message in re.findall(r"(`+)(.+?)\1(?!`)", cell)]


def unknown(page: str) -> list[str]:
    text = program_text()
    return [message for message in quoted(page) if message not in text]


def test_every_quoted_message_is_in_the_program() -> None:
    assert len(quoted(PAGE)) > 50
    assert unknown(PAGE) == []


def test_a_message_that_no_longer_exists_would_be_seen() -> None:
    assert unknown(PAGE.replace("| `unknown hardware` |", "| `no such hardware at all` |")) == [
        "no such hardware at all"
    ]
