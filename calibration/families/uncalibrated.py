"""The cost of an operator without measurements: the roofline over a stated efficiency, plus a launch floor.

Efficiencies are medians over the shipped calibrations, rounded down to 0.05: layers of Llama 7B to 405B at 1-8192 rows,
prompts of 512-8192, batches of 8-256 at context 1500, experts of Mixtral and Qwen3-30B, MLA decode at 2000, all-reduce
of 1-256 MB, norms of 512-8192 rows. The stated errors of all families are wide guesses.

Bundles without linear attention take efficiencies of gated delta rules in the public tables of vLLM and SGLang, which
keep the state in fp32 (`tools/scan_efficiency.py` prints them): one step of a decode streams the state at 67 to 102 %
of the bandwidth on seven accelerators, and the chunked kernels of a prompt reach 6 to 34 % of the roofline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from calibration.operators.cost import ROOFLINE
from calibration.operators.roofline import roofline_s
from catalogs.arrays import FloatArray
from catalogs.hardware.specs import Accelerator


@dataclass(frozen=True, slots=True)
class DefaultEfficiency:
    """A stated efficiency: seconds = max(floor_s, roofline_s / efficiency).

    Attributes:
        expected_error: Stated median |relative error|.
        prompts: The same for operators whose stage is "prefill", where other kernels compute prompts.
    """

    efficiency: float
    floor_s: float
    expected_error: float
    prompts: DefaultEfficiency | None = None

    def of_stage(self, op: Any) -> DefaultEfficiency:
        """Return the efficiency of the stage of an operator."""
        return self.prompts if self.prompts is not None and op.stage == "prefill" else self


#: The efficiency (a share of the roofline), the least seconds and the stated error of each family without measurements;
#: the docstring says where they come from. Stated errors are judgements, wide because nothing was measured.
DEFAULTS: Final[dict[str, DefaultEfficiency]] = {
    "gemm": DefaultEfficiency(0.75, 4e-6, 0.25),
    "moe": DefaultEfficiency(0.65, 15e-6, 0.40),
    "prefill_attention": DefaultEfficiency(0.35, 8e-6, 0.35),
    "decode_attention": DefaultEfficiency(0.75, 8e-6, 0.35),
    "noncausal_attention": DefaultEfficiency(0.50, 8e-6, 0.35),
    "mla": DefaultEfficiency(0.40, 20e-6, 0.40),
    "linear_attention": DefaultEfficiency(0.80, 4e-6, 0.25, prompts=DefaultEfficiency(0.10, 20e-6, 0.50)),
    "elementwise": DefaultEfficiency(0.80, 2.5e-6, 0.35),
    "collective": DefaultEfficiency(0.55, 12e-6, 0.40),
    "matmul": DefaultEfficiency(0.70, 4e-6, 0.25),
    "convolution": DefaultEfficiency(0.50, 8e-6, 0.40),
    "streaming": DefaultEfficiency(0.80, 2.5e-6, 0.35),
    "host_launch": DefaultEfficiency(1.0, 6e-6, 0.50),
}


@dataclass(frozen=True, slots=True)
class UncalibratedModel:
    """The default cost model of a family that a bundle does not have."""

    family: str

    def cost(self, op: Any, accelerator: Accelerator) -> tuple[FloatArray, FloatArray]:
        """Return (seconds, origin 2) in the broadcast shape of the operator."""
        default = DEFAULTS[self.family].of_stage(op)
        seconds = np.maximum(roofline_s(op, accelerator) / default.efficiency, default.floor_s)
        return seconds, np.full(np.shape(seconds), ROOFLINE)

    @property
    def notice(self) -> str:
        """Return the notice that the family is uncalibrated."""
        d = DEFAULTS[self.family]
        words = f"{self.family}: uncalibrated: roofline / {d.efficiency:g}, at least {d.floor_s * 1e6:g} µs"
        p = d.prompts
        return words if p is None else f"{words}; prompts / {p.efficiency:g}, at least {p.floor_s * 1e6:g} µs"
