"""The flow of data between the operators of a step: for each operator, the operators whose outputs it reads.

The cost model prices operators, not their order, so this module alone knows it. An operator that a model or a stage
lacks is skipped: its readers then read what it would have read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

#: Stands for what the preceding layer wrote, and for what the encoder wrote.
BEFORE: Final = "(before)"

ENCODER: Final = "(encoder)"

#: The operators that each operator reads from.
INPUTS: Final[Mapping[str, tuple[str, ...]]] = {
    # before the layers
    "embedding": (),
    "embedding_all_reduce": ("embedding",),
    # layers of an encoder
    "encoder_patch_embed": (BEFORE,),
    "encoder_norm": ("encoder_patch_embed",),
    "encoder_qkv_proj": ("encoder_norm",),
    "encoder_attention": ("encoder_qkv_proj",),
    "encoder_o_proj": ("encoder_attention",),
    "encoder_up_proj": ("encoder_o_proj",),
    "encoder_activation": ("encoder_up_proj",),
    "encoder_down_proj": ("encoder_activation",),
    "encoder_all_reduce": ("encoder_down_proj",),
    "encoder_projection": ("encoder_all_reduce",),
    "encoder_gather": ("encoder_projection",),
    # attention
    "mixer_stream_weights": (BEFORE,),
    "input_norm": ("mixer_stream_weights",),
    "qkv_proj": ("input_norm",),
    "latent_proj": ("input_norm",),
    "query_proj": ("latent_proj",),
    "qk_norm": ("qkv_proj", "query_proj"),
    "qk_norm_all_reduce": ("qk_norm",),
    "rotary": ("qk_norm_all_reduce",),
    "kv_write": ("rotary",),
    "kv_gather": ("kv_write", "input_norm"),
    "query_gather": ("rotary", "input_norm"),
    "decode_attention": ("kv_write", "query_gather"),
    "joined_decode_attention": ("kv_write",),
    "prefill_attention": ("kv_gather",),
    # multi-head latent attention
    "index_q": ("latent_proj",),
    "index_k": ("input_norm",),
    "indexer": ("index_q", "index_k"),
    "select_entries": ("indexer",),
    "mla_decode": ("select_entries", "query_gather"),
    "mla_prefill": ("select_entries", "kv_gather"),
    # attention over compressed entries
    "compressor": ("input_norm",),
    "compress": ("compressor",),
    "compressed_decode": ("kv_write", "select_entries", "compress", "query_gather"),
    "compressed_prefill": ("kv_gather", "select_entries", "compress"),
    # outputs of attention
    "gate_proj": ("input_norm",),
    "output_merge": ("decode_attention", "mla_decode", "compressed_decode"),
    "output_gate": ("output_merge", "joined_decode_attention", "prefill_attention", "mla_prefill", "gate_proj"),
    "o_group_proj": ("output_merge", "compressed_prefill"),
    "o_proj": ("output_gate", "o_group_proj"),
    # linear attention
    "in_proj": ("input_norm",),
    "conv": ("in_proj",),
    "in_proj_gate": ("input_norm",),
    "in_proj_head_gates": ("input_norm",),
    "scan_decode": ("conv", "in_proj_head_gates"),
    "scan_prefill": ("conv", "in_proj_head_gates"),
    "gated_norm": ("scan_decode", "scan_prefill", "in_proj_gate"),
    "out_proj": ("gated_norm",),
    "mixer_all_reduce": ("o_proj", "output_merge", "mla_prefill", "out_proj"),
    "mixer_stream_update": ("mixer_all_reduce",),
    # cross-attention
    "cross_norm": ("mixer_stream_update",),
    "cross_q_proj": ("cross_norm",),
    "cross_kv_proj": (ENCODER,),
    "cross_kv_write": ("cross_kv_proj",),
    "cross_attention": ("cross_q_proj", "cross_kv_write"),
    "cross_o_proj": ("cross_attention",),
    "cross_all_reduce": ("cross_o_proj",),
    # feed-forward blocks
    "ffn_stream_weights": ("cross_all_reduce",),
    "post_norm": ("ffn_stream_weights",),
    "gate_up_proj": ("post_norm",),
    "up_proj": ("post_norm",),
    "activation": ("gate_up_proj", "up_proj"),
    "down_proj": ("activation",),
    "router_input": ("post_norm",),
    "router": ("router_input",),
    "routing": ("router",),
    "latent_in": ("post_norm",),
    "dispatch": ("routing", "latent_in"),
    "experts": ("dispatch",),
    "combine": ("experts",),
    "latent_out": ("combine",),
    "shared_gate_up_proj": ("post_norm",),
    "shared_up_proj": ("post_norm",),
    "shared_activation": ("shared_gate_up_proj", "shared_up_proj"),
    "shared_down_proj": ("shared_activation",),
    "shared_gate": ("post_norm",),
    "scale_shared": ("shared_down_proj", "shared_gate"),
    "add_shared": ("latent_out", "scale_shared"),
    "ffn_all_gather": ("add_shared",),
    "ffn_all_reduce": ("add_shared", "down_proj"),
    "ffn_stream_update": ("ffn_all_gather", "ffn_all_reduce"),
    # after the layers
    "stage_send": (BEFORE,),
    "final_norm": (BEFORE,),
    "lm_head": ("final_norm",),
    "logits_all_gather": ("lm_head",),
    "sort_logits": ("logits_all_gather",),
    "sampling": ("sort_logits",),
}

_ORDER: Final = {name: i for i, name in enumerate(INPUTS)}


def in_order(names: Iterable[str]) -> list[str]:
    """Return operators in the order of a step.

    Raises:
        KeyError: An operator has no place in INPUTS.
    """
    return sorted(names, key=_ORDER.__getitem__)


def inputs_of(name: str, present: frozenset[str]) -> frozenset[str]:
    """Return what an operator reads from: operators that are present, BEFORE or ENCODER."""
    found: set[str] = set()
    for source in INPUTS[name]:
        found |= {source} if source in present or source in (BEFORE, ENCODER) else inputs_of(source, present)
    return frozenset(found)


def flow(names: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return what each operator of a layer reads from, without inputs that another input implies.

    Args:
        names: The operators of one layer.

    Raises:
        KeyError: An operator has no place in INPUTS.
    """
    ordered = in_order(names)
    present = frozenset(ordered)
    direct = {name: inputs_of(name, present) for name in ordered}
    above: dict[str, frozenset[str]] = {}
    for name in ordered:
        above[name] = direct[name].union(*(above[source] for source in direct[name] if source in present))
    reduced = {}
    for name in ordered:
        implied = frozenset[str]().union(*(above[source] for source in direct[name] if source in present))
        reduced[name] = direct[name] - implied
    return reduced


def last_operators(inputs: Mapping[str, frozenset[str]]) -> Sequence[str]:
    """Return the operators of a layer that no operator of the same layer reads from."""
    read = frozenset[str]().union(*inputs.values())
    return [name for name in inputs if name not in read]
