"""Images, videos and audio become tokens and patches by each processor's own rule."""

from __future__ import annotations

import ast
import importlib.util
import math
from collections import defaultdict
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogs.errors import InputError
from catalogs.models.catalog import list_models, load_model
from catalogs.models.image_rules import IMAGE_RULES, AnyResolution, ImageRule, InternTiles, LlamaTiles, parse_image_rule
from catalogs.models.media_items import Audio, MediaItem, MediaLayout, Modality, Video

INTERN = InternTiles(tile=448, max_tiles=12, embeddings=256, patches=1025)
READERS = [name for name in list_models() if load_model(name).vision is not None]
SIDE = st.integers(8, 4000)


def rule_of(model: str) -> ImageRule:
    vision = load_model(model).vision
    assert vision is not None
    assert vision.rules.image is not None
    return vision.rules.image


@pytest.mark.parametrize(
    ("model", "size", "tokens", "tiles", "patches"),
    [
        # 1024 / 28 = 36.57 rounds to 37 groups a side: 37 x 37 tokens, a start and an end.
        ("qwen2.5-vl-7b", (1024, 1024), 37 * 37 + 2, 1, 4 * 37 * 37),
        # 1024 / 32 = 32 groups a side.
        ("qwen3-vl-8b", (1024, 1024), 32 * 32 + 2, 1, 4 * 32 * 32),
        # Too small: the sides double until 65,536 pixels, which is 8 x 8 groups.
        ("qwen3-vl-8b", (128, 128), 8 * 8 + 2, 1, 4 * 8 * 8),
        # Too large: 16,777,216 pixels are 4,096 a side, 128 groups.
        ("qwen3-vl-32b", (8192, 8192), 128 * 128 + 2, 1, 4 * 128 * 128),
        # 256 soft tokens, two line breaks, start and end; SigLIP sees 64 x 64 patches.
        ("gemma-3-12b", (1920, 1080), 260, 1, 4096),
        # One tile of 336 pixels needs no cut: 144 tokens, start, image, end.
        ("llama4-scout", (336, 336), 144 + 3, 1, 577),
        # 672 x 336: two tiles and the whole image, one separator inside the row and one after it.
        ("llama4-scout", (672, 336), 3 * 144 + 3 + 2, 3, 577),
        # CLIP: 24 x 24 patches and a class token.
        ("llava-1.5-7b", (1920, 1080), 576, 1, 577),
        # Two tiles beside each other and the whole image; 24 rows of 48 patches, each with a line break.
        ("llava-v1.6-mistral-7b", (672, 336), 24 * 48 + 24 + 576, 3, 577),
        # 1000 x 300 fits 3 tiles in a row; 21 of their 24 rows of patches show it, and pairs of rows are left out.
        ("llava-v1.6-mistral-7b", (1000, 300), (24 - 2) * 72 + 22 + 576, 4, 577),
        # Nine tiles of 27 x 27 patches are kept as they are, sixteen are interpolated down to nine.
        ("llava-onevision-qwen2-7b", (1152, 1152), 81 * 81 + 81 + 729, 10, 729),
        ("llava-onevision-qwen2-7b", (1536, 1536), 81 * 81 + 81 + 729, 17, 729),
        # Eight tiles of 448 pixels and the whole image, a start and an end.
        ("internvl3-8b", (1792, 896), 9 * 256 + 2, 9, 1025),
    ],
)
def test_hand_counted(model: str, size: tuple[int, int], tokens: int, tiles: int, patches: int) -> None:
    found = rule_of(model).layout(*size)
    assert (found.tokens, found.tiles, found.patches) == (tokens, tiles, patches)


@pytest.mark.parametrize(
    ("size", "grid"),
    [((448, 448), (1, 1)), ((896, 448), (1, 2)), ((448, 896), (2, 1)), ((1792, 896), (2, 4)), ((1344, 448), (1, 3))],
)
def test_internvl_takes_the_grid_with_the_aspect_of_the_image(size: tuple[int, int], grid: tuple[int, int]) -> None:
    assert INTERN.grid(*size) == grid
    rows, columns = grid
    whole = rows * columns + (rows * columns > 1)
    assert INTERN.layout(*size) == MediaLayout(256 * whole + 2, 256 * whole, whole, 1025)


