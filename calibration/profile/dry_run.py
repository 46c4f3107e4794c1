"""Text lines that describe what a profile would measure, and what it measured about the machine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from calibration.profile.kernels.registry import OTHER_SHARE, SHARES
from calibration.profile.run import EFFICIENCY, REPEATS, ProfileJob
from calibration.profile.session.session import Row
from calibration.profile.session.shape import FIT, Shape
from catalogs.units import KIB, MIB

OVERHEAD_S: Final = 0.05  # time per shape in addition to its repeats: inputs, warm-up and writing the row

MACHINE_FAMILIES: Final = ("copy", "pages", "launch", "host")


def plan(job: ProfileJob, limit_s: float) -> list[dict[str, Any]]:
    """Return one entry per queue of shapes.

    Each entry counts the shapes to fit, the shapes to check and the shapes of the user's models. It also holds the
    seconds that measuring all of them would take and the seconds that the budget gives to the queue.
    """
    queues: dict[str, list[Shape]] = defaultdict(list)
    for shape in job.shapes:
        queues[shape.queue].append(shape)

    def seconds(shape: Shape) -> float:
        once = shape.roofline_s(job.accelerator) / EFFICIENCY
        return OVERHEAD_S + max(min(limit_s, 100 * once), REPEATS * once)

    total = sum(SHARES.get(q, OTHER_SHARE) for q in sorted(queues))
    return [
        {
            "queue": queue,
            "fit": sum(s.role == FIT for s in shapes),
            "check": sum(s.role != FIT for s in shapes),
            "own": sum(s.key in job.first for s in shapes),
            "all_s": round(sum(map(seconds, shapes)), 1),
            "budget_s": round(job.budget_s * SHARES.get(queue, OTHER_SHARE) / total, 1),
        }
        for queue, shapes in sorted(queues.items())
    ]


def plan_lines(entries: Sequence[dict[str, Any]], job: ProfileJob) -> list[str]:
    """Return the plan as the lines of a table, with times estimated from the roofline."""
    lines = [f"{'':20} {'to fit':>7} {'to check':>9} {'own':>6} {'all shapes':>12} {'budget':>10}"]
    for e in entries:
        cells = f"{e['fit']:>7,} {e['check']:>9,} {e['own']:>6,} {e['all_s']:>10,.0f} s {e['budget_s']:>8,.0f} s"
        lines.append(f"{e['queue']:20} {cells}")
    count, seconds = sum(e["fit"] + e["check"] for e in entries), sum(e["all_s"] for e in entries)
    first = f"the {len(job.first):,} shapes of your models, then " if job.first else ""
    what = f"{len(job.machine)} machine shapes, then {first}the most informative of {count:,} shapes"
    return [*lines, f"measures {what}: {job.budget_s:,.0f} s of about {seconds:,.0f} s"]


def machine_lines(rows: Sequence[Row]) -> list[str]:
    """Return one line per measurement of copies, kernel launches and the host."""
    out = []
    for row in (r for r in rows if r["family"] in MACHINE_FAMILIES):
        name, size = str(row["kind"]), row.get("message_bytes")
        if size is not None:
            name += f", {size / MIB:,.0f} MiB" if size >= MIB else f", {size / KIB:,.0f} KiB"
        elif row.get("tokens", 1) > 1:
            name += f", {row['tokens']} tokens"
        if row["status"] != "ok":
            out.append(f"  {name}: {row['status']}, {row.get('reason', '')}")
            continue
        rate = f", {size / row['seconds'] / 1e9:.3g} GB/s" if size is not None else ""
        out.append(f"  {name}: {row['seconds'] * 1e6:,.3g} µs{rate}")
    return out
