"""Images, videos and audio in workloads: what a file may state, what is drawn, and what a model makes of it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from catalogs.errors import InputError
from catalogs.models.catalog import load_model
from catalogs.models.media_items import Video
from catalogs.workloads.media_blocks import parse_resolution
from catalogs.workloads.workload import Workload, load_workload, workload_modalities

QWEN = load_model("qwen2.5-vl-7b")
TEXT = "arrivals: {poisson: {}}, input_tokens: 100, output_tokens: 10"


def workload(images: str, more: str = "") -> Workload:
    return load_workload(f"{{{TEXT}, images: {{{images}}}{more}}}")


def test_prompts_grow_by_the_tokens_of_their_images() -> None:
    read = workload("per_request: 3, resolution: 448x448").for_model(QWEN)
    drawn = read.materialise(n_requests=4)
    assert drawn.input_tokens.tolist() == [100 + 3 * (16 * 16 + 2)] * 4
    assert drawn.media is not None
    first = drawn.media.of_request(1)
    assert [image.start for image in first] == [0, 258, 516]
    assert all(a.end == b.start for a, b in pairwise(first))
    contents = [image.content for i in range(4) for image in drawn.media.of_request(i)]
    assert len(set(contents)) == 12  # all different
    assert "448x448 258" in read.notices[-1]


def test_the_rest_of_the_workload_stays_as_it_is() -> None:
    """Images have a stream of their own."""
    plain, imaged = load_workload(f"{{{TEXT}}}"), workload("per_request: 1, resolution: 448x448")
    a, b = plain.materialise(n_requests=50, seed=3), imaged.materialise(n_requests=50, seed=3)
    assert np.array_equal(a.arrival_s, b.arrival_s)
    assert np.array_equal(a.input_tokens, b.input_tokens)
    assert not plain.sends_media
    assert imaged.sends_media
    assert workload_modalities("chat-with-images") == ("image",)
    assert not workload_modalities("azure-conv")


def test_more_requests_extend_fewer() -> None:
    counts = "per_request: {uniform: {low: 1, high: 4}}, resolution: {448x448: 1, 896x448: 2}, fraction: 0.5"
    read = workload(counts).for_model(QWEN)
    few, many = read.materialise(n_requests=50, seed=1), read.materialise(n_requests=80, seed=1)
    assert few.media is not None
    assert many.media is not None
    assert np.array_equal(few.input_tokens, many.input_tokens[:50])
    assert [few.media.of_request(i) for i in range(50)] == [many.media.of_request(i) for i in range(50)]
    share = float((read.materialise(n_requests=4000).media.counts > 0).mean())  # type: ignore[union-attr]
    assert share == pytest.approx(0.5, abs=0.03)
    inputs, _ = read.content.draw_lengths(1, 80)
    assert np.array_equal(inputs, many.input_tokens)


def test_equal_images_have_equal_sizes_and_share_blocks_behind_equal_prefixes() -> None:
    shared = workload(
        "per_request: 2, resolution: {448x448: 1, 896x896: 1}, distinct: 2", ", shared_prefix: {tokens: 40}"
    )
    drawn = shared.for_model(QWEN).materialise(n_requests=40)
    assert drawn.media is not None
    assert drawn.block_hashes is not None
    sizes: dict[int, set[int]] = {}
    for i in range(40):
        images = drawn.media.of_request(i)
        assert images[0].start == 40
        for image in images:
            sizes.setdefault(image.content, set()).add(image.layout.tokens)
        assert len(drawn.block_hashes[i]) == images[-1].end // 16
    assert all(len(each) == 1 for each in sizes.values())
    for i in range(40):
        for j in range(i):
            mine, other = drawn.media.of_request(i), drawn.media.of_request(j)
            same = 0
            while same < 2 and mine[same].content == other[same].content:
                same += 1
            end = mine[same - 1].end if same else 40
            common = sum(a == b for a, b in zip(drawn.block_hashes[i], drawn.block_hashes[j], strict=False))
            assert common == end // 16


@pytest.mark.parametrize(
    ("images", "said"),
    [
        ("per_request: 1, resolution: large", "a resolution is WIDTHxHEIGHT in pixels: got 'large'"),
        ("per_request: 1, resolution: '0x10'", "each side of an image has 1 to 100,000 pixels"),
        ("per_request: 1", "resolution"),
        ("per_request: 1, resolution: 1x1, fraction: 2", "fraction"),
        ("per_request: 1, resolution: 1x1, size: 3", "size"),
    ],
)
def test_bad_keys_are_refused_in_one_line(images: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        workload(images)
    assert "\n" not in str(refused.value)


def test_a_model_without_a_tower_and_turns_are_refused() -> None:
    imaged = workload("per_request: 1, resolution: 448x448")
    with pytest.raises(InputError, match=r"no tower of this model that reads them: got 'llama3.1-8b'; .*qwen2.5-vl-7b"):
        imaged.for_model(load_model("llama3.1-8b"))
    with pytest.raises(InputError, match="images, videos and audio of earlier turns are not simulated"):
        workload("per_request: 1, resolution: 448x448", ", turns: 3")
    with pytest.raises(InputError, match="at most 10,000 items"):
        workload("per_request: 20000, resolution: 448x448").materialise(n_requests=2)
    assert parse_resolution("640 x 480") == (640, 480)


# ---- traces


def trace(tmp_path: Path, *cells: str) -> Workload:
    rows = [f'{i},100,10,"{cell}"' for i, cell in enumerate(cells)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["arrival_s,input_tokens,output_tokens,images", *rows]), encoding="utf-8")
    return load_workload(str(path))


def test_a_trace_names_its_images_and_which_are_the_same(tmp_path: Path) -> None:
    found = trace(tmp_path, "448x448#a;896x448", "", "448x448#a;448x448")
    assert found.sends_media
    assert not any("not used" in notice for notice in found.notices)
    drawn = found.for_model(QWEN).materialise()
    assert drawn.media is not None
    small, wide = 16 * 16 + 2, 32 * 16 + 2
    assert drawn.input_tokens.tolist() == [100 + small + wide, 100, 100 + 2 * small]
    contents = [[image.content for image in drawn.media.of_request(i)] for i in range(3)]
    assert contents[0][0] == contents[2][0]
    assert len({*contents[0], *contents[2]}) == 3
    later = found.for_model(QWEN).materialise(n_requests=7)
    assert later.input_tokens[3:6].tolist() == drawn.input_tokens.tolist()


def test_json_lines_list_their_images(tmp_path: Path) -> None:
    rows = [{"arrival_s": i, "input_tokens": 5, "output_tokens": 2, "images": ["448x448#x"] * i} for i in range(3)]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    drawn = load_workload(str(path)).materialise()
    assert drawn.media is not None
    assert drawn.media.counts.tolist() == [0, 1, 2]
    assert drawn.media.contents.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (("448", ""), "images of row 1: a resolution is WIDTHxHEIGHT in pixels: got '448'"),
        (("448x448#a", "896x448#a"), "the images of row 2 have the hash of an item of another size"),
    ],
)
def test_bad_cells_name_their_row(tmp_path: Path, cells: tuple[str, ...], said: str) -> None:
    with pytest.raises(InputError, match=said):
        trace(tmp_path, *cells)


# ---- videos and audio

OMNI = load_model("qwen2.5-omni-7b")


def media_of(blocks: str) -> Workload:
    return load_workload(f"{{{TEXT}, {blocks}}}")


def test_prompts_hold_images_then_videos_then_audio() -> None:
    blocks = (
        "images: {per_request: 2, resolution: 448x448}, videos: {per_request: 1, resolution: 448x448, frames: 4}, "
        "audio: {per_request: 1, seconds: 30}"
    )
    found = media_of(blocks)
    assert found.modalities == ("image", "video", "audio")
    drawn = found.for_model(OMNI).materialise(n_requests=3)
    assert drawn.media is not None
    image, video, audio = 16 * 16 + 2, 2 * 16 * 16 + 2, 752
    assert drawn.input_tokens.tolist() == [100 + 2 * image + video + audio] * 3
    items = drawn.media.of_request(2)
    assert [item.layout.tokens for item in items] == [image, image, video, audio]
    assert [item.layout.tower for item in items] == ["vision", "vision", "vision", "audio"]
    assert drawn.media.largest_embeddings.tolist() == [750] * 3
    contents = [item.content for i in range(3) for item in drawn.media.of_request(i)]
    assert len(set(contents)) == 12


def test_another_block_leaves_the_draws_of_a_block_as_they_are() -> None:
    images = "images: {per_request: {uniform: {low: 1, high: 3}}, resolution: {448x448: 1, 896x448: 1}}"
    alone, both = (
        media_of(blocks).materialise(n_requests=30).media
        for blocks in (images, f"{images}, audio: {{per_request: 1, seconds: 5, fraction: 0.5}}")
    )
    assert alone is not None
    assert both is not None
    for i in range(30):
        first, count = int(both.first[i]), int(alone.counts[i])
        mine = [both.sizes[k] for k in both.kinds[first : first + count]]
        assert mine == [alone.sizes[k] for k in alone.kinds[int(alone.first[i]) :][:count]]


def test_lengths_of_audio_and_frames_of_videos_are_distributions() -> None:
    blocks = (
        "videos: {per_request: 1, resolution: {640x360: 1, 448x448: 1}, frames: {uniform: {low: 2, high: 9}}}, "
        "audio: {per_request: 1, seconds: {uniform: {low: 1, high: 20}}, distinct: 4}"
    )
    media = media_of(blocks).materialise(n_requests=400).media
    assert media is not None
    frames = {item.frames for item in media.sizes if isinstance(item, Video)}
    assert frames == set(range(2, 10))
    lengths = {item.content: item.layout.tokens for i in range(400) for item in media.read_by(OMNI).of_request(i)[1:]}
    assert len(lengths) == 4
    assert media.words.startswith("2 per request, 640x360, 2 frames")


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        ("audio: {per_request: 1}", "seconds"),
        ("audio: {per_request: 1, seconds: 0}", "constant"),
        ("videos: {per_request: 1, resolution: 640x360}", "frames"),
        ("videos: {per_request: 1, resolution: 640x360, frames: 8, fps: 2}", "fps"),
    ],
)
def test_bad_videos_and_audio_are_refused_in_one_line(blocks: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        media_of(blocks)
    assert "\n" not in str(refused.value)


def test_whisper_pads_audio_up_to_30_seconds() -> None:
    whisper = load_model("whisper-large-v3")
    read = media_of("audio: {per_request: 1, seconds: {uniform: {low: 1, high: 30}}}").for_model(whisper)
    assert not read.sends_media
    assert read.materialise(n_requests=3).input_tokens.tolist() == [100] * 3
    assert read.notices[-1] == "whisper-large-v3 pads the audio of every request to 30 s"
    with pytest.raises(InputError, match="whisper-large-v3 encodes 30 s of audio at a time"):
        media_of("audio: {per_request: 1, seconds: 31}").for_model(whisper)
    with pytest.raises(InputError, match="has one piece of audio"):
        media_of("audio: {per_request: 2, seconds: 10}").for_model(whisper)
    with pytest.raises(InputError, match="sends images, and the catalog knows no tower"):
        workload("per_request: 1, resolution: 448x448").for_model(whisper)


def test_a_trace_names_its_videos_and_audio(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = ["arrival_s,input_tokens,output_tokens,audio,videos", "0,5,2,30s;1.5s#a,", "1,5,2,1.5s#a,448x448x4"]
    path.write_text("\n".join(rows), encoding="utf-8")
    drawn = load_workload(str(path)).for_model(OMNI).materialise()
    assert drawn.media is not None
    assert [[item.layout.tokens for item in drawn.media.of_request(i)] for i in range(2)] == [[752, 39], [514, 39]]
    assert drawn.media.of_request(0)[1].content == drawn.media.of_request(1)[1].content
    path.write_text("\n".join([*rows[:2], "1,5,2,448x448,"]), encoding="utf-8")
    with pytest.raises(InputError, match="audio of row 2 have the size of image: got '448x448'"):
        load_workload(str(path))
