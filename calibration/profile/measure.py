"""Measurement of one shape as one row.

The row holds the timing and the contention by other processes. A shape that fails gives a row with the reason.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from calibration.profile.kernels.inputs import DoesNotFit, Unavailable
from calibration.profile.kernels.registry import WORK
from calibration.profile.machine.contention import CONTENDED, ContentionSample, others_share, usage
from calibration.profile.machine.counters import Counters, since
from calibration.profile.machine.device import ProfiledDevice
from calibration.profile.machine.energy import Meter
from calibration.profile.machine.timing import measure
from calibration.profile.session.session import Row
from calibration.profile.session.shape import FIT, Shape

#: A row with a larger share of preempted samples is contended, whatever the counters show. A judgement: the median is
#: then of a preempted sample.
PREEMPTED_SHARE: Final = 0.5

OUT_OF_MEMORY: Final = ("out of memory", "can't allocate memory", "not enough memory", "CUBLAS_STATUS_ALLOC_FAILED")


@dataclass(frozen=True, slots=True)
class ShapeTimer:
    """A timer of shapes on one device; the repeats of each shape take at most `limit_s` seconds."""

    device: ProfiledDevice
    meter: Meter
    limit_s: float
    read_usage: Callable[[], ContentionSample] = usage
    counters: Counters = field(default_factory=lambda: Counters({}))

    def row(self, shape: Shape) -> Row:
        """Return the row of a shape.

        A shape that fails does not raise: its row has status "oom", "skipped" or "error", and a reason.
        """
        start, before, counted = time.perf_counter(), self.read_usage(), self.counters.read()
        row: Row = {"key": shape.key, "family": shape.family, "role": shape.role, "status": "ok", **dict(shape.fields)}
        row |= {"threads": self.device.threads, "at": round(time.time(), 3)}
        try:
            row |= self._timed(shape)
        except DoesNotFit as error:
            row |= {"status": "oom", "reason": str(error)}
        except Unavailable as error:
            row |= {"status": "skipped", "reason": str(error)}
        except (RuntimeError, MemoryError, NotImplementedError, TypeError, ValueError, OSError) as error:
            text = str(error).splitlines()[0] if str(error) else type(error).__name__
            is_oom = isinstance(error, MemoryError) or any(w in str(error) for w in OUT_OF_MEMORY)
            row |= {"status": "oom" if is_oom else "error", "reason": text[:300]}
        if row["status"] != "ok":
            gc.collect()
            if self.device.is_cuda:
                with contextlib.suppress(RuntimeError):  # after a fault, every call to the CUDA context raises it
                    self.device.torch.cuda.empty_cache()
        row |= self._disturbance(before, row) | since(counted, self.counters.read())
        row["elapsed_s"] = round(time.perf_counter() - start, 6)
        return row

    def _timed(self, shape: Shape) -> dict[str, Any]:
        with self.device.torch.inference_mode():
            work = WORK[shape.family](shape, self.device)
            with self.meter.sampling() as sensors:
                timing = measure(work, self.device, self.limit_s)
                watts = self.meter.watts(timing, self.limit_s) if shape.role == FIT else None
        found = {
            "seconds": timing.seconds,
            "ci_fraction": round(timing.ci_fraction, 5),
            "n_samples": len(timing.samples_s),
            "samples_us": [round(s * 1e6, 4) for s in timing.samples_s],
            "outliers": list(timing.outliers),
            "preempted": list(timing.preempted),
            "mode": timing.mode,
            "kernel": work.kernel,
            "input_sets": len(work.calls),
        }
        return found | sensors.mean | ({"watts": round(watts, 2)} if watts is not None else {})

    def _disturbance(self, before: ContentionSample, row: Row) -> dict[str, Any]:
        after = self.read_usage()
        others = others_share(before, after, len(self.device.cores))
        n, preempted = row.get("n_samples", 0), len(row.get("preempted", ()))
        return {
            "others_share": round(others, 4),
            "contended": bool(others > CONTENDED or (n and preempted > PREEMPTED_SHARE * n)),
            "page_faults": after.page_faults - before.page_faults,
            "context_switches": after.switches - before.switches,
        }
