"""Predictions of rows that no fit has used, with a check that this is so, and the coverage of the shapes to predict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, Final

import numpy as np
import pandas as pd

from calibration.estimators.compare import held_out_seconds
from calibration.estimators.estimator import fit_physics
from calibration.estimators.row_encoding import physics
from calibration.families.base import FamilyModel, held_out
from calibration.fitting.cross_validation import predict
from calibration.operators.cost import INTERPOLATED, MEASURED
from calibration.profile.session.shape import Shape
from calibration.profile.shapes.queue import candidates
from calibration.profile.shapes.size_limits import CPU, CUDA
from calibration.profile.shapes.sizes import catalog_sizes
from calibration.report.material import EDGE, GROUP, OFF_GRID, Coverage, FamilyLine, FieldImportance
from calibration.rows.dataset import OPERATOR_COLUMNS, operators_of
from catalogs.arrays import FloatArray
from catalogs.hardware.specs import Accelerator

#: Orders in which a field is shuffled, over which its importance is averaged. A judgement of cost: each predicts all
#: rows again.
SHUFFLES: Final = 5

#: Fewest rows whose fields are shuffled. A judgement: fewer rows have few different orders.
FEWEST_TO_SHUFFLE: Final = 5

DIGITS: Final = 6  # significant digits at which two shapes count as the same

#: Fields that only make sense with each other (no shape has a longest context above the sum of all); they are shuffled
#: as one.
TOGETHER: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "prefill_attention": (("chunks", "tokens", "pairs"), ("n_heads", "n_kv_heads")),
    "decode_attention": (("sequences", "context_tokens", "max_context_tokens"), ("n_heads", "n_kv_heads")),
    "moe": (("n_experts", "experts_per_token", "expert_ranks"),),
    "mla": (("stage", "sequences", "tokens", "pairs", "context_tokens"),),
    "collective": (("kind", "ranks", "graph"),),
}

HOW: Final = {"inside": GROUP, "beyond": EDGE}


def shape_keys(family: str, rows: pd.DataFrame) -> list[tuple[Any, ...]]:
    """Return one hashable value per row that identifies its shape."""
    return [
        tuple(float(f"{v:.{DIGITS}g}") if isinstance(v, float) else v for v in row)
        for row in rows[list(OPERATOR_COLUMNS[family])].itertuples(index=False)
    ]


def unseen(family: str, rows: pd.DataFrame, fitted: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with shapes that are not among the fitted ones.

    A held-out row with a fitted shape would make the errors appear too small.
    """
    known = set(shape_keys(family, fitted))
    return rows[[k not in known for k in shape_keys(family, rows)]].reset_index(drop=True)


def off_grid(model: FamilyModel, rows: pd.DataFrame, fitted: pd.DataFrame, accelerator: Accelerator) -> pd.DataFrame:
    """Return the predictions of rows that were measured only as a check, as `held_frame`."""
    rows = unseen(model.family, rows, fitted)
    return held_frame(model.family, OFF_GRID, rows, predict(model, rows, accelerator), accelerator)


def left_out(family: str, rows: pd.DataFrame, accelerator: Accelerator) -> dict[str, pd.DataFrame]:
    """Return the predictions of the rows of an engine, as `held_frame`, by how the rows were held out.

    GROUP is cross-validation by whole groups, EDGE are the rows beyond the cut grid.
    """
    found = {}
    for region, seconds in held_out_seconds(family, rows, accelerator, fit_physics).items():
        done = np.isfinite(seconds)
        test = rows[done].reset_index(drop=True)
        found[HOW[region]] = held_frame(family, HOW[region], test, seconds[done], accelerator)
    return found


def together(parts: Iterable[pd.DataFrame]) -> pd.DataFrame | None:
    """Return the tables as one, or None where all of them are empty."""
    # an empty part, of a family too small to hold out, would turn columns into objects
    filled = [p for p in parts if len(p)]
    return pd.concat(filled, ignore_index=True) if filled else None


def held_frame(
    family: str, how: str, rows: pd.DataFrame, predicted_s: FloatArray, accelerator: Accelerator
) -> pd.DataFrame:
    """Return rows and their predictions: family, how, shape, measured_s, predicted_s and the bytes moved."""
    columns = {
        "family": family,
        "how": how,
        "shape": shape_texts(family, rows),
        "measured_s": rows.seconds.to_numpy(float),
        "predicted_s": predicted_s,
        "bytes": physics(family, rows, accelerator)[:, 1],
    }
    return pd.DataFrame(columns)


