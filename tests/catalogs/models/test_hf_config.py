"""Reading config.json: every family is distinguished, quantisation is read, and each error is one line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from catalogs.errors import InputError
from catalogs.models.catalog import load_model
from catalogs.models.hf_config import load_config, model_from_config
from catalogs.models.hf_quantization import IgnoreList
from catalogs.models.hf_reader import merged_reader
from catalogs.models.layers import LayerGroup, Mlp, Moe
from catalogs.models.mixers import Attention, LinearAttention, MlaAttention
from catalogs.models.spec import ModelSpec, PartFormat, WeightFormat

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 8,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
}


def read(changes: dict[str, Any]) -> ModelSpec:
    """The toy Llama with changes; a value of None takes the key away."""
    raw = {k: v for k, v in (LLAMA | changes).items() if v is not None}
    return model_from_config(merged_reader(raw, "toy"), "toy")


def windows(model: ModelSpec) -> list[tuple[int, int | None]]:
    return [(g.count, g.mixer.window_tokens) for g in model.groups if isinstance(g.mixer, Attention)]


# ---- families


def test_grouped_query_attention_and_head_size() -> None:
    (group,) = read({}).groups
    assert group.mixer == Attention(8, 2, 8)
    assert group.ffn == Mlp(96)
    assert read({"head_dim": 16}).groups[0].mixer == Attention(8, 2, 16)
    assert read({"num_key_value_heads": None}).groups[0].mixer == Attention(8, 8, 8)


def test_qwen2_has_biases_and_no_window_unless_asked() -> None:
    qwen = {"model_type": "qwen2", "sliding_window": 128, "max_window_layers": 3}
    assert read(qwen | {"use_sliding_window": False}).groups[0].mixer == Attention(8, 2, 8, qkv_bias=True)
    assert windows(read(qwen | {"use_sliding_window": True})) == [(3, None), (1, 128)]


def test_windows_by_family() -> None:
    assert windows(read({"model_type": "mistral", "sliding_window": 256})) == [(4, 256)]
    raw = LLAMA | {"model_type": "mistral", "sliding_window": None}
    assert windows(model_from_config(merged_reader(raw, "toy"), "toy")) == [(4, None)]  # null means none
    assert windows(read({"model_type": "gpt_oss", "sliding_window": 16})) == [(2, 16), (2, None)]
    kinds = ["sliding_attention", "full_attention", "full_attention", "full_attention"]
    assert windows(read({"layer_types": kinds, "sliding_window": 32})) == [(1, 32), (3, None)]


def test_gemma3_takes_the_defaults_of_its_class() -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    text |= {"num_hidden_layers": 12, "num_key_value_heads": 2, "sliding_window": 1024}
    raw = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    model = model_from_config(merged_reader(raw, "toy"), "toy")
    assert windows(model) == [(10, 1024), (2, None)]
    assert isinstance(model.groups[0].mixer, Attention)
    assert model.groups[0].mixer.head_dim == 256
    assert model.vocab_size == 262_208
    assert model.tied_embeddings
    assert model.architecture == "Gemma3ForConditionalGeneration"


MOE: dict[str, Any] = {"num_experts_per_tok": 2, "n_routed_experts": 8, "moe_intermediate_size": 16}


def test_mla_with_dense_layers_first_and_shared_experts() -> None:
    mla = {"q_lora_rank": 24, "kv_lora_rank": 12, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 5}
    model = read(mla | MOE | {"model_type": "deepseek_v3", "first_k_dense_replace": 1, "n_shared_experts": 2})
    assert [g.count for g in model.groups] == [1, 3]
    assert model.groups[0].mixer == MlaAttention(8, 24, 12, 6, 4, 5)
    assert model.groups[0].ffn == Mlp(96)
    assert model.groups[1].ffn == Moe(8, 2, 16, shared_intermediate_size=32)
    sparse = read(mla | {"index_n_heads": 2, "index_head_dim": 4, "index_topk": 9})
    assert sparse.groups[0].mixer == MlaAttention(8, 24, 12, 6, 4, 5, 2, 4, 9)


def test_interleaved_moe() -> None:
    llama4 = {"model_type": "llama4_text", "num_local_experts": 8, "num_experts_per_tok": 1, "attention_chunk_size": 32}
    model = read(llama4 | {"interleave_moe_layer_step": 2, "intermediate_size_mlp": 200})
    by_ffn = {type(g.ffn): g.ffn for g in model.groups}
    assert by_ffn == {Mlp: Mlp(200), Moe: Moe(8, 1, 96, shared_intermediate_size=96)}
    assert sorted(windows(model), key=str) == [(1, 32), (1, None), (2, 32)]
    qwen = read(MOE | {"model_type": "qwen3_moe", "mlp_only_layers": [0], "decoder_sparse_step": 2})
    assert [type(g.ffn) for g in qwen.groups for _ in range(g.count)].count(Moe) == 2


def test_linear_attention_and_its_interval() -> None:
    delta = {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    }
    model = read(delta | {"model_type": "qwen3_5_text", "full_attention_interval": 4, "attn_output_gate": True})
    assert [(g.count, type(g.mixer)) for g in model.groups] == [(3, LinearAttention), (1, Attention)]
    assert model.groups[0].mixer == LinearAttention(2, 4, 8, 8, state_bytes_per_value=2.0)
    fp32 = read(delta | {"full_attention_interval": 4, "mamba_ssm_dtype": "float32"})
    assert fp32.state_bytes_per_sequence > model.state_bytes_per_sequence


def test_hybrid_pattern() -> None:
    mamba = {"mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 16, "n_groups": 2}
    model = read(mamba | MOE | {"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*EM"})
    assert model.n_layers == 6
    assert [(g.count, g.mixer is None, g.ffn is None) for g in model.groups] == [
        (3, False, True),
        (1, True, False),
        (1, False, True),
        (1, True, False),
    ]
    assert model.groups[1].ffn == Mlp(96, gated=False)
    with pytest.raises(InputError, match="hybrid_override_pattern"):
        read(mamba | {"hybrid_override_pattern": "M?"})


def test_nemotron_h_by_the_kinds_of_its_blocks_or_by_its_pattern() -> None:
    """Later configs spell the letters of the pattern out, and state no number of layers."""
    sizes = {"mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 16, "n_groups": 2, "model_type": "nemotron_h"}
    kinds = ["mamba", "mlp", "mamba", "attention", "moe", "mamba"]
    spelt = read(sizes | MOE | {"layers_block_type": kinds, "num_hidden_layers": None})
    assert spelt == read(sizes | MOE | {"hybrid_override_pattern": "M-M*EM"})
    with pytest.raises(InputError, match="layers_block_type: got 'conv'"):
        read(sizes | {"layers_block_type": ["mamba", "conv"]})


MLA: dict[str, Any] = {
    "q_lora_rank": 24,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
    "index_n_heads": 2,
    "index_head_dim": 4,
    "index_topk": 9,
}


def test_layers_that_share_an_indexer_have_none_of_their_own() -> None:
    """GLM-5.2: the weights and the keys of the indexer are in layers with an indexer only; all attend to its choice."""
    shared = {"layer_types": ["deepseek_sparse_attention"] * 4, "indexer_types": ["full", "shared", "shared", "full"]}
    own, model = read(MLA), read(MLA | shared)
    assert [(g.count, g.mixer) for g in model.groups] == [
        (2, MlaAttention(8, 24, 12, 6, 4, 5, 2, 4, 9)),
        (2, MlaAttention(8, 24, 12, 6, 4, 5, 0, 0, 9)),
    ]
    assert own.n_params - model.n_params == 2 * (24 * 2 * 4 + 64 * (4 + 2) + 2 * 4)  # projections and norm of a key
    assert own.kv_bytes_per_token("bf16") - model.kv_bytes_per_token("bf16") == 2 * 4 * (1 + 1 / 32)
    with pytest.raises(InputError, match="indexer_types: got 'none'"):
        read(MLA | {"indexer_types": ["none"]})


def test_the_output_gate_of_latent_attention_is_as_wide_as_its_output() -> None:
    plain, gated = read(MLA), read(MLA | {"mla_use_output_gate": True})
    assert gated.n_params - plain.n_params == 4 * 64 * 8 * 5


def test_minimax_m3_has_wider_dense_layers() -> None:
    m3 = {"model_type": "minimax_m3", "intermediate_size": 16, "dense_intermediate_size": 48, "n_shared_experts": 1}
    m3 |= {"moe_layer_freq": [0, 1, 1, 1], "num_local_experts": 8, "num_experts_per_tok": 2, "use_qk_norm": True}
    model = read(m3 | {"shared_intermediate_size": 16, "num_nextn_predict_layers": 1})
    assert [(g.count, g.ffn) for g in model.groups] == [(1, Mlp(48)), (3, Moe(8, 2, 16, shared_intermediate_size=16))]
    assert model.mtp_layers == 1
    assert model.groups[0].mixer == Attention(8, 2, 8, qk_norm=True)


STEP: dict[str, Any] = {
    "model_type": "step3p5",
    "num_key_value_heads": None,
    "num_attention_groups": 2,
    "head_dim": 8,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"],
    "sliding_window": 32,
    "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 12},
    "moe_layers_enum": "1, 2,3",
    "moe_num_experts": 8,
    "moe_top_k": 2,
    "moe_intermediate_size": 16,
    "share_expert_dim": 16,
}


def test_step_has_more_query_heads_in_windowed_layers() -> None:
    model = read(STEP)
    assert [(g.count, g.mixer) for g in model.groups] == [
        (1, Attention(8, 2, 8, qk_norm=True)),
        (3, Attention(12, 2, 8, window_tokens=32, qk_norm=True)),
    ]
    assert [g.ffn for g in model.groups] == [Mlp(96), Moe(8, 2, 16, shared_intermediate_size=16)]
    assert not model.notices
    with pytest.raises(InputError, match="moe_layers_enum"):
        read(STEP | {"moe_layers_enum": "1;2"})


def test_step_has_the_published_size() -> None:
    """196B with 11B active: https://huggingface.co/stepfun-ai/Step-3.5-Flash."""
    sizes = {"hidden_size": 4096, "num_attention_heads": 64, "num_attention_groups": 8, "head_dim": 128}
    sizes |= {"num_hidden_layers": 45, "intermediate_size": 11264, "vocab_size": 128896, "moe_intermediate_size": 1280}
    sizes |= {"moe_num_experts": 288, "moe_top_k": 8, "share_expert_dim": 1280}
    sizes["attention_other_setting"] = {"attention_type": "sliding_attention", "num_attention_heads": 96}
    model = read(STEP | sizes | {"moe_layers_enum": ",".join(map(str, range(3, 45)))})
    assert model.n_params == pytest.approx(196e9, rel=0.01)
    embeddings = model.embedding_params + model.lm_head_params
    assert model.n_active_params - embeddings == pytest.approx(11e9, rel=0.03)


