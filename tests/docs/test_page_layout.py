"""Pages are rendered as they are meant: no sentence becomes a block of code, and no list or table stays plain text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

markdown = pytest.importorskip("markdown")  # part of the extra `docs`

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

#: Markup that a reader sees only if Markdown did not understand it: an item of a list, a table, bold text, a link.
MARKUP = re.compile(r"^\s*(?:- |\* |\d+\. |\|.*\|$)|\*\*|\]\(", re.MULTILINE)
#: A block of code that is prose: its first line is long and begins as a sentence does, without two spaces in a row.
SENTENCE = re.compile(r"(?!.*  )[A-Z][a-z]* [a-z]\S*(?: \S+){8}")


def faults(text: str) -> list[str]:
    """What a page shows in another form than its author meant."""
    # Blocks between fences are code by intent, whatever they hold.
    text = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.MULTILINE | re.DOTALL)
    page = markdown.markdown(text, extensions=["tables"])
    code = re.findall(r"<pre><code>(.*?)</code></pre>", page, re.DOTALL)
    found = [block.strip().splitlines()[0] for block in code if SENTENCE.match(block.strip().splitlines()[0])]
    plain = re.sub(r"<[^>]+>", "", re.sub(r"<(pre|code|h\d)>.*?</\1>", "", page, flags=re.DOTALL))
    return found + [match.group() for match in MARKUP.finditer(plain)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_shows_no_markup_and_no_sentence_as_code(page: Path) -> None:
    assert faults(page.read_text(encoding="utf-8")) == []


def test_an_indented_sentence_and_an_item_without_a_blank_line_would_be_seen() -> None:
    sentence = "The errors that remain with known limits are mostly errors of prompts."
    assert faults(f"- One.\n\n    Two.\n\n        {sentence}\n") == [sentence]
    assert faults("- One.\n\n    Two.\n- Three.\n") == ["- "]
    assert faults("- One.\n\n    Two.\n\n- Three.\n") == []
    assert faults("    plan --model llama3.1-8b\n\n| a | b |\n|---|---|\n| 1 | 2 |\n") == []
