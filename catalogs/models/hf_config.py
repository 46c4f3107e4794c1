"""Conversion of a Hugging Face config.json to a ModelSpec: the layers, and the mixer and feed-forward block of each."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from catalogs.errors import InputError, nearest_name
from catalogs.models.hf_families import family_notices
from catalogs.models.hf_latent import compressed_attention, latent_attention
from catalogs.models.hf_quantization import read_weight_format, weight_notices
from catalogs.models.hf_reader import ConfigReader, read_reader
from catalogs.models.layers import FeedForward, LayerGroup, Mlp, Moe
from catalogs.models.mixers import Attention, LinearAttention, Mixer
from catalogs.models.spec import ModelSpec

#: Kinds of layer in `layer_types`.
LAYER_KINDS: Final = (
    *("full_attention", "sliding_attention", "chunked_attention", "linear_attention"),
    "deepseek_sparse_attention",  # its indexer is read from the keys of latent attention
)

#: The letter of hybrid_override_pattern for each kind of block in `layers_block_type` (Nemotron-H).
BLOCK_LETTERS: Final = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}

MAX_LAYERS: Final = 10_000  # more than any model has; larger values are typing errors

#: Families whose feed-forward block has two matrices (no gate).
UNGATED: Final = frozenset(
    ("opt", "bloom", "gpt2", "gpt_neox", "gptj", "gpt_bigcode", "falcon", "mpt", "phi", "starcoder2", "bart", "mbart")
) | {"m2m_100", "nemotron", "nemotron_h", "whisper"}

#: Families with LayerNorm and biases on every projection.
BIASED: Final = frozenset(
    ("opt", "bloom", "gpt2", "gpt_neox", "gpt_bigcode", "phi", "starcoder2", "bart", "m2m_100", "mbart", "whisper")
)

LAYER_NORM: Final = BIASED | {"falcon", "mpt", "gptj", "stablelm", "nemotron"}

QKV_BIASED: Final = frozenset(("qwen", "qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl", "chatglm"))

QK_NORMED: Final = frozenset(
    (
        *("qwen3", "qwen3_moe", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "gemma3_text", "gemma4_text"),
        *("minimax_m2", "qwen3_vl_text", "qwen3_vl_moe_text", "step3p5", "step3p7"),
    )
)

#: Families whose norm of queries and keys runs over all heads (their norm weights are as wide as the projections).
NORMED_OVER_HEADS: Final = frozenset(("minimax_m2",))

#: Families whose router is stored, and multiplied, in fp32.
FP32_ROUTERS: Final = frozenset(("minimax_m2",))

#: Families that scale the output of the shared expert by a gate (shared_expert_gate).
GATED_SHARED_EXPERTS: Final = frozenset(("qwen2_moe", "qwen3_next", "qwen3_5_moe", "qwen3_5_moe_text"))

#: Families with a learned table of positions, and its number of extra rows.
LEARNED_POSITIONS: Final = {"opt": 2, "gpt2": 0, "gpt_bigcode": 0, "bart": 2, "mbart": 2, "whisper": 0}


def load_config(path: Path, name: str | None = None) -> ModelSpec:
    """Return the model of a config.json file, or of the one in a folder.

    Raises:
        InputError: The file cannot be read, or a size is missing or invalid.
    """
    return model_from_config(read_reader(path), name or str(path))


def model_from_config(config: ConfigReader, name: str) -> ModelSpec:
    """Return the model that a parsed config describes.

    Raises:
        InputError: A size is missing or invalid, or the model does not generate text.
    """
    kind = config.text("model_type")
    notices = family_notices(config)
    layers = decoder_layers(config)
    hidden = config.count("hidden_size", "n_embd", "d_model")
    weights = read_weight_format(config, layers, hidden)
    architectures = config.items("architectures") or [""]
    if not isinstance(architectures[0], str):
        raise InputError(f"{config.where}: architectures must be a list of names", architectures[0])
    keys = ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len", "max_target_positions")
    positions = config.count(*keys, default=2048)
    embedding = config.maybe_count("word_embed_proj_dim") or hidden
    return ModelSpec(
        name=name,
        hf_id=config.text("_name_or_path"),
        architecture=architectures[0],
        hidden_size=hidden,
        vocab_size=config.count("vocab_size", "padded_vocab_size"),
        groups=group_layers(layers),
        encoder_groups=group_layers(encoder_layers(config)),
        encoder_tokens=config.maybe_count("max_source_positions") or 0,
        tied_embeddings=config.flag("tie_word_embeddings"),
        learned_positions=positions + LEARNED_POSITIONS[kind] if kind in LEARNED_POSITIONS else 0,
        embedding_size=embedding if embedding != hidden else None,
        layer_norm=kind in LAYER_NORM,
        residual_streams=config.count("hc_mult", default=1),
        max_position_tokens=positions,
        weight_dtype=weights.dtype,
        formats=(weights,),
        other_params=vision_params(config) + _sound_params(config, hidden),
        mtp_layers=config.maybe_count("num_nextn_predict_layers", "mtp_num_hidden_layers") or 0,
        source=f"config.json at {config.where}",
        notices=notices + weight_notices(config),
    )


def group_layers(layers: Iterable[LayerGroup]) -> tuple[LayerGroup, ...]:
    """Return identical layers as groups with a count, in order of first appearance."""
    return tuple(dataclasses.replace(layer, count=n) for layer, n in Counter(layers).items())


def decoder_layers(config: ConfigReader) -> list[LayerGroup]:
    """Return one LayerGroup of count 1 per decoder layer, in order."""
    if pattern := config.text("hybrid_override_pattern"):
        return [_pattern_layer(config, letter) for letter in pattern]
    if kinds := config.items("layers_block_type"):
        return [_block_layer(config, kind) for kind in kinds]
    cross = is_encoder_decoder(config)
    keys = ("num_decoder_layers", "decoder_layers") if cross else ()
    n = config.count(*keys, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    if n > MAX_LAYERS:
        raise InputError(f"{config.where}: num_hidden_layers must be at most {MAX_LAYERS}", n)
    return [LayerGroup(1, mixer_of(config, i), feed_forward_of(config, i), cross) for i in range(n)]


def encoder_layers(config: ConfigReader) -> list[LayerGroup]:
    """Return one LayerGroup of count 1 per encoder layer; empty for decoder-only models."""
    if not is_encoder_decoder(config):
        return []
    n = config.count("encoder_layers", "num_layers", "num_hidden_layers")
    size = config.count("encoder_ffn_dim", "d_ff", "intermediate_size")
    ffn = dataclasses.replace(_mlp(config), intermediate_size=size)
    return [LayerGroup(1, _attention(config, None), ffn)] * n


def is_encoder_decoder(config: ConfigReader) -> bool:
    """Return whether the config describes an encoder-decoder model."""
    kinds = ("bart", "m2m_100", "mbart", "mt5", "t5")
    return config.flag("is_encoder_decoder", default=config.text("model_type") in kinds)


def _sound_params(config: ConfigReader, hidden: int) -> int:
    """Return the weights of Whisper's audio input.

    Two convolutions of width 3 turn a spectrogram with `num_mel_bins` bins into the input of the encoder.
    """
    bins = config.maybe_count("num_mel_bins")
    return 3 * hidden * (bins + hidden) + 2 * hidden if bins else 0


def _block_layer(config: ConfigReader, kind: object) -> LayerGroup:
    """Return the layer of one kind in `layers_block_type`, the form of Nemotron-H's pattern in later configs."""
    if not isinstance(kind, str) or kind not in BLOCK_LETTERS:
        raise InputError(f"{config.where}: unknown layer in layers_block_type", kind, ", ".join(BLOCK_LETTERS))
    return _pattern_layer(config, BLOCK_LETTERS[kind])


