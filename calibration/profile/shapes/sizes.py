"""Which sizes the catalog's models run on one rank: (n, k) of products, head configurations, widths, expert layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import numpy as np

from catalogs.errors import InputError
from catalogs.models.catalog import list_models, load_model
from catalogs.models.layers import Attention, LayerGroup, LinearAttention, MlaAttention, Mlp, Moe
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
            _add_layers(found, model, tp)
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
            _add_layers(found, model, tp)
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
    for part in (p for group in model.groups for p in _parts(group, tp)):
        found.kernels.update(part.kernels())
        found.products.update(pair for pair in part.products(hidden) if min(pair) >= 64)
        found.heads.update(part.heads())


def _add_layers(found: Sizes, model: ModelSpec, tp: int) -> None:
    """Experts and linear attention, of all models: one layer is measured, not the model."""
    for part in (p for group in model.groups for p in _parts(group, tp)):
        found.experts.update(part.experts(model.hidden_size))
        found.scans.update(part.scans())


@dataclass(frozen=True, slots=True)
class PartSizes:
    """Sizes that one part of a layer runs on one of `tp` ranks. By default a kind has none of its own to measure."""

    tp: int

    def products(self, hidden: int) -> list[Pair]:  # noqa: ARG002 - signature of the kinds that have products
        """(n, k) of its matrix products."""
        return []

    def kernels(self) -> list[tuple[str, int]]:
        """Kind of each elementwise kernel, and values per token."""
        return []

    def heads(self) -> list[Heads]:
        return []

    def scans(self) -> list[Scan]:
        return []

    def experts(self, hidden: int) -> list[Experts]:  # noqa: ARG002 - signature of the kinds that have experts
        return []


@dataclass(frozen=True, slots=True)
class AttentionSizes(PartSizes):
    part: Attention

    def _counts(self) -> tuple[int, int]:
        return self.part.rank_heads(self.tp), self.part.rank_kv_heads(self.tp)

    def products(self, hidden: int) -> list[Pair]:
        a, (heads, kv_heads) = self.part, self._counts()
        q = heads * a.head_dim * (2 if a.output_gate else 1)
        return [(q + kv_heads * (a.head_dim + a.value_dim), hidden), (hidden, heads * a.value_dim)]

    def kernels(self) -> list[tuple[str, int]]:
        a, (heads, kv_heads) = self.part, self._counts()
        return [("rotary", (heads + kv_heads) * a.head_dim), ("kv_write", kv_heads * (a.head_dim + a.value_dim))]

    def heads(self) -> list[Heads]:
        return [(*self._counts(), self.part.head_dim)]


@dataclass(frozen=True, slots=True)
class MlaSizes(PartSizes):
    """An MLA block is measured as one module, in its own family, with sizes of its own."""

    part: MlaAttention


@dataclass(frozen=True, slots=True)
class LinearAttentionSizes(PartSizes):
    part: LinearAttention

    def products(self, hidden: int) -> list[Pair]:
        return [(-(-self.part.input_size // self.tp), hidden), (hidden, -(-self.part.value_size // self.tp))]

    def scans(self) -> list[Scan]:
        return [(-(-self.part.n_value_heads // self.tp), self.part.key_head_dim, self.part.value_head_dim)]


@dataclass(frozen=True, slots=True)
class MlpSizes(PartSizes):
    part: Mlp

    def products(self, hidden: int) -> list[Pair]:
        width = -(-self.part.intermediate_size // self.tp)
        return [((2 if self.part.gated else 1) * width, hidden), (hidden, width)]

    def kernels(self) -> list[tuple[str, int]]:
        return [("activation", -(-self.part.intermediate_size // self.tp))]


@dataclass(frozen=True, slots=True)
class MoeSizes(PartSizes):
    part: Moe

    def products(self, hidden: int) -> list[Pair]:
        """The router's, and those of shared experts."""
        pairs = [(self.part.n_experts, hidden)]
        if self.part.shared_intermediate_size:
            width = -(-self.part.shared_intermediate_size // self.tp)
            pairs += [(2 * width, hidden), (hidden, width)]
        return pairs

    def kernels(self) -> list[tuple[str, int]]:
        return [("routing", self.part.n_experts)]

    def experts(self, hidden: int) -> list[Experts]:
        m = self.part
        width = -(-m.expert_intermediate_size * m.matrices // (3 * self.tp))
        return [(m.expert_hidden_size or hidden, width, m.n_experts, m.experts_per_token)]


#: The class that measures each kind of mixer and of feed-forward block.
KINDS: Final[dict[type, Callable[[int, Any], PartSizes]]] = {
    Attention: AttentionSizes,
    MlaAttention: MlaSizes,
    LinearAttention: LinearAttentionSizes,
    Mlp: MlpSizes,
    Moe: MoeSizes,
}


def _parts(group: LayerGroup, tp: int) -> list[PartSizes]:
    return [KINDS[type(part)](tp, part) for part in (group.mixer, group.ffn) if part is not None]


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
