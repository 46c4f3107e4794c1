"""The glossary: one meaning and one source for each term, and paths that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
GLOSSARY = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")


def entries() -> list[list[str]]:
    """Return the cells of every row: term, meaning, path, source."""
    rows = [line for line in GLOSSARY.splitlines() if line.startswith("| ") and not line.startswith("| Term ")]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


def test_every_entry_is_a_sentence_with_a_source() -> None:
    found = entries()
    assert len(found) >= 120
    assert [row for row in found if len(row) != 4 or not all(row)] == []
    assert [term for term, meaning, _, _ in found if not re.fullmatch(r"[A-Z].*[.]", meaning)] == []


def test_no_term_has_two_entries() -> None:
    terms = [re.sub(r" \(.*", "", row[0]).lower() for row in entries()]
    assert sorted({term for term in terms if terms.count(term) > 1}) == []


def test_every_path_of_the_glossary_exists() -> None:
    paths = [row[2].strip("`") for row in entries()]
    assert [path for path in paths if not (ROOT / path).exists()] == []
