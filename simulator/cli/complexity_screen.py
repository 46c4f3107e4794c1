"""The block `complexity` of OUT.json on the terminal: parts of the latency, normalised latency, fit and bins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from calibration.complexity.length_bins import TokenRange
from calibration.complexity.linear_fit import LatencyLaw
from calibration.complexity.records import PARTS
from catalogs.statistics import QUANTILES
from catalogs.ui.terminal import text_table
from catalogs.ui.words import percent

_STATISTICS = ("mean", *QUANTILES)


def print_complexity(console: Console, block: Mapping[str, Any]) -> None:
    """Print the block `complexity` of OUT.json."""
    if block["parts"]:
        console.print(_parts_table(block))
    console.print(_normalised_table(block))
    for line in fit_lines(block["fit"]):
        console.print(line)
    if block["by_bin"]:
        console.print(bins_table(block["by_bin"]))


def print_comparison(console: Console, block: Mapping[str, Any], first: str, second: str) -> None:
    """Print a comparison of two runs at equal complexity, whose names are given."""
    interval = ""
    if block["ratio_low"] is not None:
        interval = f" (90 % interval {block['ratio_low']:.3g} to {block['ratio_high']:.3g} with independent requests)"
    console.print(
        f"at equal complexity the mean end-to-end time of {second} is {block['ratio']:.3g} times that of {first}"
        f"{interval}; {percent(block['covered'])} of requests lie in bins that both have"
    )
    fitted = "" if block["fit_ratio"] is None else f"; by the linear fits {block['fit_ratio']:.3g} times"
    console.print(f"without regard to lengths {block['raw_ratio']:.3g} times{fitted}")
    console.print(_grid(block["by_bin"], f"{second} / {first}\ninput", _ratio_cell))


def fit_lines(fit: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the linear laws of the end-to-end time, the mean first."""
    if fit is None:
        yield "no fit of end-to-end time: there are too few requests"
        return
    explained = "" if fit["explained"] is None else f", explains {percent(fit['explained'])} of the variance"
    half = f"half of the requests within {percent(fit['relative_error']['p50'])} of it"
    yield f"end-to-end time = {LatencyLaw(**fit['mean']).words} (mean{explained}; {half})"
    for name, law in fit["quantiles"].items():
        yield f"  {name} = {LatencyLaw(**law).words}"


def range_words(block: Mapping[str, float | None]) -> str:
    """Return a range of lengths of a block of JSON in words."""
    below = block["below"]
    return TokenRange(block["least"] or 0.0, float("inf") if below is None else below).words


def _parts_table(block: Mapping[str, Any]) -> Table:
    parts = block["parts"]
    rows = [
        [words, *(_ms(parts[name]["seconds"][s]) for s in _STATISTICS), percent(parts[name]["share"])]
        for name, words in PARTS.items()
        if name in parts
    ]
    table = text_table(["milliseconds", *_STATISTICS, "share"], rows, 1, "")
    table.add_section()
    table.add_row("end to end", *(_ms(block["e2e_s"][s]) for s in _STATISTICS), "100 %")
    return table


def _normalised_table(block: Mapping[str, Any]) -> Table:
    names = {"per_output_token_s": "per output token", "per_token_s": "per input and output token"}
    rows = [[words, *(_ms(block[key][s], 2) for s in _STATISTICS)] for key, words in names.items()]
    return text_table(["end to end, milliseconds", *_STATISTICS], rows, 1, "")


def bins_table(by_bin: list[dict[str, Any]]) -> Table:
    """Return the median and the p99 of the end-to-end time by input lengths (rows) and output lengths (columns)."""
    return _grid(by_bin, "end-to-end time\np50 / p99, seconds\ninput", _time_cell)


def _grid(by_bin: list[dict[str, Any]], corner: str, cell: Any) -> Table:
    rows = list(dict.fromkeys(range_words(each["input_tokens"]) for each in by_bin))
    columns = list(dict.fromkeys(range_words(each["output_tokens"]) for each in by_bin))
    cells = {(range_words(each["input_tokens"]), range_words(each["output_tokens"])): cell(each) for each in by_bin}
    head = [corner, *(f"output\n{column}" for column in columns)]
    return text_table(head, [[row, *(cells[row, column] for column in columns)] for row in rows], 1, "")


def _time_cell(each: Mapping[str, Any]) -> str:
    found = each["e2e_s"]
    return "-" if not each["requests"] else f"{found['p50']:.3g} / {found['p99']:.3g}"


def _ratio_cell(each: Mapping[str, Any]) -> str:
    return "-" if each["ratio"] is None else f"{each['ratio']:.3g}"


def _ms(value_s: float | None, decimals: int = 1) -> str:
    return "-" if value_s is None else f"{1e3 * max(value_s, 0.0):,.{decimals}f}"
