"""Tables of the deployment features that the simulator supports together.

Each feature is checked against the scheduling policy of the engine and against the other features of the deployment.
Limits of a single feature (a rank, a size) are checked in the file of that feature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from catalogs.deployments.schema import Deployment
from catalogs.engines.profile import EngineProfile
from catalogs.errors import InputError
from catalogs.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class FeatureContext:
    """A deployment together with the model and the engine that its names refer to."""

    written: Deployment
    model: ModelSpec
    engine: EngineProfile


@dataclass(frozen=True, slots=True)
class DeploymentFeature:
    """An optional feature of a deployment.

    `words` is its name in messages. `found` returns the text that requests it in deployment.yaml, or None where the
    deployment does not use it. `without` is the setting that turns it off.
    """

    words: str
    found: Callable[[FeatureContext], str | None]
    without: str


def _size(key: str) -> DeploymentFeature:
    def found(context: FeatureContext) -> str | None:
        size = getattr(context.written, key)
        return f"{key}: {size}" if size > 1 else None

    return DeploymentFeature(key, found, f"{key}: 1")


def _given(key: str, words: str) -> DeploymentFeature:
    return DeploymentFeature(
        words, lambda context: None if getattr(context.written, key) is None else key, f"{key}: null"
    )


def _encoder(context: FeatureContext) -> str | None:
    return context.model.name if context.model.encoder_tokens else None


def _text_encoder(context: FeatureContext) -> str | None:
    return context.model.name if context.model.encodes_prompt else None


def _kv_pool(context: FeatureContext) -> str | None:
    requested = context.written.kv_offload
    return "kv_offload: {shared: true}" if requested is not None and requested.shared else None


def _swap(context: FeatureContext) -> str | None:
    return "preemption: swap" if context.written.preemption == "swap" else None


def _ranks(context: FeatureContext) -> str | None:
    """Return the setting that requests data-parallel ranks; ranks of a dense model are counted as replicas instead."""
    return FEATURES["data_parallel"].found(context) if context.model.is_moe else None


#: Optional features by their key of deployment.yaml, or by a name where they have no key.
FEATURES: Final[Mapping[str, DeploymentFeature]] = {
    "encoder": DeploymentFeature("an encoder-decoder model", _encoder, "a decoder-only model"),
    "text_encoder": DeploymentFeature("an encoder-decoder model", _text_encoder, "a decoder-only model"),
    "speculative": _given("speculative", "speculative decoding"),
    "lora": _given("lora", "LoRA"),
    "multimodal": _given("multimodal", "serving of images, videos and audio"),
    "kv_offload": _given("kv_offload", "KV offload"),
    "kv_pool": DeploymentFeature("a KV pool that replicas share", _kv_pool, "kv_offload: {shared: false}"),
    "kv_retention": _given("kv_retention", "retention of KV blocks by priority"),
    "autoscaling": _given("autoscaling", "autoscaling"),
    "swap": DeploymentFeature("preemption by swap", _swap, "preemption: recompute"),
    "swap_space_gib": _given("swap_space_gib", "swap space"),
    "queue": _given("queue", "a configured queue"),
    "pipeline_parallel": _size("pipeline_parallel"),
    "data_parallel": _size("data_parallel"),
    "context_parallel": _size("context_parallel"),
    "decode_context_parallel": _size("decode_context_parallel"),
    "ranks": DeploymentFeature("data-parallel ranks", _ranks, "data_parallel: 1"),
}

#: Scheduling policies that support a feature, each with the engine that has it. For `speculative`, the engine files
#: state this (EngineProfile.speculates), and for `text_encoder` too (EngineProfile.encoder_decoders).
SUPPORTING_POLICIES: Final[Mapping[str, Mapping[str, str]]] = {
    "encoder": {"vllm-v1": "vllm"},
    "lora": {"vllm-v1": "vllm"},
    "multimodal": {"vllm-v1": "vllm", "sglang": "sglang"},
    "kv_offload": {"vllm-v1": "vllm"},  # --kv-offloading-size
    "kv_retention": {"trtllm": "trtllm", "trtllm-max-utilization": "trtllm-max-utilization"},
    "swap": {"vllm-v0": "vllm-v0"},  # later versions have no --preemption-mode
}

_NOT_WITH_ENCODERS: Final = (
    "pipeline_parallel",
    "data_parallel",
    "context_parallel",
    "decode_context_parallel",
    "kv_offload",
    "lora",
    "multimodal",
    "speculative",
    "swap_space_gib",
)

#: Features that each feature is not simulated together with. `queue` is excluded where requests that are preempted,
#: skipped or swapped out keep their place by arrival.
INCOMPATIBLE: Final[Mapping[str, tuple[str, ...]]] = {
    "encoder": _NOT_WITH_ENCODERS,
    "text_encoder": _NOT_WITH_ENCODERS,
    "speculative": (
        "kv_offload",
        "swap_space_gib",
        "pipeline_parallel",
        "context_parallel",
        "decode_context_parallel",
    ),
    "lora": ("queue", "kv_offload", "pipeline_parallel"),
    "multimodal": (
        "lora",
        "speculative",
        "kv_offload",
        "swap_space_gib",
        "pipeline_parallel",
        "context_parallel",
        "decode_context_parallel",
        "ranks",
    ),
    "kv_offload": ("queue", "pipeline_parallel", "ranks"),
    "kv_retention": ("ranks", "pipeline_parallel"),
    "kv_pool": ("autoscaling",),  # the pool would lose the part of a replica that ends
    "swap": ("queue",),
}

#: Features for which one simulated scheduler represents all data-parallel ranks (features.py, resolve_rank_dispatch).
ONE_SCHEDULER: Final = ("pipeline_parallel", "lora", "kv_offload", "swap")


def check_compatibility(context: FeatureContext) -> None:
    """Check that the engine's policy supports every feature of the deployment and that all features work together.

    Raises:
        InputError: A feature is not supported by the engine's policy, or not together with another feature.
    """
    written = {key: found for key, part in FEATURES.items() if (found := part.found(context)) is not None}
    for key, found in written.items():
        engines = SUPPORTING_POLICIES.get(key)
        if engines is not None and context.engine.policy not in engines:
            rule = f"{FEATURES[key].words} is not simulated for {context.engine.name}"
            raise InputError(rule, found, f"engine: {', '.join(engines.values())}")
    for key in written:
        for other in INCOMPATIBLE.get(key, ()):
            if other in written:
                rule = f"{FEATURES[key].words} is not simulated together with {FEATURES[other].words}"
                raise InputError(rule, written[other], FEATURES[other].without)


def feature_with_one_scheduler(context: FeatureContext) -> str | None:
    """Return the name of the first feature that requires one scheduler for all ranks, or None."""
    return next((FEATURES[key].words for key in ONE_SCHEDULER if FEATURES[key].found(context) is not None), None)
