"""Kernels that a step outside CUDA graphs launches one by one from Python, which may take the host longer than running
them takes the device.

A captured decode step is one launch. A step beyond the captured sizes, or one with prefill where an engine captures
decodes only, is launched layer by layer; it takes as long as the slower of host and device. Counts are those of the
engines' sources: a quantised product has a kernel that quantises its input; experts sort and align tokens, multiply
twice with an activation between, and add up; multi-head latent attention is five products, two norms, rotation, two
copies, a cache write and the attention itself. A gated delta rule's scan is 18: the gates' small product, a flag, the
convolution and the copy before it, three contiguous copies, gates, two norms, then cumulated decays, products of the
keys, a triangular solve (a fill and two kernels), its application, states and outputs (SGLang,
layers/attention/fla/chunk.py and hybrid_linear_attn_backend.py).
"""

from __future__ import annotations

from typing import Final

from calibration.operators import Gemm, GroupedGemm, LinearAttentionScan, MlaModule
from simulator.layers import expert_lines, logits_lines, prefill_lines, token_lines
from simulator.line import Line
from simulator.shard import Shard

_QUANTISED: Final = frozenset({"fp8", "fp8_block", "fp4", "int8", "mxfp4_mxfp8"})
_PROMPT_TOKENS: Final = 1024  # any number: launches do not depend on it


def step_launches(shard: Shard) -> int:
    """Kernels of one eager step with prefill on one rank."""
    lines = token_lines(shard, _PROMPT_TOKENS, graph=False) + expert_lines(
        shard, _PROMPT_TOKENS * shard.dp, graph=False
    )
    lines += logits_lines(shard, 1) + prefill_lines(shard, 1, _PROMPT_TOKENS, 0)
    return sum(line.count * _kernels(line) for line in lines)


def _kernels(line: Line) -> int:
    op = line.op
    if isinstance(op, Gemm):
        return 1 + (op.dtype in _QUANTISED)
    if isinstance(op, GroupedGemm):
        return 6 + 2 * (op.dtype in _QUANTISED)
    if isinstance(op, MlaModule):
        return 12 + 5 * (op.dtype in _QUANTISED)
    return 18 if isinstance(op, LinearAttentionScan) else 1