def _pattern_layer(config: ConfigReader, letter: str) -> LayerGroup:
    """Return a Nemotron-H layer, which is a single block: M Mamba-2, * attention, - MLP, E mixture of experts."""
    match letter:
        case "M":
            return LayerGroup(1, _mamba(config), None)
        case "*":
            return LayerGroup(1, _attention(config, None), None)
        case "-":
            return LayerGroup(1, None, _mlp(config))
        case "E":
            return LayerGroup(1, None, _moe(config))
    raise InputError(f"{config.where}: unknown layer in hybrid_override_pattern", letter, "M * - E")


# ---- mixers


def mixer_of(config: ConfigReader, layer: int) -> Mixer:
    """Return the mixer of decoder layer `layer`."""
    if config.text("model_type") == "deepseek_v4":
        return compressed_attention(config, layer)
    kind = layer_kind(config, layer)
    if kind == "linear_attention":
        return _kimi_delta(config) if config.section("linear_attn_config") else _delta_net(config)
    if config.maybe_count("kv_lora_rank"):
        return latent_attention(config, layer)
    window = config.maybe_count("attention_chunk_size") if kind == "chunked_attention" else None
    if kind == "sliding_attention":
        window = config.maybe_count("sliding_window", "sliding_window_size")
    found = _attention(config, window or None)
    return dataclasses.replace(found, chunked=found.window_tokens is not None and kind == "chunked_attention")


