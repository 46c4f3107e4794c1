"""The part of a page that a benchmark writes, between the comments `<!-- NAME: begin -->` and `<!-- NAME: end -->`."""

from __future__ import annotations

from pathlib import Path

from catalogs.errors import InputError
from catalogs.io.output_files import write_atomically


def write_section(page: Path, name: str, text: str) -> None:
    """Replace the part of a page between its two comments.

    Raises:
        InputError: The page cannot be read or written, or does not have each comment once.
    """
    before, after = around_section(page, name)
    write_atomically(page, [before, "\n", text.removesuffix("\n"), "\n", after])


def around_section(page: Path, name: str) -> tuple[str, str]:
    """Return the text before the part, with its first comment, and the text after it, with its last comment.

    Raises:
        InputError: The page cannot be read, or does not have each comment once.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    try:
        content = page.read_text()
    except OSError as error:
        raise InputError(f"--page names a page that can be read ({error.strerror})", str(page)) from None
    before, begin_found, rest = content.partition(begin)
    _, end_found, after = rest.partition(end)
    if not (begin_found and end_found) or content.count(begin) + content.count(end) > 2:
        raise InputError(f"--page names a page with `{begin}` and `{end}`, once each", str(page), "docs/accuracy.md")
    return before + begin, end + after
