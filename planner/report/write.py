"""The report as files: the HTML page, and its numbers as tables in CSV, Parquet and JSON with units in their names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from catalogs.io.output_files import atomic_file, csv_text, finite, make_folder, write_atomically, write_json
from catalogs.ui.html_page import need_plotly, render
from catalogs.ui.progress import progress_bar
from planner.answer.answer_schema import Answer
from planner.report.material import ReportData, gather, label
from planner.report.page import answer_page
from planner.search.pareto_answer import FrontFile
from planner.search.workers import ProcessPool, usable_cores
from planner.studies.sensitivity import Effect, Input, Sensitivity
from simulator.analysis.operators import operator_document

Row = dict[str, Any]

#: The tables of answers, of language models and of networks; beside them there is one for each front.
_TABLES: Final = (
    *("plans", "curve", "latency_cdf", "prices", "carbon", "trade_offs", "operators", "what_binds", "more_capacity"),
    *("sensitivity", "stages", "hardware"),
)

#: Version of the form of the files with the report's tables.
SCHEMA_VERSION: Final = 1


def write_report(
    answer: Answer,
    html: Path | None,
    folder: Path | None,
    swings: bool = True,
    fronts: Sequence[FrontFile] = (),
) -> ReportData:
    """Simulate the figures that the answer does not hold, write the page and the tables, and return the figures.

    Progress is shown on stderr.

    Args:
        answer: The answer.
        html: File of the page; None for no page.
        folder: Folder of the tables; None for no tables.
        swings: Whether sensitivity and growth are simulated, which take most of the time.
        fronts: Fronts to show with the plans of the answer.

    Raises:
        InputError: Plotly is missing, the answer cannot be simulated again, or a file cannot be written.
    """
    if html is not None:
        need_plotly()
    with progress_bar("report") as progress:
        material = gather(answer, progress, swings, ProcessPool(usable_cores()))
    material = replace(material, fronts=tuple(fronts))
    if html is not None:
        write_atomically(html, [render(answer_page(material))])
    if folder is not None:
        write_tables(material, folder)
    return material


def write_tables(m: ReportData, folder: Path) -> list[Path]:
    """Write the tables of a report as files, see `write_table_files`, and return the files.

    Numbers that are not finite are null in report.json.

    Raises:
        InputError: The files cannot be written.
    """
    return write_table_files(tables_of(m), folder, SCHEMA_VERSION)


def names_of_files(n_fronts: int) -> set[str]:
    """Return the names of all files that the tables of a report with some fronts may be written into."""
    tables = (*_TABLES, *(f"front_{i}" for i in range(1, n_fronts + 1)))
    return {"report.json", *(f"{name}.{ending}" for name in tables for ending in ("csv", "parquet"))}


def write_table_files(tables: Mapping[str, list[Row]], folder: Path, schema_version: int) -> list[Path]:
    """Write NAME.csv and NAME.parquet for every table, and all tables into report.json, and return the files.

    Parquet files are left out if the packages that write them are not installed.

    Args:
        tables: The rows by table name.
        folder: The folder.
        schema_version: Version of report.json.

    Raises:
        InputError: The files cannot be written.
    """
    make_folder(folder)
    written = [folder / "report.json"]
    write_json({"schema_version": schema_version, **finite(dict(tables))}, str(written[0]))
    parquet = parquet_is_installed()
    for name, rows in tables.items():
        written.append(folder / f"{name}.csv")
        write_atomically(written[-1], [rows_as_csv(rows)])
        if parquet:
            written.append(folder / f"{name}.parquet")
            _write_parquet(written[-1], rows)
    return written


def _write_parquet(path: Path, rows: Sequence[Row]) -> None:
    import pandas as pd

    with atomic_file(path) as part:
        pd.DataFrame(rows).to_parquet(part, index=False)


def rows_as_csv(rows: Sequence[Row]) -> str:
    """Return rows as CSV, with columns in the order of first appearance; unknown values are empty."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return csv_text(names, ([row.get(name) for name in names] for row in rows))