@pytest.mark.parametrize("model", READERS)
@given(width=SIDE, height=SIDE)
def test_no_image_is_beyond_the_largest(model: str, width: int, height: int) -> None:
    if max(width, height) > 200 * min(width, height):
        return
    rule = rule_of(model)
    found, largest = rule.layout(width, height), rule.largest
    assert 0 < found.embeddings <= min(found.tokens, largest.embeddings)
    if model != "llava-onevision-qwen2-7b":  # grids of up to 36 tiles are interpolated to nine behind the tower
        assert found.tiles * found.patches <= largest.tiles * largest.patches


@pytest.mark.parametrize("model", ["qwen2.5-vl-7b", "qwen3-vl-8b"])
@given(side=st.integers(28, 3000), more=st.integers(0, 3000))
def test_a_larger_square_never_has_fewer_tokens(model: str, side: int, more: int) -> None:
    rule = rule_of(model)
    assert rule.layout(side, side).tokens <= rule.layout(side + more, side + more).tokens


def test_a_sliver_and_an_unknown_rule_are_refused() -> None:
    with pytest.raises(InputError, match="at most 200 times its shorter side: got '4000x10'"):
        rule_of("qwen2.5-vl-7b").layout(4000, 10)
    with pytest.raises(InputError, match="nearest valid choice: fixed_size"):
        parse_image_rule({"fixed_sizes": {}})
    assert set(IMAGE_RULES) == {"native_resolution", "fixed_size", "llama_tiles", "intern_tiles", "any_resolution"}


@pytest.mark.parametrize("model", READERS)
def test_the_tower_counts_its_published_weights(model: str) -> None:
    spec = load_model(model)
    assert sum(tower.n_params for tower in spec.towers) == pytest.approx(spec.other_params, rel=0.015)


# ---- the processors themselves


SIDES = (28, 100, 333, 336, 448, 640, 777, 1024, 1080, 1344, 1920, 3000, 5000)
SIZES = [(width, height) for width in SIDES for height in SIDES]


class Square(NamedTuple):
    """A tile, as transformers passes it."""

    height: int
    width: int


def functions_of(module: str, **names: Any) -> dict[str, Any]:
    """Return the functions of a module of transformers, without the imports that need an image library."""
    transformers = importlib.util.find_spec("transformers")
    if transformers is None or transformers.origin is None:
        pytest.skip("transformers is not installed")
    source = (Path(transformers.origin).parent / "models" / module).read_text(encoding="utf-8")
    made = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    head = ast.parse("from __future__ import annotations")
    scope: dict[str, Any] = {"math": math, "lru_cache": lru_cache, "defaultdict": defaultdict, **names}
    exec(compile(ast.Module([*head.body, *made], []), module, "exec"), scope)
    return scope


@pytest.mark.slow
def test_qwen_is_as_transformers() -> None:
    resize = functions_of("qwen2_vl/image_processing_pil_qwen2_vl.py")["smart_resize"]
    for model, patch, pixels in (("qwen2.5-vl-7b", 14, (3136, 12845056)), ("qwen3-vl-8b", 16, (65536, 2**24))):
        for width, height in SIZES:
            tall, wide = resize(height, width, 2 * patch, *pixels)
            assert rule_of(model).layout(width, height).patches == tall * wide // patch**2


@pytest.mark.slow
def test_internvl_is_as_transformers() -> None:
    canvas = functions_of("got_ocr2/image_processing_pil_got_ocr2.py")["get_optimal_tiled_canvas"]
    for width, height in SIZES:
        columns, rows = canvas((height, width), (448, 448), 1, 12)
        assert INTERN.grid(width, height) == (rows, columns)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["llava-v1.6-mistral-7b", "llava-onevision-qwen2-7b"])
def test_llava_is_as_transformers(model: str) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
    from transformers.models.llava_onevision.processing_llava_onevision import LlavaOnevisionProcessor

    kind, tile = (LlavaNextProcessor, 336) if "v1.6" in model else (LlavaOnevisionProcessor, 384)
    processor = kind.__new__(kind)
    rule = rule_of(model)
    assert isinstance(rule, AnyResolution)
    pinpoints = [[rows * tile, columns * tile] for rows, columns in rule._allowed]
    processor.image_processor = type("Processor", (), {"image_grid_pinpoints": pinpoints})()
    processor.patch_size, processor.num_additional_image_tokens = 14, 1
    processor.num_image_tokens, processor.vision_aspect_ratio = 729, "anyres_max_9"
    for width, height in SIZES:
        found = processor._get_number_of_features(height, width, tile, tile) - (kind is LlavaNextProcessor)
        assert rule.layout(width, height).tokens == found


