"""How many prompt tokens seconds of audio become, and what the audio tower computes for them: one rule per processor.

Every rule counts the frames of a spectrogram, 100 in a second, of which the tower's second convolution keeps every
other one: 50 positions in a second. The largest audio of a rule is the one for which vLLM reserves encoder budget and
memory (`get_mm_max_tokens_per_item` of the model files).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Final

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from catalogs.errors import InputError
from catalogs.io.yaml_files import YamlBlock, choose_kind
from catalogs.models.media_items import MediaLayout

#: Samples of a second (WhisperFeatureExtractor).
SAMPLES_PER_S: Final = 16_000

#: Samples between two frames of the spectrogram (WhisperFeatureExtractor).
HOP_SAMPLES: Final = 160

#: Positions of a second behind the convolutions, of which the second one has stride 2.
POSITIONS_PER_S: Final = 50


class AudioRule(YamlBlock):
    """Base class of the rules."""

    @abstractmethod
    def layout(self, seconds: float) -> MediaLayout:
        """Return what audio of this length becomes.

        Raises:
            InputError: The processor does not accept the length.
        """

    @abstractmethod
    def largest(self, max_model_len: int) -> MediaLayout:
        """Return the longest audio of a sequence of `max_model_len` tokens; engines reserve memory for it."""


class PooledFrames(AudioRule):
    """Qwen2-Audio and Qwen2.5-Omni: neighbouring positions are pooled in pairs, 25 tokens in a second.

    `_get_feat_extract_output_lengths` of modeling_qwen2_5_omni.py; the processor adds `marks` tokens, a start and an
    end. Audio is not padded: the convolutions and the layers see its own frames only. The processor cuts audio at
    `most_seconds`; vLLM reserves space for `reserved_seconds` (`Qwen2AudioProcessingInfo`).
    """

    most_seconds: PositiveFloat
    reserved_seconds: PositiveFloat = 30.0
    marks: NonNegativeInt = 2

    def layout(self, seconds: float) -> MediaLayout:
        """Return what audio of this length becomes.

        Raises:
            InputError: The audio is longer than what the processor reads.
        """
        if seconds > self.most_seconds:
            rule = f"the processor reads at most {self.most_seconds:g} s of audio"
            raise InputError(rule, f"{seconds:g}", f"{self.most_seconds:g}")
        frames = math.ceil(round(seconds * SAMPLES_PER_S) / HOP_SAMPLES)
        positions = max((frames - 1) // 2 + 1, 2)
        embeddings = (positions - 2) // 2 + 1
        return MediaLayout(embeddings + self.marks, embeddings, 1, positions, "audio")

    def largest(self, max_model_len: int) -> MediaLayout:  # noqa: ARG002 - one signature for all
        """Return the audio of `reserved_seconds`."""
        return self.layout(min(self.reserved_seconds, self.most_seconds))


class PaddedChunks(AudioRule):
    """Voxtral: audio is padded to whole chunks, each of which is encoded by itself.

    mistral_common pads to multiples of `chunk_seconds` (`AudioEncoder.pad`). A chunk has `positions` positions and
    becomes `embeddings` tokens; one token marks the beginning of the audio.
    """

    chunk_seconds: PositiveFloat
    positions: PositiveInt
    embeddings: PositiveInt
    marks: NonNegativeInt = 1

    def layout(self, seconds: float) -> MediaLayout:
        """Return what audio of this length becomes."""
        samples = round(seconds * SAMPLES_PER_S)
        return self._of_chunks(max(math.ceil(samples / round(self.chunk_seconds * SAMPLES_PER_S)), 1))

    def largest(self, max_model_len: int) -> MediaLayout:
        """Return the audio that fills a sequence (`VoxtralProcessingInfo.get_max_audio_tokens`)."""
        return self._of_chunks(max(max_model_len // self.embeddings, 1))

    def _of_chunks(self, chunks: int) -> MediaLayout:
        embeddings = chunks * self.embeddings
        return MediaLayout(embeddings + self.marks, embeddings, chunks, self.positions, "audio")


#: The rules by the key that names them in a model file.
AUDIO_RULES: Final[Mapping[str, type[AudioRule]]] = {
    "pooled_frames": PooledFrames,
    "padded_chunks": PaddedChunks,
}


def parse_audio_rule(data: object) -> AudioRule:
    """Return the rule in a model file, such as `{padded_chunks: {chunk_seconds: 30, ...}}`.

    Raises:
        InputError: The rule is unknown, or its keys break a rule.
    """
    return choose_kind(AUDIO_RULES, data, "audio")
