"""The memory of serving images: what the vision tower takes besides its share of the checkpoint.

vLLM measures it when it starts (`profile_run` in gpu_model_runner.py): it encodes as many images of the largest size as
the encoder budget holds, keeps their embeddings, and then runs the language model over a full token budget. The peak is
that of the tower or that of the language model with the embeddings, whichever is larger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from calibration.operators.roofline import ACTIVATION_BYTES as ACT
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.models.layers import LayerGroup


@dataclass(frozen=True, slots=True)
class TowerMemory:
    """The memory of a vision tower on one rank, in bytes.

    Attributes:
        copies: Weights beyond the rank's share, where every rank holds the whole tower.
        pass_bytes: Activations of the largest pass.
        embeddings: The embeddings in the encoder cache.
    """

    copies: float = 0.0
    pass_bytes: float = 0.0
    embeddings: float = 0.0

    def activation_bytes(self, language_model: float) -> float:
        """Return the activation peak together with a language model that needs so many bytes."""
        return max(self.pass_bytes, language_model + self.embeddings)


NO_TOWER: Final = TowerMemory()


def tower_memory(resolved: ResolvedDeployment) -> TowerMemory:
    """Return the memory of a deployment's tower; nothing if it serves text only."""
    tower, how = resolved.tower, resolved.multimodal
    if tower is None or how is None:
        return NO_TOWER
    ranks = resolved.layout.tensor_parallel
    whole = how.encoder_parallel == "data"
    shards = 1 if whole else ranks
    each = resolved.model.weight_format(resolved.weight_dtype).other_bytes_per_weight()
    copies = resolved.model.other_params * (1.0 - 1.0 / ranks) * each if whole else 0.0
    largest = tower.largest
    images = max(1, resolved.encoder_budget // largest.embeddings)
    if whole:  # each rank encodes its share of the images
        images = -(-images // ranks)
    patches = images * largest.tiles * largest.patches
    width = 2 * tower.hidden_size + max(layer_width(group, shards) for group in tower.groups)
    embedding = tower.embedding_values * ACT
    # The outputs of the pass are in memory together with its last layer.
    outputs = images * largest.embeddings * embedding
    return TowerMemory(copies, patches * width * ACT + outputs, resolved.encoder_cache_tokens * embedding)


def layer_width(group: LayerGroup, shards: int) -> float:
    """Return the numbers alive for each patch in the wider block of a layer."""
    attention, mlp = group.plain_attention, group.dense_block
    assert attention is not None  # VisionTower admits no other layers
    assert mlp is not None
    heads = 4 * attention.n_heads * attention.head_dim
    return max(heads, (3 if mlp.gated else 2) * mlp.intermediate_size) / shards
