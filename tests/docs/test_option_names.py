"""No text tells users to type an option that only works with a notice."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from planner.problem.request_keys import request_keys

ROOT = Path(__file__).parents[2]

#: The page that explains former options.
EXPLAINED = "scenarios.md"

#: Texts about another command that has an option of the same name itself: `plan matrix --distributed`.
OWN_OPTION = {"docs/matrix.md", "planner/cli/commands/matrix.py", "planner/matrix/cell_workers.py"}


def texts() -> list[Path]:
    sources = (path for package in ("catalogs", "planner") for path in (ROOT / package).rglob("*.py"))
    return [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *sources]


@pytest.mark.parametrize("option", sorted({o for k in request_keys().values() for o in k.former_options}))
def test_texts_name_the_key_of_a_former_option(option: str) -> None:
    named = re.compile(rf"(?<![\w-]){re.escape(option)}(?![\w-])")
    stale = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in texts()
        if path.name != EXPLAINED and not (option == "--distributed" and str(path.relative_to(ROOT)) in OWN_OPTION)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if named.search(line) and "former=" not in line
    ]
    assert stale == []
