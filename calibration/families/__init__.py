"""The fitted families, by name: the one place that knows them all."""

from __future__ import annotations

from calibration.families.decode_attention import DecodeAttentionModel
from calibration.families.gemm import GemmModel
from calibration.families.prefill_attention import PrefillAttentionModel
from calibration.family import FamilyModel

FAMILIES: dict[str, type[FamilyModel]] = {
    "gemm": GemmModel,
    "prefill_attention": PrefillAttentionModel,
    "decode_attention": DecodeAttentionModel,
}
