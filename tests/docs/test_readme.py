"""The links of README.md lead somewhere, its outputs are of this version, and the site lists every page."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_relative_link_exists() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", README) if "://" not in link]
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_site_lists_every_page_once() -> None:
    pages = re.findall(r"\b([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(pages) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))


def labels(text: str) -> set[str]:
    """Return the labels of the outputs in a text: each fills the first twelve columns of its line."""
    blocks = re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return {label.strip() for block in blocks for label in re.findall(r"^([A-Z].{10}) (?=\S)", block, re.MULTILINE)}


def unknown_labels(text: str) -> set[str]:
    """Return the labels that no screen of the planner prints."""
    source = "\n".join(file.read_text(encoding="utf-8") for file in sorted((ROOT / "planner").rglob("*.py")))
    return {label for label in labels(text) if f'"{label}"' not in source}


def test_outputs_have_the_labels_of_the_screens() -> None:
    assert len(labels(README)) > 20
    assert unknown_labels(README) == set()


def test_a_label_of_a_former_version_would_be_seen() -> None:
    assert unknown_labels(README.replace("\nCandidates  ", "\nRuled out   ")) == {"Ruled out"}
