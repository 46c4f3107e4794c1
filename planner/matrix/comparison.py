"""Predictions compared with measured rows: errors by group, and what lies outside the stated interval."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote
from statistics import median
from typing import Any, Final

from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.io.json_block import JsonBlock
from catalogs.io.yaml_files import validate_as
from catalogs.ui.words import percent
from catalogs.workloads.workload import load_workload
from planner.matrix.cells import Cell
from planner.matrix.evaluation import identity, row_of, simulated_document
from planner.matrix.matrix_file import DEFAULT
from planner.matrix.published_rows import MeasuredPoint
from planner.matrix.row import AS_MEASURED, CellVersions, MatrixRow
from planner.problem.latency_metrics import E2E, ITL, TPOT, TTFT
from simulator.cluster.compiled import DeploymentDoesNotFit

#: Statistic of the stated error for each measured key. A batch that starts together takes as long as its requests.
_STATED: Final = {f"{metric.name}_s": metric.stated_error for metric in (TTFT, TPOT, ITL, E2E)} | {
    "duration_s": E2E.stated_error
}

#: The columns of a table of compared groups.
GROUP_HEAD: Final = ("accelerator", "engine", "metric", "values", "median error", "bias", "in the stated interval")


class ComparedValue(JsonBlock):
    """One measured statistic and its prediction, in seconds.

    `low_s` and `high_s` are the stated interval of the true value, and `inside` whether the measured value lies in it;
    None where no whole run gives the error of the engine, so that no interval is stated.
    """

    cell: str
    hardware: str
    engine: str
    metric: str
    measured_s: float
    predicted_s: float
    error: float
    low_s: float | None
    high_s: float | None
    inside: bool | None


class ComparedGroup(JsonBlock):
    """The errors of all values of one accelerator, engine and metric.

    `covered` is the share of the values with a stated interval that lie inside; None where no interval is stated.
    """

    hardware: str
    engine: str
    metric: str
    n: int
    median_absolute_error: float
    bias: float
    covered: float | None


@dataclass(frozen=True, slots=True)
class MatrixComparison:
    """All compared values, and the measured rows without a prediction by their rule."""

    values: Sequence[ComparedValue]
    unpredicted: Sequence[tuple[str, int]]

    @property
    def groups(self) -> list[ComparedGroup]:
        """Return the errors by accelerator, engine and metric, in the order of their names."""
        keys = sorted({(v.hardware, v.engine, v.metric) for v in self.values})
        return [_group(key, [v for v in self.values if (v.hardware, v.engine, v.metric) == key]) for key in keys]

    @property
    def together(self) -> list[ComparedGroup]:
        """Return the errors of all values by metric."""
        return [
            _group(("all", "all", metric), [v for v in self.values if v.metric == metric])
            for metric in sorted({v.metric for v in self.values})
        ]

    def group_rows(self) -> list[tuple[str, ...]]:
        """Return a row for each group, and then for all values by metric, in words; GROUP_HEAD names the columns."""
        return [
            (
                group.hardware,
                group.engine,
                group.metric,
                f"{group.n:,}",
                percent(group.median_absolute_error, 1),
                percent(group.bias, 1, signed=True),
                "none stated" if group.covered is None else percent(group.covered),
            )
            for group in (*self.groups, *self.together)
        ]

    @property
    def outside(self) -> list[ComparedValue]:
        """Return the values outside their stated interval, the furthest first."""
        return sorted((v for v in self.values if v.inside is False), key=lambda v: (-abs(v.error), v.cell))

    def document(self) -> dict[str, Any]:
        """Return the comparison as JSON data."""
        return {
            "groups": [group.document() for group in (*self.groups, *self.together)],
            "outside": [value.document() for value in self.outside],
            "unpredicted": [{"rule": rule, "n": n} for rule, n in self.unpredicted],
        }


def _group(key: tuple[str, str, str], values: Sequence[ComparedValue]) -> ComparedGroup:
    errors, stated = [v.error for v in values], [v.inside for v in values if v.inside is not None]
    return ComparedGroup(
        hardware=key[0],
        engine=key[1],
        metric=key[2],
        n=len(values),
        median_absolute_error=float(median(map(abs, errors))),
        bias=float(median(errors)),
        covered=sum(stated) / len(stated) if stated else None,
    )


def cell_of(point: MeasuredPoint) -> Cell:
    """Return the axes of a measured point as those of a cell."""
    return Cell(
        model=point.model,
        system=point.engine,
        engine=str(point.deployment.get("engine", point.engine)),
        hardware=point.hardware,
        workload=point.workload,
        batch=point.batch,
        precision=point.precision or DEFAULT,
        layout=AS_MEASURED,
        open_share=None,
        requests=int(point.keys["requests"]),
        seed=0,
        max_model_len=None,
    )


def predict(point: MeasuredPoint) -> MatrixRow:
    """Return the simulated row of a measured point; what is not possible becomes its verdict and rule."""
    cell = cell_of(point)
    try:
        if "engine" not in point.deployment:
            raise InputError("the catalog has no such engine", point.engine, "vllm")
        written = validate_as(Deployment, dict(point.deployment), "the deployment of a measured row")
        workload = load_workload(point.workload_text)
        found, fleet = simulated_document(written, workload, cell, None)
        row = row_of(cell, written, found, fleet.deployments[0], None)
        command = _command(point, written)
        return row.model_copy(update={"cell": point.name, "command": command})
    except InputError as error:
        verdict = "does not fit" if isinstance(error, DeploymentDoesNotFit) else "unsupported"
        return _row(point, cell, verdict=verdict, rule=str(error), origin="simulated")


def measured_row(point: MeasuredPoint) -> MatrixRow:
    """Return the measured row of a point."""
    metrics: dict[str, Any] = {}
    for key, value in point.values.items():
        name, _, stat = key.partition(".")
        metrics |= {name: {stat: value}} if stat else {name: value}
    versions = CellVersions(product="none", engine=point.engine, measured_on=point.source)
    return _row(point, cell_of(point), verdict="ok", origin="measured", metrics=metrics, versions=versions)


def _row(point: MeasuredPoint, cell: Cell, **more: Any) -> MatrixRow:
    return MatrixRow(**identity(cell) | {"cell": point.name}, **more)


def _command(point: MeasuredPoint, written: Deployment) -> str:
    text = json.dumps(written.model_dump(exclude_unset=True, mode="json"))
    run = f"--workload {quote(point.workload_text)} --seed 0 --json -"
    return f"echo {quote(text)} | simulate /dev/stdin {run}"


def compare(points: Sequence[MeasuredPoint], predictions: Sequence[MatrixRow]) -> MatrixComparison:
    """Return the comparison of measured points with their predictions, in the same order."""
    values: list[ComparedValue] = []
    rules: Counter[str] = Counter()
    for point, row in zip(points, predictions, strict=True):
        if row.verdict != "ok":
            rules[row.rule] += 1
            continue
        values += [_value(point, row, key, measured) for key, measured in point.values.items()]
    return MatrixComparison(values, _most_frequent(rules))


def _value(point: MeasuredPoint, row: MatrixRow, key: str, measured_s: float) -> ComparedValue:
    metric, _, stat = key.partition(".")
    found: Any = (row.metrics or {})[metric]
    predicted_s = float(found[stat] if stat else found)
    interval = (row.stated_error or {}).get(_STATED[metric])
    low_s, high_s = (None, None) if not interval else (predicted_s * (1 + interval[0]), predicted_s * (1 + interval[1]))
    inside = None if low_s is None or high_s is None else low_s <= measured_s <= high_s
    return ComparedValue(
        cell=point.name,
        hardware=parse_hardware(point.hardware).node.accelerator.name,
        engine=point.engine,
        metric=key,
        measured_s=measured_s,
        predicted_s=predicted_s,
        error=predicted_s / measured_s - 1.0,
        low_s=low_s,
        high_s=high_s,
        inside=inside,
    )


#: Statistics of a cell that was measured here: means are what few requests give best.
_MEANS: Final = ("ttft_s", "tpot_s", "e2e_s")


def compare_rows(pairs: Sequence[tuple[MatrixRow, MatrixRow]]) -> MatrixComparison:
    """Return the comparison of (simulated, measured) rows of the same cells, mean by mean; no interval is stated."""
    values: list[ComparedValue] = []
    rules: Counter[str] = Counter()
    for predicted, measured in pairs:
        if measured.verdict != "ok":
            rules[measured.rule] += 1
            continue
        for metric in _MEANS:
            ours, theirs = predicted.statistic(metric, "mean"), measured.statistic(metric, "mean")
            if ours is None or not theirs:
                continue
            values.append(
                ComparedValue(
                    cell=measured.cell,
                    hardware=measured.hardware,
                    engine=measured.engine,
                    metric=f"{metric}.mean",
                    measured_s=theirs,
                    predicted_s=ours,
                    error=ours / theirs - 1.0,
                    low_s=None,
                    high_s=None,
                    inside=None,
                )
            )
    return MatrixComparison(values, _most_frequent(rules))


def _most_frequent(rules: Counter[str]) -> list[tuple[str, int]]:
    """Return rules with the rows that break them, the most frequent first, and equally frequent ones by their text."""
    return sorted(rules.items(), key=lambda pair: (-pair[1], pair[0]))


def joined(first: MatrixComparison | None, second: MatrixComparison) -> MatrixComparison:
    """Return both comparisons as one."""
    if first is None:
        return second
    return MatrixComparison([*first.values, *second.values], [*first.unpredicted, *second.unpredicted])
