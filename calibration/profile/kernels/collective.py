"""Timing of collectives in child processes: gloo between CPU ranks, NCCL between the GPUs of this machine.

One child process per rank runs every size of every kind, and rank 0 writes its medians to a file. All collectives are
measured together once per profile, which takes some seconds because the children load torch. NCCL is timed in a CUDA
graph (as in decode steps) and eagerly; gloo is timed eagerly.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from calibration.profile.machine.device import ProfiledDevice
from calibration.profile.session.session import Row
from calibration.profile.session.shape import FIT, Shape

KINDS: Final = ("all_reduce", "all_gather", "reduce_scatter")

CPU_KINDS: Final = ("all_reduce", "all_gather")  # gloo has no reduce-scatter.

SIZES: Final = {"cpu": tuple(4**i * 1024 for i in range(7)), "cuda": tuple(4**i * 1024 for i in range(10))}

#: Longest time of all collectives, seconds. A judgement: child processes that hang end with it.
LIMIT_S: Final = 120.0

LEAST_BUDGET_S: Final = 60.0  # with a smaller budget, starting the child processes would take too large a share of it

#: Ranks of collectives on a CPU.
CPU_RANKS: Final = 2


def unavailable_reason(device: ProfiledDevice, budget_s: float) -> str | None:
    """Return one line with the reason why collectives are not measured, or None where they are."""
    if budget_s < LEAST_BUDGET_S:
        return f"collectives are not measured with a budget of less than {LEAST_BUDGET_S:.0f} s"
    if device.is_cuda:
        n = device.torch.cuda.device_count()
        return None if n > 1 else "collectives are not measured: there is only one GPU"
    if len(device.cores) < CPU_RANKS:
        return "collectives are not measured: there is only one core"
    if not device.torch.distributed.is_available():
        return "collectives are not measured: this torch has no distributed package"
    return None


def shapes(device: ProfiledDevice) -> list[Shape]:
    """Return a shape for every kind, size, number of ranks and launch mode."""
    if not device.is_cuda:
        cells = [(k, s, CPU_RANKS, False) for k in CPU_KINDS for s in SIZES["cpu"]]
    else:
        count = device.torch.cuda.device_count()
        ranks = [r for r in (2, 4, 8) if r <= count]
        cells = [(k, s, r, g) for r in ranks for k in KINDS for s in SIZES["cuda"] for g in (True, False)]
    return [Shape.of("collective", FIT, kind=k, message_bytes=s, ranks=r, graph=g) for k, s, r, g in cells]


def rows(wanted: list[Shape], device: ProfiledDevice, limit_s: float = LIMIT_S) -> list[Row]:
    """Measure collectives and return one row per shape; where the child processes fail, the rows hold the reason."""
    found: list[Row] = []
    for ranks in sorted({s["ranks"] for s in wanted}):
        of_ranks = [s for s in wanted if s["ranks"] == ranks]
        start = time.perf_counter()
        measured, reason = _measured(of_ranks, ranks, device, limit_s)
        elapsed_s = round((time.perf_counter() - start) / len(of_ranks), 6)
        failed: Row = {"status": "error", "reason": reason or "no result"}
        ok: Row = {"status": "ok", "kernel": "nccl" if device.is_cuda else "gloo"}
        for s in of_ranks:
            head: Row = {"key": s.key, "family": s.family, "role": s.role, **dict(s.fields), "threads": 1}
            head |= {"at": round(time.time(), 3), "elapsed_s": elapsed_s, "contended": False}
            found.append(head | (ok | measured[s.key] if s.key in measured else failed))
    return found


def _measured(wanted: list[Shape], ranks: int, device: ProfiledDevice, limit_s: float) -> tuple[dict[str, Any], str]:
    """Run one child process per rank and wait for them; they are ended whatever happens.

    Returns:
        The seconds and samples of each shape by key, and the reason where there are none.
    """
    with tempfile.TemporaryDirectory(prefix="collective-") as name:
        folder = Path(name)
        cells = [[s.key, s["kind"], s["message_bytes"], s["graph"]] for s in wanted]
        plan = {"is_cuda": device.is_cuda, "ranks": ranks, "cells": cells}
        (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
        command = [sys.executable, "-m", "calibration.profile.kernels.collective_rank", name]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        children: list[subprocess.Popen[bytes]] = []
        try:
            with (folder / "errors").open("wb") as errors:
                for rank in range(ranks):
                    call = [*command, str(rank)]
                    started = subprocess.Popen(call, stdin=subprocess.DEVNULL, stderr=errors, env=environment)
                    children.append(started)
            ends = time.monotonic() + limit_s
            for child in children:
                child.wait(max(ends - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            return {}, f"the ranks did not finish within {limit_s:.0f} s"
        finally:
            for child in children:
                child.kill()
                child.wait()
        if (folder / "rank0.json").is_file():
            return json.loads((folder / "rank0.json").read_text(encoding="utf-8")), ""
        lines = (folder / "errors").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return {}, lines[-1][:300] if lines else f"a rank ended with status {children[0].returncode}"
