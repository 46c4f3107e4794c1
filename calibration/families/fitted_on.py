"""The accelerator a model was fitted on, kept with it, so that seconds transfer to another by the ratio of physics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibration.cost import Array
from calibration.operators import Operator
from calibration.roofline import link_bytes_per_s, roofline_s
from catalogs.hardware import Accelerator


@dataclass(frozen=True, slots=True)
class FittedOn:
    """Peaks of the measured accelerator, in SI units."""

    accelerator: Accelerator
    link_bytes_per_s: float

    @classmethod
    def of(cls, accelerator: Accelerator) -> FittedOn:
        return cls(accelerator, link_bytes_per_s(accelerator.name))

    def is_same(self, accelerator: Accelerator) -> bool:
        """By name: a corrected peak in the catalog does not change what was measured."""
        return self.accelerator.name == accelerator.name

    def roofline_ratio(self, op: Operator, accelerator: Accelerator) -> Array:
        """How many times longer `op` takes at the roofline of `accelerator` than of the measured one."""
        return roofline_s(op, accelerator) / np.maximum(roofline_s(op, self.accelerator), 1e-30)

    def bandwidth_ratio(self, accelerator: Accelerator) -> float:
        return self.accelerator.memory_bandwidth_bytes_per_s / accelerator.memory_bandwidth_bytes_per_s

    def link_ratio(self, accelerator: Accelerator) -> float:
        return self.link_bytes_per_s / link_bytes_per_s(accelerator.name)

    def to_facts(self) -> dict[str, Any]:
        return {
            "name": self.accelerator.name,
            "memory_bandwidth_bytes_per_s": self.accelerator.memory_bandwidth_bytes_per_s,
            "peak_flops": dict(self.accelerator.peak_flops),
            "link_bytes_per_s": self.link_bytes_per_s,
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> FittedOn:
        peaks = {str(k): float(v) for k, v in facts["peak_flops"].items()}
        bandwidth = float(facts["memory_bandwidth_bytes_per_s"])
        name = str(facts["name"])
        return cls(Accelerator(name, name, 0.0, bandwidth, peaks, 0.0, 0.0), float(facts["link_bytes_per_s"]))
