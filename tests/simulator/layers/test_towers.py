"""The operators of a vision tower: their work by hand, their split over ranks, and their tables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calibration.operators.flops_and_bytes import flops
from calibration.operators.operators import Collective, Elementwise, Gemm, NonCausalAttention, PrefillAttention
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.schema import Deployment, Multimodal
from catalogs.models.catalog import load_model
from catalogs.models.media_items import Audio, Image, MediaItem, MediaLayout, Video
from simulator.cluster.compiled import CompiledDeployment, compile_deployment
from simulator.core.batch import Batch, Encoding, SideTransfers, TowerWork
from simulator.costs.partition import BatchRows
from simulator.costs.pricing import N_CLASSES
from simulator.costs.totals import step_channels
from simulator.layers.towers import TowerCalls, encoding_of
from simulator.memory.plan import size_memory

MODELS = ("qwen2.5-vl-7b", "qwen3-vl-8b", "gemma-3-12b", "llama4-scout")


def compiled(model: str, hardware: str = "h100", tp: int = 1, how: str | None = "weights") -> CompiledDeployment:
    keys = {"model": model, "hardware": hardware, "tensor_parallel": tp, "max_model_len": 8192}
    block = None if how is None else Multimodal.model_validate({"encoder_parallel": how})
    return compile_deployment(Deployment.model_validate(keys | {"multimodal": block}))


QWEN = compiled("qwen2.5-vl-7b")


def tower_of(deployed: CompiledDeployment) -> TowerCalls:
    return deployed.cost.tables.towers[0].calls


def products(calls: TowerCalls, patches: float) -> float:
    lines = calls.patches(patches)
    return sum(line.count * float(flops(line.op)) for line in lines if isinstance(line.op, Gemm))


@pytest.mark.parametrize("model", MODELS)
def test_every_weight_multiplies_what_passes_it(model: str) -> None:
    """Two FLOPs for each weight of the layers and patch, and for each weight of the projections and embedding."""
    vision = load_model(model).vision
    assert vision is not None
    calls = TowerCalls(vision, 1, False, 4096, "fa3")
    patches = 1024.0
    layers = sum(g.count * sum(g.part_params(vision.hidden_size).values()) for g in vision.groups)
    behind = sum(p.count * p.inputs * p.outputs for p in vision.projections)
    weights = vision.front[0].inputs * vision.hidden_size + layers + behind / vision.merged_patches
    assert products(calls, patches) == pytest.approx(2.0 * patches * weights, rel=1e-12)


def test_attention_is_over_windows_in_some_layers_and_over_the_image_in_others() -> None:
    """Qwen2.5-VL: 28 layers over windows of 64 patches, 4 over all 5,476 patches of 1024 x 1024 pixels."""
    calls, n = tower_of(QWEN), 5476.0
    inside = [line for line in calls.patches(n) if isinstance(line.op, NonCausalAttention)]
    whole = calls.attention(1.0, n)
    assert [(line.count, float(line.op.sequences), float(line.op.key_tokens)) for line in inside] == [
        (28, n / 64, 64.0)
    ]
    assert [(line.count, line.op.key_tokens) for line in whole if isinstance(line.op, NonCausalAttention)] == [(4, n)]
    assert sum(line.count * float(flops(line.op)) for line in whole) == 4 * 4 * n**2 * 1280


def test_tensor_ranks_divide_the_tower_or_the_images() -> None:
    vision = load_model("qwen3-vl-32b").vision
    assert vision is not None
    one, split, whole = (TowerCalls(vision, n, data, 5120, "fa3") for n, data in ((1, False), (4, False), (4, True)))
    assert products(split, 4096.0) < 0.3 * products(one, 4096.0)
    assert products(whole, 4096.0) == products(one, 4096.0)
    assert [float(np.asarray(whole.busiest_share(tiles))) for tiles in (1, 2, 4, 5, 8)] == [1, 0.5, 0.25, 0.4, 0.25]
    assert float(np.asarray(split.busiest_share(5))) == 1.0
    kinds = [
        [line.op.kind for line in c.patches(4096.0) if isinstance(line.op, Collective)] for c in (one, split, whole)
    ]
    assert kinds == [[], ["all_reduce", "all_reduce"], ["all_gather"]]


def test_without_a_measured_kernel_the_causal_table_stands_in() -> None:
    vision = load_model("gemma-3-12b").vision
    assert vision is not None
    (line,) = TowerCalls(vision, 1, False, 3840, None).attention(2.0, 4096.0)
    assert isinstance(line.op, PrefillAttention)
    assert float(line.op.tokens) == 8192.0
    assert float(line.op.pairs) == 2 * 4096.0**2 / 1.25


# ---- priced


def encodings() -> list[Encoding]:
    qwen = load_model("qwen2.5-vl-7b").vision
    assert qwen is not None
    sizes = [
        (qwen.rules.layout(Image(side, side)), n) for side, n in ((200, 1), (200, 100), (448, 7), (1024, 11), (3500, 1))
    ]
    mixed = Encoding(TowerWork(2, 2, 256 + 5476, 256.0**2 + 5476.0**2))
    return [encoding_of(layout, n) for layout, n in sizes] + [mixed]


def test_both_readings_agree_and_the_operators_add_up_to_them() -> None:
    """What a step takes longer, what totals add up, and the operators of the tower alone."""
    tables = QWEN.cost.tables
    (tower,) = tables.towers
    for encoding in encodings():
        batch = Batch(64, 2048.0, 1, logits=1)
        batch.moves = SideTransfers(encoding=encoding)
        plain = Batch(64, 2048.0, 1, logits=1)
        with_, without = (
            step_channels(tables, BatchRows.of_shapes([each]))[:, :N_CLASSES].sum() for each in (batch, plain)
        )
        longer = QWEN.cost.encoding_s(encoding)
        assert longer == pytest.approx(max(with_ - without, tower.launch_s), rel=1e-12)
        for term in tower.terms(BatchRows.of_shapes([batch])):
            exact = tables.pricer.price(tower.operators(term), (1,))[:, :N_CLASSES].sum()
            assert tables.read(term)[:, :N_CLASSES].sum() == pytest.approx(exact, rel=0.08, abs=5e-5)


@pytest.mark.parametrize("model", ["qwen2.5-vl-7b", "gemma-3-12b"])
def test_more_images_and_more_pixels_never_take_less(model: str) -> None:
    deployed = QWEN if model == "qwen2.5-vl-7b" else compiled(model)
    (vision,) = deployed.resolved.towers
    each = [
        [
            deployed.cost.encoding_s(encoding_of(vision.rules.layout(Image(side, side)), n))
            for side in (56, 336, 700, 1400, 2800)
        ]
        for n in (1, 2, 4)
    ]
    assert (np.diff(each, axis=0) >= 0).all()
    assert (np.diff(each, axis=1) >= -1e-12).all()


# ---- memory


def resolved(model: str, **changes: object) -> ResolvedDeployment:
    found = compiled(model, "h100x8", 8).resolved
    return replace(found, **changes)  # type: ignore[arg-type]


def test_text_only_costs_what_it_costs_without_a_tower() -> None:
    """The same memory and the same step times as the model had before its tower was known."""
    text = compiled("gemma-3-12b", how=None)
    blind = replace(text.resolved, model=replace(text.resolved.model, vision=None))
    assert not text.cost.tables.towers
    assert size_memory(text.resolved) == size_memory(blind)
    seeing = compiled("gemma-3-12b")
    shape = Batch(2048, 2048.0**2 / 2, 2, 16, 16000, 2000, 18)
    assert seeing.cost.cycle_s(shape) == text.cost.cycle_s(shape)
    assert seeing.cost.decode_segment(32, 32000, 2000) == text.cost.decode_segment(32, 32000, 2000)


def test_images_take_memory_by_hand() -> None:
    """Qwen2.5-VL's largest image is 16,384 embeddings of 3,584 numbers: a cache of 112 MiB in 16 bits."""
    text, images = compiled("qwen2.5-vl-7b", how=None).memory, QWEN.memory
    assert QWEN.resolved.encoder_budget == QWEN.resolved.encoder_cache_tokens == 16384
    assert images.weights_bytes == text.weights_bytes
    assert images.activation_bytes == text.activation_bytes + 16384 * 3584 * 2
    assert images.kv_blocks < text.kv_blocks
    divided, copied = compiled("qwen3-vl-8b", "h100x4", 4), compiled("qwen3-vl-8b", "h100x4", 4, "data")
    tower = load_model("qwen3-vl-8b").other_params
    assert copied.memory.weights_bytes - divided.memory.weights_bytes == pytest.approx(0.75 * tower * 2)


