"""Profile rows: one tidy table per operator family, in one schema for imported and for own measurements.

Common columns of every family: `seconds` (float > 0), `source` (str, e.g. "aiconfigurator@095f58a51 h100_sxm vllm
0.24.0"), and optionally `watts` (mean accelerator power, NaN where not measured) and `kernel` (str). The other columns
are the operator's own fields, named as in operators.py; `window_tokens` is 0 where there is no window.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from calibration.operators.operators import OPERATOR_OF, Operator
from catalogs.errors import InputError
from catalogs.io.output_files import atomic_file

if TYPE_CHECKING:
    import pandas as pd


#: Operator columns by family: the fields of its operator. "mixed_attention" has no operator: it is one kernel over
#: prefill chunks and decodes together, and only checks how well the two times add up.
OPERATOR_COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    family: tuple(f.name for f in fields(op) if f.metadata.get("measured", True)) for family, op in OPERATOR_OF.items()
}

OPERATOR_COLUMNS["mixed_attention"] = tuple(
    dict.fromkeys(OPERATOR_COLUMNS["prefill_attention"] + OPERATOR_COLUMNS["decode_attention"])
)

COMMON_COLUMNS: Final = ("seconds", "source")

#: `even_seconds` is the time of experts with the same number of rows each.
OPTIONAL_COLUMNS: Final = ("watts", "kernel", "distribution", "even_seconds")


def check_rows(family: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with known columns only.

    Raises:
        InputError: A column is missing, or seconds are not positive.
    """
    if family not in OPERATOR_COLUMNS:
        raise InputError("unknown operator family", family, ", ".join(OPERATOR_COLUMNS))
    needed = (*OPERATOR_COLUMNS[family], *COMMON_COLUMNS)
    missing = [c for c in needed if c not in rows.columns]
    if missing:
        raise InputError(f"{family} rows lack a column", missing[0])
    if not bool((rows["seconds"] > 0).all()):
        raise InputError(f"{family} rows need positive seconds", float(rows["seconds"].min()))
    optional = [c for c in OPTIONAL_COLUMNS if c in rows.columns and c not in needed]
    return rows[[*needed, *optional]].reset_index(drop=True)


def rows_sha256(rows: pd.DataFrame) -> str:
    """Return a hash of the rows that does not depend on row order or on the parquet writer."""
    columns = sorted(rows.columns)
    text = rows.sort_values(columns, kind="stable")[columns].to_csv(index=False, float_format="%.9g")
    return hashlib.sha256(text.encode()).hexdigest()


def write_rows(folder: Path, tables: dict[str, pd.DataFrame]) -> list[Path]:
    """Write one parquet file per family to `folder` and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for family, rows in sorted(tables.items()):
        paths.append(folder / f"{family}.parquet")
        with atomic_file(paths[-1]) as part:
            check_rows(family, rows).to_parquet(part, index=False)
    return paths


def read_rows(folder: Path) -> dict[str, pd.DataFrame]:
    """Read the rows of every family in a folder.

    Raises:
        InputError: The folder has no rows, or a file is not a table.
    """
    import pandas as pd

    files = sorted(folder.glob("*.parquet"))
    if not files:
        raise InputError("no rows: the folder holds no FAMILY.parquet", str(folder))
    tables: dict[str, pd.DataFrame] = {}
    for file in files:
        try:
            rows = pd.read_parquet(file)
        except (OSError, ValueError) as error:
            raise InputError(f"rows file cannot be read ({type(error).__name__})", str(file)) from None
        tables[file.stem] = check_rows(file.stem, rows)
    return tables


#: Fields that may be arrays; every other field has one value per operator.
ARRAY_FIELDS = {
    *("m", "n", "k", "tokens", "chunks", "pairs"),
    *("sequences", "context_tokens", "max_context_tokens", "message_bytes"),
    *("query_tokens", "key_tokens"),
    *("batch", "elements", "width", "read_bytes", "written_bytes", "kernels"),
}


def operators_of(family: str, rows: pd.DataFrame) -> Iterator[tuple[Operator, npt.NDArray[np.int64]]]:
    """Yield (operator with array fields, positions of its rows) for every combination of scalar fields in `rows`.

    The arrays have Shape (n,), one value for each row of the combination.
    """
    columns = OPERATOR_COLUMNS[family]
    scalars = [c for c in columns if c not in ARRAY_FIELDS]
    for key, index in rows.reset_index(drop=True).groupby(scalars, sort=True).indices.items():
        values = dict(zip(scalars, key if isinstance(key, tuple) else (key,), strict=True))
        values = {c: v.item() if isinstance(v, np.generic) else v for c, v in values.items()}
        arrays = {c: rows[c].to_numpy(float)[index] for c in columns if c in ARRAY_FIELDS}
        yield operator_of(family, values | arrays), np.asarray(index)


def operator_of(family: str, values: dict[str, Any]) -> Operator:
    """Return the operator with these fields, as rows hold them: a window of 0 tokens means that there is no window."""
    if "window_tokens" in values:
        values = values | {"window_tokens": values["window_tokens"] or None}
    return OPERATOR_OF[family](**values)
