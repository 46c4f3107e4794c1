"""Reading of latent attention (DeepSeek-V3) and compressed attention (DeepSeek-V4) from a Hugging Face config.json."""

from __future__ import annotations

from typing import Final

from catalogs.errors import InputError
from catalogs.models.compressed_attention import CompressedAttention
from catalogs.models.hf_reader import ConfigReader
from catalogs.models.mixers import MlaAttention

#: The largest ratio of compressed attention whose entries are selected by an indexer (DeepSeek-V4: 4, beside 128).
SELECTED_RATIO: Final = 4

#: Kinds of sparse-attention indexer in `indexer_types`: a layer's own, or that of an earlier layer (GLM-5.2).
INDEXER_KINDS: Final = ("full", "shared")


def latent_attention(config: ConfigReader, layer: int) -> MlaAttention:
    """Return a layer of multi-head latent attention, with the indexer and the output gate that its config states."""
    shared = _has_shared_indexer(config, layer)
    return MlaAttention(
        n_heads=config.count("num_attention_heads"),
        q_lora_rank=config.maybe_count("q_lora_rank"),
        kv_lora_rank=config.count("kv_lora_rank"),
        nope_head_dim=config.count("qk_nope_head_dim"),
        rope_head_dim=config.count("qk_rope_head_dim"),
        v_head_dim=config.count("v_head_dim"),
        index_n_heads=0 if shared else config.maybe_count("index_n_heads") or 0,
        index_head_dim=0 if shared else config.maybe_count("index_head_dim") or 0,
        index_topk_tokens=config.maybe_count("index_topk"),
        output_gate=config.flag("mla_use_output_gate"),
    )


def _has_shared_indexer(config: ConfigReader, layer: int) -> bool:
    """Return whether a layer attends to the tokens that the indexer of an earlier layer selected."""
    kinds = config.items("indexer_types")
    if not kinds:
        return False
    kind = kinds[layer % len(kinds)]
    if kind not in INDEXER_KINDS:
        raise InputError(f"{config.where}: unknown indexer in indexer_types", kind, ", ".join(INDEXER_KINDS))
    return bool(kind == "shared")


def compressed_attention(config: ConfigReader, layer: int) -> CompressedAttention:
    """Return a layer of DeepSeek-V4; those with the smallest ratio select the entries to which a query attends."""
    ratio = _compress_ratio(config, layer)
    selects = ratio is not None and ratio <= SELECTED_RATIO
    return CompressedAttention(
        n_heads=config.count("num_attention_heads"),
        head_dim=config.count("head_dim"),
        rope_head_dim=config.count("qk_rope_head_dim"),
        q_lora_rank=config.count("q_lora_rank"),
        o_lora_rank=config.count("o_lora_rank"),
        o_groups=config.count("o_groups"),
        window_tokens=config.count("sliding_window"),
        compress_ratio=ratio,
        index_n_heads=config.count("index_n_heads") if selects else 0,
        index_head_dim=config.count("index_head_dim") if selects else 0,
        index_topk_entries=config.count("index_topk") if selects else None,
    )


def _compress_ratio(config: ConfigReader, layer: int) -> int | None:
    """Return the tokens of an entry, or None where a layer has a window alone.

    The published config has one ratio for each layer, that of transformers the kinds of layers and their ratios.
    """
    if ratios := config.numbers("compress_ratios"):
        return ratios[layer % len(ratios)] or None
    kinds, rates = config.items("layer_types"), config.section("compress_rates")
    if not kinds or rates is None:
        raise InputError(f"{config.where}: config.json lacks compress_ratios")
    return rates.maybe_count(str(kinds[layer % len(kinds)]))
