"""A measurer that measures nothing: every time is that of the roofline over a fixed efficiency."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from calibration.profile.kernels.machine_rates import amount
from calibration.profile.run import ProfileJob, ProgressReporter
from calibration.profile.session.session import Row
from calibration.profile.session.shape import CHECKS, Shape
from calibration.profile.shapes.queue import candidates
from calibration.profile.shapes.size_limits import CPU
from calibration.profile.shapes.sizes import catalog_sizes
from catalogs.hardware.specs import Accelerator

UNIT = Accelerator("local", "Invented CPU", 16e9, 20e9, {"bf16": 2e11, "fp32": 1e11}, 50.0, 5.0, kind="cpu")
QUIET = ProgressReporter(lambda _text: None, lambda _spent, _what: None)
MACHINE = [
    Shape.of("peak", CHECKS, kind="copy", dtype="bf16"),
    Shape.of("peak", CHECKS, kind="arithmetic", dtype="bf16"),
    Shape.of("peak", CHECKS, kind="arithmetic", dtype="fp32"),
]


class Killed(BaseException):
    """Stands for kill -9: nothing of ours catches it."""


@dataclass
class RooflineMeasurer:
    """Every shape takes elapsed_s to measure; `killed_at` kills it after that many; shapes over `memory_bytes` fail."""

    killed_at: int | None = None
    memory_bytes: float = 1e12
    elapsed_s: float = 1.0
    measured: list[str] = field(default_factory=list)

    def row(self, shape: Shape) -> Row:
        if self.killed_at is not None and len(self.measured) >= self.killed_at:
            raise Killed
        self.measured.append(shape.key)
        row: dict[str, Any] = {"key": shape.key, "family": shape.family, "role": shape.role, **dict(shape.fields)}
        row |= {"elapsed_s": self.elapsed_s, "contended": False, "status": "ok"}
        if shape.bytes(UNIT) > self.memory_bytes:
            return row | {"status": "oom", "reason": "invented"}
        seconds = shape.roofline_s(UNIT) / 0.5 + 1e-6
        if shape.family == "peak":
            rate = UNIT.memory_bandwidth_bytes_per_s if shape["kind"] == "copy" else UNIT.peak_flops[shape["dtype"]]
            seconds = amount(shape, "cpu") / rate
        return row | {"seconds": seconds, "kernel": "invented"}


def job(budget_s: float, shapes: list[Shape] | None = None) -> ProfileJob:
    return ProfileJob(UNIT, MACHINE, all_shapes() if shapes is None else shapes, budget_s, 0.0)


def all_shapes(seed: int = 0) -> list[Shape]:
    return candidates(catalog_sizes(16e9, (1,), small=True), CPU, ("bf16", "fp32"), seed)
