"""HTML pages: one self-contained file from sections of text, tables and charts.

All text that is passed in is escaped. plotly.js is included once, at the end of the page. A content security policy
forbids the page to load anything, so it opens offline. Light or dark mode follows the reader's system; print is light.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from catalogs.errors import InputError
from catalogs.io import yaml_files

#: The script that fits charts into their place, in the folder `data/page`.
CHART_FIT: Final = "chart_fit.js"

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"


@dataclass(frozen=True, slots=True)
class Markup:
    """HTML that is safe to put in a page; only the functions of this module create it."""

    text: str


@dataclass(frozen=True, slots=True)
class PageSection:
    """A heading and its content; `name` is its entry in the table of contents, where it differs from the title."""

    title: str
    parts: Sequence[Markup]
    name: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """A page: title and subtitle are at its top, and the footer is in small print."""

    title: str
    subtitle: str
    sections: Sequence[PageSection]
    footer: str = ""
    language: str = "en"


def footer_of(command: str) -> str:
    """Return the footer of a page that a command writes."""
    return f"Written by {command}. This file loads no external resources."


def paragraph(text: str) -> Markup:
    """Return a paragraph of plain text."""
    return Markup(f"<p>{_safe(text)}</p>")


def note(text: str) -> Markup:
    """Return a highlighted paragraph, such as a caution or the reason why something is missing."""
    return Markup(f'<p class="note">{_safe(text)}</p>')


def bullets(lines: Iterable[str]) -> Markup:
    """Return a bulleted list, or nothing where there are no lines."""
    items = "".join(f"<li>{_safe(line)}</li>" for line in lines)
    return Markup(f"<ul>{items}</ul>" if items else "")


def command(text: str) -> Markup:
    """Return a command line to copy; long ones wrap."""
    return Markup(f'<pre class="command">{_safe(text)}</pre>')


def cards(pairs: Iterable[tuple[str, str]]) -> Markup:
    """Return the most important figures as pairs of label and value."""
    items = "".join(f"<div><dt>{_safe(k)}</dt><dd>{_safe(v)}</dd></div>" for k, v in pairs)
    return Markup(f'<dl class="cards">{items}</dl>')


def table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "", words: int = 1) -> Markup:
    """Return a table of text; the first `words` columns are aligned left, the others right."""

    def line(cells: Sequence[str], tag: str) -> str:
        kinds = ["" if i < words else ' class="number"' for i in range(len(cells))]
        return "".join(f"<{tag}{k}>{_safe(c)}</{tag}>" for k, c in zip(kinds, cells, strict=True))

    body = "".join(f"<tr>{line(r, 'td')}</tr>" for r in rows)
    top = f"<caption>{_safe(caption)}</caption>" if caption else ""
    whole = f"<table>{top}<thead><tr>{line(head, 'th')}</tr></thead><tbody>{body}</tbody></table>"
    return Markup(f'<div class="wide">{whole}</div>')


def chart(figure: Any, caption: str, height: int = 440) -> Markup:
    """Return a plotly figure with its caption; `height` is in pixels, and the width is that of the page."""
    drawn = json.loads(figure.to_json())
    drawn.get("layout", {}).pop("template", None)  # replaced by the theme of the page
    data = json.dumps(drawn, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    place = f'<div class="plot" style="height:{height}px" role="img" aria-label="{_safe(caption)}"></div>'
    script = f'<script type="application/json">{data}</script>'
    return Markup(f"<figure>{place}{script}<figcaption>{_safe(caption)}</figcaption></figure>")


def render(page: Page) -> str:
    """Return the whole HTML file.

    Raises:
        InputError: The page has a chart and plotly is not installed.
    """
    body = "".join(
        f'<section id="s{i}"><h2>{_safe(s.title)}</h2>{"".join(p.text for p in s.parts)}</section>'
        for i, s in enumerate(page.sections)
    )
    links = "".join(f'<a href="#s{i}">{_safe(s.name or s.title)}</a>' for i, s in enumerate(page.sections))
    scripts = f"<script>{_plotly()}</script><script>{_script()}</script>" if 'class="plot"' in body else ""
    return (
        f'<!doctype html><html lang="{_safe(page.language)}"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{_safe(page.title)}</title>'
        f"<style>{_part('page.css')}</style></head><body><header><h1>{_safe(page.title)}</h1>"
        f"<p>{_safe(page.subtitle)}</p><nav>{links}</nav></header><main>{body}</main>"
        f"<footer>{_safe(page.footer)}</footer>{scripts}</body></html>\n"
    )


def need_plotly() -> None:
    """Check that plotly is installed.

    Raises:
        InputError: Plotly is missing; the message states how to install it.
    """
    try:
        import plotly  # noqa: F401
    except ImportError:
        raise InputError("reports need plotly, which is not installed", hint="pip install '.[report]'") from None


def _safe(text: str) -> str:
    return html.escape(str(text), quote=True)


def _part(name: str) -> str:
    return (yaml_files.DATA / "page" / name).read_text(encoding="utf-8")


def _script() -> str:
    """Return the script that draws the charts. What fits them is a module of the pages of `plan serve`, too."""
    return _part(CHART_FIT).replace("export ", "") + _part("page.js")


@cache
def _plotly() -> str:
    need_plotly()
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())
