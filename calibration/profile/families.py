"""Which file measures which family: the one place that knows them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from calibration.profile import (
    decode_attention,
    drift,
    elementwise,
    gemm,
    host,
    linear_attention,
    machine,
    moe,
    prefill_attention,
)
from calibration.profile.device import Device
from calibration.profile.shape import Shape
from calibration.profile.timing import Work

WORK: Final[dict[str, Callable[[Shape, Device], Work]]] = {
    "gemm": gemm.work,
    "prefill_attention": prefill_attention.work,
    "decode_attention": decode_attention.work,
    "elementwise": elementwise.work,
    "moe": moe.work,
    "peak": machine.work,
    "copy": machine.work,
    "launch": machine.work,
    "drift": drift.work,
    "linear_attention": linear_attention.work,
    "host": host.work,
    "pages": host.work,
}

#: Share of the time each queue of shapes gets.
SHARES: Final[dict[str, float]] = {
    "gemm bf16": 0.34,
    "gemm fp16": 0.03,
    "gemm fp8": 0.20,
    "gemm fp32": 0.10,
    "prefill_attention": 0.16,
    "decode_attention": 0.18,
    "elementwise": 0.12,
    "gemm int8": 0.04,
    "moe": 0.08,
    "linear_attention": 0.03,
    "host": 0.02,
    "pages": 0.02,
}
