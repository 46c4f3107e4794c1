"""The registry of operator families: the function that makes their work, and their share of the profiling time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from calibration.profile.kernels import (
    attention,
    convolution,
    drift_reference,
    elementwise,
    gemm,
    grouped_gemm,
    host,
    host_launch,
    machine_rates,
    matmul,
    streaming,
)
from calibration.profile.machine.device import ProfiledDevice
from calibration.profile.machine.timing import Work
from calibration.profile.session.shape import Shape

WORK: Final[dict[str, Callable[[Shape, ProfiledDevice], Work]]] = {
    "gemm": gemm.work,
    "prefill_attention": attention.prefill,
    "decode_attention": attention.decode,
    "elementwise": elementwise.work,
    "moe": grouped_gemm.work,
    "peak": machine_rates.peak,
    "copy": machine_rates.copy,
    "launch": machine_rates.launch,
    "noncausal_attention": attention.without_causal_mask,
    "matmul": matmul.work,
    "convolution": convolution.work,
    "streaming": streaming.work,
    "host_launch": host_launch.work,
    "drift": drift_reference.work,
    "linear_attention": attention.linear,
    "host": host.work,
    "pages": host.page_copy,
}

OTHER_SHARE: Final = 0.05  # share of the profiling time of a queue that SHARES does not name

#: Relative share of the profiling time of each queue of shapes.
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
    "matmul": 0.10,
    "convolution": 0.08,
    "noncausal_attention": 0.04,
    "streaming": 0.05,
    "host_launch": 0.01,
}
