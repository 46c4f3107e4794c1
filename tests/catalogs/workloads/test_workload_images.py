"""Images in workloads: what a file may state, what is drawn, and what a model makes of it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from catalogs.errors import InputError
from catalogs.models.catalog import load_model
from catalogs.workloads.images import parse_resolution
from catalogs.workloads.workload import Workload, load_workload, workload_sends_images

QWEN = load_model("qwen2.5-vl-7b")
TEXT = "arrivals: {poisson: {}}, input_tokens: 100, output_tokens: 10"


def workload(images: str, more: str = "") -> Workload:
    return load_workload(f"{{{TEXT}, images: {{{images}}}{more}}}")


def test_prompts_grow_by_the_tokens_of_their_images() -> None:
    read = workload("per_request: 3, resolution: 448x448").for_model(QWEN)
    drawn = read.materialise(n_requests=4)
    assert drawn.input_tokens.tolist() == [100 + 3 * (16 * 16 + 2)] * 4
    assert drawn.images is not None
    first = drawn.images.of_request(1)
    assert [image.start for image in first] == [0, 258, 516]
    assert all(a.end == b.start for a, b in pairwise(first))
    contents = [image.content for i in range(4) for image in drawn.images.of_request(i)]
    assert len(set(contents)) == 12  # all different
    assert "448x448 258" in read.notices[-1]


def test_the_rest_of_the_workload_stays_as_it_is() -> None:
    """Images have a stream of their own."""
    plain, imaged = load_workload(f"{{{TEXT}}}"), workload("per_request: 1, resolution: 448x448")
    a, b = plain.materialise(n_requests=50, seed=3), imaged.materialise(n_requests=50, seed=3)
    assert np.array_equal(a.arrival_s, b.arrival_s)
    assert np.array_equal(a.input_tokens, b.input_tokens)
    assert not plain.sends_images
    assert imaged.sends_images
    assert workload_sends_images("chat-with-images")
    assert not workload_sends_images("azure-conv")


def test_more_requests_extend_fewer() -> None:
    counts = "per_request: {uniform: {low: 1, high: 4}}, resolution: {448x448: 1, 896x448: 2}, fraction: 0.5"
    read = workload(counts).for_model(QWEN)
    few, many = read.materialise(n_requests=50, seed=1), read.materialise(n_requests=80, seed=1)
    assert few.images is not None
    assert many.images is not None
    assert np.array_equal(few.input_tokens, many.input_tokens[:50])
    assert [few.images.of_request(i) for i in range(50)] == [many.images.of_request(i) for i in range(50)]
    share = float((read.materialise(n_requests=4000).images.counts > 0).mean())  # type: ignore[union-attr]
    assert share == pytest.approx(0.5, abs=0.03)
    inputs, _ = read.content.draw_lengths(1, 80)
    assert np.array_equal(inputs, many.input_tokens)


def test_equal_images_have_equal_sizes_and_share_blocks_behind_equal_prefixes() -> None:
    shared = workload(
        "per_request: 2, resolution: {448x448: 1, 896x896: 1}, distinct: 2", ", shared_prefix: {tokens: 40}"
    )
    drawn = shared.for_model(QWEN).materialise(n_requests=40)
    assert drawn.images is not None
    assert drawn.block_hashes is not None
    sizes: dict[int, set[int]] = {}
    for i in range(40):
        images = drawn.images.of_request(i)
        assert images[0].start == 40
        for image in images:
            sizes.setdefault(image.content, set()).add(image.layout.tokens)
        assert len(drawn.block_hashes[i]) == images[-1].end // 16
    assert all(len(each) == 1 for each in sizes.values())
    for i in range(40):
        for j in range(i):
            mine, other = drawn.images.of_request(i), drawn.images.of_request(j)
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
    with pytest.raises(InputError, match=r"no vision tower of this model: got 'llama3.1-8b'; .*qwen2.5-vl-7b"):
        imaged.for_model(load_model("llama3.1-8b"))
    with pytest.raises(InputError, match="images of earlier turns are not simulated"):
        workload("per_request: 1, resolution: 448x448", ", turns: 3")
    with pytest.raises(InputError, match="at most 10,000 images"):
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
    assert found.sends_images
    assert not any("not used" in notice for notice in found.notices)
    drawn = found.for_model(QWEN).materialise()
    assert drawn.images is not None
    small, wide = 16 * 16 + 2, 32 * 16 + 2
    assert drawn.input_tokens.tolist() == [100 + small + wide, 100, 100 + 2 * small]
    contents = [[image.content for image in drawn.images.of_request(i)] for i in range(3)]
    assert contents[0][0] == contents[2][0]
    assert len({*contents[0], *contents[2]}) == 3
    later = found.for_model(QWEN).materialise(n_requests=7)
    assert later.input_tokens[3:6].tolist() == drawn.input_tokens.tolist()


def test_json_lines_list_their_images(tmp_path: Path) -> None:
    rows = [{"arrival_s": i, "input_tokens": 5, "output_tokens": 2, "images": ["448x448#x"] * i} for i in range(3)]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    drawn = load_workload(str(path)).materialise()
    assert drawn.images is not None
    assert drawn.images.counts.tolist() == [0, 1, 2]
    assert drawn.images.contents.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (("448", ""), "images of row 1: a resolution is WIDTHxHEIGHT in pixels: got '448'"),
        (("448x448#a", "896x448#a"), "the image of row 2 has the hash of an image of another size"),
    ],
)
def test_bad_cells_name_their_row(tmp_path: Path, cells: tuple[str, ...], said: str) -> None:
    with pytest.raises(InputError, match=said):
        trace(tmp_path, *cells)