@pytest.mark.slow
def test_llama_is_as_transformers() -> None:
    torch: Any = pytest.importorskip("torch")
    llama = functions_of("llama4/image_processing_llama4.py", torch=torch)
    scout = rule_of("llama4-scout")
    assert isinstance(scout, LlamaTiles)
    canvases = torch.tensor(llama["find_supported_resolutions"](16, Square(336, 336)))
    for width, height in SIZES:
        canvas = llama["get_best_fit"]((height, width), canvases)
        assert scout.grid(width, height) == tuple((canvas // 336).tolist())


# ---- videos and audio


def layout_of(model: str, item: MediaItem) -> MediaLayout:
    return next(t for t in load_model(model).towers if item.modality in t.rules.modalities).rules.layout(item)


@pytest.mark.parametrize(
    ("model", "item", "layout"),
    [
        # 640 / 28 = 22.86 and 360 / 28 = 12.86 round to 23 x 13 groups; 32 frames are 16 patches in time.
        ("qwen2.5-vl-7b", Video(640, 360, 32), MediaLayout(16 * 299 + 2, 16 * 299, 16, 4 * 299, whole=True)),
        # An odd frame is repeated.
        ("qwen2.5-vl-7b", Video(640, 360, 31), MediaLayout(16 * 299 + 2, 16 * 299, 16, 4 * 299, whole=True)),
        # 20 x 11 groups of 32 pixels; "<0.2 seconds>" has 6 tokens, from 10 s on 7, and each pair a start and an end.
        ("qwen3-vl-8b", Video(640, 360, 4), MediaLayout(2 * (220 + 6 + 2), 440, 2, 4 * 220, whole=True)),
        (
            "qwen3-vl-8b",
            Video(640, 360, 44),
            MediaLayout(22 * (220 + 2) + 10 * 6 + 12 * 7, 22 * 220, 22, 880, whole=True),
        ),
        # 3,000 frames of a spectrogram, 1,500 positions, 750 tokens, a start and an end.
        ("qwen2.5-omni-7b", Audio(30.0), MediaLayout(752, 750, 1, 1500, "audio")),
        # 25 tokens a second, not padded: 101 frames, 51 positions, (51 - 2) // 2 + 1 tokens.
        ("qwen2.5-omni-7b", Audio(1.005), MediaLayout(27, 25, 1, 51, "audio")),
        # Whole chunks of 30 s, 12.5 tokens a second, and the token that begins the audio.
        ("voxtral-mini-3b", Audio(1.0), MediaLayout(376, 375, 1, 1500, "audio")),
        ("voxtral-mini-3b", Audio(30.001), MediaLayout(751, 750, 2, 1500, "audio")),
        # 27 x 27 patches of a frame pooled to 14 x 14, and a line break behind the last one.
        ("llava-onevision-qwen2-7b", Video(640, 360, 8), MediaLayout(8 * 196 + 1, 8 * 196 + 1, 8, 729)),
        # "Frame1: ", a start and an end around each frame, a line break between two: 4 + 2 tokens, 11 breaks, 3 digits.
        ("internvl3-8b", Video(640, 360, 12), MediaLayout(12 * (256 + 6) + 11 + 3, 12 * 256, 12, 1025)),
    ],
)
def test_videos_and_audio_by_hand(model: str, item: MediaItem, layout: MediaLayout) -> None:
    assert layout_of(model, item) == layout


def test_the_largest_items_are_those_for_which_vllm_reserves_space() -> None:
    """`get_mm_max_tokens_per_item` of qwen2_vl.py, qwen3_vl.py, qwen2_audio.py and voxtral.py."""

    def embeddings(model: str, modality: Modality, length: int) -> int:
        rules = next(t.rules for t in load_model(model).towers if modality in t.rules.modalities)
        largest = rules.largest(modality, length)
        assert largest is not None
        return largest.embeddings

    assert embeddings("qwen2.5-vl-7b", "image", 8192) == 16384
    assert embeddings("qwen2.5-vl-7b", "video", 8192) == 16384
    assert embeddings("qwen2.5-vl-7b", "video", 40000) == 2 * 16384
    assert embeddings("qwen2.5-vl-7b", "video", 10**6) == 7 * 16384
    assert embeddings("qwen3-vl-8b", "video", 10**6) == 12288
    assert embeddings("qwen2.5-omni-7b", "audio", 10**6) == 750
    assert embeddings("voxtral-mini-3b", "audio", 32768) == 87 * 375


def test_what_a_tower_does_not_read_is_refused_in_one_line() -> None:
    with pytest.raises(InputError, match=r"does not read this kind of item: got 'video'; nearest valid choice: image"):
        layout_of_tower("gemma-3-12b", Video(640, 360, 8))
    with pytest.raises(InputError, match="the processor reads at most 300 s of audio: got '301'"):
        layout_of("qwen2.5-omni-7b", Audio(301.0))
    with pytest.raises(InputError, match="a video has at least 2 frames"):
        layout_of("qwen3-vl-8b", Video(640, 360, 1))
    with pytest.raises(InputError, match="at most 200 times its shorter side"):
        layout_of("qwen3-vl-8b", Video(9000, 40, 8))


def layout_of_tower(model: str, item: MediaItem) -> MediaLayout:
    return load_model(model).towers[0].rules.layout(item)


@given(width=SIDE, height=SIDE, frames=st.integers(2, 300))
def test_a_video_of_qwen3_stays_within_its_pixels(width: int, height: int, frames: int) -> None:
    if max(width, height) > 100 * min(width, height):
        return
    found = layout_of("qwen3-vl-8b", Video(width, height, frames))
    # One group more in each direction than the limit, where a side is rounded up to a whole group.
    assert found.embeddings <= 12288 * 1.1 + 2 * found.tiles * max(1, max(width, height) / min(width, height))
    assert found.embeddings * 4 == found.tiles * found.patches


@pytest.mark.parametrize("model", ["qwen2.5-omni-7b", "voxtral-mini-3b"])
@given(seconds=st.floats(0.1, 250.0), more=st.floats(0.0, 40.0))
def test_longer_audio_never_has_fewer_tokens(model: str, seconds: float, more: float) -> None:
    short, long = (layout_of(model, Audio(length)) for length in (seconds, seconds + more))
    assert short.tokens <= long.tokens
    assert 0 < short.embeddings <= short.tiles * short.patches


VIDEOS = [(width, height, frames) for width, height in SIZES[::3] for frames in (2, 3, 8, 31, 64, 768)]


@pytest.mark.slow
def test_qwen_videos_are_as_transformers() -> None:
    image = functions_of("qwen2_vl/image_processing_pil_qwen2_vl.py")["smart_resize"]
    video = functions_of("qwen3_vl/video_processing_qwen3_vl.py")["smart_resize"]
    for width, height, frames in VIDEOS:
        pairs = -(-frames // 2)
        tall, wide = image(height, width, 28, 3136, 12845056)
        found = layout_of("qwen2.5-vl-7b", Video(width, height, frames))
        assert found.tiles * found.patches == pairs * (tall // 14) * (wide // 14)
        tall, wide = video(frames, height, width, 2, 32, 4096, 25165824)
        found = layout_of("qwen3-vl-8b", Video(width, height, frames))
        assert found.tiles * found.patches == pairs * (tall // 16) * (wide // 16)


@pytest.mark.slow
def test_audio_is_as_transformers() -> None:
    torch: Any = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers import WhisperFeatureExtractor
    from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniAudioEncoder

    extract = WhisperFeatureExtractor(feature_size=128, chunk_length=300)
    for samples in (2000, 16000, 16001, 16080, 100_000, 480_000, 1_234_567, 4_800_000):
        mask = extract([0.0] * samples, sampling_rate=16000, padding="max_length", return_attention_mask=True)
        frames = torch.tensor([int(mask["attention_mask"].sum())])
        positions, tokens = Qwen2_5OmniAudioEncoder._get_feat_extract_output_lengths(None, frames)
        found = layout_of("qwen2.5-omni-7b", Audio(samples / 16000))
        assert (found.patches, found.embeddings) == (int(positions), int(tokens))
