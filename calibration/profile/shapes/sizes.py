"""Sizes that models run on one rank, and the choice among them.

The sizes are (n, k) of matrix products, head configurations, widths and expert layers. A choice is a subset that covers
all sizes, or random sizes of held-out shapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import numpy as np

from calibration.profile.session.shape import Shape
from catalogs.models.catalog import list_models, load_model
from catalogs.models.compressed_attention import CompressedAttention
from catalogs.models.layers import LayerGroup, Mlp, Moe
from catalogs.models.mixers import Attention, LinearAttention, MlaAttention
from catalogs.models.spec import ModelSpec

Pair = tuple[int, int]

Heads = tuple[int, int, int]  # query heads, key-value heads, head size

Experts = tuple[int, int, int, int]  # hidden size, intermediate size, experts, experts per token

Scan = tuple[int, int, int]  # heads, key head size and value head size of linear attention

Size = TypeVar("Size", bound=tuple[int, ...])

Item = TypeVar("Item")

#: (hidden size, vocabulary size) of Llama-like models smaller than those of the catalog, as CPUs serve them. They have
#: four query heads per key head, heads of size 64, and an intermediate size of 2.75 times the hidden size.
SMALL_MODELS: Final = ((256, 8192), (512, 8192), (768, 32000))

#: Share of a device's memory that weights may fill. A judgement: the rest is for activations and the cache.
FIT_SHARE: Final = 0.9

#: Held-out shapes per shape to fit. A judgement: enough to state an error, and most of the time goes to the fit.
HELD_OUT_SHARE: Final = 0.2


@dataclass(slots=True)
class Sizes:
    """Number of (model, split) pairs that use each size; the common sizes are measured first."""

    products: Counter[Pair] = field(default_factory=Counter)
    heads: Counter[Heads] = field(default_factory=Counter)
    experts: Counter[Experts] = field(default_factory=Counter)
    scans: Counter[Scan] = field(default_factory=Counter)
    hidden: Counter[tuple[int]] = field(default_factory=Counter)
    vocab: Counter[tuple[int]] = field(default_factory=Counter)
    kernels: Counter[tuple[str, int]] = field(default_factory=Counter)  # elementwise: (kind, values per token)
    heads_of_vocab: set[Pair] = field(default_factory=set)  # output projections, which run per sequence, not per token


def catalog_sizes(memory_bytes: float, splits: tuple[int, ...], small: bool = False) -> Sizes:
    """Return the sizes of the catalog's decoder-only models with split weights that fit in 90 % of the memory.

    Expert layers are taken from all models, because one layer is measured and not the model.

    Args:
        memory_bytes: Memory of the device.
        splits: Tensor-parallel sizes.
        small: Whether the sizes of SMALL_MODELS are included.
    """
    found = Sizes()
    for hidden, vocab in SMALL_MODELS if small else ():
        _add_model(found, small_model(hidden, vocab), 1)
    for model in (m for m in map(load_model, list_models()) if not m.is_encoder_decoder):
        for tp in splits:
            _add_layers(found, model, tp)
            if _fits(model, tp, memory_bytes):
                _add_model(found, model, tp)
    return found


def user_model_sizes(models: Sequence[ModelSpec], memory_bytes: float, splits: tuple[int, ...]) -> Sizes:
    """Return the sizes of a user's models at the splits that fit in memory, or at the largest split where none does."""
    found = Sizes()
    for model in models:
        for tp in [tp for tp in splits if _fits(model, tp, memory_bytes)] or [splits[-1]]:
            _add_layers(found, model, tp)
            _add_model(found, model, tp)
    return found