def parquet_is_installed() -> bool:
    """Return whether the packages that write Parquet files are installed (the extra `data`)."""
    return all(find_spec(name) is not None for name in ("pandas", "pyarrow"))


def tables_of(m: ReportData) -> dict[str, list[Row]]:
    """Return the rows by table name, without empty tables."""
    answer, s = m.answer, m.simulated
    quantiles = {} if answer.best is None else answer.best.latency_cdf
    found: dict[str, list[Row]] = {
        "plans": [_plan(m, i) for i in range(len(answer.plans))],
        "curve": [{"plan": i} | _flat(p.model_dump()) for i, plan in enumerate(answer.plans) for p in plan.curve],
        "latency_cdf": [dict(zip(quantiles, row, strict=True)) for row in zip(*quantiles.values(), strict=True)],
        "prices": [p.model_dump() for p in answer.prices],
        "carbon": [asdict(c) for c in m.carbon],
    }
    if s is not None:
        found["trade_offs"] = [_flat(asdict(replace(p, latency_s={})) | p.latency_s) for p in s.points]
        found["operators"] = [
            ({} if part.role == "both" else {"pool": part.role}) | operator_document(row)
            for part in s.parts
            for row in part.bottleneck.samples.operators
        ]
        found["what_binds"] = [asdict(u) for u in s.uses]
        found["more_capacity"] = [asdict(c) for c in s.growth.changes] if s.growth else []
        found["sensitivity"] = [] if s.sensitivity is None else list(_sensitivity_rows(s.sensitivity))
    for i, front in enumerate(m.fronts, 1):
        kept = ("hardware", "words", "requests_per_s", "holds", "stopped_early", "on_front")
        axes = {f"{a.name.replace('.', '_')}_{a.unit.lower()}": a for a in front.axes}
        found[f"front_{i}"] = [
            {name: getattr(p, name) for name in kept} | {name: p.value(axis) for name, axis in axes.items()}
            for p in front.simulated
        ]
    return {name: rows for name, rows in found.items() if rows}


def _plan(m: ReportData, i: int) -> Row:
    plan = m.answer.plans[i]
    values = {f"{r.name}_s": r.value_s for r in plan.slo}
    probabilities = {f"{r.name}_probability": r.probability_met for r in plan.slo}
    cost = {} if plan.cost is None else asdict(plan.cost)
    used = {} if plan.energy is None else asdict(plan.energy)
    rates = {k: getattr(plan, k) for k in ("requests_per_s", "capacity_requests_per_s")}
    split = plan.deployment.get("disaggregation")
    deployment = plan.deployment | {"disaggregation": json.dumps(split) if split else None}  # Parquet has no {}
    return {"plan": i, "label": label(m.answer, i), **deployment, **rates, **values, **probabilities, **cost, **used}


def _flat(row: Row) -> Row:
    """Return a row with a column for each statistic: `ttft_p90_s` for `p90` of `ttft_s`; shares have no unit."""
    flat: Row = {}
    for key, value in row.items():
        metric, unit = key.removesuffix("_s"), "_s" if key.endswith("_s") else ""
        flat |= {f"{metric}_{stat}{unit}": v for stat, v in value.items()} if isinstance(value, dict) else {key: value}
    return flat


def _sensitivity_rows(found: Sensitivity) -> Iterator[Row]:
    """Yield the row of the unchanged plan, then those of the changes of each input."""
    yield {"input": None, **_effect_row(found.unchanged)}
    for each in found.inputs:
        yield from _effects(each)


def _effect_row(effect: Effect) -> Row:
    kept = ("capacity_requests_per_s", "usd_per_million_output_tokens", "slo_share", "holds")
    return {"change": effect.words, **{name: getattr(effect, name) for name in kept}}


def _effects(i: Input) -> Iterator[Row]:
    sides = (("below", i.flip_low), ("above", i.flip_high))
    flips = {f"flips_{side}": flip.value if flip else None for side, flip in sides}
    flips |= {f"flips_{side}_to_plan": flip.alternative if flip else None for side, flip in sides}
    for effect in (i.low, i.high):
        if effect is not None:
            yield {"input": i.name, **_effect_row(effect), "flips": i.flips} | flips
