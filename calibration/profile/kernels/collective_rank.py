"""One rank of profile/collective.py: `python -m calibration.profile.collective_rank RANK`, the plan on stdin."""

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

MOST_S: Final = 1.0  # for one size

WARM: Final = 5


def main(rank: int, plan: dict[str, Any]) -> None:
    """Run every cell; rank 0 writes {key: {seconds, n_samples, mode}}."""
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
    """message_bytes is the whole tensor: what is reduced, the gathered result, the input of a reduce-scatter."""
    dtype = torch.bfloat16 if device != "cpu" else torch.float32
    n = max(size // dtype.itemsize, ranks) // ranks * ranks
    whole, part = torch.randn(n, device=device).to(dtype), torch.randn(n // ranks, device=device).to(dtype)
    if kind == "all_reduce":
        return lambda: dist.all_reduce(whole)
    if kind == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, part)
    return lambda: dist.reduce_scatter_tensor(part, whole)


def _timed(torch: Any, dist: Any, call: Callable[[], object], is_cuda: bool, graph: bool) -> tuple[list[float], str]:
    """Samples in seconds, the same number on every rank: how many is agreed after the warm-up."""
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
