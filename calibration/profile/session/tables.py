"""Rows of a session as the tables that the fit reads: clean rows to fit and held-out rows to check."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from calibration.profile.session.session import Row
from calibration.profile.session.shape import CHECKS, FIT, HELD_OUT
from calibration.rows.dataset import OPERATOR_COLUMNS, OPTIONAL_COLUMNS
from catalogs.errors import DEVICE_ERRORS, InputError, OutputError
from catalogs.io.output_files import atomic_file

if TYPE_CHECKING:
    import pandas as pd


#: Contended rows are left out of a family's fit where at least this share of its rows is clean. A judgement: the fit
#: loses little then.
CLEAN_SHARE: Final = 0.7

LIST_COLUMNS: Final = ("samples_us", "outliers", "preempted")  # columns that are kept in rows.jsonl only


@dataclass(frozen=True, slots=True)
class Tables:
    """The rows of a session by role and family, in the schema of dataset.py."""

    fit: dict[str, pd.DataFrame]
    held_out: dict[str, pd.DataFrame]
    check: dict[str, pd.DataFrame]
    contended_share: float  # share of all good rows
    contended_families: tuple[str, ...]  # families that are fitted to contended rows as well


def tables(rows: Sequence[Row], source: str, computes_bf16: bool) -> Tables:
    """Return the good rows by role and family.

    On a device without bf16, fp16 products stand for bf16 products, which the fit treats as the same. On a device with
    bf16, fp16 products are kept out of the fit.

    Args:
        rows: Rows of a session.
        source: Source that every row names.
        computes_bf16: Whether the device computes bf16.
    """
    good = _good(rows)
    if not computes_bf16:
        good = [r | {"dtype": "bf16"} if r.get("dtype") == "fp16" else r for r in good]
    good = [r for r in good if r["role"] == CHECKS or r.get("dtype") != "fp16"]
    fit: dict[str, pd.DataFrame] = {}
    dirty: list[str] = []
    for family in sorted({r["family"] for r in good}):
        of_family = [r for r in good if r["family"] == family and r["role"] == FIT]
        used = [r for r in of_family if not r["contended"]]
        judged = [r for r in of_family if r.get("others_share", 0.0) >= 0.0]  # short rows do not resolve a share
        if sum(not r["contended"] for r in judged) < CLEAN_SHARE * len(judged):
            used = of_family
            dirty.append(family)
        if used:
            fit[family] = _frame(family, used, source)
    held, check = (_by_family([r for r in good if r["role"] == role], source) for role in (HELD_OUT, CHECKS))
    return Tables(fit, held, check, contended_share(good), tuple(dirty))


def contended_share(rows: Sequence[Row]) -> float:
    """Return the share of the good rows that were measured while other processes used the machine; 0 without any."""
    good = _good(rows)
    return sum(bool(r["contended"]) for r in good) / max(len(good), 1)


def _good(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of operators that were measured."""
    return [r for r in rows if r["status"] == "ok" and r["family"] in OPERATOR_COLUMNS]


def write_measured(rows: Sequence[Row], path: Path) -> Path:
    """Write every row, whatever its status, to a parquet file and return its path; sample lists stay in rows.jsonl.

    Raises:
        InputError: If the file cannot be written.
    """
    import pandas as pd

    frame = pd.DataFrame([{k: v for k, v in r.items() if k not in LIST_COLUMNS} for r in rows])
    with write_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as part, write_errors(path.parent):
        frame.to_parquet(part, index=False)
    return path


@contextmanager
def write_errors(folder: Path) -> Iterator[None]:
    """Convert an error of writing, such as a full disk, to InputError; the measured rows are not affected.

    Raises:
        InputError: If the block raises OSError.
    """
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        kept = f"cannot write to the folder ({reason}); the rows in rows.jsonl are kept"
        kind = OutputError if error.errno in DEVICE_ERRORS else InputError
        raise kind(kept, str(folder)) from None


def _by_family(rows: Sequence[Row], source: str) -> dict[str, pd.DataFrame]:
    families = sorted({r["family"] for r in rows})
    return {f: _frame(f, [r for r in rows if r["family"] == f], source) for f in families}


def _frame(family: str, rows: Sequence[Row], source: str) -> pd.DataFrame:
    import pandas as pd

    wanted = (*OPERATOR_COLUMNS[family], "seconds", *OPTIONAL_COLUMNS)
    return pd.DataFrame([{c: r[c] for c in wanted if c in r} for r in rows]).assign(source=source)
