"""The coverage that trust.md shows is that of the page which its command writes."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def rows(page: str, start: str) -> list[list[str]]:
    """The numbers of each table row that starts like this, percent signs left out."""
    lines = [line for line in (DOCS / page).read_text(encoding="utf-8").splitlines() if re.match(start, line)]
    return [re.findall(r"\d+(?:\.\d+)?", line) for line in lines]


def test_the_coverage_by_waiting_share_is_that_of_the_accuracy_page() -> None:
    generated = rows("accuracy.md", r"\| closed loop, vllm \| \d+ % to \d+ % \|")
    assert len(generated) == 3
    assert rows("trust.md", r"\| \d+ to \d+ % \| \d+ \|") == generated
