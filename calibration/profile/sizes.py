"""Which sizes the catalog's models run on one rank: (n, k) of products, head configurations, widths, expert layers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from catalogs.model_parts import Attention, LayerGroup, LinearAttention, Mlp, Moe
from catalogs.model_spec import ModelSpec
from catalogs.models import list_models, load_model

Pair = tuple[int, int]
Heads = tuple[int, int, int]  # query heads, key-value heads, head size
Experts = tuple[int, int, int, int]  # hidden, intermediate, experts, experts per token
Size = TypeVar("Size", bound=tuple[int, ...])


@dataclass(slots=True)
class Sizes:
    """How many (model, split) use each size: the common ones are worth measuring first."""

    products: Counter[Pair] = field(default_factory=Counter)
    heads: Counter[Heads] = field(default_factory=Counter)
    experts: Counter[Experts] = field(default_factory=Counter)
    hidden: Counter[tuple[int]] = field(default_factory=Counter)
    vocab: Counter[tuple[int]] = field(default_factory=Counter)
    heads_of_vocab: set[Pair] = field(default_factory=set)  # output projections: only sequences pass, not tokens


def catalog_sizes(memory_bytes: float, splits: tuple[int, ...]) -> Sizes:
    """Sizes of every decoder-only model whose weights, split, fit in 90 % of a device's memory. Expert layers are
    taken from all models: one layer is measured, not the model."""
    found = Sizes()
    for name in list_models():
        model = load_model(name)
        if model.is_encoder_decoder:
            continue
        for tp in splits:
            _experts(found, model, tp)
            if model.weight_bytes(model.weight_dtype) / tp <= 0.9 * memory_bytes:
                _dense(found, model, tp)
    return found


def _dense(found: Sizes, model: ModelSpec, tp: int) -> None:
    hidden = model.hidden_size
    found.hidden[(hidden,)] += 1
    found.vocab[(model.vocab_size,)] += 1
    head = (-(-model.vocab_size // tp), hidden)
    found.products[head] += 1
    found.heads_of_vocab.add(head)
    for group in model.groups:
        for n, k in _products(group, hidden, tp):
            if min(n, k) >= 64:
                found.products[(n, k)] += 1
        if isinstance(group.mixer, Attention):
            a = group.mixer
            found.heads[(-(-a.n_heads // tp), max(1, -(-a.n_kv_heads // tp)), a.head_dim)] += 1


def _products(group: LayerGroup, hidden: int, tp: int) -> list[Pair]:
    pairs: list[Pair] = []
    mixer, ffn = group.mixer, group.ffn
    if isinstance(mixer, Attention):
        heads, kv_heads = -(-mixer.n_heads // tp), max(1, -(-mixer.n_kv_heads // tp))
        q = heads * mixer.head_dim * (2 if mixer.output_gate else 1)
        pairs += [(q + kv_heads * (mixer.head_dim + mixer.value_dim), hidden), (hidden, heads * mixer.value_dim)]
    if isinstance(mixer, LinearAttention):
        pairs += [(-(-mixer.input_size // tp), hidden), (hidden, -(-mixer.value_size // tp))]
    if isinstance(ffn, Mlp):
        width = -(-ffn.intermediate_size // tp)
        pairs += [((2 if ffn.gated else 1) * width, hidden), (hidden, width)]
    if isinstance(ffn, Moe):
        pairs.append((ffn.n_experts, hidden))
        if ffn.shared_intermediate_size:
            width = -(-ffn.shared_intermediate_size // tp)
            pairs += [(2 * width, hidden), (hidden, width)]
    return pairs


def _experts(found: Sizes, model: ModelSpec, tp: int) -> None:
    for group in model.groups:
        if isinstance(group.ffn, Moe):
            m = group.ffn
            width = -(-m.expert_intermediate_size * m.matrices // (3 * tp))
            found.experts[(m.expert_hidden_size or model.hidden_size, width, m.n_experts, m.experts_per_token)] += 1


def spread(sizes: Counter[Size], most: int) -> list[Size]:
    """Up to `most` sizes that cover all: the most used, then always the farthest (in doublings) from the chosen."""
    order = sorted(sizes, key=lambda s: (-sizes[s], s))
    if len(order) <= most:
        return order
    points = np.log2(np.array(order, dtype=np.float64))
    chosen = [0]
    distance = np.abs(points - points[0]).max(axis=1)
    while len(chosen) < most and distance.max() > 0:
        chosen.append(int(np.argmax(distance)))
        distance = np.minimum(distance, np.abs(points - points[chosen[-1]]).max(axis=1))
    return [order[i] for i in chosen]