def small_model(hidden: int, vocab: int) -> ModelSpec:
    """Return a Llama-like model of a hidden size and a vocabulary size."""
    mixer = Attention(n_heads=max(hidden // 64, 1), n_kv_heads=max(hidden // 256, 1), head_dim=64)
    layers = LayerGroup(8, mixer, Mlp(int(2.75 * hidden)))
    return ModelSpec(f"llama-{hidden}", "", "LlamaForCausalLM", hidden, vocab, (layers,))


def _fits(model: ModelSpec, tp: int, memory_bytes: float) -> bool:
    return model.weight_bytes(model.weight_dtype) / tp <= FIT_SHARE * memory_bytes


def _add_model(found: Sizes, model: ModelSpec, tp: int) -> None:
    """Add the matrix products, elementwise kernels and softmax attention of one rank."""
    hidden = model.hidden_size
    found.hidden[(hidden,)] += 1
    found.vocab[(model.vocab_size,)] += 1
    head = (-(-model.vocab_size // tp), hidden)
    found.products[head] += 1
    found.heads_of_vocab.add(head)
    found.kernels.update(
        [("norm", hidden), ("embedding", hidden), ("sampling", model.vocab_size), ("greedy", model.vocab_size)]
    )
    for part in _parts(model, tp):
        found.kernels.update(part.kernels)
        found.products.update(pair for pair in part.products if min(pair) >= 64)
        found.heads.update(part.heads)


def _add_layers(found: Sizes, model: ModelSpec, tp: int) -> None:
    """Add experts and linear attention, also of models that do not fit, because only one layer is measured."""
    for part in _parts(model, tp):
        found.experts.update(part.experts)
        found.scans.update(part.scans)


@dataclass(frozen=True, slots=True)
class PartSizes:
    """The sizes that one part of a layer runs on one rank."""

    products: Sequence[Pair] = ()  # (n, k)
    kernels: Sequence[tuple[str, int]] = ()  # elementwise: (kind, values per token)
    heads: Sequence[Heads] = ()
    scans: Sequence[Scan] = ()
    experts: Sequence[Experts] = ()


def _attention(a: Attention, hidden: int, tp: int) -> PartSizes:
    heads, kv_heads, kv_size = a.rank_heads(tp), a.rank_kv_heads(tp), a.head_dim + a.value_dim
    q = heads * a.head_dim * (2 if a.output_gate else 1)
    products = [(q + kv_heads * kv_size, hidden), (hidden, heads * a.value_dim)]
    kernels = [("rotary", (heads + kv_heads) * a.head_dim), ("kv_write", kv_heads * kv_size)]
    return PartSizes(products, kernels, heads=[(heads, kv_heads, a.head_dim)])


def _mla(a: MlaAttention, hidden: int, tp: int) -> PartSizes:  # noqa: ARG001 - signature of a kind
    return PartSizes()  # an MLA block is measured as one module in its own family


def _compressed_attention(a: CompressedAttention, hidden: int, tp: int) -> PartSizes:
    query, groups = -(-a.n_heads // tp) * a.head_dim, -(-a.o_groups // tp)
    products = [(a.q_lora_rank + a.head_dim, hidden), (query, a.q_lora_rank)]
    products += [(groups * a.o_lora_rank, a.group_size), (hidden, groups * a.o_lora_rank)]
    products += [(a.compressor_size, hidden)] if a.compress_ratio is not None else []
    return PartSizes(products, [("kv_write", a.head_dim)])


def _linear_attention(a: LinearAttention, hidden: int, tp: int) -> PartSizes:
    products = [(-(-a.input_size // tp), hidden), (hidden, -(-a.value_size // tp))]
    return PartSizes(products, scans=[(-(-a.n_value_heads // tp), a.key_head_dim, a.value_head_dim)])


def _mlp(m: Mlp, hidden: int, tp: int) -> PartSizes:
    width = -(-m.intermediate_size // tp)
    return PartSizes([((2 if m.gated else 1) * width, hidden), (hidden, width)], [("activation", width)])


def _moe(m: Moe, hidden: int, tp: int) -> PartSizes:
    width = -(-m.shared_intermediate_size // tp)
    shared = [(2 * width, hidden), (hidden, width)] if width else []
    each = -(-m.expert_intermediate_size * m.matrices // (3 * tp))
    experts = [(m.expert_hidden_size or hidden, each, m.n_experts, m.experts_per_token)]
    return PartSizes([(m.n_experts, hidden), *shared], [("routing", m.n_experts)], experts=experts)


#: The sizes of each kind of mixer and feed-forward block: (part, hidden size, ranks) to the sizes on one rank.
KINDS: Final[dict[type, Callable[[Any, int, int], PartSizes]]] = {
    Attention: _attention,
    MlaAttention: _mla,
    CompressedAttention: _compressed_attention,
    LinearAttention: _linear_attention,
    Mlp: _mlp,
    Moe: _moe,
}


def _parts(model: ModelSpec, tp: int) -> list[PartSizes]:
    groups, hidden = (*model.groups, *model.encoder_groups), model.hidden_size
    parts = [part for group in groups for part in (group.mixer, group.ffn) if part is not None]
    crossed = [g.plain_attention for g in model.groups if g.cross_attention and g.plain_attention is not None]
    return [KINDS[type(part)](part, hidden, tp) for part in parts] + [_cross(part, hidden, tp) for part in crossed]


def _cross(a: Attention, hidden: int, tp: int) -> PartSizes:
    """Return the query of a decoder token, and the keys and values of an encoder position; the rest is as usual."""
    kv = a.rank_kv_heads(tp) * (a.head_dim + a.value_dim)
    return PartSizes([(a.rank_heads(tp) * a.head_dim, hidden), (kv, hidden)])


def with_held_out(fit: list[Shape], held_out: Callable[[int], Shape]) -> list[Shape]:
    """Return the shapes to fit and a share of held-out shapes, or nothing where there is nothing to fit.

    Args:
        fit: The shapes to fit.
        held_out: Draws the held-out shape of a given position among them.
    """
    count = max(4, int(HELD_OUT_SHARE * len(fit))) if fit else 0
    return [*fit, *(held_out(i) for i in range(count))]


def pick(items: Sequence[Item], draw: np.random.Generator) -> Item:
    """Return an item at random, each with the same probability."""
    return items[int(draw.integers(len(items)))]


def between(low: float, high: float, draw: np.random.Generator) -> int:
    """Return a random whole number from `low` to `high`, log-uniformly distributed."""
    return round(float(np.exp(draw.uniform(np.log(low), np.log(high)))))


def spread(sizes: Counter[Size], most: int) -> list[Size]:
    """Return up to `most` sizes that cover all sizes.

    The first is the most used size; each further one is the farthest, in doublings, from those chosen.

    Args:
        sizes: Number of uses of each size.
        most: Number of sizes to return at most.
    """
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
