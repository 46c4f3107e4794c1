"""A published decode table, reproduced to the digit.

The published table (Llama-2-7B on an A6000, by a roofline viewer for LLMs) has conventions of its own, kept here only
to reproduce it: every multiply-add of a linear layer counts 2 but lm_head's count 1; softmax, norm, residual and
activation count 5, 7, 1 and 2 x hidden operations per token; attention runs without FlashAttention, so scores and
softmax go through memory; residuals read one hidden vector and activations two; temporary activations are what one
layer stores; weights in memory leave out lm_head and embedding. A simulated step
(simulator/layers/step.py) counts 2 for lm_head and uses FlashAttention.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from catalogs.errors import InputError
from catalogs.hardware.specs import Accelerator
from catalogs.models.layers import Mlp
from catalogs.models.mixers import Attention
from catalogs.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One decode step, or one operator of it, in the published table's conventions. Operations, bytes, seconds."""

    operations: float = 0.0
    load_weights_bytes: float = 0.0
    load_activation_bytes: float = 0.0
    store_activation_bytes: float = 0.0
    load_kv_bytes: float = 0.0
    store_kv_bytes: float = 0.0
    seconds: float = 0.0

    @property
    def memory_access_bytes(self) -> float:
        loads = self.load_weights_bytes + self.load_activation_bytes + self.load_kv_bytes
        return loads + self.store_activation_bytes + self.store_kv_bytes


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """Totals of a decode step, and what it holds in memory."""

    total: PublishedRow
    kv_cache_bytes: float
    temporary_activation_bytes: float
    weights_bytes: float


def published_decode_table(
    model: ModelSpec, accelerator: Accelerator, batch: int, context: int, bits: int
) -> PublishedTable:
    """One decode step of a dense model with weights, activations and KV of `bits` bits, no launch cost.

    InputError for models the conventions do not define: several kinds of layers, MoE, MLA, linear attention.
    """
    if len(model.groups) != 1:
        raise InputError("the published table covers models of identical dense layers", model.name, "llama-2-7b")
    (group,) = model.groups
    a, mlp = group.plain_attention, group.dense_block
    if a is None or mlp is None:
        raise InputError("the published table covers dense models with softmax attention", model.name, "llama-2-7b")
    view = _View(model, a, mlp, batch, context, bits / 8.0)
    rows = [_timed(row, accelerator, bits) for row in view.layer()]
    layer, head = _sum(rows), _timed(view.lm_head(), accelerator, bits)
    total = _sum([_scaled(layer, group.count), head])
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
        q, kv = a.n_heads * a.head_dim, a.n_kv_heads * a.head_dim
        scores = a.n_heads * self.context
        linears = [self._linear(hidden, q), self._linear(q, hidden), self._linear(width, hidden)]
        linears += [self._linear(hidden, width)] * (2 if self.mlp.gated else 1)
        attends = [self._attend(loads=q, stores=scores), self._attend(loads=scores, stores=q)]
        norms = [self._elementwise(7, hidden, 1), self._elementwise(1, hidden, 1)] * 2  # two norms, two residual adds
        rest = [self._elementwise(5, scores, 1), self._elementwise(2, hidden, 2)]  # softmax, activation
        return linears + [self._kv_linear(hidden, kv)] * 2 + attends + norms + rest

    def lm_head(self) -> PublishedRow:
        row = self._linear(self.model.hidden_size, self.model.vocab_size)
        return PublishedRow(
            row.operations / 2, row.load_weights_bytes, row.load_activation_bytes, row.store_activation_bytes
        )

    def _linear(self, k: int, n: int) -> PublishedRow:
        b, e = self.batch, self.element
        return PublishedRow(2.0 * b * k * n, k * n * e, b * k * e, b * n * e)

    def _kv_linear(self, k: int, n: int) -> PublishedRow:
        b, e = self.batch, self.element
        return PublishedRow(2.0 * b * k * n, k * n * e, b * k * e, store_kv_bytes=b * n * e)

    def _attend(self, loads: int, stores: int) -> PublishedRow:
        a, b, e = self.attention, self.batch, self.element
        return PublishedRow(
            operations=2.0 * b * a.n_heads * a.head_dim * self.context,
            load_activation_bytes=b * loads * e,
            store_activation_bytes=b * stores * e,
            load_kv_bytes=b * self.context * a.n_kv_heads * a.head_dim * e,
        )

    def _elementwise(self, operations: int, size: int, inputs: int) -> PublishedRow:
        b, e = self.batch, self.element
        loads, stores = inputs * b * size * e, b * size * e
        return PublishedRow(float(operations * b * size), load_activation_bytes=loads, store_activation_bytes=stores)


def _timed(row: PublishedRow, accelerator: Accelerator, bits: int) -> PublishedRow:
    peak = accelerator.flops_for("bf16" if bits == 16 else "int8")
    memory = row.memory_access_bytes / accelerator.memory_bandwidth_bytes_per_s
    values = {f.name: getattr(row, f.name) for f in fields(row)}
    return PublishedRow(**(values | {"seconds": max(memory, row.operations / peak)}))


def _sum(rows: list[PublishedRow]) -> PublishedRow:
    return PublishedRow(*(float(np.sum([getattr(r, f.name) for r in rows])) for f in fields(PublishedRow)))


def _scaled(row: PublishedRow, count: int) -> PublishedRow:
    return PublishedRow(*(count * getattr(row, f.name) for f in fields(PublishedRow)))
