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
from catalogs.errors import InputError
from catalogs.models.catalog import list_models, load_model
from catalogs.models.layers import LayerGroup, Mlp, Moe
from catalogs.models.mixers import Attention, LinearAttention, MlaAttention
from catalogs.models.spec import ModelSpec

Pair = tuple[int, int]

Heads = tuple[int, int, int]  # Query heads, key-value heads, head size.

Experts = tuple[int, int, int, int]  # Hidden size, intermediate size, experts, experts per token.

Scan = tuple[int, int, int]  # Heads, key head size and value head size of linear attention.

Size = TypeVar("Size", bound=tuple[int, ...])

Item = TypeVar("Item")

#: (hidden size, vocabulary size) of Llama-like models smaller than those of the catalog, as CPUs serve them. They have
#: four query heads per key head, heads of size 64, and an intermediate size of 2.75 times the hidden size.
SMALL_MODELS: Final = ((256, 8192), (512, 8192), (768, 32000))

FIT_SHARE: Final = 0.9  # Share of a device's memory that weights may fill.


HELD_OUT_SHARE: Final = 0.2  # Held-out shapes per shape to fit.


@dataclass(slots=True)
class Sizes:
    """Number of (model, split) pairs that use each size; the common sizes are measured first."""

    products: Counter[Pair] = field(default_factory=Counter)
    heads: Counter[Heads] = field(default_factory=Counter)
    experts: Counter[Experts] = field(default_factory=Counter)
    scans: Counter[Scan] = field(default_factory=Counter)
    hidden: Counter[tuple[int]] = field(default_factory=Counter)
    vocab: Counter[tuple[int]] = field(default_factory=Counter)
    kernels: Counter[tuple[str, int]] = field(default_factory=Counter)  # Elementwise: (kind, values per token).
    heads_of_vocab: set[Pair] = field(default_factory=set)  # Output projections, which run per sequence, not per token.


def catalog_sizes(memory_bytes: float, splits: tuple[int, ...], small: bool = False) -> Sizes:
    """Return the sizes of every decoder-only model of the catalog whose split weights fit in 90 % of the memory.

    Expert layers are taken from all models, because one layer is measured and not the model.

    Args:
        memory_bytes: Memory of the device.
        splits: Tensor-parallel sizes.
        small: Whether the sizes of SMALL_MODELS are included.
    """
    found = Sizes()
    for hidden, vocab in SMALL_MODELS if small else ():
        _dense(found, small_model(hidden, vocab), 1)
    for name in list_models():
        model = load_model(name)
        if model.is_encoder_decoder:
            continue
        for tp in splits:
            _add_layers(found, model, tp)
            if _fits(model, tp, memory_bytes):
                _dense(found, model, tp)
    return found


def user_model_sizes(models: Sequence[ModelSpec], memory_bytes: float, splits: tuple[int, ...]) -> Sizes:
    """Return the sizes of a user's models at the splits that fit in memory, or at the largest split where none does.

    Raises:
        InputError: If a model has an encoder, whose serving is not modelled.
    """
    found = Sizes()
    for model in models:
        if model.is_encoder_decoder:
            raise InputError("only decoder-only models can be profiled; this model has an encoder", model.name)
        fitting = [tp for tp in splits if _fits(model, tp, memory_bytes)] or [splits[-1]]
        for tp in fitting:
            _add_layers(found, model, tp)
            _dense(found, model, tp)
    return found


def small_model(hidden: int, vocab: int) -> ModelSpec:
    """Return a Llama-like model of a hidden size and a vocabulary size."""
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
    for part in (p for group in model.groups for p in _parts(group, tp)):
        found.kernels.update(part.kernels())
        found.products.update(pair for pair in part.products(hidden) if min(pair) >= 64)
        found.heads.update(part.heads())


def _add_layers(found: Sizes, model: ModelSpec, tp: int) -> None:
    """Add experts and linear attention, also of models that do not fit, because only one layer is measured."""
    for part in (p for group in model.groups for p in _parts(group, tp)):
        found.experts.update(part.experts(model.hidden_size))
        found.scans.update(part.scans())


@dataclass(frozen=True, slots=True)
class PartSizes:
    """Sizes that one part of a layer runs on one of `tp` ranks; the base class has none."""

    tp: int

    def products(self, hidden: int) -> list[Pair]:  # noqa: ARG002 - signature of the kinds that have products
        """Return (n, k) of the matrix products."""
        return []

    def kernels(self) -> list[tuple[str, int]]:
        """Return the kind and the values per token of each elementwise kernel."""
        return []

    def heads(self) -> list[Heads]:
        """Return the head configurations of softmax attention."""
        return []

    def scans(self) -> list[Scan]:
        """Return the sizes of linear attention."""
        return []

    def experts(self, hidden: int) -> list[Experts]:  # noqa: ARG002 - signature of the kinds that have experts
        """Return the sizes of expert layers."""
        return []


