"""Comparison of two profiles: the differences of their machines and the ratios of times of the same shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibration.profile.session import manifest
from calibration.profile.session.session import Row, Session
from catalogs.errors import InputError


@dataclass(frozen=True, slots=True)
class FamilyRatio:
    """Ratio of seconds in profile B to seconds in profile A, over the `n` shapes of a family that both measured."""

    family: str
    n: int
    median: float
    p10: float
    p90: float

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a JSON object."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Difference:
    """The differences between profiles A and B.

    `facts` maps a manifest key to its values in A and B where they differ; `times` holds one ratio per family.
    """

    facts: dict[str, tuple[Any, Any]]
    times: list[FamilyRatio]

    @property
    def same(self) -> bool:
        """Return whether the manifests hold the same facts, except for times of day."""
        return not self.facts


def compare(a: Path, b: Path, notify: Callable[[str], None]) -> Difference:
    """Compare the profiles in the folders `a` and `b`.

    Args:
        a: Folder of profile A.
        b: Folder of profile B.
        notify: Receives one line for each folder with damaged rows.

    Raises:
        InputError: If a folder holds no profile.
    """
    facts_a, facts_b = _facts(a), _facts(b)
    names = sorted(facts_a.keys() | facts_b.keys())
    differ = {n: (facts_a.get(n), facts_b.get(n)) for n in names if facts_a.get(n) != facts_b.get(n)}
    return Difference(differ, _times(_seconds(a, notify), _seconds(b, notify)))


def _facts(folder: Path) -> dict[str, Any]:
    found = manifest.read(folder)
    if found is None:
        raise InputError("no profile here: the folder holds no manifest.json", str(folder))
    return {k: v for k, v in manifest.flat(found).items() if k not in ("started_at", "finished_at")}


def _seconds(folder: Path, notify: Callable[[str], None]) -> dict[str, Row]:
    return {r["key"]: r for r in Session.read(folder, notify).rows if r["status"] == "ok"}


def _times(a: dict[str, Row], b: dict[str, Row]) -> list[FamilyRatio]:
    both = [k for k in a if k in b]
    out = []
    for family in sorted({a[k]["family"] for k in both}):
        ratio = np.array([b[k]["seconds"] / a[k]["seconds"] for k in both if a[k]["family"] == family])
        p10, middle, p90 = (round(float(q), 4) for q in np.quantile(ratio, [0.1, 0.5, 0.9]))
        out.append(FamilyRatio(family, len(ratio), middle, p10, p90))
    return out
