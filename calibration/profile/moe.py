"""Routed experts of one MoE layer: a loop over the experts touched, each a gated MLP on its tokens.

Every token picks its experts at random, so the load is uneven as chance has it. Engines run one grouped kernel: on a
GPU this loop launches once per expert and product, and is an upper bound there.
"""

from __future__ import annotations

from collections.abc import Callable

from calibration.profile.device import Device
from calibration.profile.inputs import cycle, random
from calibration.profile.shape import Shape
from calibration.profile.timing import Work
from calibration.roofline import dtype_bytes


def work(shape: Shape, device: Device) -> Work:
    """gate/up and down projections of the experts that `tokens` tokens touch on one of `expert_ranks` ranks."""
    names = ("tokens", "hidden_size", "intermediate_size", "n_experts", "experts_per_token", "expert_ranks")
    tokens, hidden, width, n_experts, top, ranks = (int(shape[c]) for c in names)
    here = max(n_experts // ranks, 1)
    sets = cycle(device, 3.0 * here * hidden * width * dtype_bytes(str(shape["dtype"])))
    dtype = device.dtype(str(shape["dtype"]))
    weights = [
        (random(device, (here, 2 * width, hidden), dtype), random(device, (here, hidden, width), dtype)) for _ in sets
    ]
    torch = device.torch
    chosen = torch.rand(tokens, n_experts).topk(top, dim=-1).indices
    routes = [(e, torch.nonzero((chosen == e).any(-1)).flatten().to(device.kind)) for e in range(here)]
    routes = [(e, rows) for e, rows in routes if len(rows)]
    x = random(device, (tokens, hidden), dtype)
    silu = torch.nn.functional.silu
    linear = torch.nn.functional.linear

    def call(up_gate: object, down: object) -> Callable[[], object]:
        def run() -> object:
            out = torch.zeros_like(x)
            for e, rows in routes:
                y = linear(x[rows], up_gate[e])  # type: ignore[index]
                y = silu(y[:, :width]).mul_(y[:, width:])
                out.index_add_(0, rows, linear(y, down[e]))  # type: ignore[index]
            return out

        return run

    return Work([call(a, b) for a, b in weights], "loop over experts", graph=False)