def test_opt_bloom_and_t5() -> None:
    opt = read({"model_type": "opt", "ffn_dim": 256, "intermediate_size": None, "word_embed_proj_dim": 32})
    assert (opt.learned_positions, opt.embedding_size, opt.layer_norm, opt.tied_embeddings) == (514, 32, True, True)
    assert opt.groups[0].ffn == Mlp(256, gated=False, bias=True)
    bloom = read({"model_type": "bloom", "intermediate_size": None, "num_key_value_heads": None})
    assert bloom.groups[0].ffn == Mlp(4 * 64, gated=False, bias=True)
    t5 = {"model_type": "t5", "d_model": 64, "d_ff": 128, "num_heads": 4, "num_layers": 3, "num_decoder_layers": 2}
    t5 |= {"vocab_size": 100, "d_kv": 8}
    model = model_from_config(merged_reader(t5, "toy"), "toy")
    assert (model.n_layers, model.n_encoder_layers) == (2, 3)
    assert model.groups[0].cross_attention
    assert model.groups[0].ffn == Mlp(128, gated=False)


# ---- quantisation


def quantised(config: dict[str, Any], **changes: Any) -> ModelSpec:
    return read({"quantization_config": config} | changes)


@pytest.mark.parametrize(
    ("config", "dtype", "size"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", None),
        ({"quant_method": "fbgemm_fp8"}, "fp8", None),
        ({"quant_method": "mxfp4"}, "fp4", 0.53125),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "fp4", 0.5625),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8", None),
        ({"quant_method": "modelopt", "quant_algo": "MXFP8"}, "fp8", 1.03125),
        ({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}, "fp4", 0.5625),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4", 0.53125),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, "int8", None),
        ({"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": True}, "int4", 0.53125),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4", None),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", None),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            "fp8",
            None,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "g": {"weights": {"num_bits": 4, "type": "int", "group_size": 32, "symmetric": True}}
                },
            },
            "int4",
            0.5625,
        ),
    ],
)
def test_quantisation_formats(config: dict[str, Any], dtype: str, size: float | None) -> None:
    model = quantised(config)
    assert model.weight_dtype == dtype
    assert model.formats[0].bytes_per_weight == size
    assert model.weight_bytes(dtype) < model.weight_bytes("bf16")


