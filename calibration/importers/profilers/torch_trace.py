"""Reads the Chrome trace that torch's profiler exports (`export_chrome_trace`, `tensorboard_trace_handler`).

Events are `{"ph": "X", "cat": …, "name": …, "ts": microseconds, "dur": microseconds, "args": …}`. `cpu_op` are operator
calls, with "Input Dims", "Input type" and "Concrete Inputs" if `record_shapes` was on. `kernel`, `gpu_memcpy` and
`gpu_memset` ran on an accelerator; their "External id" is that of the call that launched them, and their "correlation"
that of the `cuda_runtime` event. Times count from "baseTimeNanoseconds" (libkineto, output_json.cpp); in older traces,
from 1970.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from calibration.importers.profilers.trace import (
    COPY,
    KERNEL,
    ON_DEVICE,
    TO_DEVICE,
    TO_HOST,
    CallsOfThreads,
    DeviceWork,
    NamedRange,
    ProfiledCall,
    ProfilerTrace,
    Sizes,
    dtype_in,
)
from catalogs.errors import InputError
from catalogs.io.input_files import MOST_DATA_BYTES, read_limited
from catalogs.io.json_files import load_json

NAME: Final = "torch profiler"

#: Seconds of a microsecond.
_US: Final = 1e-6

#: Times above this are microseconds since 1970, not since a base time.
_EPOCH_US: Final = 1e15

_LAUNCHES: Final = ("cuda_runtime", "cuda_driver")

_DIRECTIONS: Final = {"HtoD": TO_DEVICE, "DtoH": TO_HOST, "DtoD": ON_DEVICE, "PtoP": ON_DEVICE}

_ANNOTATION: Final = "user_annotation"


def read_torch_trace(path: Path) -> ProfilerTrace:
    """Return the trace of a file, which may be compressed by gzip.

    Raises:
        InputError: The file cannot be read or is no such trace, or an event of it is damaged.
    """
    document = _document(path)
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(events, list):
        raise InputError("a trace of torch's profiler is JSON with a list traceEvents", str(path))
    slices = [e for e in events if isinstance(e, dict) and e.get("ph") == "X"]
    kept = [e for e in slices if e.get("cat") in {"cpu_op", "kernel", "gpu_memcpy", "gpu_memset", *_LAUNCHES}]
    if not kept:
        rule = "this trace has no operator and no kernel of torch's profiler"
        raise InputError(rule, str(path), hint="export it with torch.profiler's export_chrome_trace")
    named = [e for e in slices if e.get("cat") == _ANNOTATION and not str(e.get("name")).startswith("ProfilerStep")]
    base_us = min(_number(event, "ts", path) for event in [*kept, *named])
    operators = [event for event in kept if event["cat"] == "cpu_op"]
    calls = tuple(_call(event, base_us, path) for event in operators)
    work = tuple(_device_work(kept, operators, calls, base_us, path))
    ranges = tuple(NamedRange(str(e.get("name", "")), *_span(e, base_us, path)) for e in named)
    ends = [c.end_s for c in calls] + [w.end_s for w in work] + [r.end_s for r in ranges]
    notes = []
    if calls and not any(call.sizes for call in calls):
        notes.append("the calls have no sizes: profile with record_shapes=True for operator rows")
    return ProfilerTrace(
        NAME, path.name, calls, work, ranges, (), max(ends), _began(document, base_us), notes=tuple(notes)
    )


def _document(path: Path) -> Any:
    content = read_limited(path, "trace cannot be read", MOST_DATA_BYTES)
    try:
        if content[:2] == b"\x1f\x8b":
            unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
            content = unpacker.decompress(content, MOST_DATA_BYTES + 1)
            if len(content) > MOST_DATA_BYTES:
                rule = f"trace cannot be read (unpacked it is larger than {MOST_DATA_BYTES / 2**20:.0f} MiB)"
                raise InputError(rule, str(path))
        return load_json(content.decode("utf-8-sig"))
    except (ValueError, zlib.error) as error:
        raise InputError(f"trace is cut short or not JSON ({type(error).__name__})", str(path)) from None


def _number(event: dict[str, Any], key: str, path: Path) -> float:
    value = event.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"an event of this trace has no number {key}", str(path))
    return float(value)


def _span(event: dict[str, Any], base_us: float, path: Path) -> tuple[float, float]:
    """Return start and end of an event in seconds since the start of the trace."""
    duration_us = _number(event, "dur", path)
    if duration_us < 0:
        raise InputError("an event of this trace has a negative duration", duration_us)
    start_us = _number(event, "ts", path) - base_us
    return start_us * _US, (start_us + duration_us) * _US


def _began(document: dict[str, Any], base_us: float) -> float | None:
    """Return the start of the trace in seconds since 1970; None if the trace does not state it."""
    base_ns = document.get("baseTimeNanoseconds")
    if isinstance(base_ns, int | float) and base_us < _EPOCH_US:
        return float(base_ns) * 1e-9 + base_us * _US
    return base_us * _US if base_us >= _EPOCH_US else None


def _thread(event: dict[str, Any]) -> str:
    return f"{event.get('pid')}/{event.get('tid')}"


def _call(event: dict[str, Any], base_us: float, path: Path) -> ProfiledCall:
    found = event.get("args")
    args = found if isinstance(found, dict) else {}
    types, values = (_listed(args, key) for key in ("Input type", "Concrete Inputs"))
    sizes = tuple(_sizes(each) for each in _listed(args, "Input Dims"))
    dtypes = tuple(dtype_in(str(each)) if size else "" for each, size in zip(types, sizes, strict=False))
    name, (start_s, end_s) = str(event.get("name", "")), _span(event, base_us, path)
    return ProfiledCall(name, _thread(event), start_s, end_s, sizes, dtypes, tuple(map(str, values)))


def _listed(args: dict[str, Any], key: str) -> list[Any]:
    value = args.get(key)
    return value if isinstance(value, list) else []


def _sizes(value: Any) -> Sizes:
    """Return the sizes of a tensor; () for an argument that is none, or a list of tensors."""
    good = isinstance(value, list) and all(isinstance(n, int) and not isinstance(n, bool) for n in value)
    return tuple(value) if good else ()


def _device_work(
    events: list[dict[str, Any]],
    operators: list[dict[str, Any]],
    calls: tuple[ProfiledCall, ...],
    base_us: float,
    path: Path,
) -> Iterator[DeviceWork]:
    of_id = {_args(event).get("External id"): i for i, event in enumerate(operators)}
    of_id.pop(None, None)
    threads = CallsOfThreads(calls)
    launches = {
        _args(event).get("correlation"): (_thread(event), _span(event, base_us, path)[0])
        for event in events
        if event["cat"] in _LAUNCHES
    }
    for event in events:
        category, args = event["cat"], _args(event)
        if category == "cpu_op" or category in _LAUNCHES:
            continue
        call = of_id.get(args.get("External id"))
        if call is None and args.get("correlation") in launches:
            call = threads.innermost(*launches[args["correlation"]])
        name, device = str(event.get("name", "")), args.get("device", 0)
        copied = args.get("bytes", 0)
        direction = next((d for word, d in _DIRECTIONS.items() if word in name), "") if category == "gpu_memcpy" else ""
        yield DeviceWork(
            COPY if direction else KERNEL,
            name,
            int(device) if isinstance(device, int) else 0,
            *_span(event, base_us, path),
            call,
            float(copied) if direction and isinstance(copied, int | float) else 0.0,
            direction,
        )


def _args(event: dict[str, Any]) -> dict[str, Any]:
    found = event.get("args")
    return found if isinstance(found, dict) else {}
