"""Reads a trace of any known profiler, which is recognised by the contents of its file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from calibration.importers.profilers import nsight_compute, nsight_systems, torch_trace
from calibration.importers.profilers.trace import ProfilerTrace
from catalogs.errors import InputError

#: The readable files of each profiler.
FILES: Final = (
    "Nsight Systems (nsys export --type sqlite), Nsight Compute (ncu --csv), torch's profiler (export_chrome_trace)"
)

#: Endings of reports that their own tools must export first.
_REPORTS: Final = {
    ".nsys-rep": "nsys export --type sqlite FILE",
    ".qdrep": "nsys export --type sqlite FILE",
    ".ncu-rep": "ncu --import FILE --csv --page raw",
}

#: First bytes of a file, by which its format is recognised.
_START_BYTES: Final = 2**20


def read_profiler_trace(path: Path) -> ProfilerTrace:
    """Return the trace of a file.

    Raises:
        InputError: The file cannot be read, or is of an unknown format or damaged.
    """
    if path.suffix in _REPORTS:
        raise InputError("this report must be exported by its own tool first", str(path), _REPORTS[path.suffix])
    try:
        with path.open("rb") as file:
            start = file.read(_START_BYTES)
    except (OSError, ValueError) as error:
        raise InputError(f"trace of a profiler cannot be read ({type(error).__name__})", str(path)) from None
    if start.startswith(nsight_systems.MAGIC):
        return nsight_systems.read_nsight_systems(path)
    if start.startswith(b"\x1f\x8b") or start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{":
        return torch_trace.read_torch_trace(path)
    if nsight_compute.START.encode() in start:
        return nsight_compute.read_nsight_compute(path)
    raise InputError("not a trace of a known profiler", str(path), FILES)
