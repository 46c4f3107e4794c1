"""Routed experts of one MoE layer, each a gated MLP on its tokens.

The products run as torch's grouped product where a GPU has one, else as a loop over the active experts. Every token
chooses its experts at random, so the load is randomly uneven. Engines run one grouped kernel. On a GPU without
torch._grouped_mm, the loop launches once per expert and product, and its time is an upper bound.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from calibration.operators.flops_and_bytes import stored_bytes
from calibration.profile.kernels.inputs import input_sets, random
from calibration.profile.machine.device import ProfiledDevice
from calibration.profile.machine.timing import Call, Work
from calibration.profile.session.shape import Shape


def work(shape: Shape, device: ProfiledDevice) -> Work:
    """Return the gate/up and down projections of the experts that are active on one of `expert_ranks` ranks."""
    tokens, hidden, width = shape.ints("tokens", "hidden_size", "intermediate_size")
    n_experts, top, ranks = shape.ints("n_experts", "experts_per_token", "expert_ranks")
    here = max(n_experts // ranks, 1)
    sets = input_sets(device, 3.0 * here * hidden * width * stored_bytes(str(shape["dtype"])))
    dtype = device.dtype(str(shape["dtype"]))
    sizes = ((here, 2 * width, hidden), (here, hidden, width))
    weights = [[random(device, size, dtype) for size in sizes] for _ in sets]
    torch = device.torch
    chosen = torch.rand(tokens, n_experts).topk(top, dim=-1).indices
    tokens_of = [torch.nonzero((chosen == e).any(-1)).flatten().to(device.kind) for e in range(here)]
    routes = [(e, rows) for e, rows in enumerate(tokens_of) if len(rows)]
    x = random(device, (tokens, hidden), dtype)
    if _has_grouped(device, dtype):
        return Work([_grouped(device, x, routes, *w) for w in weights], "torch._grouped_mm")
    linear, silu = torch.nn.functional.linear, torch.nn.functional.silu

    def call(up_gate: Any, down: Any) -> Call:
        def run() -> object:
            out = torch.zeros_like(x)
            for e, rows in routes:
                y = linear(x[rows], up_gate[e])
                y = silu(y[:, :width]).mul_(y[:, width:])
                out.index_add_(0, rows, linear(y, down[e]))
            return out

        return run

    return Work([call(a, b) for a, b in weights], "loop over experts", graph=False)


@cache
def _has_grouped(device: ProfiledDevice, dtype: Any) -> bool:
    """Return whether torch has a grouped product on this device, which is tried once on a small case."""
    torch = device.torch
    if not device.is_cuda or not hasattr(torch, "_grouped_mm"):
        return False
    try:
        a, b = random(device, (32, 64), dtype), random(device, (2, 128, 64), dtype)
        ends = torch.tensor([16, 32], device=device.kind, dtype=torch.int32)
        torch._grouped_mm(a, b.transpose(-2, -1), offs=ends)
        torch.cuda.synchronize()
    except (RuntimeError, TypeError):
        return False
    return True


def _grouped(device: ProfiledDevice, x: Any, routes: list[tuple[int, Any]], up_gate: Any, down: Any) -> Call:
    """Return two grouped products over rows sorted by expert, with the results summed into tokens."""
    torch, silu = device.torch, device.torch.nn.functional.silu
    rows_of = dict(routes)
    counts = [len(rows_of.get(e, ())) for e in range(len(up_gate))]
    ends = torch.tensor(counts, device=device.kind, dtype=torch.int32).cumsum(0, dtype=torch.int32)
    order = torch.cat([torch.zeros(0, dtype=torch.long, device=device.kind), *rows_of.values()])
    width = down.shape[-1]

    def run() -> object:
        y = torch._grouped_mm(x[order], up_gate.transpose(-2, -1), offs=ends)
        y = silu(y[:, :width]).mul_(y[:, width:])
        return torch.zeros_like(x).index_add_(0, order, torch._grouped_mm(y, down.transpose(-2, -1), offs=ends))

    return run
