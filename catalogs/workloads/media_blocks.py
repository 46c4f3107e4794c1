"""The blocks `images`, `videos` and `audio` of a workload file: how many items requests have, and of which sizes."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from pydantic import PositiveFloat, field_validator

from catalogs.arrays import FloatArray, IntArray
from catalogs.errors import InputError
from catalogs.io.yaml_files import Share, YamlBlock
from catalogs.models.media_items import Audio, Image, MediaItem, Modality, Video
from catalogs.workloads.arrivals import Count, Weight
from catalogs.workloads.lengths import Lengths, parse_lengths
from catalogs.workloads.media import RequestMedia

#: Most pixels of one side of an image.
MOST_PIXELS: Final = 100_000

#: Most items of one kind in one request, beyond any engine's limit per prompt.
MOST_ITEMS: Final = 10_000

#: Most frames of one video. A judgement: an hour at 25 frames a second is 90,000.
MOST_FRAMES: Final = 100_000

#: Most seconds of one piece of audio: a day.
MOST_SECONDS: Final = 86_400


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


def parse_item(text: str) -> MediaItem:
    """Return the item of a text: an image "1024x768", a video of 32 frames "640x360x32", or audio "12.5s".

    Raises:
        InputError: The text is no size, or a number is out of range.
    """
    text = str(text).strip().lower().replace("*", "x")
    if text.endswith("s"):
        if not re.fullmatch(r"\d{1,6}(\.\d{1,6})? ?s", text) or not 0 < float(text[:-1]) <= MOST_SECONDS:
            raise InputError(f"audio is a number of seconds up to {MOST_SECONDS:,}", text, "12.5s")
        return Audio(float(text[:-1]))
    if text.count("x") == 2:
        size, _, frames = text.rpartition("x")
        if not re.fullmatch(r"\s*\d{1,6}\s*", frames) or not 1 <= int(frames) <= MOST_FRAMES:
            raise InputError(f"a video is WIDTHxHEIGHTxFRAMES, with 1 to {MOST_FRAMES:,} frames", text, "640x360x32")
        return Video(*parse_resolution(size), int(frames))
    return Image(*parse_resolution(text))


class ItemBlock(YamlBlock):
    """What the blocks `images`, `videos` and `audio` of a workload file have in common.

    `per_request` is a count or a distribution of counts. Only the share `fraction` of the requests has items. With
    `distinct`, every item is drawn from that number of items; without it, all items differ.
    """

    key: ClassVar[str]

    per_request: Lengths
    fraction: Share = 1.0
    distinct: Count | None = None

    @field_validator("per_request", mode="before")
    @classmethod
    def _parse_counts(cls, data: Any) -> Lengths:
        return data if isinstance(data, Lengths) else parse_lengths(data, f"{cls.key}.per_request")

    @abstractmethod
    def draw_sizes(self, rng: np.random.Generator, n: int) -> tuple[IntArray, tuple[MediaItem, ...]]:
        """Return the sizes of n items, as indices, and the sizes that they refer to. The indices have shape (n,)."""

    @property
    @abstractmethod
    def size_words(self) -> str:
        """Return the sizes in words, for example "1024x1024"."""

    @property
    def words(self) -> str:
        """Return the items in words, for example "1 per request, 1024x1024"."""
        mean = self.fraction * float(self.per_request.sample(np.random.default_rng(0), 4096).mean())
        return f"{mean:.3g} per request, {self.size_words}"

    def draw(self, streams: Sequence[np.random.Generator], n: int) -> RequestMedia:
        """Return the items of n requests, drawn from four streams of random numbers.

        Raises:
            InputError: A request has more items than any engine accepts.
        """
        counts_rng, share_rng, size_rng, content_rng = streams
        counts = self.per_request.sample(counts_rng, n)
        counts = np.where(share_rng.random(n) < self.fraction, counts, 0)
        if counts.max(initial=0) > MOST_ITEMS:
            raise InputError(f"a request has at most {MOST_ITEMS:,} items", int(counts.max()), str(MOST_ITEMS))
        ends = np.cumsum(counts)
        m = int(ends[-1]) if n else 0
        if self.distinct is None:
            contents = np.arange(m)
            kinds, sizes = self.draw_sizes(size_rng, m)
        else:  # equal contents have equal sizes
            contents = content_rng.integers(0, self.distinct, m)
            kinds, sizes = self.draw_sizes(size_rng, self.distinct)
            kinds = kinds[contents]
        repeats, before = self.distinct is not None, np.zeros(n, dtype=np.int64)
        return RequestMedia(counts, ends - counts, before, kinds, contents, sizes, repeats)


class Images(ItemBlock):
    """The images of requests; `resolution` is one size, or weights by size."""

    key: ClassVar[str] = "images"

    resolution: dict[str, Weight]

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
    def size_words(self) -> str:
        """Return the sizes in words, for example "1024x1024"."""
        return ", ".join(self.resolution)

    def draw_sizes(self, rng: np.random.Generator, n: int) -> tuple[IntArray, tuple[MediaItem, ...]]:
        """Return the sizes of n images, as indices, and the sizes that they refer to. The indices have shape (n,)."""
        return self.draw_resolutions(rng, n), tuple(Image(*parse_resolution(text)) for text in self.resolution)

    def draw_resolutions(self, rng: np.random.Generator, n: int) -> IntArray:
        """Return the resolutions of n items, as indices. Shape (n,)."""
        weights: FloatArray = np.array(list(self.resolution.values()))
        ranks = np.cumsum(weights / weights.sum())
        return np.minimum(np.searchsorted(ranks, rng.random(n), side="right"), len(weights) - 1)


class Videos(Images):
    """The videos of requests, as the server samples them.

    `frames` is the number of sampled frames, or a distribution of them. `frames_per_s` is how many of them each second
    of the video has; it decides the times that Qwen3-VL writes between frames.
    """

    key: ClassVar[str] = "videos"

    frames: Lengths
    frames_per_s: PositiveFloat = 2.0

    @field_validator("frames", mode="before")
    @classmethod
    def _parse_frames(cls, data: Any) -> Lengths:
        return data if isinstance(data, Lengths) else parse_lengths(data, "videos.frames")

    @property
    def size_words(self) -> str:
        """Return the sizes in words, for example "640x360, 32 frames"."""
        return f"{super().size_words}, {_mean(self.frames):.3g} frames"

    def draw_sizes(self, rng: np.random.Generator, n: int) -> tuple[IntArray, tuple[MediaItem, ...]]:
        """Return the sizes of n videos, as indices, and the sizes that they refer to. The indices have shape (n,).

        Raises:
            InputError: A video has no frames or too many.
        """
        resolutions = self.draw_resolutions(rng, n)
        frames = self.frames.sample(rng, n)
        _check_range("frames of a video", frames, MOST_FRAMES)
        found, kinds = np.unique(np.column_stack([resolutions, frames]), axis=0, return_inverse=True)
        sizes = [parse_resolution(text) for text in self.resolution]
        videos = tuple(Video(*sizes[int(i)], int(count), self.frames_per_s) for i, count in found)
        return kinds.reshape(-1), videos


class AudioClips(ItemBlock):
    """The audio of requests; `seconds` is the length of a piece in whole seconds, or a distribution of lengths."""

    key: ClassVar[str] = "audio"

    seconds: Lengths

    @field_validator("seconds", mode="before")
    @classmethod
    def _parse_seconds(cls, data: Any) -> Lengths:
        return data if isinstance(data, Lengths) else parse_lengths(data, "audio.seconds")

    @property
    def size_words(self) -> str:
        """Return the sizes in words, for example "30 s of audio"."""
        return f"{_mean(self.seconds):.3g} s of audio"

    def draw_sizes(self, rng: np.random.Generator, n: int) -> tuple[IntArray, tuple[MediaItem, ...]]:
        """Return the lengths of n pieces, as indices, and the lengths that they refer to. The indices have shape (n,).

        Raises:
            InputError: A piece has no length, or is too long.
        """
        seconds = self.seconds.sample(rng, n)
        _check_range("seconds of audio", seconds, MOST_SECONDS)
        found, kinds = np.unique(seconds, return_inverse=True)
        return kinds.reshape(-1), tuple(Audio(float(length)) for length in found)


def _mean(lengths: Lengths) -> float:
    return float(lengths.sample(np.random.default_rng(0), 4096).mean())


def _check_range(name: str, values: IntArray, most: int) -> None:
    wrong = values[(values < 1) | (values > most)]
    if len(wrong):
        raise InputError(f"{name} are 1 to {most:,}", int(wrong[0]), "1" if wrong[0] < 1 else str(most))


@dataclass(frozen=True, slots=True)
class MediaBlocks:
    """The blocks `images`, `videos` and `audio` of a workload, of which at least one is given."""

    images: Images | None = None
    videos: Videos | None = None
    audio: AudioClips | None = None

    @property
    def given(self) -> tuple[ItemBlock, ...]:
        """Return the blocks that are given, in the order of prompts."""
        return tuple(block for block in (self.images, self.videos, self.audio) if block is not None)

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """Return the kinds of items that requests have."""
        found: dict[Modality, object] = {"image": self.images, "video": self.videos, "audio": self.audio}
        return tuple(modality for modality, block in found.items() if block is not None)

    @property
    def words(self) -> str:
        """Return the items in words, for example "1 per request, 1024x1024"."""
        return "; ".join(block.words for block in self.given)

    def draw(self, rng: np.random.Generator, n: int) -> RequestMedia:
        """Return the items of n requests; every kind has its own stream of random numbers.

        Raises:
            InputError: A request has more items than any engine accepts, or an item has no valid size.
        """
        streams, blocks = rng.spawn(12), (self.images, self.videos, self.audio)
        own = (streams[i : i + 4] for i in range(0, 12, 4))
        first, *rest = (block.draw(four, n) for block, four in zip(blocks, own, strict=True) if block is not None)
        return first.joined(rest)