def layer_kind(config: ConfigReader, layer: int) -> str:
    """Return the kind of attention of a layer: full, sliding, chunked or linear.

    It is taken from `layer_types`, or follows the rule of the model family.
    """
    if kinds := config.items("layer_types"):
        kind = kinds[layer % len(kinds)]
        if kind not in LAYER_KINDS:
            nearest = nearest_name(str(kind), LAYER_KINDS, 0.7) or ", ".join(LAYER_KINDS)
            raise InputError(f"{config.where}: layer_types holds a kind of layer that is not modelled", kind, nearest)
        return str(kind)
    if pattern := config.numbers("hybrid_layer_pattern"):
        return "sliding_attention" if pattern[layer % len(pattern)] else "full_attention"
    if linear := config.section("linear_attn_config"):
        return "linear_attention" if layer + 1 in (linear.numbers("kda_layers") or []) else "full_attention"
    if interval := config.maybe_count("full_attention_interval"):
        return "full_attention" if (layer + 1) % interval == 0 else "linear_attention"
    if config.text("model_type") == "llama4_text":
        return _llama4_kind(config, layer)
    return _sliding_kind(config, layer)


def _llama4_kind(config: ConfigReader, layer: int) -> str:
    """Return the kind of a Llama-4 layer.

    `no_rope_layers` holds 1 for rotary layers, which attend within a chunk, and 0 for the others (every 4th).
    """
    if rotary := config.numbers("no_rope_layers"):
        return "chunked_attention" if rotary[layer % len(rotary)] else "full_attention"
    interval = config.count("no_rope_layer_interval", default=4)
    return "full_attention" if (layer + 1) % interval == 0 else "chunked_attention"


def _sliding_kind(config: ConfigReader, layer: int) -> str:
    if not config.maybe_count("sliding_window") or not config.flag("use_sliding_window", default=True):
        return "full_attention"
    if config.text("model_type") == "gpt_oss":
        return "full_attention" if layer % 2 else "sliding_attention"
    if pattern := config.maybe_count("sliding_window_pattern", "_sliding_window_pattern"):
        return "full_attention" if (layer + 1) % pattern == 0 else "sliding_attention"
    if config.get("use_sliding_window") is not None and layer < (config.maybe_count("max_window_layers") or 0):
        return "full_attention"
    return "sliding_attention"


def _attention(config: ConfigReader, window_tokens: int | None) -> Attention:
    kind = config.text("model_type")
    heads = config.count(
        "num_attention_heads", "n_head", "num_heads", "decoder_attention_heads", "encoder_attention_heads"
    )
    # separate sizes of full attention in Gemma-4, and of sliding windows in MiMo-V2
    own = ("num_global_key_value_heads", "global_head_dim")
    if window_tokens is not None:
        own = ("swa_num_key_value_heads", "swa_head_dim")
        heads = _window_heads(config, heads)
    kv_heads = config.maybe_count(own[0]) or _kv_heads(config, heads)
    head_dim = config.maybe_count(own[1]) or _head_dim(config, heads)
    if heads % kv_heads:
        raise InputError(f"{config.where}: num_key_value_heads must divide num_attention_heads ({heads})", kv_heads)
    return Attention(
        n_heads=heads,
        n_kv_heads=kv_heads,
        head_dim=head_dim,
        window_tokens=window_tokens,
        qkv_bias=config.flag("attention_bias", "qkv_bias", default=kind in QKV_BIASED | BIASED),
        qk_norm=config.flag("use_qk_norm", "qk_layernorm", default=kind in QK_NORMED),
        qk_norm_over_heads=kind in NORMED_OVER_HEADS,
        output_gate=config.flag("attn_output_gate", default=kind == "qwen3_next"),
        output_bias=kind in BIASED or (kind == "gpt_oss" and config.flag("attention_bias", default=True)),
        value_head_dim=config.maybe_count("v_head_dim") if config.maybe_count("v_head_dim") != head_dim else None,
    )


