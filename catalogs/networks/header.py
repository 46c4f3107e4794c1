"""The header of a network file: the facts that a list shows, read without the operators, which fill most of the file.

A file states the floating-point operations of its default job in its header. `read_network` refuses a file whose
operators add up to another number, so the header cannot differ from what it describes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ConfigDict, NonNegativeInt

from catalogs.errors import InputError
from catalogs.io.input_files import read_text
from catalogs.io.yaml_files import YamlBlock, parse_yaml, validate_as
from catalogs.io.yaml_loader import MOST_CHARACTERS
from catalogs.networks.files import SizeBlock, network_path, read_network
from catalogs.networks.network import JobSize, NeuralNetwork

#: A block of operators: the key on a line of its own, and all lines that are further to the right or items of its list.
_OPERATORS: Final = re.compile(r"^( *)operators: *\n(?:\1[ -].*(?:\n|\Z)| *(?:#.*)?\n)*", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class NetworkHeader:
    """What a list of networks shows of one.

    Attributes:
        name: Its name in the catalog.
        family: What it does.
        source: Where its configuration comes from.
        parameters: The parameters of all stages.
        default_job_flops: The floating-point operations of a job of default sizes.
        sizes: The sizes that a job has, with their defaults.
    """

    name: str
    family: str
    source: str
    parameters: int
    default_job_flops: int
    sizes: tuple[JobSize, ...] = ()

    @classmethod
    def of(cls, network: NeuralNetwork) -> NetworkHeader:
        """Return the header of a network."""
        counts = network.parameters, network.default_job_flops
        return cls(network.name, network.family, network.source, *counts, network.sizes)


class _StageLines(YamlBlock):
    """The lines of a stage outside its operators; the other keys are checked when the file is read as a whole."""

    model_config = ConfigDict(extra="ignore")

    parameters: int


class _HeaderLines(YamlBlock):
    """The lines of a file outside its operators; the other keys are checked when the file is read as a whole."""

    model_config = ConfigDict(extra="ignore")

    name: str
    family: str
    source: str
    default_job_flops: NonNegativeInt
    sizes: dict[str, SizeBlock]
    stages: dict[str, _StageLines]


def load_header(name: str) -> NetworkHeader:
    """Return the header of a network of the catalog; a file that does not state all of it is read as a whole.

    Raises:
        InputError: There is no such network, or its file is invalid.
    """
    path = network_path(name)
    return stated_header(path) or NetworkHeader.of(read_network(path))


def stated_header(path: Path) -> NetworkHeader | None:
    """Return the header that a file states, or None where it states only a part of it."""
    text = read_text(path, f"cannot read {path.name}", MOST_CHARACTERS)
    try:
        lines = validate_as(_HeaderLines, parse_yaml(_OPERATORS.sub("", text), path.name), path.name)
    except InputError:
        return None
    parameters = sum(stage.parameters for stage in lines.stages.values())
    sizes = tuple(JobSize(name, **size.model_dump()) for name, size in lines.sizes.items())
    return NetworkHeader(lines.name, lines.family, lines.source, parameters, lines.default_job_flops, sizes)
