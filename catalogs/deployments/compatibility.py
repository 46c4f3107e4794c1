"""What is simulated together: each part of a deployment by the scheduling policies that know it, and by the parts it
keeps apart from. Here and nowhere else; what one part alone cannot be (a rank, a size) is said in the part's own file.
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
    """A deployment, and what its names mean."""

    written: Deployment
    model: ModelSpec
    engine: EngineProfile


@dataclass(frozen=True, slots=True)
class DeploymentFeature:
    """Something a deployment may ask for. found: how it is written there; None where it is not. without: how to do
    without."""

    words: str
    found: Callable[[FeatureContext], str | None]
    without: str


def _size(key: str) -> DeploymentFeature:
    def found(asked: FeatureContext) -> str | None:
        size = getattr(asked.written, key)
        return f"{key}: {size}" if size > 1 else None

    return DeploymentFeature(key, found, f"{key}: 1")


def _given(key: str, words: str) -> DeploymentFeature:
    return DeploymentFeature(words, lambda asked: None if getattr(asked.written, key) is None else key, f"{key}: null")


def _encoder(asked: FeatureContext) -> str | None:
    return asked.model.name if asked.model.is_encoder_decoder else None


def _swap(asked: FeatureContext) -> str | None:
    return "preemption: swap" if asked.written.preemption == "swap" else None


def _ranks(asked: FeatureContext) -> str | None:
    """Those of a dense model are replicas."""
    return FEATURES["data_parallel"].found(asked) if asked.model.is_moe else None


#: By key of deployment.yaml, or a name where it has none.
FEATURES: Final[Mapping[str, DeploymentFeature]] = {
    "encoder": DeploymentFeature("an encoder-decoder model", _encoder, "a decoder-only model"),
    "speculative": _given("speculative", "speculative decoding"),
    "lora": _given("lora", "LoRA"),
    "kv_offload": _given("kv_offload", "KV offload"),
    "swap": DeploymentFeature("preemption by swap", _swap, "preemption: recompute"),
    "swap_space_gib": _given("swap_space_gib", "swap space"),
    "queue": _given("queue", "a queue with rules of its own"),
    "pipeline_parallel": _size("pipeline_parallel"),
    "data_parallel": _size("data_parallel"),
    "context_parallel": _size("context_parallel"),
    "decode_context_parallel": _size("decode_context_parallel"),
    "ranks": DeploymentFeature("data-parallel ranks", _ranks, "data_parallel: 1"),
}

#: Scheduling policies that know a part, by the engine that has it; of `speculative` the engines' files tell
#: (EngineProfile.speculates).
SUPPORTING_POLICIES: Final[Mapping[str, Mapping[str, str]]] = {
    "encoder": {"vllm-v1": "vllm"},
    "lora": {"vllm-v1": "vllm"},
    "kv_offload": {"vllm-v1": "vllm"},  # --kv-offloading-size
    "swap": {"vllm-v0": "vllm-v0"},  # later versions have no --preemption-mode
}

#: What each part is not simulated together with. A queue: who steps aside, is passed over or is swapped out keeps its
#: place by arrival.
INCOMPATIBLE: Final[Mapping[str, tuple[str, ...]]] = {
    "encoder": (
        "pipeline_parallel",
        "data_parallel",
        "context_parallel",
        "decode_context_parallel",
        "kv_offload",
        "lora",
        "speculative",
        "swap_space_gib",
    ),
    "speculative": (
        "lora",
        "kv_offload",
        "swap_space_gib",
        "pipeline_parallel",
        "context_parallel",
        "decode_context_parallel",
    ),
    "lora": ("queue", "kv_offload", "pipeline_parallel"),
    "kv_offload": ("queue", "pipeline_parallel", "ranks"),
    "swap": ("queue",),
}

#: Beside these one scheduler stands for all data-parallel ranks (rank_dispatch.py).
ONE_SCHEDULER: Final = ("pipeline_parallel", "lora", "kv_offload", "swap")


def check_compatibility(asked: FeatureContext) -> None:
    """Raises InputError for the first part that the engine's policy does not know or that another keeps apart from."""
    written = {key: found for key, part in FEATURES.items() if (found := part.found(asked)) is not None}
    for key, found in written.items():
        engines = SUPPORTING_POLICIES.get(key)
        if engines is not None and asked.engine.policy not in engines:
            rule = f"{asked.engine.name} is simulated without {FEATURES[key].words}"
            raise InputError(rule, found, f"engine: {', '.join(engines.values())}")
    for key in written:
        for other in INCOMPATIBLE.get(key, ()):
            if other in written:
                rule = f"{FEATURES[key].words} is not simulated together with {FEATURES[other].words}"
                raise InputError(rule, written[other], FEATURES[other].without)


def feature_with_one_scheduler(asked: FeatureContext) -> str | None:
    """The words of the first part beside which one scheduler stands for all ranks; None where each has its own."""
    return next((FEATURES[key].words for key in ONE_SCHEDULER if FEATURES[key].found(asked) is not None), None)
