"""Conversion factors from human units to SI; all internal values are SI (seconds, bytes, watts, flops)."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024**2
GIB: Final = 1024**3

MEGA: Final = 1e6
GIGA: Final = 1e9
TERA: Final = 1e12

HOUR_S: Final = 3600.0

#: Bytes per stored element. fp4 and int4 include their block scales: NVFP4 holds one fp8 scale per 16 values
#: (0.5 + 1/16), MXFP4 one 8-bit exponent per 32 (0.5 + 1/32); group-128 int4 one fp16 scale and zero (0.5 + 1/32).
DTYPE_BYTES: Final[dict[str, float]] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.53125,
    "fp4": 0.5625,
}

#: Bytes per weight in MXFP4, which catalog files call fp4 too.
MXFP4_BYTES: Final = 0.53125
