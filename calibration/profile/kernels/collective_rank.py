"""The process of one rank that collective.py starts.

Run it with `python -m calibration.profile.kernels.collective_rank RANK`; it reads the plan from stdin as JSON.
"""

from __future__ import annotations

import datetime
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

REPEATS: Final = 40

MOST_S: Final = 1.0  # Time limit of the repeats of one size.

WARM: Final = 5  # Warm-up calls.


def main(rank: int, plan: dict[str, Any]) -> None:
    """Run every collective of the plan; rank 0 writes {key: {seconds, n_samples, mode}} as JSON."""
    import torch
    import torch.distributed as dist

    ranks, is_cuda = int(plan["ranks"]), plan["kind"] == "cuda"
    if is_cuda:
        torch.cuda.set_device(rank)
    torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if is_cuda else "gloo",
        init_method=f"tcp://127.0.0.1:{plan['port']}",
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(seconds=60),
    )
    device = f"cuda:{rank}" if is_cuda else "cpu"
    found: dict[str, Any] = {}
    for key, kind, size, graph in plan["cells"]:
        call = _call(torch, dist, kind, int(size), ranks, device)
        samples, mode = _timed(torch, dist, call, is_cuda, bool(graph))
        if samples:
            found[key] = {"seconds": float(np.median(samples)), "n_samples": len(samples), "mode": mode}
    if rank == 0:
        Path(plan["out"]).write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def _call(torch: Any, dist: Any, kind: str, size: int, ranks: int, device: str) -> Callable[[], object]:
    """Return a call of a collective.

    `size` is the bytes of the whole tensor: the reduced tensor, the gathered result, or the input of a reduce-scatter.
    """
    dtype = torch.bfloat16 if device != "cpu" else torch.float32
    n = max(size // dtype.itemsize, ranks) // ranks * ranks
    whole, part = torch.randn(n, device=device).to(dtype), torch.randn(n // ranks, device=device).to(dtype)
    if kind == "all_reduce":
        return lambda: dist.all_reduce(whole)
    if kind == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, part)
    return lambda: dist.reduce_scatter_tensor(part, whole)


def _timed(torch: Any, dist: Any, call: Callable[[], object], is_cuda: bool, graph: bool) -> tuple[list[float], str]:
    """Return samples in seconds and the timing mode; the ranks agree on the number of samples after the warm-up."""
    start = time.perf_counter()
    for _ in range(WARM):
        call()
    if is_cuda:
        torch.cuda.synchronize()
    each = torch.tensor([(time.perf_counter() - start) / WARM], device="cuda" if is_cuda else "cpu")
    dist.all_reduce(each, op=dist.ReduceOp.MAX)
    repeats = int(min(REPEATS, max(5, MOST_S / float(each))))
    if is_cuda:
        return _on_cuda(torch, call, repeats, graph), "graph replay" if graph else "eager launches"
    samples = []
    for _ in range(repeats):
        dist.barrier()
        t0 = time.perf_counter()
        call()
        samples.append(time.perf_counter() - t0)
    return samples, "wall after a barrier"


def _on_cuda(torch: Any, call: Callable[[], object], repeats: int, graph: bool, inner: int = 20) -> list[float]:
    def body() -> None:
        for _ in range(inner):
            call()

    run: Callable[[], object] = body
    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            body()
        run = captured.replay
    run()
    samples = []
    for _ in range(repeats):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        run()
        last.record()
        last.synchronize()
        samples.append(float(first.elapsed_time(last)) * 1e-3 / inner)
    return samples


if __name__ == "__main__":
    main(int(sys.argv[1]), json.load(sys.stdin))
