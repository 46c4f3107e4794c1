"""A published table of one decode step, reproduced to the digit.

The table is of Llama-2-7B on an A6000, by a roofline viewer for language models. Its conventions differ from those of a
simulated step (simulator/layers/step.py), and this module has them only to reproduce it:

- A multiply-add of a linear layer counts as 2 operations, but one of lm_head as 1.
- Softmax, norm, residual and activation count as 5, 7, 1 and 2 operations per element.
- Attention runs without FlashAttention, so scores and softmax are written to memory and read back.
- A residual reads one hidden vector, an activation reads two.
- Temporary activations in memory are those that one layer stores.
- Weights in memory do not include lm_head and the embedding.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace

import numpy as np

from catalogs.errors import InputError
from catalogs.hardware.specs import Accelerator
from catalogs.models.layers import Mlp
from catalogs.models.mixers import Attention
from catalogs.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """Operations, bytes and seconds of one decode step, or of one operator, by the conventions of the table."""

    operations: float = 0.0
    load_weights_bytes: float = 0.0
    load_activation_bytes: float = 0.0
    store_activation_bytes: float = 0.0
    load_kv_bytes: float = 0.0
    store_kv_bytes: float = 0.0
    seconds: float = 0.0

    @property
    def memory_access_bytes(self) -> float:
        """Return the bytes that are read or written."""
        loads = self.load_weights_bytes + self.load_activation_bytes + self.load_kv_bytes
        return loads + self.store_activation_bytes + self.store_kv_bytes


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """The totals of a decode step, and its data in memory."""

    total: PublishedRow
    kv_cache_bytes: float
    temporary_activation_bytes: float
    weights_bytes: float


def published_decode_table(
    model: ModelSpec, accelerator: Accelerator, batch: int, context: int, bits: int
) -> PublishedTable:
    """Return one decode step of a dense model without launch costs.

    Args:
        model: The model.
        accelerator: The accelerator that runs the step.
        batch: Number of sequences.
        context: Tokens of each sequence.
        bits: Bits of a weight, of an activation and of a cached value.

    Raises:
        InputError: The conventions do not cover the model: several kinds of layers, MoE, MLA or linear attention.
    """
    if len(model.groups) != 1:
        raise InputError("the published table covers models of identical dense layers", model.name, "llama-2-7b")
    (group,) = model.groups
    a, mlp = group.plain_attention, group.dense_block
    if a is None or mlp is None:
        raise InputError("the published table covers dense models with softmax attention", model.name, "llama-2-7b")
    view = _View(model, a, mlp, batch, context, bits / 8.0)
    layer = _sum([_timed(row, accelerator, bits) for row in view.layer()])
    head = _timed(view.lm_head(), accelerator, bits)
    total = _sum([PublishedRow(*(group.count * value for value in astuple(layer))), head])
    weights = group.count * layer.load_weights_bytes
    cache = batch * context * model.n_layers * a.kv_size * view.element
    return PublishedTable(total, cache, layer.store_activation_bytes, weights)


@dataclass(frozen=True, slots=True)
class _View:
    model: ModelSpec
    attention: Attention
    mlp: Mlp
    batch: int
    context: int
    element: float  # bytes per weight, activation and cached value

    def layer(self) -> list[PublishedRow]:
        a, hidden, width = self.attention, self.model.hidden_size, self.mlp.intermediate_size
        q, scores = a.n_heads * a.head_dim, a.n_heads * self.context
        linears = [self._linear(hidden, q), self._linear(q, hidden), self._linear(width, hidden)]
        linears += [self._linear(hidden, width)] * (2 if self.mlp.gated else 1)
        kv = self._linear(hidden, a.n_kv_heads * a.head_dim)
        kv = replace(kv, store_activation_bytes=0.0, store_kv_bytes=kv.store_activation_bytes)
        attends = [self._attend(loads=q, stores=scores), self._attend(loads=scores, stores=q)]
        norms = [self._elementwise(7, hidden, 1), self._elementwise(1, hidden, 1)] * 2  # two norms, two residual adds
        rest = [self._elementwise(5, scores, 1), self._elementwise(2, hidden, 2)]  # softmax, activation
        return [*linears, kv, kv, *attends, *norms, *rest]

    def lm_head(self) -> PublishedRow:
        row = self._linear(self.model.hidden_size, self.model.vocab_size)
        return replace(row, operations=row.operations / 2)

    def _linear(self, k: int, n: int) -> PublishedRow:
        b, e = self.batch, self.element
        return PublishedRow(2.0 * b * k * n, k * n * e, b * k * e, b * n * e)

    def _attend(self, loads: int, stores: int) -> PublishedRow:
        a, b, e = self.attention, self.batch, self.element
        return PublishedRow(
            operations=2.0 * b * a.n_heads * a.head_dim * self.context,
            load_activation_bytes=b * loads * e,
            store_activation_bytes=b * stores * e,
            load_kv_bytes=b * self.context * a.n_kv_heads * a.head_dim * e,
        )

    def _elementwise(self, operations: int, size: int, inputs: int) -> PublishedRow:
        stores = self.batch * size * self.element
        return PublishedRow(float(operations * self.batch * size), 0.0, inputs * stores, stores)


def _timed(row: PublishedRow, accelerator: Accelerator, bits: int) -> PublishedRow:
    peak = accelerator.flops_for("bf16" if bits == 16 else "int8")
    memory_s = row.memory_access_bytes / accelerator.memory_bandwidth_bytes_per_s
    return replace(row, seconds=max(memory_s, row.operations / peak))


def _sum(rows: list[PublishedRow]) -> PublishedRow:
    return PublishedRow(*(float(np.sum(column)) for column in zip(*map(astuple, rows), strict=True)))
