"""The rule for weights whose scales belong to blocks: whether a rank's share of a matrix may end inside one.

In block-scaled fp8 checkpoints, 128 x 128 weights share a scale. Tensor ranks share the width of feed-forward blocks,
so a rank's share of Qwen3-235B's experts is 1536 / 8 = 192 wide over eight ranks: one and a half blocks. Attention is
shared by whole heads, which are whole blocks in every published block-scaled checkpoint.

- vLLM up to 0.14 and SGLang refuse such a layout as they load the weights (vllm: validate_fp8_block_shape_moe, "The
  output_size of gate's and up's weight = 192 is not divisible by weight quantization block_n = 128").
- Newer vLLM refines the blocks of experts to the largest size that divides them, down to 32, which only its Triton
  kernels run (0.32: fused_moe/oracle/fp8.py, refine_fp8_moe_block_shape); 0.18 served a 192-wide share publicly
  (InferenceX, MiniMax-M2.5 over eight H200, 2026-03). Dense and shared blocks are refused as before.
- TensorRT-LLM pads the scales (ceil_div).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from catalogs.deployments.layout import Layout
from catalogs.deployments.resolution.parallelism import tensor_parallel_choices
from catalogs.engines.profile import EngineProfile
from catalogs.errors import InputError
from catalogs.models.mixers import Part
from catalogs.models.spec import ModelSpec

#: The smallest block of scales that vLLM's kernels take.
LEAST_BLOCK: Final = 32


@dataclass(frozen=True, slots=True)
class CutBlock:
    """A part of a model whose share on one rank ends inside a block of scales."""

    part: Part
    width: int
    block: int

    @property
    def refined(self) -> int:
        """Return the largest block that divides both the share and the block of the checkpoint."""
        return math.gcd(self.width, self.block)

    @property
    def words(self) -> str:
        """Return the fact in words."""
        what = {"experts": "the experts", "shared_experts": "the shared experts"}.get(self.part, "a feed-forward block")
        return (
            f"a rank's share of {what} is {self.width} wide, no multiple of the {self.block} weights that share a scale"
        )


def cut_blocks(model: ModelSpec, weight_dtype: str, layout: Layout) -> list[CutBlock]:
    """Return the parts whose shares end inside a block of scales, each width once; [] without block scales."""
    stored = model.weight_format(weight_dtype)
    if not stored.block_size or layout.tensor_parallel == 1:
        return []
    blocks = [group.ffn for group in (*model.groups, *model.encoder_groups) if group.ffn is not None]
    widths = [
        CutBlock(part, width // layout.tensor_parallel, stored.block_size)
        for ffn in blocks
        for part, width in ffn.shared_widths(layout.expert_parallel).items()
        if width and stored.part_dtype(part) == stored.dtype
    ]
    return list(dict.fromkeys(cut for cut in widths if cut.width % cut.block))


def refusal(model: ModelSpec, weight_dtype: str, layout: Layout, engine: EngineProfile) -> str | None:
    """Return why the engine does not load these weights in this layout, or None."""
    if engine.cut_scale_blocks == "padded":
        return None
    for cut in cut_blocks(model, weight_dtype, layout):
        refines = engine.cut_scale_blocks == "refined" and cut.part == "experts" and cut.refined >= LEAST_BLOCK
        if not refines:
            return f"{engine.name} {engine.version} refuses {weight_dtype} weights in this layout: {cut.words}"
    return None


def check_scale_blocks(model: ModelSpec, weight_dtype: str, layout: Layout, engine: EngineProfile) -> tuple[str, ...]:
    """Check that the engine loads these weights in this layout, and return notices about refined blocks.

    Raises:
        InputError: A rank's share ends inside a block of scales, which the engine refuses; the message names the
            nearest tensor-parallel size that it loads.
    """
    why = refusal(model, weight_dtype, layout, engine)
    if why is not None:
        tp = layout.tensor_parallel
        choices = tensor_parallel_choices(model, tp, layout.expert_parallel)
        fits = [
            n for n in choices if not cut_blocks(model, weight_dtype, Layout(n, expert_parallel=layout.expert_parallel))
        ]
        near = f"tensor_parallel: {fits[-1]}"
        whole = model.is_moe and not cut_blocks(model, weight_dtype, Layout(tp, expert_parallel=True))
        raise InputError(why, f"tensor_parallel: {tp}", f"{near}, or expert_parallel: true" if whole else near)
    if engine.cut_scale_blocks != "refined":
        return ()
    return tuple(
        f"{cut.words}: {engine.name} refines them to {cut.refined} and runs its Triton kernels; operator times are "
        "those of whole blocks"
        for cut in cut_blocks(model, weight_dtype, layout)
    )
