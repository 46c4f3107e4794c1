"""The items of a request that are not text (an image, a video, a piece of audio), and what a model makes of them.

A workload states items in units that every model shares: pixels, frames and seconds. The rules of a model's processor
(`image_rules.py`, `video_rules.py`, `audio_rules.py`) turn each of them into a `MediaLayout`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

#: The kinds of items, as vLLM names them.
Modality = Literal["image", "video", "audio"]

#: The encoders of a model: images and videos pass the vision tower.
TowerName = Literal["vision", "audio"]


class Image(NamedTuple):
    """The size of an image in pixels."""

    width: int
    height: int

    @property
    def modality(self) -> Modality:
        """Return the kind of the item."""
        return "image"

    @property
    def words(self) -> str:
        """Return the size in words, for example "1024x768"."""
        return f"{self.width}x{self.height}"


class Video(NamedTuple):
    """The size of a video: its pixels, and the frames that the server samples from it.

    Attributes:
        width: Width of a frame.
        height: Height of a frame.
        frames: The sampled frames.
        frames_per_s: The sampled frames of each second of the video.
    """

    width: int
    height: int
    frames: int
    frames_per_s: float = 2.0

    @property
    def modality(self) -> Modality:
        """Return the kind of the item."""
        return "video"

    @property
    def words(self) -> str:
        """Return the size in words, for example "640x360, 32 frames"."""
        return f"{self.width}x{self.height}, {self.frames} frame{'s' if self.frames != 1 else ''}"


class Audio(NamedTuple):
    """The length of a piece of audio in seconds."""

    seconds: float

    @property
    def modality(self) -> Modality:
        """Return the kind of the item."""
        return "audio"

    @property
    def words(self) -> str:
        """Return the length in words, for example "30 s of audio"."""
        return f"{self.seconds:g} s of audio"


#: One item of a request.
MediaItem = Image | Video | Audio


class MediaLayout(NamedTuple):
    """The tokens of a prompt that one item becomes, and the work of the tower on them.

    Attributes:
        tokens: Tokens of the prompt, with the start, end and separator tokens that the processor adds.
        embeddings: Those of them that the tower computes; encoder budgets and encoder caches count these.
        tiles: Sequences within which the tower's full attention works: an image or each of its tiles, the frames of a
            video that form one patch, or a chunk of audio.
        patches: Patches of each of them, with a class token if the tower has one; positions of audio.
        tower: The encoder that computes them.
        whole: Whether one rank computes all tiles where every rank holds the tower (a video of Qwen-VL).
    """

    tokens: int
    embeddings: int
    tiles: int
    patches: int
    tower: TowerName = "vision"
    whole: bool = False

    @property
    def units(self) -> int:
        """Return the parts that ranks which hold the whole tower can divide among themselves."""
        return 1 if self.whole else self.tiles
