"""Launches by the host: a transformer block of modules on one token, against the same kernels called as functions.

The block is so small that its kernels take no time. From modules, a kernel costs the call of a module, the Python of
its forward pass and the views between kernels. Called as a function it costs what the profile of each kernel includes.
"""

from __future__ import annotations

from typing import Any, Final

from calibration.profile.kernels import generate
from calibration.profile.kernels.inputs import random
from calibration.profile.machine.device import ProfiledDevice
from calibration.profile.machine.timing import Work
from calibration.profile.session.shape import Shape

#: Width of the block. A judgement: so small that its kernels take no time.
WIDTH: Final = 64

#: Heads of its attention.
HEADS: Final = 4

#: Blocks of one run, over whose kernels its time is divided.
BLOCKS: Final = 8

#: Kernels of one block: 2 norms, 5 products, attention, activation, 2 sums.
KERNELS: Final = 11


def shapes() -> list[Shape]:
    """Return both shapes: one kernel launched from modules, and one called as a function."""
    return [Shape.of("host_launch", kind=kind, kernels=1) for kind in ("modules", "calls")]


def work(shape: Shape, device: ProfiledDevice) -> Work:
    """Return BLOCKS blocks as modules or as calls, or a generation. It is never captured: a graph has no launches.

    Raises:
        Unavailable: If the shape is a generation, and the library that runs it is not installed.
    """
    if str(shape["kind"]).startswith(generate.GENERATE):
        return generate.work(shape, device)
    make = _modules if shape["kind"] == "modules" else _calls
    return Work([make(device)], f"{KERNELS * BLOCKS} small kernels", KERNELS * BLOCKS, graph=False)


def _modules(device: ProfiledDevice) -> Any:
    torch, dtype = device.torch, device.sixteen_bit(device.activation)
    nn, attention = torch.nn, torch.nn.functional.scaled_dot_product_attention

    class Block(nn.Module):  # type: ignore[misc, name-defined]  # torch is untyped here
        """A block of a transformer that normalises its input: the launches of one are measured."""

        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
            self.up, self.act, self.dropout = nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout()

        def forward(self, x: Any) -> Any:
            """Return attention and a projection, each added to its input."""
            y = self.norm1(x)
            q, k, v = (f(y).reshape(1, -1, HEADS, WIDTH // HEADS).transpose(1, 2) for f in (self.q, self.k, self.v))
            y = attention(q, k, v).transpose(1, 2).reshape(1, -1, WIDTH)
            x = x + self.dropout(self.out(y))
            return x + self.dropout(self.act(self.up(self.norm2(x))))

    blocks = nn.Sequential(*(Block() for _ in range(BLOCKS))).to(device.kind, dtype).eval()
    x = random(device, (1, 1, WIDTH), dtype)
    return lambda: blocks(x)


def _calls(device: ProfiledDevice) -> Any:
    torch, dtype = device.torch, device.sixteen_bit(device.activation)
    functional = torch.nn.functional
    x, w, b = (random(device, shape, dtype) for shape in ((1, WIDTH), (WIDTH, WIDTH), (WIDTH,)))
    q = random(device, (1, HEADS, 1, WIDTH // HEADS), dtype)

    def run() -> None:
        for _ in range(BLOCKS):
            for _ in range(2):
                functional.layer_norm(x, (WIDTH,), b, b)
                torch.add(x, x)
            for _ in range(5):
                functional.linear(x, w, b)
            functional.scaled_dot_product_attention(q, q, q)
            functional.gelu(x)

    return run