def test_a_small_encoder_cache_still_holds_the_largest_image() -> None:
    found = replace(QWEN.resolved, multimodal=Multimodal(encoder_cache_tokens=100))
    assert found.encoder_cache_tokens == 16384
    assert MediaLayout(16386, 16384, 1, 65536) == found.largest_item(found.towers[0])
    assert all(isinstance(line.op, Elementwise | Gemm | NonCausalAttention) for line in tower_of(QWEN).patches(64.0))


# ---- audio and videos

AUDIO_MODELS = ("qwen2.5-omni-7b", "voxtral-mini-3b")


@pytest.mark.parametrize("model", AUDIO_MODELS)
def test_every_weight_of_an_audio_tower_multiplies_what_passes_it(model: str) -> None:
    """The first convolution runs twice for each position; biases, norms and positions multiply nothing."""
    audio = load_model(model).audio
    assert audio is not None
    calls, positions = TowerCalls(audio, 1, False, 4096, "fa3"), 1500.0
    first, second = audio.front
    layers = sum(g.count * sum(g.part_params(audio.hidden_size).values()) for g in audio.groups)
    behind = sum(p.count * p.inputs * p.outputs for p in audio.projections) / audio.merged_patches
    weights = 2 * first.inputs * first.outputs + second.inputs * second.outputs + layers + behind
    assert products(calls, positions) == pytest.approx(2.0 * positions * weights, rel=1e-12)


