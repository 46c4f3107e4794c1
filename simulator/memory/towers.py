"""The memory of serving images, videos and audio: what the towers take besides their share of the checkpoint.

vLLM measures it when it starts (`profile_run` in gpu_model_runner.py): it encodes as many items of the largest size as
the encoder budget holds, of the kind with the most embeddings, keeps their embeddings, and then runs the language model
over a full token budget. The peak is that of the tower or that of the language model with the embeddings, whichever is
larger.

A replica of an encoder pool holds the towers, their pass and the encoder cache, and nothing else. The replicas behind
it hold no towers, but embeddings in an encoder cache of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from calibration.operators.flops_and_bytes import ACTIVATION_BYTES as ACT
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.models.layers import LayerGroup
from catalogs.models.towers import Tower


@dataclass(frozen=True, slots=True)
class TowerMemory:
    """The memory of the towers on one rank, in bytes.

    Attributes:
        copies: Weights beyond the rank's share, where every rank holds whole towers; negative by that share where none
            holds any, behind an encoder pool.
        pass_bytes: Activations of the largest pass.
        embeddings: The embeddings in the encoder cache.
    """

    copies: float = 0.0
    pass_bytes: float = 0.0
    embeddings: float = 0.0

    def activation_bytes(self, language_model: float) -> float:
        """Return the peak bytes of activations beside a language model whose own peak is `language_model` bytes."""
        return max(self.pass_bytes, language_model + self.embeddings)


NO_TOWER: Final = TowerMemory()


def tower_memory(resolved: ResolvedDeployment) -> TowerMemory:
    """Return the memory of a deployment's towers; nothing if it serves text only."""
    if not resolved.towers or resolved.multimodal is None:
        return NO_TOWER
    ranks, whole = resolved.layout.tensor_parallel, resolved.multimodal.encoder_parallel == "data"
    each = resolved.model.weight_format(resolved.weight_dtype).other_bytes_per_weight()
    values = max(tower.embedding_values for tower in resolved.towers)
    embeddings = resolved.encoder_cache_tokens * values * ACT
    if resolved.encodes_elsewhere:  # its encoder cache holds what the encoder pool has sent
        return TowerMemory(-resolved.model.other_params / ranks * each, 0.0, embeddings)
    copies = resolved.model.other_params * (1.0 - 1.0 / ranks) * each if whole else 0.0
    largest = max(resolved.towers, key=lambda tower: resolved.largest_item(tower).embeddings)
    return TowerMemory(copies, _pass_bytes(resolved, largest, whole), embeddings)


def _pass_bytes(resolved: ResolvedDeployment, tower: Tower, whole: bool) -> float:
    """Return the bytes of a pass over the largest items that fit in the encoder budget; the outputs are part of it."""
    ranks, largest = resolved.layout.tensor_parallel, resolved.largest_item(tower)
    items = max(1, resolved.encoder_budget // largest.embeddings)
    if whole:  # each rank encodes its share of the items
        items = -(-items // ranks)
    patches = items * largest.tiles * largest.patches
    width = 2 * tower.hidden_size + max(layer_width(group, 1 if whole else ranks) for group in tower.groups)
    outputs = items * largest.embeddings * tower.embedding_values
    return (patches * width + outputs) * ACT


def layer_width(group: LayerGroup, shards: int) -> float:
    """Return the numbers alive for each patch in the wider block of a layer."""
    attention, mlp = group.plain_attention, group.dense_block
    assert attention is not None  # Tower admits no other layers
    assert mlp is not None
    heads = 4 * attention.n_heads * attention.head_dim
    return max(heads, (3 if mlp.gated else 2) * mlp.intermediate_size) / shards
