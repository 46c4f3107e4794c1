"""Which configs are read, which carry a notice, and which are refused; every key that is read has a checked type."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.models.hf_config import load_config
from catalogs.models.hf_families import BLOCK_SPARSE_NOTICE, KNOWN, NOT_GENERATIVE, NOT_MODELLED

CORPUS = Path(__file__).resolve().parents[2] / "fuzz" / "corpus"
CONFIGS = {name: json.loads((CORPUS / f"{name}.config.json").read_text()) for name in ("dense", "moe", "hybrid")}
#: Keys that describe the file and no size, time or memory.
DESCRIPTIVE = {"_name_or_path", "targets", "strategy", "fmt", "format"}
#: Keys that these files hold and that do not apply: to 8-bit weights, quantised files, latent attention, experts only.
UNREAD = {
    *(("dense", "torch_dtype"), ("moe", "torch_dtype"), ("moe", "num_key_value_heads"), ("moe", "moe_layer_freq")),
    *(("hybrid", "intermediate_size"), ("hybrid", "sliding_window"), ("hybrid", "use_sliding_window")),
    ("hybrid", "max_window_layers"),
}


def read(config: dict[str, Any], folder: Path) -> Any:
    (folder / "config.json").write_text(json.dumps(config))
    return load_config(folder)


def test_a_family_is_in_one_list() -> None:
    assert not KNOWN & NOT_MODELLED
    assert not KNOWN & NOT_GENERATIVE
    assert not NOT_MODELLED & NOT_GENERATIVE


@pytest.mark.parametrize("name", CONFIGS)
def test_known_families_carry_no_notice(name: str, tmp_path: Path) -> None:
    assert read(CONFIGS[name], tmp_path).notices == ()


@pytest.mark.parametrize("kind", ["llamba", "", None])
def test_an_unknown_family_is_read_with_a_notice_that_reaches_the_user(kind: str | None, tmp_path: Path) -> None:
    (notice,) = read(CONFIGS["dense"] | {"model_type": kind}, tmp_path).notices
    assert "is read as a decoder in the form of Llama" in notice
    assert (f"model_type {kind!r}" if kind else "no model_type") in notice
    assert notice in resolve(Deployment(model=str(tmp_path), hardware="h100")).notices


@pytest.mark.parametrize("kind", sorted(NOT_MODELLED | NOT_GENERATIVE))
def test_families_without_a_model_here_are_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="model_type"):
        read(CONFIGS["dense"] | {"model_type": kind}, tmp_path)


@pytest.mark.parametrize("key", ["state_size", "ssm_cfg", "mamba_d_state", "block_types", "compress_ratios"])
def test_state_space_keys_of_an_unknown_family_are_refused(key: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"layers that are not modelled: got '{key}'"):
        read(CONFIGS["dense"] | {"model_type": "new", key: {"x": 1}}, tmp_path)


V4: dict[str, object] = {
    **{"model_type": "deepseek_v4", "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16},
    **{"qk_rope_head_dim": 4, "q_lora_rank": 8, "o_lora_rank": 5, "o_groups": 2, "sliding_window": 4, "hc_mult": 4},
    **{"index_n_heads": 3, "index_head_dim": 6, "index_topk": 7, "num_hidden_layers": 3},
}


@pytest.mark.parametrize(
    "ratios",
    [
        {"compress_ratios": [0, 4, 128, 0]},
        {
            "layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
            "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128},
        },
    ],
)
def test_deepseek_v4_attends_to_compressed_entries(ratios: dict[str, object], tmp_path: Path) -> None:
    """The published config has a ratio for each layer and one for its prediction module; transformers names kinds."""
    model = read(CONFIGS["moe"] | V4 | ratios, tmp_path)
    window, selecting, compressed = (group.mixer for group in model.groups)
    assert (window.compress_ratio, selecting.compress_ratio, compressed.compress_ratio) == (None, 4, 128)
    assert [m.index_topk_entries for m in (window, selecting, compressed)] == [None, 7, None]
    assert [m.index_n_heads for m in (window, selecting, compressed)] == [0, 3, 0]
    assert model.residual_streams == 4


def test_deepseek_v4_without_ratios_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="lacks compress_ratios"):
        read(CONFIGS["moe"] | V4, tmp_path)


def test_experts_of_deepseek_v4_are_in_fp4_and_the_rest_in_fp8(tmp_path: Path) -> None:
    fp8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    stored = {"compress_ratios": [0, 4, 128], "expert_dtype": "fp4", "quantization_config": fp8}
    (found,) = read(CONFIGS["moe"] | V4 | stored, tmp_path).formats
    assert found.has_mxfp4("experts")
    assert found.has_scale_blocks("attention")
    assert found.part_dtype("attention") == "fp8"


@pytest.mark.parametrize("kind", ["minimax_m3", "another"])
def test_attention_to_selected_blocks_carries_a_notice(kind: str, tmp_path: Path) -> None:
    sparse = {"model_type": kind, "sparse_attention_config": {"sparse_topk_blocks": 16}}
    assert BLOCK_SPARSE_NOTICE in read(CONFIGS["dense"] | sparse, tmp_path).notices[-1]
    sparse["sparse_attention_config"] = {"use_sparse_attention": False}
    assert not any(BLOCK_SPARSE_NOTICE in notice for notice in read(CONFIGS["dense"] | sparse, tmp_path).notices)


def test_a_kind_of_layer_that_is_not_modelled_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not modelled: got 'conv'"):
        read(CONFIGS["hybrid"] | {"layer_types": ["conv", "full_attention"]}, tmp_path)


@pytest.mark.parametrize("name", ["float3", "int7", "bfloat61", ""])
def test_an_unknown_dtype_is_refused(name: str, tmp_path: Path) -> None:
    config = {k: v for k, v in CONFIGS["dense"].items() if k != "quantization_config"}
    with pytest.raises(InputError, match="unknown torch_dtype"):
        read(config | {"torch_dtype": name}, tmp_path)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def read_keys(name: str) -> list[tuple[Any, ...]]:
    return [path for path in places(CONFIGS[name]) if path[-1] not in DESCRIPTIVE]


@pytest.mark.parametrize(("name", "path"), [(n, p) for n in CONFIGS for p in read_keys(n)], ids=str)
def test_a_key_of_another_type_is_refused_or_has_no_effect(name: str, path: tuple[Any, ...], tmp_path: Path) -> None:
    """A wrong type is never taken for a default: the result is a refusal, or the model of a key that is not read."""
    plain = read(CONFIGS[name], tmp_path)
    for value in ("x", [], 1.5, {"a": 1}, -7):
        changed = json.loads(json.dumps(CONFIGS[name]))
        inner = changed
        for key in path[:-1]:
            inner = inner[key]
        if type(inner[path[-1]]) is type(value):
            continue
        inner[path[-1]] = value
        try:
            found = read(changed, tmp_path)
        except InputError:
            continue
        assert found == plain, value
        assert (name, path[-1]) in UNREAD, value
