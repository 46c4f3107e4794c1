"""The memory of one accelerator by kind of layer: weights, KV cache of the batch, and activations of the step."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from calibration.operators.flops_and_bytes import ACTIVATION_BYTES
from catalogs.models.layers import LayerGroup
from catalogs.models.towers import Tower
from catalogs.workloads.media_blocks import parse_item
from planner.studies.step_analysis import PricedReplica, StepQuery
from planner.web.documents.catalogs import group_words
from planner.web.documents.shapes import LayerMemory
from simulator.layers.attention import sharded_mixer
from simulator.layers.encoder import cross_layer_bytes
from simulator.layers.feed_forward import sharded_feed_forward
from simulator.layers.shard import Shard
from simulator.memory.plan import layer_bytes, outer_bytes, sequence_bytes
from simulator.memory.towers import layer_width


def layer_ids(groups: tuple[LayerGroup, ...], encoder_groups: tuple[LayerGroup, ...]) -> dict[LayerGroup, str]:
    """Return a name for each kind of layer, the encoder's first: `encoder1`, `layers1`, `layers2`."""
    encoder = {group: f"encoder{i}" for i, group in enumerate(encoder_groups, 1)}
    return encoder | {group: f"layers{i}" for i, group in enumerate(dict.fromkeys(groups), 1)}


def encoder_layers(shard: Shard, query: StepQuery) -> tuple[LayerGroup, ...]:
    """Return the layers of the encoder that a step runs: that of an encoder-decoder, or a tower."""
    return shard.model.encoder_groups if not query.images else _tower(shard, query).groups


def _tower(shard: Shard, query: StepQuery) -> Tower:
    """Return the tower that encodes the items of a query."""
    modality = parse_item(query.resolution).modality
    return next(tower for tower in shard.model.towers if modality in tower.rules.modalities)


def layer_memory(shard: Shard, query: StepQuery, tokens: int) -> list[LayerMemory]:
    """Return the memory of each kind of layer.

    Args:
        shard: The part of the model on one accelerator.
        query: The step.
        tokens: Tokens of the step that the accelerator computes.
    """
    model, found = shard.model, list[LayerMemory]()
    for group, name in layer_ids(model.groups, encoder_layers(shard, query)).items():
        encoder = name.startswith("encoder")
        if encoder and query.images:
            found.append(_tower_memory(shard, query, group, name))
            continue
        count = group.count * (1 if encoder else model.groups.count(group))
        mixer, block = sharded_mixer(shard, group), sharded_feed_forward(shard, group)
        held = 0.0
        if not encoder:
            own = mixer.cache_bytes(query.context) / group.count / shard.kv_shards if mixer else 0.0
            held = query.batch * (own + cross_layer_bytes(shard, group))
        widest = 2 * model.hidden_size + max((part.activation_width() for part in (mixer, block) if part), default=0.0)
        found.append(
            {
                "id": name,
                "kind": group_words(group, encoder),
                "layers": count,
                "weights_bytes": layer_bytes(shard, group),
                "kv_bytes": held,
                "activation_bytes": widest * tokens * ACTIVATION_BYTES,
            }
        )
    return found


def _tower_memory(shard: Shard, query: StepQuery, group: LayerGroup, name: str) -> LayerMemory:
    """Return the memory of a kind of layer of a tower; its activations are those of one prompt's items."""
    tower = _tower(shard, query)
    layout = tower.rules.layout(parse_item(query.resolution))
    patches = query.images * layout.tiles * layout.patches
    width = 2 * tower.hidden_size + layer_width(group, shard.tp)
    norm = tower.hidden_size * (2 if tower.layer_norm else 1)
    return {
        "id": name,
        "kind": group_words(group, encoder=True),
        "layers": group.count,
        "weights_bytes": group.params(tower.hidden_size, norm) * ACTIVATION_BYTES / shard.tp,
        "kv_bytes": 0.0,
        "activation_bytes": patches * width * ACTIVATION_BYTES,
    }


def memory_document(query: StepQuery) -> dict[str, Any]:
    """Return the memory of one accelerator while it holds the batch of a step.

    Raises:
        InputError: A name is unknown, or the context exceeds the positions of the model.
    """
    replica = PricedReplica.of(query)
    resolved, plan = replica.resolved, replica.memory
    shard = replace(Shard.of(resolved), stage=plan.stage)
    steps, use = replica.steps(query), replica.held(query)
    layers = layer_memory(shard, query, max(shape.tokens for shape in steps.shapes))
    sequence = sequence_bytes(shard, query.context) + sum(
        cross_layer_bytes(shard, group) * group.count for group in shard.model.groups
    )
    return {
        "question": asdict(query),
        "accelerators": resolved.accelerators_per_replica,
        "totals": asdict(use) | {"fits": plan.free_bytes > 0 and use.fits},
        "layers": layers,
        "outside_layers": [{"name": name, "weights_bytes": n} for name, n in outer_bytes(shard).items() if n],
        "sequences": {
            "bytes_each": sequence,
            "most": int(max(plan.kv_bytes, 0.0) // sequence) if sequence else None,
            "longest_tokens": plan.longest_sequence_tokens,
        },
        "equation": plan.equation,
        "why": plan.why,
        "weight_dtype": resolved.weight_dtype,
        "kv_dtype": resolved.kv_dtype,
        "notices": list(dict.fromkeys(replica.notices(query, steps))),
    }
