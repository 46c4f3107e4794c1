"""The job of a network: its sizes as people write them, and what one job yields."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from catalogs.errors import InputError, nearest_name
from catalogs.networks.network import JobSize, NeuralNetwork

BATCH: Final = "batch"

STEPS: Final = "steps"

#: The order in which extents are written: 1280x720x81 is width, height and frames.
_EXTENTS: Final = ("width", "height", "frames")

#: What a job yields, by a part of the network's family; the first that occurs in it counts.
_YIELDS: Final = (
    ("to video", "video"),
    ("to image", "image"),
    ("image", "image"),
    ("object", "image"),
    ("depth", "image"),
    ("volume", "window"),
    ("video", "video"),
    ("rerank", "pair"),
    ("embedding", "embedding"),
    ("text encoder", "embedding"),
    ("speech", "recording"),
    ("audio", "recording"),
    ("answering", "answer"),
)


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """One job of a network.

    Attributes:
        network: The network.
        sizes: The sizes that the request names; the others have their defaults.
    """

    network: NeuralNetwork
    sizes: Mapping[str, int]

    @property
    def all_sizes(self) -> dict[str, int]:
        """Return every size that a job chooses, with defaults filled in."""
        return {size.name: self.sizes.get(size.name, size.default) for size in self.network.sizes}

    @property
    def items(self) -> int:
        """Return the images, videos, ... that one job yields: its own batch."""
        return self.all_sizes.get(BATCH, 1)

    @property
    def unit(self) -> str:
        """Return what a job yields, such as "image", "video" or "window"; "job" where the family is not known."""
        return unit_of(self.network.family)

    @property
    def words(self) -> str:
        """Return the sizes in words, such as "1280x720x81, 40 steps, guidance 2"."""
        sizes = {k: v for k, v in self.all_sizes.items() if k != BATCH or v > 1}
        found = [extents_text(sizes)] if "height" in sizes else []
        found += [
            f"{value} steps" if name == STEPS else f"{name} {value}"
            for name, value in sizes.items()
            if not (name in _EXTENTS and "height" in sizes)
        ]
        return ", ".join(found) or f"one {self.unit} of the traced size"


#: The families of networks with one output for each text, which servers of embeddings run.
TEXT_FAMILIES: Final = ("text embedding", "text reranking")


def unit_of(family: str) -> str:
    """Return what a job of a family yields, such as "image"; "job" where the family is not known."""
    return next((unit for part, unit in _YIELDS if part in family), "job")


def usual_objective(sizes: Mapping[str, int]) -> str:
    """Return an objective to begin with for jobs of some sizes: a video, an image in many steps, or one pass."""
    if STEPS not in sizes:
        return "e2e.p99=100ms"
    return "e2e.p95=10min" if "frames" in sizes else "e2e.p95=30s"


def default_text(sizes: Mapping[str, int]) -> str:
    """Return the default job as `--job` takes it, without its steps."""
    if "height" in sizes:
        return extents_text(sizes)
    rest = {name: value for name, value in sizes.items() if name not in (BATCH, STEPS, "guidance")}
    return ",".join(f"{name}={value}" for name, value in (rest or {BATCH: sizes.get(BATCH, 1)}).items())


def extents_text(sizes: Mapping[str, int]) -> str:
    """Return width, height and frames as they are written, such as "1280x720x81"."""
    return "x".join(str(sizes[name]) for name in _EXTENTS if name in sizes)


def read_job(network: NeuralNetwork, text: str | None, steps: int | None) -> PlannedJob:
    """Return the job that `--job` and `--steps` describe.

    Raises:
        InputError: A size is unknown, missing or off its grid; the message has the nearest job that is valid.
    """
    given = {} if text is None else _sizes(network, text)
    if steps is not None:
        if STEPS in given:
            raise InputError("steps are given twice", f"--job {text} --steps {steps}", f"--steps {steps}")
        if STEPS not in _known(network):
            rule = f"{network.name} has no steps: a job runs each stage once"
            raise InputError(rule, f"--steps {steps}", "no --steps")
        given[STEPS] = steps
    valid: dict[str, int] = {}
    wrong: list[InputError] = []
    for name, value in given.items():
        try:
            valid[name] = _known(network)[name].check(value)
        except InputError as error:
            wrong.append(error)
            valid[name] = int(error.nearest or value)
    if wrong:
        raise InputError(wrong[0].rule, wrong[0].value, _written(network, valid))
    return PlannedJob(network, given)


def _known(network: NeuralNetwork) -> dict[str, JobSize]:
    return {size.name: size for size in network.sizes}


def _written(network: NeuralNetwork, sizes: Mapping[str, int]) -> str:
    """Return sizes as the options that set them."""
    steps = f" --steps {sizes[STEPS]}" if STEPS in sizes else ""
    rest = {name: value for name, value in sizes.items() if name != STEPS}
    extents = [name for name in _EXTENTS if name in _known(network)]
    if not rest:
        return steps.strip()
    if set(rest) == set(extents) and "height" in rest:
        return f"--job {extents_text(rest)}{steps}"
    return f"--job {','.join(f'{name}={value}' for name, value in rest.items())}{steps}"


def _sizes(network: NeuralNetwork, text: str) -> dict[str, int]:
    """Return the sizes in the text of a job, as far as it names them.

    Raises:
        InputError: The text is neither extents nor NAME=VALUE, or the network has no such size.
    """
    if "=" in text:
        return _named(network, text)
    if not re.fullmatch(r"\s*\d+(\s*[x×*]\s*\d+)*\s*", text.lower()):
        rule = "a job is WIDTHxHEIGHT, WIDTHxHEIGHTxFRAMES or NAME=VALUE with commas"
        raise InputError(rule, text, _example(network))
    numbers = [int(part) for part in re.findall(r"\d+", text)]
    extents: list[str] = [name for name in _EXTENTS if name in _known(network)]
    if len(numbers) == 1:  # the only size of the network, such as its tokens
        single = [name for name in _known(network) if name not in (BATCH, STEPS, "guidance")] or [BATCH]
        extents = single if len(single) == 1 else extents
    if "height" not in extents and len(numbers) > 1:
        known = ", ".join(_known(network))
        rule = f"{network.name} was traced at one image size, so a job has only: {known}"
        raise InputError(rule, text, _example(network))
    if len(numbers) != len(extents):
        rule = f"a job of {network.name} has {len(extents)} extents ({' x '.join(extents)})"
        raise InputError(rule, text, _example(network))
    return dict(zip(extents, numbers, strict=True))


def _named(network: NeuralNetwork, text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in _known(network):
            near = nearest_name(name, _known(network)) or ", ".join(_known(network))
            raise InputError(f"{network.name} has no such size", part.strip(), near)
        if name in found:
            raise InputError("a size is given twice", text, f"{name}={found[name]}")
        if not re.fullmatch(r"\d+", value):
            raise InputError(f"{name} is a whole number", part.strip(), f"{name}={_known(network)[name].default}")
        found[name] = int(value)
    return found


def _example(network: NeuralNetwork) -> str:
    """Return the default job as it is written."""
    sizes = {s.name: s.default for s in network.sizes if s.name not in (STEPS, "guidance")}
    if "height" in sizes:
        return _written(network, {name: sizes[name] for name in _EXTENTS if name in sizes})
    rest = {name: value for name, value in sizes.items() if name != BATCH} or sizes
    return _written(network, rest)
