"""How many prompt tokens an image becomes, and what the vision tower computes for it: one rule for each processor.

The rules are those of the image processors in transformers (`image_processing_*.py`, `processing_*.py`). vLLM's model
files repeat them to reserve placeholders (`vllm/model_executor/models/{qwen2_vl,gemma3_mm,mllama4,internvl}.py`). A new
processor is a new class here and an entry in `IMAGE_RULES`; the model files name it and state its sizes.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from pydantic import NonNegativeInt, PositiveInt

from catalogs.errors import InputError
from catalogs.io.yaml_files import YamlBlock, choose_kind

#: Longest side over shortest side that Qwen's processor accepts (`smart_resize`).
MOST_ASPECT: Final = 200


class ImageLayout(NamedTuple):
    """What one image becomes.

    Attributes:
        tokens: Tokens of the prompt, with the start, end and separator tokens that the processor adds.
        embeddings: Those of them that the tower computes; encoder budgets and encoder caches count these.
        tiles: Sequences within which the tower's full attention works: the image, or each of its tiles.
        patches: Patches of each of them, with a class token if the tower has one.
    """

    tokens: int
    embeddings: int
    tiles: int
    patches: int


class ImageRule(YamlBlock):
    """Base class of the rules. Extents are in pixels."""

    @abstractmethod
    def layout(self, width: int, height: int) -> ImageLayout:
        """Return what an image of this size becomes.

        Raises:
            InputError: The processor does not accept the size.
        """

    @property
    @abstractmethod
    def largest(self) -> ImageLayout:
        """Return what the image with the most tokens becomes; engines reserve budgets and memory for it."""


class NativeResolution(ImageRule):
    """Qwen2-VL and later: the image keeps its aspect ratio, in whole groups of `merge` x `merge` patches.

    `Qwen2VLImageProcessor.smart_resize` rounds both sides to whole groups, and scales the image only where its pixels
    are below `min_pixels` or above `max_pixels`. Each group becomes one token, between a start and an end token.
    """

    patch: PositiveInt
    merge: PositiveInt
    min_pixels: PositiveInt
    max_pixels: PositiveInt

    def layout(self, width: int, height: int) -> ImageLayout:
        """Return what an image of this size becomes.

        Raises:
            InputError: One side is more than 200 times as long as the other.
        """
        if max(width, height) > MOST_ASPECT * min(width, height):
            rule = f"the longer side of an image is at most {MOST_ASPECT} times its shorter side"
            raise InputError(rule, f"{width}x{height}", f"{width}x{-(-width // MOST_ASPECT)}")
        group = self.patch * self.merge
        # Python rounds half to even, as the processor does.
        high, wide = round(height / group) * group, round(width / group) * group
        if high * wide > self.max_pixels:
            scale = math.sqrt(height * width / self.max_pixels)
            high, wide = (max(group, math.floor(side / scale / group) * group) for side in (height, width))
        elif high * wide < self.min_pixels:
            scale = math.sqrt(self.min_pixels / (height * width))
            high, wide = (math.ceil(side * scale / group) * group for side in (height, width))
        return self._of_groups((high // group) * (wide // group))

    @property
    def largest(self) -> ImageLayout:
        """Return what an image of `max_pixels` becomes."""
        return self._of_groups(self.max_pixels // (self.patch * self.merge) ** 2)

    def _of_groups(self, groups: int) -> ImageLayout:
        return ImageLayout(groups + 2, groups, 1, groups * self.merge**2)


class FixedSize(ImageRule):
    """Gemma 3 and LLaVA 1.5: every image is resized to one size and becomes as many tokens.

    `marks` are the tokens around them: Gemma 3 writes two line breaks, a start and an end token
    (`Gemma3Processor.full_image_sequence`). Its option to crop images ("pan and scan") is off by default.
    """

    embeddings: PositiveInt
    patches: PositiveInt
    marks: NonNegativeInt = 0

    def layout(self, width: int, height: int) -> ImageLayout:  # noqa: ARG002 - one signature for all
        """Return what every image becomes."""
        return self.largest

    @property
    def largest(self) -> ImageLayout:
        """Return what every image becomes."""
        return ImageLayout(self.embeddings + self.marks, self.embeddings, 1, self.patches)


class Tiles(ImageRule):
    """Base class of the processors that cut an image into tiles of `tile` x `tile` pixels.

    An image of several tiles also has a tile that shows the whole image.
    """

    tile: PositiveInt
    max_tiles: PositiveInt
    embeddings: PositiveInt  # of one tile
    patches: PositiveInt  # of one tile

    @abstractmethod
    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Return the (rows, columns) of tiles into which an image of this size is cut."""

    @abstractmethod
    def marks(self, rows: int, columns: int) -> int:
        """Return the tokens that the processor adds around the tiles."""

    def layout(self, width: int, height: int) -> ImageLayout:
        """Return what an image of this size becomes."""
        return self._of_grid(*self.grid(width, height))

    @property
    def largest(self) -> ImageLayout:
        """Return what an image of the most tiles becomes."""
        grids = ((rows, self.max_tiles // rows) for rows in range(1, self.max_tiles + 1))
        return max(self._of_grid(*grid) for grid in grids)

    def _of_grid(self, rows: int, columns: int) -> ImageLayout:
        cut = rows * columns
        tiles = cut + (cut > 1)
        embeddings = tiles * self.embeddings
        return ImageLayout(embeddings + self.marks(rows, columns), embeddings, tiles, self.patches)

    def _grids(self) -> Iterator[tuple[int, int]]:
        """Yield every (rows, columns) of at most `max_tiles` tiles, by their number."""
        every = ((rows, columns) for rows in range(1, self.max_tiles + 1) for columns in range(1, self.max_tiles + 1))
        return iter(sorted((g for g in every if g[0] * g[1] <= self.max_tiles), key=lambda g: g[0] * g[1]))


class LlamaTiles(Tiles):
    """Llama 4: the canvas of tiles that needs the least enlargement of the image, or else the least reduction.

    `Llama4ImageProcessor` (get_best_fit); among canvases that scale the image alike, the one with the fewest tiles. The
    tokens around the tiles are a start, an end and an image token, one between neighbours in a row and one after each
    row (`Llama4Processor._prompt_split_image`).
    """

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Return the (rows, columns) of tiles into which an image of this size is cut."""
        scales = [
            (min(self.tile * rows / height, self.tile * columns / width), rows, columns)
            for rows, columns in self._grids()
        ]
        larger = [scale for scale, *_ in scales if scale >= 1.0]
        best = min(larger) if larger else max(scale for scale, *_ in scales)
        return min(((rows, columns) for scale, rows, columns in scales if scale == best), key=lambda g: g[0] * g[1])

    def marks(self, rows: int, columns: int) -> int:
        """Return the tokens that the processor adds around the tiles."""
        return 3 + (rows * (columns - 1) + rows if rows * columns > 1 else 0)


class InternTiles(Tiles):
    """InternVL: the grid of tiles with the aspect ratio closest to the image's.

    Among equally close grids it takes a larger one while the image has more than half of the grid's pixels
    (`get_optimal_tiled_canvas`). A start and an end token are around all tiles (`InternVLProcessor`).
    """

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Return the (rows, columns) of tiles into which an image of this size is cut."""
        aspect, area, closest, best = width / height, width * height, math.inf, (1, 1)
        for rows, columns in sorted(self._grids(), key=lambda g: (g[0] * g[1], g[1])):
            off = abs(aspect - columns / rows)
            if off < closest:
                closest, best = off, (rows, columns)
            elif off == closest and area > 0.5 * self.tile**2 * rows * columns:
                best = rows, columns
        return best

    def marks(self, rows: int, columns: int) -> int:  # noqa: ARG002 - one signature for all
        """Return the tokens that the processor adds around the tiles."""
        return 2


#: The rules by the key that names them in a model file.
IMAGE_RULES: Final[Mapping[str, type[ImageRule]]] = {
    "native_resolution": NativeResolution,
    "fixed_size": FixedSize,
    "llama_tiles": LlamaTiles,
    "intern_tiles": InternTiles,
}


def parse_image_rule(data: object) -> ImageRule:
    """Return the rule in a model file, such as `{native_resolution: {patch: 14, ...}}`.

    Raises:
        InputError: The rule is unknown, or its keys break a rule.
    """
    return choose_kind(IMAGE_RULES, data, "images")