def _window_heads(config: ConfigReader, heads: int) -> int:
    """Return the query heads of layers with a sliding window, which Step-3.5 states apart from those of the others."""
    other = config.section("attention_other_setting")
    if other is None or other.text("attention_type", default="sliding_attention") != "sliding_attention":
        return config.maybe_count("num_sliding_attention_heads") or heads
    return other.count("num_attention_heads")


def _kv_heads(config: ConfigReader, heads: int) -> int:
    one_head = config.text("model_type") in ("falcon", "gpt_bigcode") and config.flag("multi_query")
    if one_head and not config.get("num_kv_heads"):
        return 1
    return config.count(
        "num_key_value_heads", "num_kv_heads", "num_attention_groups", "multi_query_group_num", default=heads
    )


def _head_dim(config: ConfigReader, heads: int) -> int:
    stated = config.maybe_count("head_dim", "attention_head_dim", "d_kv", "kv_channels")
    hidden = config.count("hidden_size", "n_embd", "d_model")
    if not stated and hidden % heads:
        raise InputError(f"{config.where}: num_attention_heads must divide hidden_size ({hidden})", heads)
    return stated or hidden // heads


def _state_bytes(config: ConfigReader, *keys: str) -> float:
    """Return the bytes per value of the recurrent state, which has the model's dtype unless the config sets fp32."""
    return 4.0 if config.text(*keys) in ("float32", "float") else 2.0


def _delta_net(config: ConfigReader) -> LinearAttention:
    """Return a Gated DeltaNet layer (Qwen3-Next, Qwen3.5)."""
    return LinearAttention(
        n_key_heads=config.count("linear_num_key_heads"),
        n_value_heads=config.count("linear_num_value_heads"),
        key_head_dim=config.count("linear_key_head_dim"),
        value_head_dim=config.count("linear_value_head_dim"),
        conv_kernel=config.count("linear_conv_kernel_dim", default=4),
        state_bytes_per_value=_state_bytes(config, "mamba_ssm_dtype"),
    )


def _kimi_delta(config: ConfigReader) -> LinearAttention:
    """Return a Kimi Delta Attention layer, which has equally many key and value heads."""
    section = config.section("linear_attn_config")
    assert section is not None
    heads, size = section.count("num_heads"), section.count("head_dim")
    return LinearAttention(heads, heads, size, size, section.count("short_conv_kernel_size", default=4))


def _mamba(config: ConfigReader) -> LinearAttention:
    """Return a Mamba-2 layer, expressed as LinearAttention."""
    return LinearAttention(
        n_key_heads=config.count("n_groups", "mamba_n_groups"),
        n_value_heads=config.count("mamba_num_heads"),
        key_head_dim=config.count("ssm_state_size", "mamba_state_dim"),
        value_head_dim=config.count("mamba_head_dim"),
        conv_kernel=config.count("conv_kernel", default=4),
        n_head_gates=1,
        state_bytes_per_value=_state_bytes(config, "mamba_ssm_cache_dtype"),
    )


# ---- feed-forward


def feed_forward_of(config: ConfigReader, layer: int) -> FeedForward:
    """Return the feed-forward block of decoder layer `layer`."""
    return _moe(config) if is_moe_layer(config, layer) else _mlp(config)


