"""The families of models (`model_type`) that the reader of config.json knows, and those that it cannot represent.

A family that is in neither list is read as a decoder in the form of Llama, and the result carries a notice, because its
config may have layers under keys that the reader does not know.
"""

from __future__ import annotations

from typing import Final

from catalogs.errors import InputError
from catalogs.models.hf_reader import ConfigReader

#: Families whose configs are read key by key: decoders with multi-head, grouped-query or latent attention.
_DECODERS: Final = frozenset(
    (
        *("apertus", "baichuan", "bloom", "chatglm", "codegen", "cohere", "cohere2", "command-r", "ernie4_5"),
        *("exaone", "exaone4", "falcon", "gemma", "gemma2", "gemma3", "gemma3_text", "gemma4", "gemma4_text"),
        *("glm", "glm4", "gpt2", "gpt_bigcode", "gpt_neox", "gptj", "granite", "helium", "hunyuan_v1_dense"),
        *("internlm2", "internlm3", "llama", "mimo", "minicpm", "ministral", "mistral", "mistral3", "mpt", "nemotron"),
        *("olmo", "olmo2", "olmo3", "opt", "phi", "phi3", "pixtral", "qwen", "qwen2", "qwen2_5_vl", "qwen2_5_vl_text"),
        *("qwen2_vl", "qwen2_vl_text", "qwen3", "qwen3_vl", "qwen3_vl_text", "seed_oss", "smollm3", "solar"),
        *("stablelm", "starcoder2", "yi"),
    )
)

#: Families with a mixture of experts.
_EXPERTS: Final = frozenset(
    (
        *("deepseek", "deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v4", "glm4_moe", "glm_moe_dsa"),
        *("gpt_oss", "granitemoe", "hunyuan_v1_moe", "kimi_k2", "kimi_k25", "kimi_k3", "llama4", "llama4_text"),
        *("mimo_v2_flash", "minimax_m2"),
        *("minimax_m3", "minimax_m3_text", "minimax_m3_vl", "minimax_m3_vl_text", "mixtral", "olmoe", "phimoe"),
        *("qwen2_moe", "qwen3_moe", "qwen3_omni_moe", "qwen3_vl_moe", "qwen3_vl_moe_text", "step3p5", "step3p7"),
    )
)

#: Families with linear attention or state-space layers that the reader represents.
_HYBRIDS: Final = frozenset(
    ("kimi_linear", "nemotron_h", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next")
)

_ENCODER_DECODERS: Final = frozenset(("bart", "m2m_100", "mbart", "mt5", "t5", "whisper"))

KNOWN: Final = _DECODERS | _EXPERTS | _HYBRIDS | _ENCODER_DECODERS

NOT_GENERATIVE: Final = frozenset(
    (
        *("albert", "bert", "clip", "deberta", "deberta-v2", "dinov2", "distilbert", "electra", "layoutlm"),
        *("modernbert", "mpnet", "nomic_bert", "roberta", "siglip", "vit", "wav2vec2", "xlm-roberta"),
    )
)

#: Families with layers that no mixer here represents: state-space and recurrent layers, convolutions, nested experts.
NOT_MODELLED: Final = frozenset(
    (
        *("bamba", "dbrx", "falcon_h1", "falcon_mamba", "granitemoehybrid", "hymba", "jamba", "jetmoe", "lfm2"),
        *("lfm2_moe", "mamba", "mamba2", "minimax", "minimax_text_01", "phi4flash", "plamo2", "recurrent_gemma"),
        *("retnet", "rwkv", "rwkv5", "rwkv6", "rwkv7", "xlstm", "zamba", "zamba2"),
    )
)

#: What is assumed about layers that attend to selected blocks of keys.
BLOCK_SPARSE_NOTICE: Final = (
    "attention to selected blocks of the context is not modelled: every layer attends to the whole context, so times "
    "of long contexts are upper bounds"
)

#: Keys of state-space and recurrent layers, and of compressed attention (DeepSeek-V4), in the configs of families that
#: are not known by name.
_UNMODELLED_KEYS: Final = (
    *(
        "state_size",
        "ssm_cfg",
        "ssm_state_size",
        "mamba_d_state",
        "mamba_expand",
        "time_step_rank",
        "attn_layer_period",
    ),
    *("lru_width", "attention_hidden_size", "block_types", "conv_L_cache", "compress_ratios"),
)


def family_notices(config: ConfigReader) -> tuple[str, ...]:
    """Return what the reader assumes about the family of a config.

    A family that is not known is read in the form of Llama, and attention to selected blocks as attention to all.

    Raises:
        InputError: The family does not generate text, or has layers that are not modelled.
    """
    kind = config.text("model_type")
    if kind in NOT_GENERATIVE:
        raise InputError(f"{config.where}: this model_type is not a generative language model", kind)
    if kind in NOT_MODELLED:
        raise InputError(f"{config.where}: this model_type has layers that are not modelled", kind)
    if kind in KNOWN:
        return _sparse_notices(config)
    strange = next((key for key in _UNMODELLED_KEYS if config.get(key) is not None), None)
    if strange is not None:
        rule = f"{config.where}: model_type {kind!r} is not known, and this key belongs to layers that are not modelled"
        raise InputError(rule, strange)
    named = f"model_type {kind!r} is not known" if kind else "there is no model_type"
    shape = "a decoder in the form of Llama (attention and gated feed-forward blocks)"
    assumed = f"{config.where}: {named}, so the model is read as {shape}; compare its size with the publisher's"
    return (assumed, *_sparse_notices(config))


def _sparse_notices(config: ConfigReader) -> tuple[str, ...]:
    """Return a notice where layers attend to selected blocks of the context only (MiniMax-M3)."""
    sparse = config.section("sparse_attention_config")
    if sparse is None or not sparse.flag("use_sparse_attention", default=True):
        return ()
    return (f"{config.where}: {BLOCK_SPARSE_NOTICE}",)
