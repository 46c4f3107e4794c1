"""How many prompt tokens an image becomes, and what the vision tower computes for it: one rule for each processor.

The rules are those of the image processors in transformers (`image_processing_*.py`, `processing_*.py`). vLLM's model
files repeat them to reserve placeholders (`vllm/model_executor/models/{qwen2_vl,gemma3_mm,mllama4,internvl}.py`). A new
processor is a new class here and an entry in `IMAGE_RULES`; the model files name it and state its sizes.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pydantic import NonNegativeInt, PositiveInt

from catalogs.errors import InputError
from catalogs.io.yaml_files import YamlBlock, choose_kind
from catalogs.models.media_items import MediaLayout

#: Longest side over shortest side that Qwen's processor accepts (`smart_resize`).
MOST_ASPECT: Final = 200

#: Side of a grid of patches over that of the most allowed, above which LLaVA-OneVision interpolates it down.
MOST_ENLARGED: Final = 1.1


class ImageRule(YamlBlock):
    """Base class of the rules. Extents are in pixels."""

    @abstractmethod
    def layout(self, width: int, height: int) -> MediaLayout:
        """Return what an image of this size becomes.

        Raises:
            InputError: The processor does not accept the size.
        """

    @property
    @abstractmethod
    def largest(self) -> MediaLayout:
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

    def layout(self, width: int, height: int) -> MediaLayout:
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
    def largest(self) -> MediaLayout:
        """Return what an image of `max_pixels` becomes."""
        return self._of_groups(self.max_pixels // (self.patch * self.merge) ** 2)

    def _of_groups(self, groups: int) -> MediaLayout:
        return MediaLayout(groups + 2, groups, 1, groups * self.merge**2)


class FixedSize(ImageRule):
    """Gemma 3 and LLaVA 1.5: every image is resized to one size and becomes as many tokens.

    `marks` are the tokens around them: Gemma 3 writes two line breaks, a start and an end token
    (`Gemma3Processor.full_image_sequence`). Its option to crop images ("pan and scan") is off by default.
    """

    embeddings: PositiveInt
    patches: PositiveInt
    marks: NonNegativeInt = 0

    def layout(self, width: int, height: int) -> MediaLayout:  # noqa: ARG002 - one signature for all
        """Return what every image becomes."""
        return self.largest

    @property
    def largest(self) -> MediaLayout:
        """Return what every image becomes."""
        return MediaLayout(self.embeddings + self.marks, self.embeddings, 1, self.patches)


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

    def layout(self, width: int, height: int) -> MediaLayout:
        """Return what an image of this size becomes."""
        return self._of_grid(*self.grid(width, height))

    @property
    def largest(self) -> MediaLayout:
        """Return what an image of the most tiles becomes."""
        grids = ((rows, self.max_tiles // rows) for rows in range(1, self.max_tiles + 1))
        return max(self._of_grid(*grid) for grid in grids)

    def _of_grid(self, rows: int, columns: int) -> MediaLayout:
        cut = rows * columns
        tiles = cut + (cut > 1)
        embeddings = tiles * self.embeddings
        return MediaLayout(embeddings + self.marks(rows, columns), embeddings, tiles, self.patches)

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


class AnyResolution(ImageRule):
    """LLaVA-NeXT and LLaVA-OneVision: a grid of tiles without the patches that only pad the image, and the whole image.

    Of the allowed grids it takes the one that keeps most pixels of the image and wastes fewest
    (`select_best_resolution`). Each row of patches ends with a line break, an embedding as well
    (`LlavaNextProcessor._get_number_of_features`). Where the grid has more patches than `max_tiles` tiles, they are
    interpolated down to these (`anyres_max_9` of LLaVA-OneVision).

    Attributes:
        tile: Pixels of a side of a tile.
        side: Patches of a side of a tile that become embeddings.
        patches: Patches of a tile, with a class token if the tower has one.
        grids: The (rows, columns) of tiles that are allowed, in the order of the processor.
        max_side: All grids of up to so many rows and columns are allowed, in place of `grids`.
        max_tiles: The most tiles whose patches are kept; 0: all.
        largest_size: The (width, height) of the image with the most embeddings, where it is not that of a grid.
    """

    tile: PositiveInt
    side: PositiveInt
    patches: PositiveInt
    grids: tuple[tuple[PositiveInt, PositiveInt], ...] = ()
    max_side: NonNegativeInt = 0
    max_tiles: NonNegativeInt = 0
    largest_size: tuple[PositiveInt, PositiveInt] | None = None

    def layout(self, width: int, height: int) -> MediaLayout:
        """Return what an image of this size becomes."""
        rows, columns = self.grid(width, height)
        high, wide = rows * self.side, columns * self.side
        if width / height > wide / high:
            high -= 2 * ((high - int(round(height * (wide / width), 7))) // 2)
        else:
            wide -= 2 * ((wide - int(round(width * (high / height), 7))) // 2)
        ratio = math.sqrt(high * wide / (self.max_tiles * self.side**2)) if self.max_tiles else 0.0
        if ratio > MOST_ENLARGED:
            high, wide = int(high // ratio), int(wide // ratio)
        embeddings = high * wide + high + self.side**2
        return MediaLayout(embeddings, embeddings, rows * columns + 1, self.patches)

    @property
    def largest(self) -> MediaLayout:
        """Return the image of the grid with the most embeddings, as vLLM does."""
        if self.largest_size is not None:
            return self.layout(*self.largest_size)
        sizes = ((columns * self.tile, rows * self.tile) for rows, columns in self._allowed)
        return max((self.layout(*size) for size in sizes), key=lambda layout: layout.embeddings)

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Return the (rows, columns) of tiles for an image of this size."""

        def fit(grid: tuple[int, int]) -> tuple[int, int]:
            high, wide = grid[0] * self.tile, grid[1] * self.tile
            scale = min(wide / width, high / height)
            kept = min(int(width * scale) * int(height * scale), width * height)
            return kept, -(high * wide - kept)

        return max(self._allowed, key=fit)  # the first of equals, as the processor

    @property
    def _allowed(self) -> Sequence[tuple[int, int]]:
        every = range(1, self.max_side + 1)
        return self.grids or [(rows, columns) for rows in every for columns in every]


#: The rules by the key that names them in a model file.
IMAGE_RULES: Final[Mapping[str, type[ImageRule]]] = {
    "native_resolution": NativeResolution,
    "fixed_size": FixedSize,
    "llama_tiles": LlamaTiles,
    "intern_tiles": InternTiles,
    "any_resolution": AnyResolution,
}


def parse_image_rule(data: object) -> ImageRule:
    """Return the rule in a model file, such as `{native_resolution: {patch: 14, ...}}`.

    Raises:
        InputError: The rule is unknown, or its keys break a rule.
    """
    return choose_kind(IMAGE_RULES, data, "images")