def test_audio_attends_within_its_windows_or_chunks() -> None:
    """Qwen2.5-Omni: windows of 100 positions in all layers; Voxtral: chunks of 1,500."""
    omni, voxtral = (load_model(model).audio for model in AUDIO_MODELS)
    assert omni is not None
    assert voxtral is not None
    windows = [
        line for line in TowerCalls(omni, 1, False, 3584, "fa3").patches(1500.0) if line.name.endswith("attention")
    ]
    assert [(line.count, float(line.op.sequences)) for line in windows if isinstance(line.op, NonCausalAttention)] == [
        (32, 15.0)
    ]
    assert not TowerCalls(omni, 1, False, 3584, "fa3").attention(1.0, 1500.0)
    (chunks,) = TowerCalls(voxtral, 1, False, 3072, "fa3").attention(2.0, 1500.0)
    assert float(flops(chunks.op)) * chunks.count == 2 * 32 * 4 * 1500.0**2 * 1280


@pytest.mark.parametrize(("model", "item"), [("voxtral-mini-3b", Audio(90.0)), ("qwen3-vl-8b", Video(640, 360, 32))])
def test_operators_of_audio_and_videos_add_up_to_the_step(model: str, item: MediaItem) -> None:
    keys = {"model": model, "hardware": "h100", "max_model_len": 8192, "multimodal": {"modalities": [item.modality]}}
    deployed = compile_deployment(Deployment.model_validate(keys))
    (tower,) = deployed.cost.tables.towers
    encoding = encoding_of(tower.calls.tower.rules.layout(item), 1)
    batch = Batch(64, 2048.0, 1, logits=1)
    batch.moves = SideTransfers(encoding=encoding)
    priced = sum(
        deployed.cost.tables.pricer.price(tower.operators(term), (1,))[:, :N_CLASSES].sum()
        for term in tower.terms(BatchRows.of_shapes([batch]))
    )
    assert deployed.cost.encoding_s(encoding) == pytest.approx(max(priced, tower.launch_s), rel=0.08)


def test_one_video_keeps_one_rank_busy_and_tiles_are_divided() -> None:
    qwen, intern = load_model("qwen3-vl-8b").vision, load_model("internvl3-8b").vision
    assert qwen is not None
    assert intern is not None
    whole = TowerCalls(qwen, 4, True, 4096, "fa3")
    video = encoding_of(qwen.rules.layout(Video(640, 360, 32)), 1).vision
    assert (video.units, float(np.asarray(whole.busiest_share(video.units)))) == (1, 1.0)
    tiles = encoding_of(intern.rules.layout(Image(896, 896)), 1).vision
    assert (tiles.units, float(np.asarray(whole.busiest_share(tiles.units)))) == (5, 0.4)
