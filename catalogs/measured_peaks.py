"""Peaks that `calibrate` measured on this machine: one small file of the user's, believed only where it fits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, PositiveFloat, ValidationError

from catalogs.errors import InputError
from catalogs.files import write_whole
from catalogs.hardware import Accelerator
from catalogs.units import GIGA, MIB, TERA

FILE_NAME = "local.yaml"


class MeasuredPeaks(BaseModel):
    """Human units as in the hardware files; `machine` is the full name of the device measured."""

    model_config = ConfigDict(extra="forbid")

    schema_version: Literal[1] = 1
    machine: str
    as_of: str
    source: str
    memory_bandwidth_gb_per_s: PositiveFloat
    last_level_cache_mib: float = 0.0
    peak_tflops: dict[str, PositiveFloat]

    @classmethod
    def of(cls, unit: Accelerator, as_of: str, source: str) -> MeasuredPeaks:
        """The file of an accelerator whose peaks were measured."""
        return cls(
            machine=unit.full_name,
            as_of=as_of,
            source=source,
            memory_bandwidth_gb_per_s=unit.memory_bandwidth_bytes_per_s / GIGA,
            last_level_cache_mib=unit.cache_bytes / MIB,
            peak_tflops={d: f / TERA for d, f in unit.peak_flops.items()},
        )

    def applied(self, unit: Accelerator) -> Accelerator:
        """`unit` with the measured peaks in place of its estimates."""
        return replace(
            unit,
            memory_bandwidth_bytes_per_s=self.memory_bandwidth_gb_per_s * GIGA,
            peak_flops={d: f * TERA for d, f in self.peak_tflops.items()},
            cache_bytes=self.last_level_cache_mib * MIB,
            source=f"measured {self.as_of}: {self.source}",
        )


def file() -> Path:
    """Where the measured peaks of this machine live."""
    import platformdirs

    return Path(platformdirs.user_data_dir("llm-capacity-planner", appauthor=False)) / "hardware" / FILE_NAME


def find(machine: str) -> MeasuredPeaks | None:
    """The measured peaks, None where there are none or they are another machine's. Raises InputError for a damaged
    file."""
    import yaml

    path = file()
    if not path.is_file():
        return None
    try:
        found = MeasuredPeaks.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError, ValidationError):
        raise InputError("the measured peaks of this machine cannot be read: delete the file", str(path)) from None
    return found if found.machine == machine else None


def save(peaks: MeasuredPeaks) -> Path:
    """Write the file; raises InputError where that cannot be done."""
    import yaml

    path = file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write the measured peaks ({error.strerror})", str(path)) from None
    write_whole(path, [yaml.safe_dump(peaks.model_dump(), sort_keys=False)])
    return path
