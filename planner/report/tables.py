"""The numbers behind the page as tables: CSV and parquet, one file each, and JSON; units in the column names."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from catalogs.io.output_files import finite, make_folder, write_atomically, write_json
from planner.report.material import ReportData, label
from planner.search.pareto_search import FrontFile, FrontPoint
from planner.studies.bottleneck import PoolUse
from planner.studies.sensitivity import Effect, Input
from simulator.analysis.operators import OperatorRow, operator_document

Row = dict[str, Any]

SCHEMA_VERSION: Final = 1


def tables_of(m: ReportData) -> dict[str, list[Row]]:
    """Return the rows by table name, without empty tables."""
    answer, s = m.answer, m.simulated
    found: dict[str, list[Row]] = {
        "plans": [_plan(m, i) for i in range(len(answer.plans))],
        "curve": [_curve(i, p) for i, plan in enumerate(answer.plans) for p in plan.curve],
        "latency_cdf": _cdf(m),
        "prices": [p.model_dump() for p in answer.prices],
        "carbon": [asdict(c) for c in m.carbon],
    }
    if s is not None:
        found["trade_offs"] = [_point(asdict(p)) for p in s.points]
        found["operators"] = [_operator(p, r) for p in s.parts for r in p.bottleneck.samples.operators]
        found["what_binds"] = [asdict(u) for u in s.uses]
        found["more_capacity"] = [asdict(c) for c in s.growth.changes] if s.growth else []
        inputs = s.sensitivity.inputs if s.sensitivity else []
        found["sensitivity"] = [_effect(i, e) for i in inputs for e in (i.low, i.high) if e]
    for i, front in enumerate(m.fronts, 1):
        found[f"front_{i}"] = [_front_point(front, p) for p in front.simulated]
    return {name: rows for name, rows in found.items() if rows}


def write_tables(m: ReportData, folder: Path) -> list[Path]:
    """Write NAME.csv and NAME.parquet for every table, and all tables into report.json (null if not finite).

    Raises:
        InputError: The files cannot be written.
    """
    make_folder(folder)
    tables, whole = tables_of(m), folder / "report.json"
    write_json({"schema_version": SCHEMA_VERSION, **finite(tables)}, str(whole))
    written = [whole]
    for name, rows in tables.items():
        path = folder / f"{name}.csv"
        write_atomically(path, [csv_text(rows)])
        written += [path, _parquet(rows, folder / f"{name}.parquet")]
    return written


def csv_text(rows: Sequence[Row]) -> str:
    """Return rows as CSV, with columns in the order of first appearance; unknown values are empty."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _parquet(rows: Sequence[Row], path: Path) -> Path:
    import pandas as pd

    pd.DataFrame(rows).to_parquet(path, index=False)
    return path


def _plan(m: ReportData, i: int) -> Row:
    plan = m.answer.plans[i]
    objectives = {f"{r.name}_s": r.value_s for r in plan.slo} | {
        f"{r.name}_probability": r.probability_met for r in plan.slo
    }
    cost = {} if plan.cost is None else asdict(plan.cost)
    used = {} if plan.energy is None else asdict(plan.energy)
    rates = {k: getattr(plan, k) for k in ("requests_per_s", "capacity_requests_per_s", "safe_requests_per_s")}
    split = plan.deployment.get("disaggregation")
    deployment = plan.deployment | {"disaggregation": json.dumps(split) if split else None}  # parquet has no {}
    return {"plan": i, "label": label(m.answer, i), **deployment, **rates, **objectives, **cost, **used}


def _curve(i: int, point: Any) -> Row:
    flat = point.model_dump()
    row: Row = {"plan": i}
    for key, value in flat.items():
        metric = key.removesuffix("_s")
        row |= {f"{metric}_{stat}_s": v for stat, v in value.items()} if isinstance(value, dict) else {key: value}
    return row


def _cdf(m: ReportData) -> list[Row]:
    best = m.answer.best
    if best is None or not best.latency_cdf:
        return []
    names = list(best.latency_cdf)
    return [dict(zip(names, values, strict=True)) for values in zip(*best.latency_cdf.values(), strict=True)]


def _point(flat: Row) -> Row:
    latency = flat.pop("latency_s")
    return flat | {f"{m}_{stat}_s": v for m, stats in latency.items() for stat, v in stats.items()}


def _operator(part: PoolUse, row: OperatorRow) -> Row:
    return ({} if part.role == "both" else {"pool": part.role}) | operator_document(row)


def _front_point(front: FrontFile, point: FrontPoint) -> Row:
    values = {f"{a.name.replace('.', '_')}_{a.unit.lower()}": point.value(a) for a in front.axes}
    told = ("hardware", "words", "requests_per_s", "holds", "stopped_early", "on_front")
    return {name: getattr(point, name) for name in told} | values


def _effect(i: Input, effect: Effect) -> Row:
    kept = ("capacity_requests_per_s", "usd_per_million_output_tokens", "slo_share", "holds")
    moved = {"input": i.name, "change": effect.variant.words, **{k: getattr(effect, k) for k in kept}}
    sides = (("below", i.flip_low), ("above", i.flip_high))
    flips = {f"flips_{side}": flip.value if flip else None for side, flip in sides}
    rivals = {f"flips_{side}_to_plan": flip.alternative if flip else None for side, flip in sides}
    return moved | {"flips": i.flips} | flips | rivals