BLOCKS = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}


@pytest.mark.parametrize(
    ("config", "block_size"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 128),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": BLOCKS}}}, 128),
        ({"quant_method": "fp8", "weight_block_size": None}, None),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, None),
    ],
)
def test_fp8_has_a_scale_for_each_block_where_the_config_says_so(
    config: dict[str, Any], block_size: int | None
) -> None:
    assert quantised(config).formats[0].block_size == block_size


@pytest.mark.parametrize("config", [{"quant_method": "mystery"}, {"quant_method": "gptq", "bits": 3}, {}])
def test_unknown_quantisation_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        quantised(config)


@pytest.mark.parametrize(
    ("declares", "kv_dtype"),
    [
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": None}, None),
        ({"quant_method": "fp8", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8"),
        ({"quant_method": "fp8", "kv_cache_scheme": {"num_bits": 8, "type": "int"}}, None),
        ({"quant_method": "fp8"}, None),
    ],
)
def test_the_kv_dtype_a_checkpoint_declares(declares: dict[str, Any], kv_dtype: str | None) -> None:
    assert quantised(declares).formats[0].kv_dtype == kv_dtype


@pytest.mark.parametrize(("kind", "gated"), [("qwen3_next", True), ("qwen3_moe", False)])
def test_qwen_scales_its_shared_expert_by_a_gate(kind: str, gated: bool) -> None:
    moe = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    block = read({"model_type": kind, "shared_expert_intermediate_size": 64} | moe).groups[-1].ffn
    assert isinstance(block, Moe)
    assert block.shared_gate is gated


def test_plain_dtypes() -> None:
    assert read({}).weight_dtype == "bf16"
    assert read({"torch_dtype": "float16"}).weight_dtype == "fp16"
    assert read({"torch_dtype": "float32"}).weight_dtype == "bf16"  # served in 16 bits


def unquantized(ignored: list[str], **changes: Any) -> dict[str, float]:
    model = quantised({"quant_method": "fp8", "modules_to_not_convert": ignored}, **changes)
    return dict(model.formats[0].unquantized)


def test_ignored_modules_become_shares() -> None:
    assert unquantized(["lm_head"]) == {}
    assert unquantized(["model.layers.*.self_attn", "lm_head"]) == {"attention": 1.0}
    assert unquantized(["re:.*self_attn.*"]) == {"attention": 1.0}
    assert unquantized(["model.layers.0.mlp.gate_proj"]) == {"mlp": 0.25}
    assert unquantized(["model.layers.1"]) == {"attention": 0.25, "mlp": 0.25}
    assert unquantized(["gate"], **MOE) == {}  # the router, not gate_proj
    assert unquantized(["re:.*shared_experts.*"], n_shared_experts=1, **MOE) == {"shared_experts": 1.0}


def test_the_output_projection_counts_for_its_size() -> None:
    q, kv, out = 64 * 64, 2 * 64 * 16, 64 * 64
    total = q + kv + out
    assert unquantized(["re:.*self_attn.o_proj"]) == {"attention": pytest.approx(out / total)}
    assert unquantized(["re:.*self_attn.[qkv]_proj"]) == {"attention": pytest.approx((q + kv) / total)}


# ---- mixed storages


FP8, NVFP4 = {"quant_algo": "FP8"}, {"quant_algo": "NVFP4", "group_size": 16}


def by_layer(modules: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A ModelOpt config that lists the algorithm of modules in each of the four layers."""
    listed = {f"model.layers.{i}.{name}": algorithm for i in range(4) for name, algorithm in modules.items()}
    return {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": listed}


QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")


def test_a_mixed_checkpoint_has_the_dtype_of_most_weights_and_lists_the_other_parts() -> None:
    attention = dict.fromkeys((*QKV, "self_attn.o_proj"), FP8)
    model = quantised(by_layer(attention | {"mlp.gate_proj": NVFP4, "mlp.up_proj": NVFP4}))
    (stored,) = model.formats
    assert stored == WeightFormat("fp4", 0.5625, parts=(PartFormat("attention", "fp8"),))
    assert (model.part_dtype("attention", "fp4"), model.part_dtype("mlp", "fp4")) == ("fp8", "fp4")
    plain = 2 * (model.small_params + model.embedding_params + model.lm_head_params)
    assert model.weight_bytes("fp4") == pytest.approx(
        model.part_params["attention"] + 0.5625 * model.part_params["mlp"] + plain
    )


def test_modules_that_a_mixed_checkpoint_does_not_list_are_unquantised() -> None:
    """The output projection has 64 x 64 of 4 x 10,240 weights of attention, and only it is quantised."""
    stored = quantised(by_layer({"self_attn.o_proj": FP8, "mlp.gate_proj": NVFP4})).formats[0]
    assert dict(stored.unquantized) == {"attention": pytest.approx(0.6)}
    assert stored.part_bytes_per_weight("attention") == pytest.approx(0.4 * 1 + 0.6 * 2)
    assert stored.part_dtype("attention") == "bf16"


def test_a_part_with_two_storages_has_their_mean_bytes() -> None:
    mixed = by_layer(dict.fromkeys(QKV, NVFP4) | {"self_attn.o_proj": FP8, "mlp.gate_proj": NVFP4})
    stored = quantised(mixed).formats[0]
    assert stored.part_dtype("attention") == "fp4"
    assert stored.part_bytes_per_weight("attention") == pytest.approx(0.6 * 0.5625 + 0.4 * 1)


def test_groups_of_compressed_tensors_with_different_storages() -> None:
    groups = {
        "rest": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}},
        "blocks": {"targets": ["re:.*mlp.*"], "weights": {"num_bits": 4, "type": "float", "group_size": 16}},
    }
    stored = quantised({"quant_method": "compressed-tensors", "config_groups": groups}).formats[0]
    assert (stored.dtype, stored.part_dtype("attention"), stored.part_dtype("mlp")) == ("fp4", "fp8", "fp4")


def test_what_a_mixed_storage_does_not_represent_is_stated_or_refused() -> None:
    listed = by_layer({"mlp.gate_proj": {"quant_algo": "W4A16_NVFP4"}})
    listed["quantized_layers"]["lm_head"] = {"quant_algo": "W4A16_NVFP4"}
    activations, output = quantised(listed).notices
    assert "16-bit activations" in activations
    assert "output projection is quantised" in output
    with pytest.raises(InputError, match="quantized_layers"):
        quantised({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"})
    with pytest.raises(InputError, match="unknown quantisation: got 'INT3'"):
        quantised(by_layer({"mlp.gate_proj": {"quant_algo": "INT3"}}))


def test_the_dense_block_of_gemma4_is_not_its_experts() -> None:
    gemma = {"model_type": "gemma4_text", "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 16}
    ignored = ["model.language_model.layers.*.mlp*", "model.language_model.layers.*.self_attn*"]
    assert unquantized(ignored, **gemma) == {"attention": 1.0, "shared_experts": 1.0}


def test_kimi_delta_attention_is_quantised_under_the_name_of_attention() -> None:
    delta = {"kda_layers": [1, 2, 3], "num_heads": 4, "head_dim": 8}
    assert unquantized(["re:.*self_attn.*"], linear_attn_config=delta) == {"attention": 1.0, "linear_attention": 1.0}


def test_the_file_of_the_quantiser_counts_where_the_config_states_nothing(tmp_path: Path) -> None:
    """Engines read it too (vLLM, get_quant_config)."""
    beside = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert load_config(tmp_path).weight_dtype == "bf16"
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    assert load_config(tmp_path).formats == (WeightFormat("fp8", kv_dtype="fp8"),)
    assert load_config(tmp_path / "config.json").weight_dtype == "fp8"
    stated = LLAMA | {"quantization_config": {"quant_method": "mxfp4"}}
    (tmp_path / "config.json").write_text(json.dumps(stated))
    assert load_config(tmp_path).weight_dtype == "fp4"  # config.json takes precedence
    (tmp_path / "hf_quant_config.json").write_text("[]")
    assert load_config(tmp_path).weight_dtype == "fp4"
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    with pytest.raises(InputError, match=r"hf_quant_config\.json must hold a JSON object"):
        load_config(tmp_path)


def test_a_plain_entry_matches_whole_pieces_only() -> None:
    ignored = IgnoreList(["gate", "model.layers.1"])
    assert ignored.holds("model.layers.0.mlp.gate")
    assert not ignored.holds("model.layers.0.mlp.gate_proj")
    assert ignored.holds("model.layers.1.self_attn.q_proj")
    assert not ignored.holds("model.layers.10.self_attn.q_proj")


# ---- what is wrong is said on one line


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"vocab_size": None}, "vocab_size"),
        ({"intermediate_size": None}, "intermediate_size"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"hidden_size": -4}, "hidden_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"quantization_config": {"quant_method": "fp8", "ignore": ["re:["]}}, "regular expression"),
        ({"num_attention_heads": 7}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        (MOE | {"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"model_type": "bert"}, "is not a generative language model"),
    ],
)
def test_impossible_configs(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read(changes)
    assert "\n" not in str(caught.value)


def test_directory_file_and_absence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    whole = load_config(tmp_path)
    assert load_config(tmp_path / "config.json").groups == whole.groups
    assert load_model(str(tmp_path)).n_params == whole.n_params
    with pytest.raises(InputError, match=r"no config\.json"):
        load_config(tmp_path / "empty")


@pytest.mark.parametrize("text", ["", "[]", "3", "null", '{"a": ', "\x00\x01", '{"hidden_size": 1e999}', "[" * 100_000])
def test_broken_files(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError) as caught:
        load_config(tmp_path)
    assert "\n" not in str(caught.value)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, len(json.dumps(LLAMA)) - 1))
def test_a_truncated_file_is_an_input_error(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA)[:cut])
    with pytest.raises(InputError):
        load_config(path)


KEYS = [*LLAMA, *MOE, "layer_types", "kv_lora_rank", "head_dim", "quantization_config", "text_config", "sliding_window"]
JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 300), st.floats(), st.text(max_size=8), st.just([]), st.just({})
)


@settings(max_examples=300, deadline=None)
@example(changes={"hidden_size": 4.239921148868592e153})
@given(changes=st.dictionaries(st.sampled_from(KEYS), JUNK, max_size=3))
def test_junk_values_never_raise_anything_else(changes: dict[str, Any]) -> None:
    try:
        model = model_from_config(merged_reader(LLAMA | changes, "toy"), "toy")
    except InputError:
        return
    assert model.n_params > 0
    assert model.weight_bytes(model.weight_dtype) > 0


# ---- the catalog agrees with the published configs


def public_configs(folder: Path) -> list[Path]:
    return sorted((folder / "model_configs").glob("*.json"))


def test_every_public_config_is_read(public_data: Path) -> None:
    configs = public_configs(public_data)
    assert len(configs) > 40
    for path in configs:
        model = load_config(path)
        assert model.n_params > 1e8, path.name
        assert model.kv_bytes_per_token("bf16") > 0


def without_skew(group: LayerGroup) -> LayerGroup:
    """Return the group without the skew of its router, which no config states."""
    return replace(group, ffn=replace(group.ffn, routing_skew=None)) if isinstance(group.ffn, Moe) else group


def test_catalog_entries_equal_their_published_configs(public_data: Path) -> None:
    compared = 0
    for path in public_configs(public_data):
        try:
            entry = load_model(path.stem.replace("--", "/"))
        except InputError:
            continue
        model = load_config(path)
        assert set(map(without_skew, entry.groups)) == set(model.groups), path.name
        same = ("hidden_size", "vocab_size", "tied_embeddings", "max_position_tokens")
        assert [getattr(entry, k) for k in same] == [getattr(model, k) for k in same], path.name
        if model.formats[0].dtype not in ("bf16", "fp16"):
            assert entry.weight_dtype == model.weight_dtype, path.name
            assert entry.formats[0].block_size == model.formats[0].block_size, path.name
            assert entry.weight_bytes(entry.weight_dtype) == pytest.approx(
                model.weight_bytes(model.weight_dtype) + 2 * (entry.other_params - model.other_params)
            ), path.name
        compared += 1
    assert compared > 35


def test_whisper_reads_as_the_catalog_states_it() -> None:
    config = {"model_type": "whisper", "d_model": 1280, "encoder_layers": 32, "decoder_layers": 4, "vocab_size": 51866}
    config |= {"encoder_attention_heads": 20, "decoder_attention_heads": 20, "num_hidden_layers": 32}
    config |= {"encoder_ffn_dim": 5120, "decoder_ffn_dim": 5120, "num_mel_bins": 128, "max_target_positions": 448}
    read_model, stated = model_from_config(merged_reader(config, "toy"), "toy"), load_model("whisper-large-v3-turbo")
    assert (read_model.groups, read_model.encoder_groups) == (stated.groups, stated.encoder_groups)
    assert read_model.n_params == stated.n_params
    assert (read_model.encoder_tokens, read_model.max_position_tokens) == (1500, 448)
    key_biases = 1280 * (32 + 2 * 4)  # Whisper's keys have none; counted with the queries' and values'
    assert stated.n_params - key_biases == stated.published_params
    assert read_model.kv_bytes_per_token("bf16") == 4 * 2 * 20 * 64 * 2  # of the output, and of the encoder's again


@pytest.mark.parametrize(
    ("alias", "config"),
    [
        (
            "nllb-200-3.3b",
            {"model_type": "m2m_100", "d_model": 2048, "encoder_layers": 24, "decoder_layers": 24, "vocab_size": 256206}
            | {"encoder_attention_heads": 16, "decoder_attention_heads": 16}
            | {"encoder_ffn_dim": 8192, "decoder_ffn_dim": 8192, "is_encoder_decoder": True},
        ),
        (
            "flan-t5-xl",
            {"model_type": "t5", "d_model": 2048, "d_ff": 5120, "d_kv": 64, "num_heads": 32, "num_layers": 24}
            | {"num_decoder_layers": 24, "vocab_size": 32128, "feed_forward_proj": "gated-gelu", "n_positions": 512}
            | {"tie_word_embeddings": False, "is_encoder_decoder": True},
        ),
    ],
)
def test_the_config_of_an_encoder_decoder_gives_the_entry_of_the_catalog(alias: str, config: dict[str, Any]) -> None:
    found, known = model_from_config(merged_reader(config, "toy"), "toy"), load_model(alias)
    assert (found.groups, found.encoder_groups) == (known.groups, known.encoder_groups)
    assert found.n_params == known.n_params
    assert (found.max_position_tokens, found.encodes_prompt) == (known.max_position_tokens, True)
    assert found.longest_sequence_tokens == 2 * known.max_position_tokens
