"""Two artefacts compared: what differs in machine and software, and by how much in the statistics of their requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from calibration.artefacts.checking import read_manifest
from calibration.artefacts.contents import REQUESTS, RESULTS, ROWS, read_rows
from calibration.artefacts.recording import file_digest
from calibration.artefacts.request_summary import METRICS, column, groups
from catalogs.arrays import FloatArray
from catalogs.statistics import mean_ratio, resampled_interval

#: Resamples of the interval of a ratio of means. A judgement: 50 of them lie beyond each end of the interval.
_RESAMPLES: Final = 2_000

#: Share of resampled ratios inside the interval.
INTERVAL: Final = 0.95

#: Facts of the environment that differ in every run and explain nothing: the clocks at the moment of recording.
_VOLATILE: Final = ("clocks.current_mhz", "clocks.current.sm", "clocks.current.memory")


@dataclass(frozen=True, slots=True)
class MetricChange:
    """A latency of a run in both artefacts.

    Attributes:
        run: The run.
        metric: The latency.
        first_s: Its mean in the first artefact, seconds.
        second_s: Its mean in the second one, seconds.
        low: Lower end of the interval of the second mean over the first, from resampled requests.
        high: Upper end.
    """

    run: str
    metric: str
    first_s: float
    second_s: float
    low: float
    high: float

    @property
    def ratio(self) -> float:
        """Return the second mean over the first."""
        return self.second_s / self.first_s

    @property
    def differs(self) -> bool:
        """Return whether the interval leaves out equality."""
        return not self.low <= 1.0 <= self.high


@dataclass(frozen=True, slots=True)
class ArtefactDifference:
    """What differs between two artefacts.

    Attributes:
        facts: Facts of the manifests with other values, by dotted name: (first, second); None where a fact is missing.
        files: Files of rows and results whose bytes differ, or that only one has.
        changes: Latencies of the runs that both have.
        only_first: Runs that only the first has.
        only_second: Runs that only the second has.
    """

    facts: dict[str, tuple[Any, Any]]
    files: list[str]
    changes: list[MetricChange] = field(default_factory=list)
    only_first: list[str] = field(default_factory=list)
    only_second: list[str] = field(default_factory=list)

    @property
    def same_bytes(self) -> bool:
        """Return whether all rows and results are the same bytes."""
        return not self.files


def difference(first: Path, second: Path, seed: int = 0) -> ArtefactDifference:
    """Return what differs between two artefacts that were checked.

    Args:
        first: Folder of the first artefact.
        second: Folder of the second.
        seed: Seed of the resampling.

    Raises:
        InputError: One of them has no valid manifest.
    """
    facts = fact_differences(*(read_manifest(folder).model_dump() for folder in (first, second)))
    files = sorted(_different_files(first, second))
    one, two = _runs(first), _runs(second)
    changes = []
    rng = np.random.default_rng(seed)
    for run in (name for name in one if name in two):
        for metric in METRICS:
            values = column(one[run], f"{metric}_s"), column(two[run], f"{metric}_s")
            if len(values[0]) and len(values[1]) and values[0].mean() > 0:
                low, high = ratio_interval(*values, rng, _same_requests(one[run], two[run]))
                changes.append(MetricChange(run, metric, float(values[0].mean()), float(values[1].mean()), low, high))
    return ArtefactDifference(facts, files, changes, [n for n in one if n not in two], [n for n in two if n not in one])


def fact_differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the facts of two manifests with other values, by dotted name, without those that always differ."""
    ignored = ("created_at", "inputs", "tables")
    kept = ({name: each[name] for name in each if name not in ignored} for each in (first, second))
    one, two = map(_flat, kept)
    names = [name for name in dict.fromkeys((*one, *two)) if not name.endswith(_VOLATILE)]
    return {name: (one.get(name), two.get(name)) for name in names if one.get(name) != two.get(name)}


def ratio_interval(
    first: FloatArray, second: FloatArray, rng: np.random.Generator, paired: bool = False
) -> tuple[float, float]:
    """Return the interval of mean(second) / mean(first) from resampled requests.

    Args:
        first: Shape (n,), positive.
        second: Shape (m,).
        rng: Source of the resamples.
        paired: Whether the values belong to the same requests, which are then drawn together; n equals m.
    """
    return resampled_interval((first, second), mean_ratio, INTERVAL, _RESAMPLES, rng, paired)


def _runs(folder: Path) -> dict[str, list[Mapping[str, Any]]]:
    """Return the requests of an artefact by run; {} if it has no such table."""
    return groups(read_rows(folder, REQUESTS)) if (folder / ROWS / f"{REQUESTS}.jsonl").is_file() else {}


def _same_requests(first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether two runs served requests of the same lengths, all of them to the end."""
    names = ("request_id", "input_tokens", "output_tokens", "status")
    done = all(row["status"] == "completed" for row in (*first, *second))
    return done and [[r[n] for n in names] for r in first] == [[r[n] for n in names] for r in second]


def _different_files(first: Path, second: Path) -> set[str]:
    names = [
        {str(f.relative_to(folder)): f for part in (ROWS, RESULTS) for f in (folder / part).rglob("*") if f.is_file()}
        for folder in (first, second)
    ]
    alone = set(names[0]) ^ set(names[1])
    return alone | {n for n in set(names[0]) & set(names[1]) if file_digest(names[0][n]) != file_digest(names[1][n])}


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested objects and lists by their keys joined with dots."""
    if isinstance(tree, dict):
        pairs = tree.items()
    elif isinstance(tree, list) and any(isinstance(x, dict) for x in tree):
        pairs = enumerate(tree)  # type: ignore[assignment]
    else:
        return {prefix: tree}
    found: dict[str, Any] = {}
    for key, value in pairs:
        found |= _flat(value, f"{prefix}.{key}" if prefix else str(key))
    return found
