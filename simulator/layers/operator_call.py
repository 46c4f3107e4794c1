"""One line of a step: an operator and how often it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from calibration.operators.operators import Operator
from simulator.network.collectives import ExpertRouting

#: Operator classes of a time breakdown.
CLASSES: Final = ("gemm", "attention_prefill", "attention_decode", "moe", "collective", "elementwise")


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """`count` executions of one operator in a step."""

    name: str
    kind: str  # operator class of a time breakdown, one of CLASSES
    count: int
    op: Operator
    stride: int = 1  # of the ranks of a collective: neighbours in a data-parallel group lie tp accelerators apart
    routing: ExpertRouting | None = None  # of an exchange with experts; its message is what one rank sends, once
    beside_tokens: int = 0  # up to so many rows it runs beside longer kernels and adds what its bytes take, no more
