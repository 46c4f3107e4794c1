"""Extent of the shapes of a profile on a kind of device, and the number of sizes of each family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """Axes of batch and context, and the number of sizes of each family."""

    rows: tuple[int, ...]  # tokens of a step, for matrix products and elementwise kernels
    own_rows: tuple[int, ...]  # further tokens of a step, for the products of the user's models
    prompts: tuple[int, ...]
    contexts: tuple[int, ...]
    sequences: tuple[int, ...]
    products: int
    head_sizes: int
    heads: int  # group sizes of each head size that are taken from the catalog
    groups: tuple[int, ...]  # further group sizes, because kernels may be slower between powers of two
    experts: int
    cache_bytes: float  # limit of the keys and values of one attention shape
    expert_bytes: float  # limit of the experts of one layer
    splits: tuple[int, ...]  # tensor-parallel sizes
    kv_dtypes: tuple[str, ...]  # dtypes of attention
    network_batches: tuple[int, ...]  # of the user's networks, which are not language models
    attention_pairs: int  # limit of query-key pairs of attention in the grid of networks


def _doublings(first: int, last: int) -> tuple[int, ...]:
    return tuple(2**i for i in range(first, last + 1))


CPU: Final = SizeLimits(
    rows=_doublings(0, 11),
    own_rows=(24, 48, 96, 192, 384, 768),
    prompts=(16, 64, 128, 256, 512, 1024, 2048),
    contexts=(16, 64, 256, 1024, 4096),
    sequences=_doublings(0, 7),
    products=28,
    head_sizes=2,
    heads=4,
    groups=(1, 2, 3, 4, 5, 6, 7, 8),
    experts=3,
    cache_bytes=1e9,
    expert_bytes=1.5e9,
    splits=(1,),
    kv_dtypes=("bf16", "fp32"),
    network_batches=(1, 2, 4, 8),
    attention_pairs=2**28,
)

CUDA: Final = SizeLimits(
    rows=_doublings(0, 13),
    own_rows=(24, 48, 96, 192, 384, 768, 1536, 3072, 6144),
    prompts=(16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
    contexts=(16, 64, 256, 1024, 4096, 16384, 65536),
    sequences=_doublings(0, 9),
    products=48,
    head_sizes=4,
    heads=6,
    groups=(),
    experts=8,
    cache_bytes=12e9,
    expert_bytes=12e9,
    splits=(1, 2, 4, 8),
    kv_dtypes=("bf16",),
    network_batches=(1, 2, 4, 8, 16, 32, 64),
    attention_pairs=2**33,
)
