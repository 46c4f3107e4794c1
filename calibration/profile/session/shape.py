"""One thing to measure: an operator family and the values of its fields, with a name that says exactly which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from calibration.operators.operators import OPERATOR_OF, Operator
from calibration.operators.roofline import bytes_moved, roofline_s
from calibration.rows.dataset import OPERATOR_COLUMNS
from catalogs.hardware.specs import Accelerator

Value = str | int | float

#: What a shape is measured for: to be fitted, only to check the fit, or to see the machine drift.
FIT: Final = "fit"

HELD_OUT: Final = "held_out"

CHECKS: Final = "check"


@dataclass(frozen=True, slots=True)
class Shape:
    """`fields` are the operator's own, named as in operators.py, in the order of dataset.OPERATOR_COLUMNS."""

    family: str
    fields: tuple[tuple[str, Value], ...]
    role: str = FIT

    @classmethod
    def of(cls, family: str, role: str = FIT, **fields: Value) -> Shape:
        order = OPERATOR_COLUMNS.get(family, tuple(fields))
        return cls(family, tuple((c, fields[c]) for c in order), role)

    @property
    def key(self) -> str:
        """Unique within a session: the same shape is never measured twice for the same use."""
        return f"{self.family}/{self.role}/" + ",".join(f"{k}={v}" for k, v in self.fields)

    def __getitem__(self, name: str) -> Any:
        return dict(self.fields)[name]

    @property
    def operator(self) -> Operator | None:
        """The operator of the vocabulary; None for shapes that describe the machine."""
        kind: Any = OPERATOR_OF.get(self.family)
        if kind is None:
            return None
        values = dict(self.fields)
        if "window_tokens" in values:
            values["window_tokens"] = values["window_tokens"] or None  # type: ignore[assignment]
        return kind(**values)  # type: ignore[no-any-return]

    @property
    def queue(self) -> str:
        """Shapes that compete with each other for time: a family, for products one dtype of it."""
        return f"{self.family} {self['dtype']}" if self.family == "gemm" else self.family

    def coordinates(self) -> tuple[float, ...]:
        """log2 of every number of the shape: what the distance between two shapes of a queue is measured in."""
        return tuple(float(np.log2(max(float(v), 0.25))) for _, v in self.fields if not isinstance(v, str))

    def labels(self) -> tuple[str, ...]:
        """The words of the shape: shapes with other words are not neighbours."""
        return tuple(v for _, v in self.fields if isinstance(v, str))

    def bytes(self, accelerator: Accelerator) -> float:
        """Operand bytes of one execution, 0 for shapes that describe the machine."""
        op = self.operator
        return float(bytes_moved(op, accelerator)) if op is not None else 0.0

    def roofline_s(self, accelerator: Accelerator) -> float:
        """Seconds no execution can beat, 0 for shapes that describe the machine."""
        op = self.operator
        return float(roofline_s(op, accelerator)) if op is not None else 0.0
