"""Records of catalog entries as tables on the terminal."""

from __future__ import annotations

from typing import Any

from catalogs.ui.terminal import PIPED_LIST, open_console


def print_rows(title: str, rows: list[dict[str, Any]]) -> None:
    """Print records as a table with one row for each."""
    from rich import box
    from rich.table import Table

    table = Table(title=f"{title} ({len(rows)})", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for key in rows[0] if rows else ():
        number = all(isinstance(row[key], int | float) for row in rows)
        table.add_column(key, justify="right" if number else "left", overflow="fold", no_wrap=key == "name")
    for row in rows:
        table.add_row(*map(_text, row.values()))
    open_console(PIPED_LIST).print(table)


def print_record(record: dict[str, Any]) -> None:
    """Print one record, and its lists of records as tables below it."""
    from rich import box
    from rich.table import Column, Table

    table = Table(Column(), Column(overflow="fold"), show_header=False, box=box.SIMPLE, pad_edge=False)
    tables = {key: value for key, value in record.items() if isinstance(value, list) and value and _is_record(value[0])}
    for key, value in record.items():
        if value not in ("", [], ()) and key not in tables:
            table.add_row(key, _text(value))
    open_console(PIPED_LIST).print(table)
    for key, rows in tables.items():
        print_rows(key, rows)


def _is_record(value: Any) -> bool:
    return isinstance(value, dict)


def _text(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(v)}" for key, v in value.items() if v != "")
    if isinstance(value, list | tuple):
        return ", ".join(_text(v) for v in value)
    return str(value)
