"""Matrix products: torch's linear layer, weights rotated through memory; fp8 through torch._scaled_mm."""

from __future__ import annotations

from collections.abc import Callable

from calibration.profile.device import Device
from calibration.profile.inputs import cycle, random
from calibration.profile.shape import Shape
from calibration.profile.timing import Work
from calibration.roofline import dtype_bytes


def work(shape: Shape, device: Device) -> Work:
    """y[m, n] = x[m, k] w[n, k]^T in the shape's dtype."""
    m, n, k, dtype = (shape[c] for c in ("m", "n", "k", "dtype"))
    sets = cycle(device, n * k * dtype_bytes(dtype) + (m * k + m * n) * 2.0)
    make = _fp8 if dtype == "fp8" else _plain
    kernel = "torch._scaled_mm, input quantised" if dtype == "fp8" else "torch.nn.functional.linear"
    return Work([make(device, m, n, k, dtype) for _ in sets], kernel)


def _plain(device: Device, m: int, n: int, k: int, dtype: str) -> Callable[[], object]:
    linear = device.torch.nn.functional.linear
    x, w = random(device, (m, k), device.dtype(dtype)), random(device, (n, k), device.dtype(dtype))
    return lambda: linear(x, w)


def _fp8(device: Device, m: int, n: int, k: int, dtype: str) -> Callable[[], object]:
    """As engines run it: a 16-bit input is scaled and quantised, then multiplied, 16 bits out."""
    torch = device.torch
    fp8 = device.dtype(dtype)
    x, w = random(device, (m, k)), random(device, (n, k)).to(fp8).t()
    one = torch.ones((), device=device.kind)
    inverse = torch.ones((), device=device.kind, dtype=x.dtype)

    def run() -> object:
        narrow = (x * inverse).clamp_(-448.0, 448.0).to(fp8)
        return torch._scaled_mm(narrow, w, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    return run
