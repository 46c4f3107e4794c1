"""The memory of a vision tower by hand, with the sizes of LLaVA 1.5 7B's published configuration."""

from __future__ import annotations

import pytest

from catalogs.deployments.resolve import resolve
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.schema import Deployment, Multimodal
from simulator.memory.towers import NO_TOWER, TowerMemory, tower_memory

#: CLIP ViT-L/14 at 336 pixels: hidden 1,024, 16 heads of 64, inner 4,096 without a gate; embeddings of 4,096 numbers.
HIDDEN, HEADS, INNER, EMBEDDING = 1024, 4 * 16 * 64, 2 * 4096, 4096
PATCHES, EMBEDDINGS = 577, 576  # the class token is no embedding
BUDGET = 8192  # vLLM's batched tokens on an H100, which are also the encoder budget and its cache
IMAGES = BUDGET // EMBEDDINGS
BYTES = 2


def llava(tp: int, encoder_parallel: str | None) -> ResolvedDeployment:
    multimodal = None if encoder_parallel is None else Multimodal(encoder_parallel=encoder_parallel)  # type: ignore[arg-type]
    written = Deployment(
        model="llava-1.5-7b",
        hardware=f"h100x{tp}",
        engine="vllm",
        tensor_parallel=tp,
        max_num_batched_tokens=BUDGET,
        multimodal=multimodal,
    )
    return resolve(written)


def test_text_alone_needs_no_memory_for_a_tower() -> None:
    assert tower_memory(llava(1, None)) == NO_TOWER == TowerMemory(0.0, 0.0, 0.0)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_a_divided_tower(tp: int) -> None:
    """Ranks divide the heads and the inner size, not the images; outputs and cache are whole."""
    resolved = llava(tp, "weights")
    assert resolved.encoder_budget == resolved.encoder_cache_tokens == BUDGET
    passing = IMAGES * PATCHES * (2 * HIDDEN + max(HEADS, INNER) / tp) + IMAGES * EMBEDDINGS * EMBEDDING
    found = tower_memory(resolved)
    assert (found.copies, found.pass_bytes) == (0.0, BYTES * passing)
    assert found.embeddings == BYTES * BUDGET * EMBEDDING


@pytest.mark.parametrize(("tp", "images"), [(1, 14), (2, 7), (4, 4)])
def test_a_whole_tower_on_every_rank(tp: int, images: int) -> None:
    """Ranks divide the 14 images, rounded up, and hold the part of the weights that others would have."""
    resolved = llava(tp, "data")
    passing = images * PATCHES * (2 * HIDDEN + max(HEADS, INNER)) + images * EMBEDDINGS * EMBEDDING
    found = tower_memory(resolved)
    assert found.pass_bytes == BYTES * passing
    assert found.copies == pytest.approx(BYTES * resolved.model.other_params * (tp - 1) / tp)


def test_the_peak_is_that_of_the_tower_or_of_the_language_model_with_the_embeddings() -> None:
    memory = TowerMemory(0.0, 10.0, 3.0)
    assert memory.activation_bytes(6.0) == 10.0
    assert memory.activation_bytes(8.0) == 11.0
