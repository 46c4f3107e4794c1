"""Reads the CSV of Nsight Compute: `ncu --csv`, one line per metric, or `ncu --csv --page raw`, one line per kernel.

Lines before the header are what the profiled program and ncu printed. The duration is the metric
`gpu__time_duration.sum`, or "Duration" of the details page; in the raw page the line after the header holds the units.
With `--nvtx`, columns such as `thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg` hold the
ranges. ncu repeats each kernel alone and states no time of day, so its kernels have durations and no place in a run.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from calibration.importers.profilers.nsight_systems import torch_sizes
from calibration.importers.profilers.trace import KERNEL, DeviceWork, ProfiledCall, ProfilerTrace
from catalogs.errors import InputError
from catalogs.io.input_files import MOST_DATA_BYTES, read_text

NAME: Final = "Nsight Compute"

START: Final = '"ID","Process ID"'

#: Names of the duration; the first that a file has counts.
_DURATIONS: Final = ("gpu__time_duration.sum", "gpu__time_duration.avg", "Duration")

_UNITS: Final = {
    **dict.fromkeys(("nsecond", "ns"), 1e-9),
    **dict.fromkeys(("usecond", "us"), 1e-6),
    **dict.fromkeys(("msecond", "ms"), 1e-3),
    **dict.fromkeys(("second", "s"), 1.0),
}

_OPERATOR: Final = re.compile(r"aten::\w+(?:, \w+ = \d+)*, sizes = \[.*?\](?:, input_op_ids = \[.*?\])?(?=[\"\s:;]|$)")

Line = dict[str, str]


def read_nsight_compute(path: Path) -> ProfilerTrace:
    """Return the kernels of a file, one after the other.

    Raises:
        InputError: The file is no such CSV, or no kernel in it has a duration.
    """
    text = read_text(path, "CSV of Nsight Compute cannot be read", MOST_DATA_BYTES)
    place = text.find(START)
    if place < 0:
        raise InputError("this is not a CSV of Nsight Compute (it has no header line)", str(path), START + ",…")
    lines = list(csv.DictReader(io.StringIO(text[place:]), restval=""))
    kernels = _details(lines) if lines and "Metric Name" in lines[0] else _raw(lines)
    calls: list[ProfiledCall] = []
    work: list[DeviceWork] = []
    at_s, n_left_out, last = 0.0, 0, ("", "")
    for line, duration_s in kernels:
        if duration_s is None:
            n_left_out += 1
            continue
        operator = _operator(line)
        if operator is not None and (operator, line.get("Process ID", "")) != last:
            last = operator, line.get("Process ID", "")
            sizes = torch_sizes(operator) or ()
            calls.append(ProfiledCall(operator.partition(",")[0], "", at_s, at_s, sizes))
        call = len(calls) - 1 if operator is not None else None
        device = line.get("Device", "0")
        number = int(device) if device.isdigit() else 0
        work.append(DeviceWork(KERNEL, line.get("Kernel Name", ""), number, at_s, at_s + duration_s, call))
        at_s += duration_s
    if not work:
        rule = f"no kernel in this CSV of Nsight Compute has a duration ({_DURATIONS[0]})"
        raise InputError(rule, str(path), hint=f"profile with --metrics {_DURATIONS[0]} or --section SpeedOfLight")
    notes = ["ncu states no times: kernels are placed one after another, at the clocks that ncu sets (--clock-control)"]
    if n_left_out:
        notes.append(f"{n_left_out} kernels have no duration")
    if not calls:
        notes.append("no kernel has the NVTX range of a torch operator: profile with --nvtx under emit_nvtx")
    return ProfilerTrace(
        NAME, path.name, tuple(calls), tuple(work), duration_s=at_s, has_times=False, notes=tuple(notes)
    )


def _operator(line: Line) -> str | None:
    """Return the text of the innermost torch operator among the NVTX ranges of a kernel; None without any."""
    found = [each for name, text in line.items() if name and "Push/Pop" in name and text for each in _operators(text)]
    return found[-1] if found else None


def _operators(text: str) -> list[str]:
    return [match[0] for match in _OPERATOR.finditer(text)]


def _details(lines: list[Line]) -> Iterator[tuple[Line, float | None]]:
    """Yield each kernel of a page with one line per metric, with its duration in seconds."""
    kernels: dict[tuple[str, str], tuple[Line, dict[str, float]]] = {}
    for line in lines:
        _, durations = kernels.setdefault((line["ID"], line.get("Process ID", "")), (line, {}))
        name = line["Metric Name"]
        if name in _DURATIONS and (value := _seconds(line.get("Metric Value", ""), line.get("Metric Unit", ""))):
            durations.setdefault(name, value)
    for line, durations in kernels.values():
        yield line, next((durations[name] for name in _DURATIONS if name in durations), None)


def _raw(lines: list[Line]) -> Iterator[tuple[Line, float | None]]:
    """Yield each kernel of a page with one line per kernel, with its duration in seconds."""
    units = lines[0] if lines and not lines[0].get("ID") else {}
    for line in lines[bool(units) :]:
        found = (_seconds(line[name], units.get(name, "")) for name in _DURATIONS if line.get(name))
        yield line, next((value for value in found if value), None)


def _seconds(text: str, unit: str) -> float | None:
    """Return a duration in seconds; None if it is no positive number, or its unit is unknown."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    factor = _UNITS.get(unit)
    return value * factor if factor is not None and value > 0 else None