@dataclass(frozen=True, slots=True)
class AttentionSizes(PartSizes):
    """Sizes of an attention block with full keys and values."""

    part: Attention

    def _counts(self) -> tuple[int, int]:
        return self.part.rank_heads(self.tp), self.part.rank_kv_heads(self.tp)

    def products(self, hidden: int) -> list[Pair]:
        """Return (n, k) of the matrix products."""
        a, (heads, kv_heads) = self.part, self._counts()
        q = heads * a.head_dim * (2 if a.output_gate else 1)
        return [(q + kv_heads * (a.head_dim + a.value_dim), hidden), (hidden, heads * a.value_dim)]

    def kernels(self) -> list[tuple[str, int]]:
        """Return the kind and the values per token of each elementwise kernel."""
        a, (heads, kv_heads) = self.part, self._counts()
        return [("rotary", (heads + kv_heads) * a.head_dim), ("kv_write", kv_heads * (a.head_dim + a.value_dim))]

    def heads(self) -> list[Heads]:
        """Return the head configurations of softmax attention."""
        return [(*self._counts(), self.part.head_dim)]


@dataclass(frozen=True, slots=True)
class MlaSizes(PartSizes):
    """Sizes of an MLA block, which are none because it is measured as one module in its own family."""

    part: MlaAttention


@dataclass(frozen=True, slots=True)
class LinearAttentionSizes(PartSizes):
    """Sizes of a linear-attention block."""

    part: LinearAttention

    def products(self, hidden: int) -> list[Pair]:
        """Return (n, k) of the matrix products."""
        return [(-(-self.part.input_size // self.tp), hidden), (hidden, -(-self.part.value_size // self.tp))]

    def scans(self) -> list[Scan]:
        """Return the sizes of linear attention."""
        return [(-(-self.part.n_value_heads // self.tp), self.part.key_head_dim, self.part.value_head_dim)]


@dataclass(frozen=True, slots=True)
class MlpSizes(PartSizes):
    """Sizes of a dense feed-forward block."""

    part: Mlp

    def products(self, hidden: int) -> list[Pair]:
        """Return (n, k) of the matrix products."""
        width = -(-self.part.intermediate_size // self.tp)
        return [((2 if self.part.gated else 1) * width, hidden), (hidden, width)]

    def kernels(self) -> list[tuple[str, int]]:
        """Return the kind and the values per token of each elementwise kernel."""
        return [("activation", -(-self.part.intermediate_size // self.tp))]


@dataclass(frozen=True, slots=True)
class MoeSizes(PartSizes):
    """Sizes of a mixture-of-experts block."""

    part: Moe

    def products(self, hidden: int) -> list[Pair]:
        """Return (n, k) of the products of the router and of shared experts."""
        pairs = [(self.part.n_experts, hidden)]
        if self.part.shared_intermediate_size:
            width = -(-self.part.shared_intermediate_size // self.tp)
            pairs += [(2 * width, hidden), (hidden, width)]
        return pairs

    def kernels(self) -> list[tuple[str, int]]:
        """Return the kind and the values per token of each elementwise kernel."""
        return [("routing", self.part.n_experts)]

    def experts(self, hidden: int) -> list[Experts]:
        """Return the sizes of expert layers."""
        m = self.part
        width = -(-m.expert_intermediate_size * m.matrices // (3 * self.tp))
        return [(m.expert_hidden_size or hidden, width, m.n_experts, m.experts_per_token)]


#: The class with the sizes of each kind of mixer and feed-forward block.
KINDS: Final[dict[type, Callable[[int, Any], PartSizes]]] = {
    Attention: AttentionSizes,
    MlaAttention: MlaSizes,
    LinearAttention: LinearAttentionSizes,
    Mlp: MlpSizes,
    Moe: MoeSizes,
}


def _parts(group: LayerGroup, tp: int) -> list[PartSizes]:
    return [KINDS[type(part)](tp, part) for part in (group.mixer, group.ffn) if part is not None]


def with_held_out(fit: list[Shape], odd: Callable[[int], list[Shape]]) -> list[Shape]:
    """Return the shapes to fit and a share of held-out shapes, or nothing where there is nothing to fit.

    Args:
        fit: The shapes to fit.
        odd: Draws a given number of held-out shapes.
    """
    return [*fit, *odd(max(4, int(HELD_OUT_SHARE * len(fit))))] if fit else []


def pick(items: Sequence[Item], draw: np.random.Generator) -> Item:
    """Return a random item."""
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
