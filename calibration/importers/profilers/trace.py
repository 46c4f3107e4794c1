"""The trace of a profiler, in one form for all profilers: operator calls, device work, ranges and samples."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from catalogs.arrays import FloatArray

#: Sizes of one tensor; () for an argument that is not a tensor.
Sizes = tuple[int, ...]

KERNEL: Final = "kernel"

COPY: Final = "copy"

#: Directions of copies, as signals name them.
TO_DEVICE, TO_HOST, ON_DEVICE = "to_device", "to_host", "on_device"


@dataclass(frozen=True, slots=True)
class ProfiledCall:
    """A call of a torch operator on a thread of the host.

    Attributes:
        name: torch's name, such as "aten::mm".
        thread: Identifies the thread within the trace.
        start_s: Start, seconds since the start of the trace.
        end_s: End.
        sizes: Sizes of each argument.
        dtypes: Number format of each argument as the catalog names it, "" if it is not known.
        values: Each argument that is no tensor as text, "" if it is not known.
    """

    name: str
    thread: str
    start_s: float
    end_s: float
    sizes: tuple[Sizes, ...] = ()
    dtypes: tuple[str, ...] = ()
    values: tuple[str, ...] = ()

    @property
    def duration_s(self) -> float:
        """Return the seconds between start and end."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """A kernel or a copy on an accelerator.

    Attributes:
        kind: KERNEL or COPY.
        name: Name of the kernel, or words for the copy.
        device: Number of the accelerator.
        start_s: Start, seconds since the start of the trace.
        end_s: End.
        call: Position of the operator call that started it; None if it is not known.
        copied_bytes: Bytes of a copy.
        direction: Direction of a copy; "" for a kernel.
    """

    kind: str
    name: str
    device: int
    start_s: float
    end_s: float
    call: int | None = None
    copied_bytes: float = 0.0
    direction: str = ""

    @property
    def duration_s(self) -> float:
        """Return the seconds between start and end."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class NamedRange:
    """A range that the profiled program named, seconds since the start of the trace."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, eq=False)
class SampledMetric:
    """A metric of an accelerator that the profiler sampled.

    Attributes:
        device: Number of the accelerator.
        name: The profiler's name of the metric.
        at_s: Time of each sample, seconds since the start of the trace. Shape (n,).
        values: The samples, in percent. Shape (n,).
    """

    device: int
    name: str
    at_s: FloatArray
    values: FloatArray


@dataclass(frozen=True, slots=True)
class ProfilerTrace:
    """A trace of a profiler.

    Attributes:
        profiler: Name of the profiler.
        source: Name of the file.
        calls: Operator calls.
        work: Kernels and copies.
        ranges: Ranges that the program named, without those that torch writes for its operators.
        metrics: Sampled metrics.
        duration_s: Seconds from the start of the trace to the end of the last event.
        began_unix_s: Start of the trace on the clock of the machine, seconds since 1970; None if it is not stated.
        has_times: Whether times are those of the run; Nsight Compute repeats each kernel alone and states none.
        notes: What was left out.
    """

    profiler: str
    source: str
    calls: tuple[ProfiledCall, ...]
    work: tuple[DeviceWork, ...]
    ranges: tuple[NamedRange, ...] = ()
    metrics: tuple[SampledMetric, ...] = ()
    duration_s: float = 0.0
    began_unix_s: float | None = None
    has_times: bool = True
    notes: tuple[str, ...] = field(default_factory=tuple)

    @property
    def on_device(self) -> bool:
        """Return whether the operators ran on an accelerator."""
        return any(each.kind == KERNEL for each in self.work)


def parents(calls: Sequence[ProfiledCall]) -> list[int | None]:
    """Return the position of the call that encloses each call on its thread; None for an outermost call."""
    order = sorted(range(len(calls)), key=lambda i: (calls[i].thread, calls[i].start_s, -calls[i].end_s))
    found: list[int | None] = [None] * len(calls)
    stack: list[int] = []
    for i in order:
        call = calls[i]
        while stack and (calls[stack[-1]].thread != call.thread or calls[stack[-1]].end_s <= call.start_s):
            stack.pop()
        found[i] = stack[-1] if stack else None
        stack.append(i)
    return found


class CallsOfThreads:
    """Finds the innermost call of a thread that was running at a time."""

    def __init__(self, calls: Sequence[ProfiledCall]) -> None:
        self._calls, self._parents = calls, parents(calls)
        self._starts: dict[str, list[tuple[float, int]]] = {}
        for i in sorted(range(len(calls)), key=lambda i: (calls[i].start_s, -calls[i].end_s)):
            self._starts.setdefault(calls[i].thread, []).append((calls[i].start_s, i))

    def innermost(self, thread: str, at_s: float) -> int | None:
        """Return the position of the call; None if no call of the thread was running."""
        starts = self._starts.get(thread, [])
        place = bisect_right(starts, (at_s, len(self._calls))) - 1
        found = starts[place][1] if place >= 0 else None
        while found is not None and self._calls[found].end_s < at_s:
            found = self._parents[found]
        return found


#: Number formats by their names in torch and in kernels; the first that is found in the text counts.
_DTYPES: Final = (
    (r"float8|e4m3|e5m2|fp8|qmma", "fp8"),
    (r"bfloat16|bf16", "bf16"),
    (r"half|fp16|f16|h884|h1688|h16816|hgemm|hmma", "fp16"),
    (r"double|fp64|f64|dgemm", "fp64"),
    (r"long|int64", "int64"),
    (r"\bint\b|int32", "int32"),
    (r"signed char|int8|s8|i8816|imma", "int8"),
    (r"float|fp32|f32|sgemm|tf32", "fp32"),
)


def dtype_in(text: str) -> str:
    """Return the number format that a type or the name of a kernel states; "" if it states none."""
    return next((dtype for pattern, dtype in _DTYPES if re.search(pattern, text, re.IGNORECASE)), "")
