"""Coverage of the shapes of the catalog's models: measured, interpolated or outside the grid."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from calibration.families.base import FamilyModel
from calibration.operators.cost import INTERPOLATED, MEASURED
from calibration.profile.session.shape import Shape
from calibration.profile.shapes.queue import candidates
from calibration.profile.shapes.size_limits import CPU, CUDA
from calibration.profile.shapes.sizes import catalog_sizes
from calibration.report.material import Coverage
from calibration.rows.dataset import OPERATOR_COLUMNS, operators_of
from catalogs.hardware.specs import Accelerator

if TYPE_CHECKING:
    import pandas as pd


def planned_shapes(accelerator: Accelerator, dtypes: Sequence[str], seed: int = 0) -> list[Shape]:
    """Return the shapes that a profile of this accelerator would choose from: those of the models that fit on it."""
    on_cpu = accelerator.kind == "cpu"
    reach = CPU if on_cpu else CUDA
    sizes = catalog_sizes(accelerator.memory_bytes, reach.splits, small=on_cpu)
    return candidates(sizes, reach, tuple(dtypes), seed)


def coverage(shapes: Sequence[Shape], models: Mapping[str, FamilyModel], accelerator: Accelerator) -> list[Coverage]:
    """Return the coverage of each queue of shapes (family, and dtype for products), the lowest coverage first."""
    queues: dict[str, list[Shape]] = defaultdict(list)
    for shape in shapes:
        queues[shape.queue].append(shape)
    found = [_of_queue(name, of, models.get(of[0].family), accelerator) for name, of in queues.items()]
    return sorted(found, key=lambda c: (c.measured + c.interpolated, c.queue))


def _of_queue(name: str, shapes: list[Shape], model: FamilyModel | None, accelerator: Accelerator) -> Coverage:
    if model is None:
        return Coverage(name, len(shapes), 0.0, 0.0, 1.0)
    rows = _frame(shapes)
    origin = np.zeros(len(rows))
    for op, index in operators_of(model.family, rows):
        origin[index] = model.cost(op, accelerator)[1]
    measured, between = float((origin == MEASURED).mean()), float((origin == INTERPOLATED).mean())
    return Coverage(name, len(shapes), measured, between, 1.0 - measured - between)


def _frame(shapes: list[Shape]) -> pd.DataFrame:
    import pandas as pd

    columns = OPERATOR_COLUMNS[shapes[0].family]
    return pd.DataFrame([dict(s.fields) for s in shapes])[list(columns)]
