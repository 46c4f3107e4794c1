"""How a checkpoint stores its linear weights: not every part of a layer shrinks with the dtype on the label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from catalogs.errors import InputError, nearest_name
from catalogs.model_parts import Part
from catalogs.units import DTYPE_BYTES

#: dtypes that hold a whole checkpoint; any other dtype holds linear weights only, the rest stays in bf16.
WHOLE_DTYPES: Final = frozenset({"fp32", "bf16", "fp16"})


def dtype_bytes(dtype: str) -> float:
    """Bytes per stored element. InputError for a dtype that is not known."""
    if dtype not in DTYPE_BYTES:
        raise InputError("unknown dtype", dtype, nearest_name(dtype, DTYPE_BYTES) or "bf16")
    return DTYPE_BYTES[dtype]


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """One published storage of a model's linear weights; the default is every linear weight in `dtype`."""

    dtype: str
    bytes_per_weight: float | None = None  # of a quantised weight with its scales; None: units.DTYPE_BYTES
    unquantized: tuple[tuple[Part, float], ...] = ()  # share of a part's weights left in bf16
    kv_dtype: str | None = None  # of the KV cache where the checkpoint declares one: the engine's "auto" follows it

    def quantized_fraction(self, part: Part) -> float:
        """Share of a part's linear weights stored in `dtype`."""
        return 1.0 - dict(self.unquantized).get(part, 0.0)

    def part_dtype(self, part: Part) -> str:
        """The dtype most of a part's matrix products run in."""
        return self.dtype if self.quantized_fraction(part) >= 0.5 else "bf16"

    def part_bytes_per_weight(self, part: Part) -> float:
        """Mean stored bytes per linear weight of a part, scales included."""
        size = dtype_bytes(self.dtype) if self.bytes_per_weight is None else self.bytes_per_weight
        share = self.quantized_fraction(part)
        return share * size + (1.0 - share) * DTYPE_BYTES["bf16"]

    def other_bytes_per_weight(self) -> float:
        """Bytes of a number that is never quantised: embeddings, output projection, norms, biases, routers."""
        return dtype_bytes(self.dtype if self.dtype in WHOLE_DTYPES else "bf16")
