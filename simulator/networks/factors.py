"""The few factors of an engine that no operator table measures, with the mechanism of each."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import Field, PositiveFloat

from catalogs.io.yaml_files import DATA, YamlBlock, read_yaml, validate_as
from simulator.networks.execution import Mode

Share = Annotated[float, Field(gt=0.0, le=1.5)]


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
    """

    convolution_share: dict[Mode, Share]
    depthwise_share: Share
    masked_attention_speed: Share
    transposed_share: Share
    host_launch_s: dict[Mode, PositiveFloat]


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