def is_moe_layer(config: ConfigReader, layer: int) -> bool:
    """Return whether decoder layer `layer` is a mixture of experts."""
    if not _n_experts(config):
        return False
    if layer < (config.maybe_count("first_k_dense_replace") or 0) or layer in (config.numbers("mlp_only_layers") or []):
        return False
    if (chosen := _listed_moe_layers(config)) is not None:
        return layer in chosen
    if isinstance(config.get("moe_layer_freq"), list):
        if pattern := config.numbers("moe_layer_freq"):
            return bool(pattern[layer % len(pattern)])
    elif (frequency := config.maybe_count("moe_layer_freq")) is not None:
        return layer % max(frequency, 1) == 0
    step = config.maybe_count("interleave_moe_layer_step", "decoder_sparse_step") or 1
    return (layer + 1) % step == 0


def _listed_moe_layers(config: ConfigReader) -> list[int] | None:
    """Return the layers that a config lists as mixtures of experts: numbers, or a text of numbers with commas."""
    if not isinstance(config.get("moe_layers_enum"), str):
        return config.numbers("moe_layers")
    listed = config.text("moe_layers_enum")
    if not all(item.strip().isdecimal() for item in listed.split(",")):
        raise InputError(f"{config.where}: moe_layers_enum must be whole numbers with commas between them", listed)
    return [int(item) for item in listed.split(",")]


def _n_experts(config: ConfigReader) -> int | None:
    return config.maybe_count("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")


def _gated(config: ConfigReader) -> bool:
    projection = config.text("feed_forward_proj")
    return projection.startswith("gated") if projection else config.text("model_type") not in UNGATED


def _mlp(config: ConfigReader) -> Mlp:
    kind = config.text("model_type")
    hidden = config.count("hidden_size", "n_embd", "d_model")
    size = config.count(
        "intermediate_size_mlp",
        "dense_intermediate_size",
        "intermediate_size",
        "ffn_dim",
        "decoder_ffn_dim",
        "d_ff",
        "n_inner",
        "ffn_hidden_size",
        default=4 * hidden if kind in UNGATED else None,
    )
    return Mlp(size, _gated(config), config.flag("mlp_bias", default=kind in BIASED))


def _moe(config: ConfigReader) -> Moe:
    size = config.count("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
    experts = _n_experts(config) or 0
    chosen = config.count(
        "num_experts_per_tok", "experts_per_token", "num_experts_per_token", "top_k_experts", "moe_top_k", "moe_topk"
    )
    if chosen > experts:
        raise InputError(f"{config.where}: num_experts_per_tok exceeds the number of experts ({experts})", chosen)
    return Moe(
        n_experts=experts,
        experts_per_token=chosen,
        expert_intermediate_size=size,
        shared_intermediate_size=_shared_size(config, size),
        gated=_gated(config),
        bias=config.text("model_type") == "gpt_oss",
        expert_hidden_size=config.maybe_count("moe_latent_size", "routed_expert_hidden_size"),
        fp32_router=config.text("model_type") in FP32_ROUTERS,
        shared_gate=config.text("model_type") in GATED_SHARED_EXPERTS,
    )


def _shared_size(config: ConfigReader, expert_size: int) -> int:
    """Return the total width of the shared experts.

    Gemma-4 runs a dense block in parallel with its experts, and Llama-4 one shared expert.
    """
    kind = config.text("model_type")
    if kind == "gemma4_text":
        return config.count("intermediate_size")
    if kind == "llama4_text":
        return expert_size
    stated = config.maybe_count(
        *("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size"),
        "share_expert_dim",
    )
    if stated is not None:
        return stated
    return (config.maybe_count("n_shared_experts", "num_shared_experts") or 0) * expert_size


def vision_params(config: ConfigReader) -> float:
    """Return the weights of the blocks of the vision tower, 4 hidden^2 + 2 hidden x intermediate each.

    They take memory, but no time when only text is processed.
    """
    vision = config.section("vision_config")
    if vision is None:
        return 0.0
    depth = vision.maybe_count("num_hidden_layers", "depth", "vt_num_hidden_layers") or 0
    width = vision.maybe_count("hidden_size", "vt_hidden_size") or 0
    inner = vision.maybe_count("intermediate_size", "vt_intermediate_size") or 0
    return float(depth * (4 * width**2 + 2 * width * inner))
