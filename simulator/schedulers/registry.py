"""The registry of scheduling policies: one class per engine family, all under one contract test suite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from catalogs.deployments.layout import Role
from catalogs.errors import InputError, nearest_name
from simulator.schedulers.base import Scheduler
from simulator.schedulers.continuous_batching import ContinuousBatching
from simulator.schedulers.data_parallel import Lockstep
from simulator.schedulers.dp_dispatch import DISPATCHES
from simulator.schedulers.llama_cpp import LlamaCpp
from simulator.schedulers.orca import Orca
from simulator.schedulers.rules import EngineRules
from simulator.schedulers.sarathi import Sarathi
from simulator.schedulers.sglang import Sglang, SglangEncoder, SglangMedia
from simulator.schedulers.speculative import SPECULATIVE, SpeculativeLoraV1
from simulator.schedulers.static_batching import OneAtATime, StaticBatching
from simulator.schedulers.transformers import TransformersCb
from simulator.schedulers.trtllm import MaxUtilization, TrtLlm
from simulator.schedulers.vllm.v0 import SwappingV0, VllmV0
from simulator.schedulers.vllm.v1 import VllmV1
from simulator.schedulers.vllm.v1_encoder_decoder import EncoderDecoderV1
from simulator.schedulers.vllm.v1_lora import LoraV1
from simulator.schedulers.vllm.v1_media import MediaV1
from simulator.schedulers.vllm.v1_offload import OffloadingV1

POLICIES: dict[str, type[ContinuousBatching]] = {
    "vllm-v1": VllmV1,
    "vllm-v0": VllmV0,
    "sarathi": Sarathi,
    "orca": Orca,
    "sglang": Sglang,
    "trtllm": TrtLlm,
    "trtllm-max-utilization": MaxUtilization,
    "llama.cpp": LlamaCpp,
    "transformers-cb": TransformersCb,
    "static": StaticBatching,
    "one-at-a-time": OneAtATime,
}


@dataclass(frozen=True, slots=True)
class SchedulerVariant:
    """A variant of scheduling that a field of `EngineRules` requires.

    No two variants are simulated together, except those of `COMBINED`.

    Attributes:
        words: The name of the variant in messages.
        by_policy: The class for each policy that supports the variant, in place of the policy's own.
        in_lockstep: Ranks that step together support the variant, each for itself.
    """

    words: str
    by_policy: Mapping[str, type[ContinuousBatching]]
    in_lockstep: bool = False


#: Variants by the field of `EngineRules` that requires them.
VARIANTS: Final[dict[str, SchedulerVariant]] = {
    "encoder_tokens": SchedulerVariant("an encoder-decoder model", {"vllm-v1": EncoderDecoderV1}),
    "encoder_limits": SchedulerVariant(
        "serving of images, videos and audio", {"vllm-v1": MediaV1, "sglang": SglangMedia}
    ),
    "speculation": SchedulerVariant("speculative decoding", SPECULATIVE, in_lockstep=True),
    "lora": SchedulerVariant("LoRA", {"vllm-v1": LoraV1}),
    "offload": SchedulerVariant("KV offload", {"vllm-v1": OffloadingV1}),
    "swap": SchedulerVariant("preemption by swap", {"vllm-v0": SwappingV0}),
}


#: Variants for two fields that are required together.
COMBINED: Final[dict[tuple[str, str], SchedulerVariant]] = {
    ("speculation", "lora"): SchedulerVariant("speculative decoding with LoRA", {"vllm-v1": SpeculativeLoraV1}),
}


#: The class for each policy of replicas that only encode the items of requests.
ENCODERS: Final[dict[str, type[ContinuousBatching]]] = {"vllm-v1": MediaV1, "sglang": SglangEncoder}


def scheduler_class(rules: EngineRules) -> type[ContinuousBatching]:
    """Return the scheduler class of these rules; for ranks in lockstep, the class of each rank.

    Raises:
        InputError: The policy is unknown, or the combination is not simulated: two variants, a variant with a policy
            that does not support it, or either of them with more batches in flight, or more ranks, than it supports.
    """
    made = POLICIES.get(rules.policy)
    if made is None:
        raise InputError("unknown scheduling policy", rules.policy, nearest_name(rules.policy, POLICIES))
    if rules.encodes_only:
        if rules.policy not in ENCODERS:
            raise InputError(f"an encoder pool is simulated only for {', '.join(ENCODERS)}", rules.policy)
        return ENCODERS[rules.policy]
    required = tuple(field for field in VARIANTS if getattr(rules, field))
    both = COMBINED.get(required[:2]) if len(required) == 2 else None
    variants = [VARIANTS[field] for field in required] if both is None else [both]
    if len(variants) > 1:
        rule = f"{variants[0].words} is not simulated together with {variants[1].words}"
        raise InputError(rule, hint="use only one of them")
    for variant in variants:
        known = variant.by_policy.get(rules.policy)
        if known is None:
            raise InputError(f"{variant.words} is simulated only for {', '.join(variant.by_policy)}", rules.policy)
        if rules.in_lockstep and not variant.in_lockstep:
            rule = f"{variant.words} is not simulated with ranks in lockstep"
            raise InputError(rule, rules.rank_dispatch, "balanced")
        made = known
    if rules.pipeline_stages > 1 and (rules.in_lockstep or not made.pipelines):
        name = variants[0].words if variants else "this scheduler"
        raise InputError(f"{name} allows only one batch in flight", f"pipeline_parallel: {rules.pipeline_stages}", "1")
    return made


def check_role(rules: EngineRules, role: Role) -> None:
    """Check that the scheduler of a replica can play the role of its pool.

    Raises:
        InputError: As `scheduler_class`; or it cannot hand requests over to decode replicas, or take them over.
    """
    scheduler = scheduler_class(rules)
    if role == "prefill" and not scheduler.hands_over:
        raise InputError("this engine cannot hand requests over to a decode replica", rules.policy, "vllm-v1")
    if role == "decode" and not scheduler.takes_over:
        policy = rules.policy + (" with LoRA adapters" if rules.lora is not None else "")
        raise InputError("this scheduler cannot take over requests from a prefill replica yet", policy, "vllm-v1")


def make_scheduler(rules: EngineRules, first: Scheduler | None = None) -> Scheduler:
    """Return the scheduler of these rules.

    Args:
        rules: The rules of the replica.
        first: The scheduler of the first batch in flight, whose queue and cache the new scheduler shares.

    Raises:
        InputError: As `scheduler_class`.
    """
    made = scheduler_class(rules)
    if rules.in_lockstep:
        own = rules.of_rank()
        ranks = [made(own) for _ in range(rules.attention_ranks)]
        return Lockstep(rules, ranks, DISPATCHES[rules.rank_dispatch]())
    if rules.pipeline_stages == 1:
        return made(rules)
    scheduler = made(replace(rules, max_num_seqs=max(1, rules.max_num_seqs // rules.pipeline_stages)))
    if isinstance(first, ContinuousBatching):
        scheduler.share(first)
    return scheduler
