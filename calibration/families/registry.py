"""The registry of fitted operator families by name."""

from __future__ import annotations

from calibration.families.base import FamilyModel
from calibration.families.collective import CollectiveModel
from calibration.families.decode_attention import DecodeAttentionModel
from calibration.families.elementwise import ElementwiseModel
from calibration.families.gemm import GemmModel
from calibration.families.grouped_gemm import GroupedGemmModel
from calibration.families.linear_attention import LinearAttentionModel
from calibration.families.mla import MlaModel
from calibration.families.network_kernels import ConvolutionModel, HostLaunchModel, MatmulModel, StreamingModel
from calibration.families.noncausal_attention import NonCausalAttentionModel
from calibration.families.prefill_attention import PrefillAttentionModel

FAMILIES: dict[str, type[FamilyModel]] = {
    "gemm": GemmModel,
    "moe": GroupedGemmModel,
    "prefill_attention": PrefillAttentionModel,
    "decode_attention": DecodeAttentionModel,
    "noncausal_attention": NonCausalAttentionModel,
    "mla": MlaModel,
    "linear_attention": LinearAttentionModel,
    "elementwise": ElementwiseModel,
    "collective": CollectiveModel,
    "matmul": MatmulModel,
    "convolution": ConvolutionModel,
    "streaming": StreamingModel,
    "host_launch": HostLaunchModel,
}
