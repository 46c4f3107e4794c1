"""Images in requests: how many, in which sizes, and what they become for one model.

A workload states images in pixels. A model reads them (`RequestImages.read_by`): by the rule of its processor, each
image becomes tokens of the prompt and patches for the vision tower. Prompts hold their shared prefix first, then the
images, then the rest of the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
from pydantic import field_validator

from catalogs.arrays import FloatArray, IntArray
from catalogs.errors import InputError
from catalogs.io.yaml_files import Share, YamlBlock
from catalogs.models.catalog import list_models, load_model
from catalogs.models.image_rules import ImageLayout
from catalogs.models.spec import ModelSpec
from catalogs.workloads.arrivals import Count, Weight
from catalogs.workloads.lengths import Lengths, parse_lengths

#: Most pixels of one side of an image.
MOST_PIXELS: Final = 100_000

#: Most images of one request, beyond any engine's limit per prompt.
MOST_IMAGES: Final = 10_000

#: Image sizes, (width, height) in pixels.
Sizes = tuple[tuple[int, int], ...]


def parse_resolution(text: str) -> tuple[int, int]:
    """Return the (width, height) of a text such as "1024x768", in pixels.

    Raises:
        InputError: The text is no size, or a side is out of range.
    """
    found = re.fullmatch(r"\s*(\d{1,9})\s*[xX*]\s*(\d{1,9})\s*", str(text))
    if found is None:
        raise InputError("a resolution is WIDTHxHEIGHT in pixels", text, "1024x1024")
    width, height = int(found[1]), int(found[2])
    if not (1 <= width <= MOST_PIXELS and 1 <= height <= MOST_PIXELS):
        raise InputError(f"each side of an image has 1 to {MOST_PIXELS:,} pixels", text, "1024x1024")
    return width, height


class Images(YamlBlock):
    """The images of requests, as the `images` block of a workload file states them.

    `per_request` is a count or a distribution of counts, `resolution` one size or weights by size. Only the share
    `fraction` of the requests has images. With `distinct`, every image is one of so many, at random; without it, all
    images differ.
    """

    per_request: Lengths
    resolution: dict[str, Weight]
    fraction: Share = 1.0
    distinct: Count | None = None

    @field_validator("per_request", mode="before")
    @classmethod
    def _parse_counts(cls, data: Any) -> Lengths:
        return data if isinstance(data, Lengths) else parse_lengths(data, "images.per_request")

    @field_validator("resolution", mode="before")
    @classmethod
    def _parse_sizes(cls, data: Any) -> Any:
        return {data: 1.0} if isinstance(data, str) else data

    @field_validator("resolution", mode="after")
    @classmethod
    def _check_sizes(cls, sizes: dict[str, float]) -> dict[str, float]:
        if not sizes:
            raise ValueError("resolution names at least one size, such as 1024x1024")
        for size in sizes:
            parse_resolution(size)
        return sizes

    @property
    def sizes(self) -> Sizes:
        """Return the sizes that images may have."""
        return tuple(parse_resolution(text) for text in self.resolution)

    @property
    def words(self) -> str:
        """Return the images in words, for example "1 per request, 1024x1024"."""
        mean = self.fraction * float(self.per_request.sample(np.random.default_rng(0), 4096).mean())
        return f"{mean:.3g} per request, {', '.join(self.resolution)}"

    def draw(self, rng: np.random.Generator, n: int) -> RequestImages:
        """Return the images of n requests.

        Raises:
            InputError: A request has more images than any engine accepts.
        """
        counts_rng, share_rng, size_rng, content_rng = rng.spawn(4)
        counts = self.per_request.sample(counts_rng, n)
        counts = np.where(share_rng.random(n) < self.fraction, counts, 0)
        if counts.max(initial=0) > MOST_IMAGES:
            raise InputError(f"a request has at most {MOST_IMAGES:,} images", int(counts.max()), str(MOST_IMAGES))
        ends = np.cumsum(counts)
        m = int(ends[-1]) if n else 0
        weights: FloatArray = np.array(list(self.resolution.values()))
        ranks = np.cumsum(weights / weights.sum())
        if self.distinct is None:
            contents = np.arange(m)
            kinds = np.searchsorted(ranks, size_rng.random(m), side="right")
        else:  # equal contents have equal sizes
            contents = content_rng.integers(0, self.distinct, m)
            kinds = np.searchsorted(ranks, size_rng.random(self.distinct), side="right")[contents]
        kinds = np.minimum(kinds, len(weights) - 1)
        repeats, before = self.distinct is not None, np.zeros(n, dtype=np.int64)
        return RequestImages(counts, ends - counts, before, kinds, contents, self.sizes, repeats)


class PromptImage(NamedTuple):
    """One image of one request, as a model reads it.

    Attributes:
        start: Tokens of the prompt before it.
        layout: What it becomes.
        content: Equal for equal images.
    """

    start: int
    layout: ImageLayout
    content: int

    @property
    def end(self) -> int:
        """Return the tokens of the prompt up to its end."""
        return self.start + self.layout.tokens


@dataclass(frozen=True, slots=True)
class RequestImages:
    """The images of n requests, m in all.

    Attributes:
        counts: Images of each request. Shape (n,).
        first: Index of the first image of each request. Shape (n,).
        kinds: Size of each image, as an index in `sizes`. Shape (m,).
        contents: Equal for equal images. Shape (m,).
        sizes: (width, height) in pixels.
        repeats: Whether an image may occur more than once.
        before: Tokens of each prompt before its first image. Shape (n,).
        layouts: What an image of each size becomes for the model that reads it; empty before one does.
        model: That model.
    """

    counts: IntArray
    first: IntArray
    before: IntArray
    kinds: IntArray
    contents: IntArray
    sizes: Sizes
    repeats: bool = False
    layouts: tuple[ImageLayout, ...] = ()
    model: str = ""

    def __getitem__(self, rows: Any) -> RequestImages:
        """Return the images of some requests, by index."""
        return replace(self, counts=self.counts[rows], first=self.first[rows], before=self.before[rows])

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def words(self) -> str:
        """Return the images in words, for example "0.8 per request, 1024x1024, 640x480"."""
        sizes = ", ".join(f"{width}x{height}" for width, height in self.sizes)
        return f"{float(self.counts.mean()):.3g} per request, {sizes}"

    @property
    def is_read(self) -> bool:
        """Return whether a model has read the images, so that prompts include their tokens."""
        return bool(self.layouts)

    def read_by(self, model: ModelSpec) -> RequestImages:
        """Return the images as a model reads them.

        Raises:
            InputError: The model reads no images, or its processor does not accept a size.
        """
        return replace(self, layouts=layouts_for(model, self.sizes), model=model.name)

    @property
    def tokens(self) -> IntArray:
        """Return the prompt tokens of all images of each request. Shape (n,)."""
        each = np.array([layout.tokens for layout in self.layouts], dtype=np.int64)[self.kinds]
        before = np.concatenate([[0], np.cumsum(each)])
        found: IntArray = before[self.first + self.counts] - before[self.first]
        return found

    def of_request(self, i: int) -> tuple[PromptImage, ...]:
        """Return the images of request i, in the order of its prompt."""
        found, start, first = [], int(self.before[i]), int(self.first[i])
        for k in range(first, first + int(self.counts[i])):
            layout = self.layouts[int(self.kinds[k])]
            found.append(PromptImage(start, layout, int(self.contents[k])))
            start += layout.tokens
        return tuple(found)


def layouts_for(model: ModelSpec, sizes: Sizes) -> tuple[ImageLayout, ...]:
    """Return what images of these sizes become for a model.

    Raises:
        InputError: The model reads no images, or its processor does not accept a size.
    """
    if model.vision is None:
        readers = [name for name in list_models() if load_model(name).vision is not None]
        rule = "the workload sends images, and the catalog knows no vision tower of this model"
        raise InputError(rule, model.name, ", ".join(readers))
    return tuple(model.vision.rule.layout(width, height) for width, height in sizes)


def image_block_ids(
    images: RequestImages, block_tokens: int, prefixes: Sequence[tuple[int, ...]] | None, groups: IntArray
) -> tuple[tuple[int, ...], ...]:
    """Return the ids of the full blocks up to the end of the images of each request.

    Two requests share a block if their prefix and all their images up to its end are the same. Blocks behind the images
    belong to one request.

    Args:
        images: The images, as a model reads them.
        block_tokens: Tokens of a block.
        prefixes: Ids of the full blocks of the shared prefix of each request; None without a prefix.
        groups: The prefix of each request, as a number. Shape (n,).
    """
    free = 1 + max((ids[-1] for ids in prefixes or () if ids), default=-1)
    known: dict[tuple[int, tuple[int, ...], int], int] = {}
    found = []
    for i, group in enumerate(groups.tolist()):
        ids = list(prefixes[i]) if prefixes is not None else []
        seen: tuple[int, ...] = ()
        for image in images.of_request(i) if images.repeats else ():
            seen = (*seen, image.content)
            for block in range(len(ids), image.end // block_tokens):
                ids.append(known.setdefault((group, seen, block), free + len(known)))
        found.append(tuple(ids))
    return tuple(found)
