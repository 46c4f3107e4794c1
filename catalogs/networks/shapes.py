"""The kinds of operators, the dims of each, and the FLOPs of a shape (a multiply-add counts as two).

The FLOPs are those of `torch.utils.flop_counter`: matrix products, attention and convolutions. Causal attention counts
as full attention there; `executed_flops` leaves out the part above the diagonal. All other kinds move bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Final, Literal

Kind = Literal[
    "gemm",
    "attention",
    "convolution",
    "pooling",
    "normalisation",
    "softmax",
    "pointwise",
    "reduction",
    "gather",
    "copy",
    "resize",
    "sort",
    "scan",
    "other",
]


@dataclass(frozen=True, slots=True)
class GemmShape:
    """`batch` products of (m, k) by (k, n). The second factor is a parameter where the operator has weights."""

    m: int
    n: int
    k: int
    batch: int = 1

    @property
    def flops(self) -> int:
        """The FLOPs of all products."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def executed_flops(self) -> int:
        """The FLOPs that a kernel executes."""
        return self.flops


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Scaled dot-product attention of `queries` to `keys`, per sequence of the batch.

    `causal`, `masked` and `unfused` are 0 or 1. A masked one reads a mask tensor, which excludes kernels without masks.
    An unfused one has inputs that no fused kernel of torch takes, so that its scores pass through memory.
    """

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_dim: int
    value_dim: int
    causal: int = 0
    masked: int = 0
    unfused: int = 0

    @property
    def flops(self) -> int:
        """The FLOPs of both products without regard to causality."""
        return 2 * self.batch * self.heads * self.queries * self.keys * (self.head_dim + self.value_dim)

    @property
    def executed_flops(self) -> int:
        """The FLOPs that a kernel executes: without the scores above the diagonal of a causal one."""
        if not self.causal:
            return self.flops
        square = min(self.queries, self.keys)  # query i sees keys 0 to i, as in torch
        scores = square * (square + 1) // 2 + (self.queries - square) * self.keys
        return 2 * self.batch * self.heads * scores * (self.head_dim + self.value_dim)


@dataclass(frozen=True, slots=True)
class ConvolutionShape:
    """A convolution in one to three dimensions; `input` and `output` are the extents in each, of one image.

    A transposed one scatters: each input element meets the kernel, and strides widen the output.
    """

    batch: int
    in_channels: int
    out_channels: int
    kernel: tuple[int, ...]
    input: tuple[int, ...]
    output: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    transposed: int = 0

    @property
    def flops(self) -> int:
        """The FLOPs of the direct convolution."""
        places = prod(self.input if self.transposed else self.output)
        return 2 * self.batch * places * prod(self.kernel) * self.in_channels * self.out_channels // self.groups

    @property
    def executed_flops(self) -> int:
        """The FLOPs that a kernel executes."""
        return self.flops

    @property
    def gemm(self) -> GemmShape:
        """The implicit matrix product: one of (places, kernel x channels) by (.., out channels) for each group."""
        places = self.batch * prod(self.input if self.transposed else self.output)
        taps = prod(self.kernel)
        per_in, per_out = self.in_channels // self.groups, self.out_channels // self.groups
        if self.transposed:
            return GemmShape(places, taps * per_out, per_in, self.groups)
        return GemmShape(places, per_out, taps * per_in, self.groups)


@dataclass(frozen=True, slots=True)
class ElementShape:
    """An operator that moves bytes: `elements` is the number of elements that it writes."""

    elements: int

    @property
    def flops(self) -> int:
        """The FLOPs of the operator: 0, since torch counts those of products, attention and convolutions only."""
        return 0

    @property
    def executed_flops(self) -> int:
        """The FLOPs of the operator: 0, since torch counts those of products, attention and convolutions only."""
        return 0


Shape = GemmShape | AttentionShape | ConvolutionShape | ElementShape

#: The class of the dims of each kind; a kind that is absent has an ElementShape.
SHAPES: Final[Mapping[str, type[Shape]]] = {
    "gemm": GemmShape,
    "attention": AttentionShape,
    "convolution": ConvolutionShape,
}

#: Dims that are lists with one entry per dimension.
LISTED: Final = frozenset({"kernel", "input", "output", "stride", "dilation"})


def shape_class(kind: str) -> type[Shape]:
    """Return the class of the dims of a kind."""
    return SHAPES.get(kind, ElementShape)
