"""The factors of an engine that no operator table measures, with the mechanism behind each."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, PositiveFloat

from catalogs.errors import InputError, nearest_name
from catalogs.io.yaml_files import DATA, YamlBlock, read_yaml, validate_as
from simulator.networks.execution import Mode

Share = Annotated[float, Field(gt=0.0, le=1.5)]

#: What an interval belongs to: seconds of jobs that repeat a stage (diffusion), seconds of one pass by execution mode,
#: the ratio of one accelerator's seconds to those of several, and peak memory.
IntervalClass = Literal["diffusion", "eager", "compiled", "tensorrt", "speedup", "memory"]

Factor = Annotated[float, Field(ge=1.0)]


class EngineFactors(YamlBlock):
    """Factors by execution mode.

    Attributes:
        convolution_share: Rate of a convolution's arithmetic over that of the matrix product of the same extents: an
            implicit product also computes addresses, and loads rows that are not contiguous.
        depthwise_share: Share of the fp32 peak of the vector units that a depthwise convolution reaches; it has no
            product over channels for the matrix units.
        masked_attention_speed: Rate of attention with a mask tensor over that without one. torch runs it in its
            memory-efficient kernel, not in FlashAttention.
        transposed_share: Share of the convolutions that transpose their images in eager mode with channels first, since
            most kernels for the matrix units need channels last. Compilers choose one layout for the whole network.
        host_launch_s: Seconds of the host per kernel; the accelerator waits for the host where kernels are shorter.
        interval_90: Factor f by class: 90 % of measurements are expected between the prediction divided by f and the
            prediction times f. A class without measurements is not in it.
    """

    convolution_share: dict[Mode, Share]
    depthwise_share: Share
    masked_attention_speed: Share
    transposed_share: Share
    host_launch_s: dict[Mode, PositiveFloat]
    interval_90: dict[IntervalClass, Factor]


#: The file of the shipped factors.
FILE = DATA / "network_factors.yaml"


def read_factors(path: Path) -> EngineFactors:
    """Return the factors in a file.

    Raises:
        InputError: The file cannot be read or breaks a rule.
    """
    return validate_as(EngineFactors, read_yaml(path), path.name)


@lru_cache(maxsize=1)
def load_factors() -> EngineFactors:
    """Return the shipped factors.

    Raises:
        InputError: The file is damaged.
    """
    return read_factors(FILE)


def seconds_class(repeats: bool, mode: Mode) -> IntervalClass:
    """Return the interval class of a job's seconds; `repeats`: it runs a stage more than once, as diffusion does."""
    return "diffusion" if repeats else mode


def interval_factor(kind: IntervalClass) -> float:
    """Return the factor of the 90 % interval of a class of predictions.

    A class without measurements has the widest of the factors: that it was not measured makes it no more certain.

    Raises:
        InputError: There is no such class.
    """
    if kind not in get_args(IntervalClass):
        raise InputError("unknown interval class", kind, nearest_name(kind, get_args(IntervalClass)))
    known = load_factors().interval_90
    return known.get(kind, max(known.values()))
