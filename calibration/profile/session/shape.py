"""One shape to measure: an operator family and the values of its fields, with a key that identifies it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from calibration.operators.flops_and_bytes import bytes_moved
from calibration.operators.operators import OPERATOR_OF, Operator
from calibration.operators.roofline import roofline_s
from calibration.rows.dataset import OPERATOR_COLUMNS, operator_of
from catalogs.hardware.specs import Accelerator

Value = str | int | float

#: Roles of a shape: it is fitted, it only checks the fit, or it describes the machine.
FIT: Final = "fit"

HELD_OUT: Final = "held_out"

CHECKS: Final = "check"


@dataclass(frozen=True, slots=True)
class Shape:
    """A shape of an operator family: one set of values of the operator's fields, and its role.

    `fields` are the operator's fields, named as in operators.py, in the order of dataset.OPERATOR_COLUMNS.
    """

    family: str
    fields: tuple[tuple[str, Value], ...]
    role: str = FIT

    @classmethod
    def of(cls, family: str, role: str = FIT, **fields: Value) -> Shape:
        """Return the shape with these fields, in the order of the family's columns."""
        order = OPERATOR_COLUMNS.get(family, tuple(fields))
        return cls(family, tuple((c, fields[c]) for c in order), role)

    @property
    def key(self) -> str:
        """Return the identifier within a session, in which a shape is measured at most once per role."""
        return f"{self.family}/{self.role}/" + ",".join(f"{k}={v}" for k, v in self.fields)

    def __getitem__(self, name: str) -> Any:
        return dict(self.fields)[name]

    def ints(self, *names: str) -> tuple[int, ...]:
        """Return fields of the shape as whole numbers."""
        return tuple(int(self[name]) for name in names)

    @property
    def operator(self) -> Operator | None:
        """Return the operator with these fields, or None for shapes that describe the machine."""
        return operator_of(self.family, dict(self.fields)) if self.family in OPERATOR_OF else None

    @property
    def queue(self) -> str:
        """Return the queue in which the shape competes for time: its family, with the dtype for matrix products."""
        return f"{self.family} {self['dtype']}" if self.family == "gemm" else self.family

    def coordinates(self) -> tuple[float, ...]:
        """Return log2 of every number of the shape, from which the distance of two shapes of a queue is computed."""
        return tuple(float(np.log2(max(float(v), 0.25))) for _, v in self.fields if not isinstance(v, str))

    def labels(self) -> tuple[str, ...]:
        """Return the text fields of the shape; shapes with different text fields are not neighbours."""
        return tuple(v for _, v in self.fields if isinstance(v, str))

    def bytes(self, accelerator: Accelerator) -> float:
        """Return the operand bytes of one execution, or 0 for shapes that describe the machine."""
        op = self.operator
        return float(bytes_moved(op, accelerator)) if op is not None else 0.0

    def roofline_s(self, accelerator: Accelerator) -> float:
        """Return the least possible seconds of one execution, or 0 for shapes that describe the machine."""
        op = self.operator
        return float(roofline_s(op, accelerator)) if op is not None else 0.0
