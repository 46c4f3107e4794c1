"""Coverage of the shapes of the catalog's models: measured, interpolated or outside the grid."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from calibration.families.base import FamilyModel
from calibration.operators.cost import INTERPOLATED, MEASURED
from calibration.profile.session.shape import Shape
from calibration.profile.shapes.queue import candidates
from calibration.profile.shapes.size_limits import CPU, CUDA
from calibration.profile.shapes.sizes import catalog_sizes
from calibration.report.material import Coverage
from calibration.rows.dataset import OPERATOR_COLUMNS, operators_of
from catalogs.hardware.specs import Accelerator


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
