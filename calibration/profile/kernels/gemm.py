"""Matrix products with weights rotated through memory: torch's linear layer, and torch._scaled_mm for fp8.

On a CPU, engines lay the weights out for oneDNN once, when they load the model. The measured product uses the same
layout where torch has oneDNN. On a Zen 4 core a bf16 product with 4096 x 4096 weights is then faster by a factor of 1.8
for one row and of 1.04 for 256 rows. oneDNN has no such layout for 16-bit weights on processors without the vector
instructions that it needs (on x86, AVX-512); engines then run torch's linear layer, and so does this kernel. Plain
torch, as transformers runs it, keeps the layout of its linear layer: that product is the family `matmul`.
"""

from __future__ import annotations

from typing import Any, Final

from calibration.operators.flops_and_bytes import stored_bytes
from calibration.profile.kernels.inputs import input_sets, random
from calibration.profile.machine.device import ProfiledDevice
from calibration.profile.machine.timing import Call, Work
from calibration.profile.session.shape import Shape

INT8_ROWS: Final = 16  # torch._int_mm on CUDA requires more rows than this.

#: Factor by which random inputs and weights are scaled before they are rounded to int8.
INT8_SCALE: Final = 256.0


def work(shape: Shape, device: ProfiledDevice) -> Work:
    """Return the product y[m, n] = x[m, k] w[n, k]^T in the shape's dtype."""
    m, n, k, dtype = (shape[c] for c in ("m", "n", "k", "dtype"))
    sets = input_sets(device, n * k * stored_bytes(dtype) + (m * k + m * n) * 2.0)
    if dtype == "int8":
        make, kernel = _int8, "torch._int_mm, input quantised"
    elif dtype == "fp8":
        make, kernel = _fp8, "torch._scaled_mm, input quantised"
    elif not device.is_cuda and _lays_out(device, dtype):
        make, kernel = _packed, "onednn, weights laid out before"
    else:
        make, kernel = _plain, "torch linear"
    return Work([make(device, m, n, k, device.dtype(dtype)) for _ in sets], kernel)


def _lays_out(device: ProfiledDevice, dtype: str) -> bool:
    """Return whether oneDNN lays out weights of this dtype on this processor."""
    if not device.torch.backends.mkldnn.is_available():
        return False
    ops = device.torch.ops.mkldnn
    supported = {"bf16": ops._is_mkldnn_bf16_supported, "fp16": ops._is_mkldnn_fp16_supported}
    return bool(supported[dtype]()) if dtype in supported else True


def _plain(device: ProfiledDevice, m: int, n: int, k: int, dtype: Any) -> Call:
    linear = device.torch.nn.functional.linear
    x, w = random(device, (m, k), dtype), random(device, (n, k), dtype)
    return lambda: linear(x, w)


def _packed(device: ProfiledDevice, m: int, n: int, k: int, dtype: Any) -> Call:
    ops = device.torch.ops.mkldnn
    x, w = random(device, (m, k), dtype), ops._reorder_linear_weight(random(device, (n, k), dtype), None)
    return lambda: ops._linear_pointwise(x, w, None, "none", [], "")


def _fp8(device: ProfiledDevice, m: int, n: int, k: int, dtype: Any) -> Call:
    """Return an fp8 product as engines run it: the 16-bit input is scaled, quantised and multiplied to 16 bits."""
    torch = device.torch
    x, w = random(device, (m, k)), random(device, (n, k)).to(dtype).t()
    one = torch.ones((), device=device.kind)
    inverse = torch.ones((), device=device.kind, dtype=x.dtype)

    def run() -> object:
        narrow = (x * inverse).clamp_(-448.0, 448.0).to(dtype)
        return torch._scaled_mm(narrow, w, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)

    return run


def _int8(device: ProfiledDevice, m: int, n: int, k: int, dtype: Any) -> Call:
    """Return an int8 product as engines run W8A8.

    The 16-bit input is scaled and rounded, multiplied into int32, and scaled to 16 bits. CUDA requires more than
    INT8_ROWS rows, so fewer rows are padded, as an engine would have to do.
    """
    torch = device.torch
    x = random(device, (m, k), device.sixteen_bit("bf16"))
    w = random(device, (n, k)).mul(INT8_SCALE).round_().to(dtype).t()
    padded = max(m, INT8_ROWS + 1) if device.is_cuda else m
    narrow = torch.zeros((padded, k), dtype=dtype, device=device.kind)
    scale = torch.tensor(1.0 / INT8_SCALE**2, device=device.kind)

    def run() -> object:
        narrow[:m].copy_((x * INT8_SCALE).round_().clamp_(-127, 127))
        return (torch._int_mm(narrow, w)[:m] * scale).to(x.dtype)

    return run
