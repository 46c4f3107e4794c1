"""Random weights without the wait: blocks of random values copied over and over, instead of each value drawn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

BLOCK: Final = 1 << 20


@contextmanager
def tiled_random(torch: Any) -> Iterator[None]:
    """While active, `normal_` and `uniform_` of CPU tensors repeat one random block: values of the right spread, never
    zero, several times faster where one thread must do it. Only timing is wanted of such a model."""
    drawn = torch.Generator().manual_seed(0)
    normal = torch.randn(BLOCK, generator=drawn)
    uniform = torch.rand(BLOCK, generator=drawn)

    def normal_(tensor: Any, mean: float = 0.0, std: float = 1.0, **_rest: Any) -> Any:
        return _fill(tensor, normal * std + mean, torch)

    def uniform_(tensor: Any, low: float = 0.0, high: float = 1.0, **_rest: Any) -> Any:
        return _fill(tensor, uniform * (high - low) + low, torch)

    torch.Tensor.normal_, torch.Tensor.uniform_ = normal_, uniform_
    try:
        yield
    finally:
        del torch.Tensor.normal_, torch.Tensor.uniform_


def _fill(tensor: Any, block: Any, torch: Any) -> Any:
    """Copy the block over the tensor, in its own layout."""
    if tensor.device.type == "meta" or tensor.numel() == 0:
        return tensor
    with torch.no_grad():
        flat = tensor.view(-1) if tensor.is_contiguous() else None
        n = tensor.numel()
        if flat is None:
            return tensor.copy_(block.repeat(-(-n // BLOCK))[:n].view(tensor.shape))
        whole = n // BLOCK * BLOCK
        if whole:
            flat[:whole].view(-1, BLOCK).copy_(block.to(tensor.dtype))
        if n > whole:
            flat[whole:].copy_(block[: n - whole])
    return tensor
