"""LoRA adapters: the memory they take, the time they add to a step, and the time to load one.

An adapter of rank r adds two 16-bit matrices to each linear layer: A (r x in) and B (out x r). Engines keep `max_loras`
slots of the largest rank on the device, run two kernels a layer (shrink: x A, expand: + B), and read the matrices of
every adapter of the batch. With tensor parallelism, A of column-parallel layers is whole on every rank and B is
divided; for row-parallel layers it is the other way round (vLLM without fully_sharded_loras).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from calibration.operators.cost import CostSource
from calibration.operators.flops_and_bytes import ACTIVATION_BYTES as ACT
from calibration.operators.operators import Elementwise
from catalogs.arrays import FloatArray
from catalogs.deployments.resolution.optional_blocks import DISK_BYTES_PER_S
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.errors import InputError
from simulator.cache.lora_slots import LoraRules
from simulator.costs.interpolation import spaced
from simulator.layers.attention import ShardedAttention
from simulator.layers.feed_forward import ShardedMlp
from simulator.layers.shard import Shard

#: Share of the matrix rate that such thin products reach. A judgement, not a measurement: bytes bound them at most
#: sizes.
THIN_PRODUCT_SHARE: Final = 0.5

#: Nodes of the tokens of a step. A judgement: the time is nearly a constant plus a part in proportion to them.
TOKEN_NODES: Final = 32

ROW_BYTES: Final = 8192.0  # row size with which streaming kernels were measured


class LoraModule(NamedTuple):
    """A linear layer on one rank.

    Attributes:
        n_in: Its inputs.
        n_out: The outputs of each of its parts (q, k, v).
        layers: The number of layers that contain it.
    """

    n_in: float
    n_out: tuple[float, ...]
    layers: int

    def weights(self, rank: int) -> float:
        """Return the weights of one adapter of rank `rank` in one layer."""
        return rank * (len(self.n_out) * self.n_in + sum(self.n_out))


def modules(shard: Shard) -> list[LoraModule]:
    """Return the linear layers to which adapters apply.

    Raises:
        InputError: The model has layers of another kind.
    """
    hidden, found = shard.model.hidden_size, list[LoraModule]()
    for group in shard.model.groups:
        n, plain, dense = group.count, group.plain_attention, group.dense_block
        if plain is None or dense is None:
            rule = "LoRA is simulated only for dense models with plain attention"
            raise InputError(rule, shard.model.name, hint="use a model such as llama-3.1-8b")
        a, width = ShardedAttention(shard, n, plain), ShardedMlp(shard, n, dense).width
        found += [
            LoraModule(hidden, (float(a.query_width), float(a.key_width), float(a.kv_width - a.key_width)), n),
            LoraModule(plain.output_size / shard.tp, (float(hidden),), n),
            LoraModule(hidden, (float(width),) * (2 if dense.gated else 1), n),
            LoraModule(width, (float(hidden),), n),
        ]
    return found


def adapter_bytes(shard: Shard, rank: int) -> float:
    """Return the bytes of one adapter on one rank of the replica."""
    return ACT * sum(m.layers * m.weights(rank) for m in modules(shard)) * shard.layer_share


def lora_bytes(resolved: ResolvedDeployment) -> float:
    """Return the bytes of all adapter slots on one rank; 0 without adapters."""
    lora = resolved.lora
    return lora.max_loras * adapter_bytes(Shard.of(resolved), lora.max_rank) if lora else 0.0


def lora_rules(resolved: ResolvedDeployment, source: CostSource) -> LoraRules | None:
    """Return the costs of adapters on this device; None without adapters.

    Streaming kernels are priced as measured, with their floor and bytes, and by their flops where a prompt is long.
    """
    lora = resolved.lora
    if lora is None:
        return None
    shard, unit = Shard.of(resolved), resolved.hardware.accelerator
    tokens = spaced(1, max(resolved.limits.max_num_batched_tokens, 2), TOKEN_NODES)
    flops_per_s = THIN_PRODUCT_SHARE * unit.flops_for("bf16")
    seconds = sum(m.layers * _module_s(m, lora.max_rank, tokens, source, flops_per_s) for m in modules(shard))
    part = adapter_bytes(shard, lora.max_rank)
    return LoraRules(
        lora.max_loras,
        lora.in_host,
        lora.adapters,
        part / resolved.hardware.node.host_bytes_per_s,
        part * resolved.accelerators_per_replica / DISK_BYTES_PER_S,
        (0.0, *tokens.tolist()),
        (0.0, *np.asarray(seconds).tolist()),
        part / unit.memory_bandwidth_bytes_per_s,
    )


def _module_s(module: LoraModule, rank: int, tokens: FloatArray, source: CostSource, flops_per_s: float) -> FloatArray:
    """Return the seconds of one adapter in one linear layer. Shape (tokens,).

    The shrink kernel reads x and A and writes r values per part in fp32. The expand kernel reads those and B, and adds
    to the output.
    """
    parts, outputs = len(module.n_out), sum(module.n_out)
    shrunk = tokens * parts * rank
    shrink = tokens * module.n_in * ACT + parts * rank * module.n_in * ACT + shrunk * 4
    expand = shrunk * 4 + rank * outputs * ACT + 2 * tokens * outputs * ACT
    flops = 2 * shrunk * module.n_in, 2 * tokens * rank * outputs
    streamed = [source.cost(Elementwise("activation", n / ROW_BYTES, ROW_BYTES)).seconds for n in (shrink, expand)]
    return np.asarray(sum(np.maximum(s, f / flops_per_s) for s, f in zip(streamed, flops, strict=True)))