def measured_frame(family: str, rows: pd.DataFrame, accelerator: Accelerator) -> pd.DataFrame:
    """Return what is drawn of measured rows; compute_share and memory_share are shares of the peaks."""
    work, seconds = physics(family, rows, accelerator), rows.seconds.to_numpy(float)
    columns = {
        "family": family,
        "shape": shape_texts(family, rows),
        "seconds": seconds,
        "flops": work[:, 0],
        "bytes": work[:, 1],
        "compute_share": work[:, 3] / seconds,
        "memory_share": work[:, 4] / seconds,
        "watts": rows["watts"].to_numpy(float) if "watts" in rows else np.nan,
        "disturbed": rows["contended"].eq(True).to_numpy() if "contended" in rows else False,
    }
    return pd.DataFrame(columns)


def shape_texts(family: str, rows: pd.DataFrame) -> list[str]:
    """Return texts such as "m 16, n 4096, k 4096, bf16"; fields that are equal in all rows are left out."""
    columns = [c for c in OPERATOR_COLUMNS[family] if len(rows) < 2 or rows[c].nunique() > 1 or c in ("dtype", "kind")]
    fields = [
        [v if isinstance(v, str) else f"{c.replace('_', ' ')} {v:.6g}" for v in rows[c].tolist()] for c in columns
    ]
    return [", ".join(texts) for texts in zip(*fields, strict=True)] if columns else [""] * len(rows)


def error_lines(held: pd.DataFrame | None, n_fit: Mapping[str, int], hows: Sequence[str]) -> list[FamilyLine]:
    """Return the errors of the predictions of each family, by how the rows were held out; `n_fit` are fitted rows."""
    lines: list[FamilyLine] = []
    if held is None:
        return lines
    for family, how in product(n_fit, hows):
        mine = held[(held.family == family) & (held.how == how)]
        if len(mine):
            errors = held_out(family, how, mine.predicted_s.to_numpy(float), mine.measured_s.to_numpy(float))
            lines.append(FamilyLine(errors, n_fit[family]))
    return lines


def importance(model: FamilyModel, rows: pd.DataFrame, accelerator: Accelerator) -> list[FieldImportance]:
    """Return the change of predictions for unseen rows when each field is shuffled, the largest first."""
    if len(rows) < FEWEST_TO_SHUFFLE:
        return []
    draw, measured = np.random.default_rng(0), rows.seconds.to_numpy(float)

    def factor(changed: pd.DataFrame) -> float:
        return float(np.exp(np.median(np.abs(np.log(predict(model, changed, accelerator) / measured)))))

    base = factor(rows)
    found = []
    for names in _fields(model.family, rows):
        orders = [draw.permutation(len(rows)) for _ in range(SHUFFLES)]
        mixed = [factor(rows.assign(**{n: rows[n].to_numpy()[o] for n in names})) for o in orders]
        label = ", ".join(n.replace("_", " ") for n in names)
        found.append(FieldImportance(model.family, label, float(np.mean(mixed)), base))
    return sorted(found, key=lambda i: -i.factor)


def _fields(family: str, rows: pd.DataFrame) -> list[tuple[str, ...]]:
    """Return the fields of a family that vary in `rows`, with fields that belong together as one."""
    groups = TOGETHER.get(family, ())
    grouped = {n for g in groups for n in g}
    every = [*groups, *((c,) for c in OPERATOR_COLUMNS[family] if c not in grouped)]
    varying = [tuple(n for n in g if rows[n].nunique() > 1) for g in every]
    return [g for g in varying if g]


def coverage(
    accelerator: Accelerator, dtypes: Sequence[str], models: Mapping[str, FamilyModel], seed: int = 0
) -> list[Coverage]:
    """Return the coverage of each queue of shapes (family, and dtype for products), the lowest coverage first.

    The shapes are those that a profile would choose from: of the models that fit on the accelerator.
    """
    on_cpu = accelerator.kind == "cpu"
    limits = CPU if on_cpu else CUDA
    sizes = catalog_sizes(accelerator.memory_bytes, limits.splits, small=on_cpu)
    queues: dict[str, list[Shape]] = defaultdict(list)
    for shape in candidates(sizes, limits, tuple(dtypes), seed):
        queues[shape.queue].append(shape)
    found = [_of_queue(name, of, models.get(of[0].family), accelerator) for name, of in queues.items()]
    return sorted(found, key=lambda c: (c.measured + c.interpolated, c.queue))


def _of_queue(name: str, shapes: list[Shape], model: FamilyModel | None, accelerator: Accelerator) -> Coverage:
    if model is None:
        return Coverage(name, len(shapes), 0.0, 0.0, 1.0)
    rows = pd.DataFrame([dict(s.fields) for s in shapes])[list(OPERATOR_COLUMNS[model.family])]
    origin = np.zeros(len(rows))
    for op, index in operators_of(model.family, rows):
        origin[index] = model.cost(op, accelerator)[1]
    measured, between = float((origin == MEASURED).mean()), float((origin == INTERPOLATED).mean())
    return Coverage(name, len(shapes), measured, between, 1.0 - measured - between)
