"""The work of a point by formula: floating-point operations, bytes and memory, computed from sizes and not from timing.

Each sequence of `input_tokens` is read (by the encoder where there is one), then `output_tokens` are generated
greedily: the first by the prefill, every further one by a decode step. Matrix products count 2 operations per weight
and token; attention counts 2 per query head, dimension and key for scores and again for values (as in the Megatron-LM
and Transformer inference arithmetic). The output projection runs for one position per sequence and step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from calibration.whole_models.workloads import Point
from catalogs.hardware.specs import Accelerator
from catalogs.models.layers import LayerGroup
from catalogs.models.spec import ModelSpec, dtype_bytes

#: Columns of the architecture, computed by `sizes`.
ARCHITECTURE: Final = (
    "decoder_layers",
    "encoder_layers",
    "hidden_size",
    "heads",
    "kv_heads",
    "ffn_size",
    "vocab_size",
    "params",
    "kv_bytes_per_token",
    "weight_bytes",
)

#: Columns of the work of a point, computed by `terms`.
TERMS: Final = (
    "prefill_flops",
    "decode_flops",
    "prefill_weight_bytes",
    "decode_weight_bytes",
    "decode_kv_bytes",
    "kv_cache_bytes",
    "activation_bytes",
    "score_bytes",
    "logits_bytes",
    "layer_calls",
)

LOGIT_BYTES: Final = 4.0  # the `generate` of transformers casts logits to fp32


@dataclass(frozen=True, slots=True)
class MachineRates:
    """The rates and the memory of a machine, from which `roofline_s` follows; a session's manifest keeps them."""

    full_name: str
    kind: str
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    peak_flops: dict[str, float]

    @classmethod
    def of(cls, unit: Accelerator) -> MachineRates:
        """Return the rates of an accelerator."""
        bandwidth = unit.memory_bandwidth_bytes_per_s
        return cls(unit.full_name, unit.kind, unit.memory_bytes, bandwidth, dict(unit.peak_flops))


def sizes(spec: ModelSpec, dtype: str) -> dict[str, float]:
    """Return the architecture columns of a row."""
    groups = spec.groups + spec.encoder_groups
    mixers = [g.mixer for g in groups if g.mixer is not None]
    return {
        "decoder_layers": spec.n_layers,
        "encoder_layers": spec.n_encoder_layers,
        "hidden_size": spec.hidden_size,
        "heads": max((m.softmax_heads for m in mixers), default=0),
        "kv_heads": max((m.cached_heads for m in mixers), default=0),
        "ffn_size": max((_ffn_size(g) for g in groups), default=0),
        "vocab_size": spec.vocab_size,
        "params": spec.n_params,
        "kv_bytes_per_token": spec.kv_bytes_per_token(dtype),
        "weight_bytes": spec.n_params * dtype_bytes(dtype),
    }


def terms(spec: ModelSpec, point: Point, dtype: str) -> dict[str, float]:
    """Return the work columns of a row: operations, bytes and counts of the whole batch over the whole generation."""
    b, n, steps, size = point.batch, point.input_tokens, point.decode_steps, dtype_bytes(dtype)
    first = 1 if spec.is_encoder_decoder else n  # tokens of the decoder in the prefill
    contexts = steps * (first + 1) + steps * (steps - 1) / 2.0
    width = spec.embedding_size or spec.hidden_size
    head = 2.0 * spec.vocab_size * width
    decoder, encoder = _linear(spec.groups, spec.hidden_size), _linear(spec.encoder_groups, spec.hidden_size)
    # Weights that turn the encoder's output into keys and values, once per input token, and the bytes of its cache.
    mixers = [(g.count, a) for g in spec.groups if g.cross_attention and (a := g.plain_attention)]
    cross_kv = float(sum(count * spec.hidden_size * mixer.kv_size for count, mixer in mixers))
    cross = float(sum(count * mixer.kv_size * size for count, mixer in mixers))
    per_context, cross_context = _per_context(spec.groups), _per_context([g for g in spec.groups if g.cross_attention])
    enc_attention = _per_context(spec.encoder_groups) * n * n
    prefill = 2.0 * (encoder * n + (decoder - cross_kv) * first + cross_kv * n) + head
    prefill += enc_attention + per_context * first * first + cross_context * first * n
    decode = steps * (2.0 * (decoder - cross_kv) + head + cross_context * n) + per_context * contexts
    kv, groups = spec.kv_bytes_per_token(dtype), spec.groups + spec.encoder_groups
    read = (decoder + spec.lm_head_params + spec.tied_embeddings * spec.vocab_size * width) * size
    widest = max(_ffn_size(g) for g in groups) + 4 * spec.hidden_size
    heads = max(g.mixer.softmax_heads if g.mixer is not None else 0 for g in groups)
    return {
        "prefill_flops": b * prefill,
        "decode_flops": b * decode,
        "prefill_weight_bytes": read + encoder * size,
        "decode_weight_bytes": steps * (read - cross_kv * size),
        "decode_kv_bytes": b * (kv * contexts + cross * n * steps),
        "kv_cache_bytes": b * (kv * (first + steps) + cross * n),
        "activation_bytes": b * n * widest * size,
        "score_bytes": b * n * n * heads * size,
        "logits_bytes": b * spec.vocab_size * LOGIT_BYTES,
        "layer_calls": spec.n_encoder_layers + spec.n_layers * 1.0 * (1 + steps),
    }


def least_bytes(row: dict[str, float]) -> float:
    """Return the least bytes that a point moves over the memory bus.

    They are the weights and the cache once per step, and the cache written once.
    """
    return row["prefill_weight_bytes"] + row["decode_weight_bytes"] + row["decode_kv_bytes"] + row["kv_cache_bytes"]


def roofline_s(row: Mapping[str, float], rates: MachineRates, dtype: str) -> float:
    """Return the least possible seconds of a run, with prefill and decode each bound by arithmetic or by memory."""
    rate = rates.peak_flops.get(dtype) or max(rates.peak_flops.values())
    bus = rates.memory_bandwidth_bytes_per_s
    prefill = max(row["prefill_flops"] / rate, (row["prefill_weight_bytes"] + row["kv_cache_bytes"]) / bus)
    return prefill + max(row["decode_flops"] / rate, (row["decode_weight_bytes"] + row["decode_kv_bytes"]) / bus)


def known_columns(spec: ModelSpec, point: Point, rates: MachineRates, dtype: str) -> dict[str, Any]:
    """Return the columns of a row that are known before the point is measured."""
    found = sizes(spec, dtype) | terms(spec, point, dtype)
    found |= {"roofline_s": roofline_s(found, rates, dtype), "least_bytes": least_bytes(found)}
    return {"key": point.key, "architecture": architecture(spec), **asdict(point), "dtype": dtype, **found}


def architecture(spec: ModelSpec) -> str:
    """Return the kind of architecture, "encoder-decoder" or "decoder-only"."""
    return "encoder-decoder" if spec.is_encoder_decoder else "decoder-only"


def _linear(groups: Sequence[LayerGroup], hidden: int) -> float:
    """Return the number of weights that are active for one token."""
    return float(sum(g.count * (sum(g.part_params(hidden).values()) - g.idle_params(hidden)) for g in groups))


def _per_context(groups: Sequence[LayerGroup]) -> float:
    """Return the operations of attention per query token and key."""
    return float(sum(g.count * 2.0 * (g.mixer.score_width if g.mixer is not None else 0.0) for g in groups))


def _ffn_size(group: LayerGroup) -> int:
    return group.ffn.active_intermediate_size if group.ffn is not None else 0
