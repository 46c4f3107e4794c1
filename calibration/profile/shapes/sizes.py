"""Which sizes the catalog's models run on one rank: (n, k) of products, head configurations, widths, expert layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np

from catalogs.errors import InputError
from catalogs.models.catalog import list_models, load_model
from catalogs.models.layers import Attention, LayerGroup, LinearAttention, Mlp, Moe
from catalogs.models.spec import ModelSpec

Pair = tuple[int, int]

Heads = tuple[int, int, int]  # query heads, key-value heads, head size

Experts = tuple[int, int, int, int]  # hidden, intermediate, experts, experts per token

Scan = tuple[int, int, int]  # heads, key head size, value head size of linear attention

Size = TypeVar("Size", bound=tuple[int, ...])

#: (hidden size, vocabulary) of Llama-like models smaller than the catalog's, as CPUs serve them; one query head in four
#: has keys of its own, heads of 64, 2.75 times as wide inside.
SMALL_MODELS: Final = ((256, 8192), (512, 8192), (768, 32000))

FIT_SHARE: Final = 0.9  # of a device's memory that weights may fill


@dataclass(slots=True)
class Sizes:
    """How many (model, split) use each size: the common ones are worth measuring first."""

    products: Counter[Pair] = field(default_factory=Counter)
    heads: Counter[Heads] = field(default_factory=Counter)
    experts: Counter[Experts] = field(default_factory=Counter)
    scans: Counter[Scan] = field(default_factory=Counter)
    hidden: Counter[tuple[int]] = field(default_factory=Counter)
    vocab: Counter[tuple[int]] = field(default_factory=Counter)
    kernels: Counter[tuple[str, int]] = field(default_factory=Counter)  # elementwise: (kind, values per token)
    heads_of_vocab: set[Pair] = field(default_factory=set)  # output projections: only sequences pass, not tokens


def catalog_sizes(memory_bytes: float, splits: tuple[int, ...], small: bool = False) -> Sizes:
    """Sizes of every decoder-only model whose weights, split, fit in 90 % of a device's memory. Expert layers are
    taken from all models: one layer is measured, not the model. `small`: those of SMALL_MODELS too."""
    found = Sizes()
    for hidden, vocab in SMALL_MODELS if small else ():
        _dense(found, small_model(hidden, vocab), 1)
    for name in list_models():
        model = load_model(name)
        if model.is_encoder_decoder:
            continue
        for tp in splits:
            _experts(found, model, tp)
            _scans(found, model, tp)
            if _fits(model, tp, memory_bytes):
                _dense(found, model, tp)
    return found


def own_sizes(models: Sequence[ModelSpec], memory_bytes: float, splits: tuple[int, ...]) -> Sizes:
    """Sizes of the models a user plans for, at the splits that fit, the largest split where none does. Raises
    InputError for a model with an encoder, whose serving is not modelled."""
    found = Sizes()
    for model in models:
        if model.is_encoder_decoder:
            raise InputError("serving covers decoder-only models, this one has an encoder", model.name)
        fitting = [tp for tp in splits if _fits(model, tp, memory_bytes)] or [splits[-1]]
        for tp in fitting:
            _experts(found, model, tp)
            _scans(found, model, tp)
            _dense(found, model, tp)
    return found


def small_model(hidden: int, vocab: int) -> ModelSpec:
    """A Llama-like model of a hidden size."""
    mixer = Attention(n_heads=max(hidden // 64, 1), n_kv_heads=max(hidden // 256, 1), head_dim=64)
    layers = LayerGroup(8, mixer, Mlp(int(2.75 * hidden)))
    return ModelSpec(f"llama-{hidden}", "", "LlamaForCausalLM", hidden, vocab, (layers,))


def _fits(model: ModelSpec, tp: int, memory_bytes: float) -> bool:
    return model.weight_bytes(model.weight_dtype) / tp <= FIT_SHARE * memory_bytes


def _dense(found: Sizes, model: ModelSpec, tp: int) -> None:
    hidden = model.hidden_size
    found.hidden[(hidden,)] += 1
    found.vocab[(model.vocab_size,)] += 1
    head = (-(-model.vocab_size // tp), hidden)
    found.products[head] += 1
    found.heads_of_vocab.add(head)
    found.kernels.update(
        [("norm", hidden), ("embedding", hidden), ("sampling", model.vocab_size), ("greedy", model.vocab_size)]
    )
    for group in model.groups:
        found.kernels.update(_kernels(group, tp))
        for n, k in _products(group, hidden, tp):
            if min(n, k) >= 64:
                found.products[(n, k)] += 1
        if isinstance(group.mixer, Attention):
            a = group.mixer
            found.heads[(-(-a.n_heads // tp), max(1, -(-a.n_kv_heads // tp)), a.head_dim)] += 1


def _kernels(group: LayerGroup, tp: int) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    if isinstance(group.mixer, Attention):
        a = group.mixer
        heads, kv_heads = -(-a.n_heads // tp), max(1, -(-a.n_kv_heads // tp))
        found += [("rotary", (heads + kv_heads) * a.head_dim), ("kv_write", kv_heads * (a.head_dim + a.value_dim))]
    if isinstance(group.ffn, Mlp):
        found.append(("activation", -(-group.ffn.intermediate_size // tp)))
    if isinstance(group.ffn, Moe):
        found.append(("routing", group.ffn.n_experts))
    return found


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


def _scans(found: Sizes, model: ModelSpec, tp: int) -> None:
    """Linear attention of all models, as expert layers: one layer is measured, not the model."""
    for group in model.groups:
        if isinstance(group.mixer, LinearAttention):
            a = group.mixer
            found.scans[(-(-a.n_value_heads // tp), a.key_head_dim, a.value_head_dim)] += 1


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
