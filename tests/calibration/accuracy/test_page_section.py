"""The part of a page that a benchmark writes: the rest stays, and a page without such a part is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from catalogs.errors import InputError

ROOT = Path(__file__).parents[3]

BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"


def test_the_rest_of_a_page_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from page_section import write_section

    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for text in ("new", "new\n"):
        write_section(page, "peers", text)
        assert page.read_text() == f"before\n{BEGIN}\nnew\n{END}\nafter\n"


@pytest.mark.parametrize(
    "content", ["", BEGIN, END, f"{END}{BEGIN}", f"{BEGIN}{END}{BEGIN}", f"{BEGIN}{END}{END}", None]
)
def test_a_page_without_the_part_is_refused(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from page_section import write_section

    page = tmp_path / "page.md"
    if content is not None:
        page.write_text(content)
    with pytest.raises(InputError, match="--page names a page"):
        write_section(page, "peers", "new")
    assert (page.read_text() if page.exists() else None) == content


@pytest.mark.parametrize(
    ("section", "benchmark"),
    [("peers", "peers"), ("coverage", "stated_error"), ("budget", "error_budget"), ("tables", "accuracy")],
)
def test_the_page_of_accuracy_has_the_part_of_each_benchmark(
    section: str, benchmark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from page_section import around_section

    assert f'"{section}"' in (ROOT / "benchmarks" / f"{benchmark}.py").read_text()
    before, after = around_section(ROOT / "docs" / "accuracy.md", section)
    assert before.endswith("begin -->")
    assert after.startswith("<!--")
