"""Predictions of networks that are not language models, compared with public measurements.

    python benchmarks/networks.py [--rows FILE] [--networks DIR] [--worst N] [--fit FILE]

FILE is `validation/networks/measured.csv` of the shared data (its README states the columns). Models whose name has an
even SHA-256 serve to fit the engine factors and the stated intervals (`--fit` writes both); the others are held out. A
row that cannot be predicted counts 100 % and is printed with its reason. Networks come from the catalog, or from
DIR/NAME.yaml.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Final

import numpy as np
from network_rows import HARDWARE, KITS_WINDOWS, Row, execution_of, job_of, network_name, read_rows

from calibration.bundles.bundle import load_bundle
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.networks.files import load_network, read_network
from catalogs.networks.network import NeuralNetwork
from catalogs.ui.words import percent
from simulator.networks.factors import FILE, EngineFactors, IntervalClass, load_factors
from simulator.networks.job import JobPrice, price_job

#: Classes of rows, with the target of the held-out median error.
TARGETS: Final = {
    "diffusion seconds": 0.12,
    "timm eager": 0.10,
    "timm compiled": 0.12,
    "MLPerf offline": 0.20,
    "speedup on 2, 4, 8 GPUs": 0.15,
    "peak memory": 0.15,
    "other": 0.0,
}

#: The class of the stated interval of each.
INTERVAL_CLASS: Final[dict[str, IntervalClass]] = {
    "diffusion seconds": "diffusion",
    "timm eager": "eager",
    "timm compiled": "compiled",
    "MLPerf offline": "tensorrt",
    "speedup on 2, 4, 8 GPUs": "speedup",
    "peak memory": "memory",
}

#: Classes with enough models that their spread stands for that of a class of one model: seconds of one pass.
BETWEEN_MODELS: Final = ("timm eager", "timm compiled")


@dataclass(frozen=True, slots=True)
class Outcome:
    """A prediction beside its measurement; `reason` says why there is none."""

    row: Row
    kind: str
    predicted: float | None
    measured: float
    reason: str = ""

    @property
    def error(self) -> float:
        """Return the relative error, 1 without a prediction."""
        return 1.0 if self.predicted is None else abs(self.predicted / self.measured - 1.0)


class Predictor:
    """Predictions of rows under given factors."""

    def __init__(self, factors: EngineFactors, networks: Path | None) -> None:
        self.factors = factors
        self._networks = networks
        self._known: dict[tuple[object, ...], JobPrice] = {}

    def value(self, row: Row) -> float:
        """Return the predicted value of a row in its unit.

        Raises:
            InputError: The network or hardware is not in the catalog, or the metric is not one that is predicted.
        """
        if row["metric"] not in ("peak memory", "latency", "throughput", "p90 latency"):
            raise InputError("this metric is not predicted", row["metric"])
        if row["metric"] == "p90 latency" and "SQuAD" in row["input"]:
            raise InputError("the ninth decile of inputs of unknown lengths is not predicted", row["input"])
        network = self._network(network_name(row))
        job = job_of(row, network)
        price = self._price(network, row, job)
        if row["metric"] == "peak memory":
            return price.peak_memory_bytes / 1e9
        if row["metric"] == "latency" and row["unit"].startswith("s"):
            return price.seconds
        windows = KITS_WINDOWS if row["model"] == "3d-unet-99" else (1,)
        if "latency" in row["metric"] and row["unit"] == "ms":
            return price.seconds * 1e3 * float(np.quantile(windows, 0.9))
        jobs = job.get("batch", 1) * (int(row["n_gpus"]) if row.kind == "MLPerf offline" else 1)
        return jobs / float(np.mean(windows)) / price.seconds

    def _network(self, name: str) -> NeuralNetwork:
        if self._networks is not None and (path := self._networks / f"{name}.yaml").is_file():
            return _read(path)
        return load_network(name)

    def _price(self, network: NeuralNetwork, row: Row, job: dict[str, int]) -> JobPrice:
        execution = execution_of(row, network)
        name = next((name for start, name in HARDWARE if row["hardware"].startswith(start)), None)
        if name is None:
            raise InputError("no such hardware in the catalog", row["hardware"])
        key = (network.name, name, tuple(sorted(job.items())), execution)
        if key not in self._known:
            hardware = parse_hardware(name if execution.parallelism.ranks == 1 else f"{name}x{_node(name)}")
            bundle = load_bundle(hardware.accelerator)
            self._known[key] = price_job(network, bundle, hardware, execution, job, self.factors)
        return self._known[key]


@lru_cache(maxsize=64)
def _read(path: Path) -> NeuralNetwork:
    return read_network(path)


def _node(name: str) -> int:
    return parse_hardware(name).node.max_accelerators


def outcomes(rows: Sequence[Row], predictor: Predictor) -> Iterator[Outcome]:
    """Yield the outcome of every row, and of the speedup of rows on several accelerators over one."""
    single: dict[tuple[str, ...], Outcome] = {}
    for row in sorted(rows, key=lambda row: int(row["n_gpus"])):
        measured = float(row["value"])
        try:
            found = Outcome(row, row.kind, predictor.value(row), measured)
        except InputError as error:
            found = Outcome(row, row.kind, None, measured, str(error))
        yield found
        if row.kind != "diffusion seconds":
            continue
        key = (row["model"], row["hardware"], re.sub(r", ulysses.*", "", row["input"]), row["source"])
        if row["n_gpus"] == "1":
            single[key] = found
        elif row["n_gpus"] in ("2", "4", "8") and (one := single.get(key)):
            ratio = one.measured / measured
            predicted = None
            if found.predicted and one.predicted:
                predicted = one.predicted / found.predicted
            yield Outcome(row, "speedup on 2, 4, 8 GPUs", predicted, ratio, found.reason)


def table(found: Sequence[Outcome], intervals: Mapping[IntervalClass, float]) -> str:
    """Return a Markdown table of errors by class, fitted and held out, with the coverage of the stated interval."""
    lines = [
        "| class | rows | models | predicted | median error | p90 | bias | 90 % interval | covered | target |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    groups = defaultdict(list)
    for outcome in found:
        groups[outcome.kind, outcome.row.held_out].append(outcome)
    for kind, target in TARGETS.items():
        factor = intervals.get(INTERVAL_CLASS[kind], 0.0) if kind in INTERVAL_CLASS else 0.0
        for held in (False, True):
            part = groups[kind, held]
            if not part:
                lines.append(f"| {kind} | {'held out' if held else 'fit'} | 0 | 0 of 0 | | | | | | |")
                continue
            logs = np.array([np.log(o.predicted / o.measured) for o in part if o.predicted])
            errors = [o.error for o in part]
            middle, high = float(np.median(errors)), float(np.quantile(errors, 0.9))
            bias = percent(float(np.expm1(np.median(logs))), 1, signed=True) if len(logs) else ""
            covered = percent(float(np.mean(np.abs(logs) <= np.log(factor)))) if len(logs) and factor else ""
            stated = f"x or / {factor:.2f}" if factor else ""
            models = len({o.row["model"] for o in part})
            lines.append(
                f"| {kind} | {'held out' if held else 'fit'} | {models} | {len(logs)} of {len(part)} "
                f"| {percent(middle, 1)} | {percent(high)} | {bias} | {stated} | {covered} "
                f"| {percent(target) if held and target else ''} |"
            )
    return "\n".join(lines)


def fitted_intervals(found: Sequence[Outcome]) -> dict[IntervalClass, float]:
    """Return the factor of the 90 % interval by class, from the rows with even names.

    Each model has the same weight, because a user asks about a new model, not about another row of one with many rows.
    How models differ cannot be seen in a class of one model. There, a new model is expected to differ from it as two
    models of the classes of one pass differ from each other, in their mean errors. A class with fewer than five
    predicted rows is left out.
    """
    errors = {kind: errors_by_model(found, kind) for kind in INTERVAL_CLASS}
    differences = [0.0]
    for kind in BETWEEN_MODELS:
        means = [float(np.mean(rows)) for rows in errors[kind].values()]
        differences += [a - b for i, a in enumerate(means) for j, b in enumerate(means) if i != j]
    factors: dict[IntervalClass, float] = {}
    for kind, name in INTERVAL_CLASS.items():
        models = errors[kind]
        if sum(map(len, models.values())) < 5:
            continue
        beyond = differences if len(models) == 1 else [0.0]
        weighted = [(abs(row + more), 1.0 / len(rows)) for rows in models.values() for row in rows for more in beyond]
        weighted.sort()
        reached = np.cumsum([weight for _, weight in weighted]) / (len(models) * len(beyond))
        size = weighted[int(np.searchsorted(reached, 0.9 - 1e-9))][0]
        factors[name] = ceil(100 * float(np.exp(size))) / 100
    return factors


def errors_by_model(found: Sequence[Outcome], kind: str) -> dict[str, list[float]]:
    """Return the logarithms of predicted over measured of the rows of a class with even names, by model."""
    errors: dict[str, list[float]] = {}
    for o in found:
        if o.kind == kind and not o.row.held_out and o.predicted:
            errors.setdefault(o.row["model"], []).append(float(np.log(o.predicted / o.measured)))
    return errors


#: Values that a fit tries for each factor; of a dict, for each of these modes.
GRID: Final[dict[str, tuple[float, ...]]] = {
    "convolution_share.eager": (0.6, 0.7, 0.8, 0.9, 1.0),
    "convolution_share.compiled": (0.6, 0.7, 0.8, 0.9, 1.0),
    "depthwise_share": (0.05, 0.075, 0.1, 0.15, 0.2),
    "transposed_share": (0.25, 0.5, 0.75, 1.0),
    "masked_attention_speed": (0.3, 0.4, 0.55, 0.7, 0.85, 1.0),
    "host_launch_s.eager": (6e-6, 8e-6, 10e-6, 12e-6, 14e-6, 16e-6, 18e-6, 20e-6),
}


def fitted_to(name: str, rows: Sequence[Row]) -> list[Row]:
    """Return the rows with even names that a factor is fitted to.

    Kernels: image networks in large batches, on boards that their power does not limit. The host: single images in
    eager mode, whose kernels are shorter than their launches.
    """
    own = [row for row in rows if not row.held_out]
    if name.startswith("host_launch_s"):
        return [row for row in own if row.kind == "other" and row["batch"] == "1" and row["input"].endswith("eager")]
    return [row for row in own if row.kind in ("timm eager", "timm compiled") and "Max-Q" not in row["hardware"]]


def fit(rows: Sequence[Row], networks: Path | None) -> EngineFactors:
    """Return the factors with the least mean absolute log error (at most 0.4 a row) on rows of even names."""

    def loss(factors: EngineFactors, own: Sequence[Row]) -> float:
        found = [o for o in outcomes(own, Predictor(factors, networks)) if o.predicted]
        return float(np.mean([min(abs(float(np.log(o.predicted / o.measured))), 0.4) for o in found if o.predicted]))

    best = load_factors()
    for name, values in (*GRID.items(), *GRID.items()):
        own = fitted_to(name, rows)
        least = loss(best, own)
        for value in values:
            tried = with_factor(best, name, value)
            if tried != best and (now := loss(tried, own)) < least - 1e-4:
                best, least = tried, now
        print(f"{name}: loss {least:.4f}", file=sys.stderr)
    return best


def with_factor(factors: EngineFactors, name: str, value: float) -> EngineFactors:
    """Return the factors with another value of one, which is named `factor` or `factor.mode`."""
    key, _, mode = name.partition(".")
    return factors.model_copy(update={key: {**getattr(factors, key), mode: value} if mode else value})


def written(factors: EngineFactors) -> str:
    """Return the file of factors, whose comments are those of the shipped file."""
    lines = []
    for line in FILE.read_text(encoding="utf-8").splitlines():
        key = line.partition(":")[0]
        value = factors.model_dump()[key] if key in EngineFactors.model_fields else None
        if isinstance(value, dict):
            line = f"{key}: {{{', '.join(f'{k}: {_number(v)}' for k, v in value.items())}}}"
        elif value is not None:
            line = f"{key}: {_number(value)}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    """Return a number as YAML reads it, which needs a point before an exponent."""
    text = f"{value:.6g}"
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


def main() -> int:
    """Print the table, the rows without a prediction by reason, and the worst rows."""
    shared = Path(os.environ.get("CAPACITY_PLANNER_SHARED", "../shared"))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=Path, default=shared / "validation/networks/measured.csv", metavar="FILE")
    parser.add_argument("--networks", type=Path, metavar="DIR", help="folder of further network files")
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="print the N worst predicted rows of a class")
    parser.add_argument("--fit", type=Path, metavar="FILE", help="fit the engine factors and write them to FILE")
    given = parser.parse_args()
    try:
        rows = read_rows(given.rows)
        factors = fit(rows, given.networks) if given.fit else load_factors()
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    found = list(outcomes(rows, Predictor(factors, given.networks)))
    if given.fit:
        factors = factors.model_copy(update={"interval_90": fitted_intervals(found)})
        given.fit.write_text(written(factors), encoding="utf-8")
    print(table(found, factors.interval_90))
    print("\nrows without a prediction, by reason:")
    for reason, count in Counter(o.reason.split(": got")[0] for o in found if o.predicted is None).most_common():
        print(f"  {count:4d} {reason}")
    for kind in TARGETS:
        part = sorted((o for o in found if o.kind == kind and o.predicted), key=lambda o: -o.error)
        for o in part[: given.worst]:
            names = ("model", "hardware", "n_gpus", "precision", "input", "batch")
            stated = " ".join(o.row[name] for name in names)
            print(f"  {kind}: {stated}: predicted {o.predicted:.4g}, measured {o.measured:.4g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
