"""The process of one rank that collective.py starts.

Run it with `python -m calibration.profile.kernels.collective_rank FOLDER RANK`; it reads FOLDER/plan.json.
"""

from __future__ import annotations

import datetime
import json
import sys
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

from calibration.profile.machine.timing import Call, event_s

#: Most repeats of one size.
REPEATS: Final = 40

MOST_S: Final = 1.0  # time limit of the repeats of one size

WARM: Final = 5  # warm-up calls

INNER: Final = 20  # calls between two CUDA events


def main(folder: Path, rank: int) -> None:
    """Run every collective of the plan; rank 0 writes {key: {seconds, n_samples, mode}} to rank0.json."""
    import torch
    import torch.distributed as dist

    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    ranks, is_cuda = int(plan["ranks"]), bool(plan["is_cuda"])
    if is_cuda:
        torch.cuda.set_device(rank)
    torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if is_cuda else "gloo",
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(seconds=60),
    )
    device = f"cuda:{rank}" if is_cuda else "cpu"
    found: dict[str, Any] = {}
    for key, kind, size, graph in plan["cells"]:
        call = _call(torch, dist, kind, int(size), ranks, device)
        samples, mode = _timed(torch, dist, call, is_cuda, bool(graph))
        found[key] = {"seconds": float(np.median(samples)), "n_samples": len(samples), "mode": mode}
    if rank == 0:
        (folder / "rank0.json").write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def _call(torch: Any, dist: Any, kind: str, size: int, ranks: int, device: str) -> Call:
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


def _timed(torch: Any, dist: Any, call: Call, is_cuda: bool, graph: bool) -> tuple[list[float], str]:
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


def _on_cuda(torch: Any, call: Call, repeats: int, graph: bool) -> list[float]:
    def run() -> None:
        for _ in range(INNER):
            call()

    timed: Call = run
    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            run()
        timed = captured.replay
    timed()
    return [event_s(timed, torch) / INNER for _ in range(repeats)]


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
