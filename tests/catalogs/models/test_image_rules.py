"""Image sizes become tokens and patches by each processor's own rule."""

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
from catalogs.models.image_rules import IMAGE_RULES, ImageLayout, ImageRule, InternTiles, LlamaTiles, parse_image_rule

INTERN = InternTiles(tile=448, max_tiles=12, embeddings=256, patches=1025)
READERS = [name for name in list_models() if load_model(name).vision is not None]
SIDE = st.integers(8, 4000)


def rule_of(model: str) -> ImageRule:
    vision = load_model(model).vision
    assert vision is not None
    return vision.rule


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
    assert INTERN.layout(*size) == ImageLayout(256 * whole + 2, 256 * whole, whole, 1025)


@pytest.mark.parametrize("model", READERS)
@given(width=SIDE, height=SIDE)
def test_no_image_is_beyond_the_largest(model: str, width: int, height: int) -> None:
    if max(width, height) > 200 * min(width, height):
        return
    rule = rule_of(model)
    found, largest = rule.layout(width, height), rule.largest
    assert 0 < found.embeddings <= min(found.tokens, largest.embeddings)
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
    assert set(IMAGE_RULES) == {"native_resolution", "fixed_size", "llama_tiles", "intern_tiles"}


@pytest.mark.parametrize("model", READERS)
def test_the_tower_counts_its_published_weights(model: str) -> None:
    spec = load_model(model)
    assert spec.vision is not None
    assert spec.vision.n_params == pytest.approx(spec.other_params, rel=0.015)


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
def test_llama_is_as_transformers() -> None:
    torch: Any = pytest.importorskip("torch")
    llama = functions_of("llama4/image_processing_llama4.py", torch=torch)
    scout = rule_of("llama4-scout")
    assert isinstance(scout, LlamaTiles)
    canvases = torch.tensor(llama["find_supported_resolutions"](16, Square(336, 336)))
    for width, height in SIZES:
        canvas = llama["get_best_fit"]((height, width), canvases)
        assert scout.grid(width, height) == tuple((canvas // 336).tolist())
