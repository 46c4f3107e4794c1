"""How many prompt tokens a video becomes, and what the vision tower computes for it: one rule for each processor.

The rules are those of the video processors in transformers (`video_processing_*.py`, `processing_*.py`). A video is
what the server has sampled of it: vLLM takes 32 frames of a whole video by default (`--media-io-kwargs`). The largest
video of a rule is the one for which vLLM reserves encoder budget and memory (`get_mm_max_tokens_per_item`).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Final

from pydantic import NonNegativeInt, PositiveInt

from catalogs.errors import InputError
from catalogs.io.yaml_files import YamlBlock, choose_kind
from catalogs.models.image_rules import MOST_ASPECT, NativeResolution
from catalogs.models.media_items import MediaLayout, Video

#: Frames of the largest video that vLLM reserves space for with Qwen2.5-VL (`_MAX_FRAMES_PER_VIDEO` in qwen2_vl.py).
MOST_RESERVED_FRAMES: Final = 14

#: Tokens of `<12.5 seconds>` besides the digits before the point: `<`, the point, a digit, ` seconds`, `>`.
TIME_TOKENS: Final = 5

#: Tokens of `Frame12: ` besides the digits: `Frame`, the colon, a space.
FRAME_TOKENS: Final = 3


class VideoRule(YamlBlock):
    """Base class of the rules."""

    @abstractmethod
    def layout(self, video: Video) -> MediaLayout:
        """Return what this video becomes.

        Raises:
            InputError: The processor does not accept the size or the number of frames.
        """

    @abstractmethod
    def largest(self, max_model_len: int) -> MediaLayout:
        """Return the video that an engine reserves budgets and memory for, if a sequence has so many tokens."""


class NativeFrames(VideoRule):
    """Qwen2.5-VL: every frame is resized like an image, and `frames` neighbouring frames form one patch.

    The last frame is repeated until whole patches are full (`Qwen2VLVideoProcessor.patchify`). Each group of `merge` x
    `merge` patches becomes one token, between a start and an end token of the whole video.
    """

    patch: PositiveInt
    merge: PositiveInt
    min_pixels: PositiveInt
    max_pixels: PositiveInt
    frames: PositiveInt = 2

    def layout(self, video: Video) -> MediaLayout:
        """Return what this video becomes.

        Raises:
            InputError: One side is more than 200 times as long as the other.
        """
        return self._of_frame(self._images.layout(video.width, video.height), video.frames)

    def largest(self, max_model_len: int) -> MediaLayout:
        """Return the most frames of the largest size that fit in a sequence, at most 14 of them."""
        frame = self._images.largest
        pairs = min(max(max_model_len // frame.embeddings, 1), -(-MOST_RESERVED_FRAMES // self.frames))
        return self._of_frame(frame, pairs * self.frames)

    @property
    def _images(self) -> NativeResolution:
        return NativeResolution(
            patch=self.patch, merge=self.merge, min_pixels=self.min_pixels, max_pixels=self.max_pixels
        )

    def _of_frame(self, frame: MediaLayout, frames: int) -> MediaLayout:
        steps = -(-frames // self.frames)
        return MediaLayout(steps * frame.embeddings + 2, steps * frame.embeddings, steps, frame.patches, whole=True)


class TimedFrames(VideoRule):
    """Qwen3-VL: the pixels of all frames together are limited, and the time in seconds is written before each patch.

    `smart_resize` of video_processing_qwen3_vl.py rounds the sides to whole groups, and scales them where the pixels of
    all frames are below `min_pixels` or above `max_pixels`. Each patch of `frames` frames has a text such as
    `<12.5 seconds>`, a start and an end token of its own (`Qwen3VLProcessor.replace_video_token`).
    """

    patch: PositiveInt
    merge: PositiveInt
    min_pixels: PositiveInt
    max_pixels: PositiveInt
    frames: PositiveInt = 2

    def layout(self, video: Video) -> MediaLayout:
        """Return what this video becomes.

        Raises:
            InputError: The video has too few frames, or one side is more than 200 times as long as the other.
        """
        if video.frames < self.frames:
            raise InputError(f"a video has at least {self.frames} frames", video.frames, str(self.frames))
        high, wide = self.resized(video)
        steps = -(-video.frames // self.frames)
        groups = (high // self._group) * (wide // self._group)
        # The time is between the first and the last frame of a patch.
        patches = ((first, min(first + self.frames, video.frames) - 1) for first in range(0, video.frames, self.frames))
        times = ((first + last) / 2 / video.frames_per_s for first, last in patches)
        marks = sum(TIME_TOKENS + len(f"{time_s:.1f}".split(".")[0]) + 2 for time_s in times)
        return MediaLayout(steps * groups + marks, steps * groups, steps, groups * self.merge**2, whole=True)

    def largest(self, max_model_len: int) -> MediaLayout:  # noqa: ARG002 - one signature for all
        """Return the two frames of the most pixels; a longer video has as many tokens."""
        groups = self.max_pixels // self.frames // self._group**2
        return MediaLayout(groups + 2 + TIME_TOKENS + 1, groups, 1, groups * self.merge**2)

    def resized(self, video: Video) -> tuple[int, int]:
        """Return the (height, width) of the resized frames, in pixels.

        Raises:
            InputError: One side is more than 200 times as long as the other.
        """
        group, height, width = self._group, video.height, video.width
        if height < group or width < group:
            scale = max(group / height, group / width)
            height, width = int(height * scale), int(width * scale)
        if max(height, width) > MOST_ASPECT * min(height, width):
            rule = f"the longer side of a video is at most {MOST_ASPECT} times its shorter side"
            raise InputError(rule, f"{video.width}x{video.height}", f"{video.width}x{-(-video.width // MOST_ASPECT)}")
        high, wide = round(height / group) * group, round(width / group) * group
        steps = round(video.frames / self.frames) * self.frames
        pixels = video.frames * height * width
        if steps * high * wide > self.max_pixels:
            scale = math.sqrt(pixels / self.max_pixels)
            high, wide = (max(group, math.floor(side / scale / group) * group) for side in (height, width))
        elif steps * high * wide < self.min_pixels:
            scale = math.sqrt(self.min_pixels / pixels)
            high, wide = (math.ceil(side * scale / group) * group for side in (height, width))
        return high, wide

    @property
    def _group(self) -> int:
        return self.patch * self.merge


class EqualFrames(VideoRule):
    """LLaVA-OneVision, LLaVA-NeXT-Video and InternVL: every frame is resized to one size.

    Attributes:
        embeddings: Tokens of a frame.
        patches: Patches of a frame.
        last: Embeddings behind the last frame; LLaVA-OneVision adds a line break.
        numbered: Whether a text such as `Frame12: ` and a start and an end token are around each frame, and a line
            break between two frames (`InternVLProcessor.replace_video_token`).
        most_frames: The most frames that vLLM reserves space for; 0: as many as a sequence holds.
    """

    embeddings: PositiveInt
    patches: PositiveInt
    last: NonNegativeInt = 0
    numbered: bool = False
    most_frames: NonNegativeInt = 0

    def layout(self, video: Video) -> MediaLayout:
        """Return what this video becomes."""
        frames = video.frames
        marks = sum(FRAME_TOKENS + len(str(i)) + 2 for i in range(1, frames + 1)) + frames - 1 if self.numbered else 0
        embeddings = frames * self.embeddings + self.last
        return MediaLayout(embeddings + marks, embeddings, frames, self.patches)

    def largest(self, max_model_len: int) -> MediaLayout:
        """Return the most frames that fit in a sequence."""
        fit = max((max_model_len - self.last) // self.embeddings, 1)
        return self.layout(Video(1, 1, min(fit, self.most_frames or fit)))


#: The rules by the key that names them in a model file.
VIDEO_RULES: Final[Mapping[str, type[VideoRule]]] = {
    "native_frames": NativeFrames,
    "timed_frames": TimedFrames,
    "equal_frames": EqualFrames,
}


def parse_video_rule(data: object) -> VideoRule:
    """Return the rule in a model file, such as `{native_frames: {patch: 14, ...}}`.

    Raises:
        InputError: The rule is unknown, or its keys break a rule.
    """
    return choose_kind(VIDEO_RULES, data, "videos")
