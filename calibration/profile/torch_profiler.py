"""Kernels of each operator, traced by torch's profiler for one shape per queue.

The result goes to kernels.csv and kernels.parquet.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from calibration.operators.flops_and_bytes import bytes_moved, flops
from calibration.profile.kernels.inputs import DoesNotFit, Unavailable
from calibration.profile.kernels.registry import WORK
from calibration.profile.peaks import shape_of
from calibration.profile.session.session import Row
from calibration.profile.session.shape import FIT, Shape
from catalogs.io.output_files import atomic_file

if TYPE_CHECKING:
    from calibration.profile.local_run import ProfileResult
    from calibration.profile.machine.device import ProfiledDevice


#: Calls of a kernel that are traced, over which its time is divided.
CALLS: Final = 10

KERNELS_NAME: Final = "kernels"


def write_kernels(done: ProfileResult) -> Path:
    """Trace the measured shape of median duration of every queue and return the path of the CSV file.

    Raises:
        InputError: If the files cannot be written.
    """
    import pandas as pd

    rows = [r for r in done.session.rows if r["status"] == "ok" and r["role"] == FIT and r["family"] in WORK]
    by_queue: dict[str, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda r: float(r["seconds"])):
        by_queue[shape_of(row).queue].append(row)
    medians = [(queue, of_queue[len(of_queue) // 2]) for queue, of_queue in sorted(by_queue.items())]
    found = [kernel for queue, row in medians for kernel in _kernels(queue, shape_of(row), row["seconds"], done)]
    path = done.folder / f"{KERNELS_NAME}.csv"
    frame = pd.DataFrame(found)
    with atomic_file(path) as part:
        frame.to_csv(part, index=False)
    with atomic_file(path.with_suffix(".parquet")) as part:
        frame.to_parquet(part, index=False)
    return path


def _kernels(queue: str, shape: Shape, seconds: float, done: ProfileResult) -> list[dict[str, Any]]:
    """Return one row per kernel with its calls, time and share, and the operator's FLOPs and bytes per second."""
    op = shape.operator
    assert op is not None
    head = {
        "queue": queue,
        "shape": ",".join(f"{k}={v}" for k, v in shape.fields),
        "operator_s": seconds,
        "operator_flops_per_s": float(flops(op)) / seconds,
        "operator_bytes_per_s": float(bytes_moved(op, done.accelerator)) / seconds,
    }
    try:
        events = trace(shape, done.device)
    except (RuntimeError, DoesNotFit, Unavailable) as error:
        return [{**head, "kernel": f"not traced: {str(error).splitlines()[0]}"}]
    total = sum(s for _, _, s, _ in events) or 1.0
    return [
        {**head, "kernel": n, "calls": c, "seconds": s, "share": s / total, "flops_per_s": f / s if f and s else None}
        for n, c, s, f in events
    ]


def trace(shape: Shape, device: ProfiledDevice) -> list[tuple[str, float, float, float]]:
    """Trace one execution of a shape.

    Returns:
        (kernel, calls, seconds, FLOPs that torch counts) of each kernel, longest first. On a GPU these are device
        kernels; on a CPU they are torch operators, without the operators that they call.
    """
    torch = device.torch
    profiler = torch.profiler
    kinds = [profiler.ProfilerActivity.CPU] + ([profiler.ProfilerActivity.CUDA] if device.is_cuda else [])
    with torch.inference_mode():
        work = WORK[shape.family](shape, device)
        for call in work.calls[:3]:
            call()
        device.synchronize()
        with profiler.profile(activities=kinds, with_flops=True) as traced:
            for i in range(CALLS):
                work.calls[i % len(work.calls)]()
            device.synchronize()
    runs = CALLS * work.per_call
    found = []
    for event in traced.key_averages():
        own_us = event.self_device_time_total if device.is_cuda else event.self_cpu_time_total
        on_device = not device.is_cuda or str(event.device_type).endswith("CUDA")
        if own_us > 0 and on_device:
            found.append((str(event.key), event.count / runs, own_us * 1e-6 / runs, float(event.flops or 0) / runs))
    return sorted(found, key=lambda e: -e[2])
