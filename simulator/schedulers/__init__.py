"""Scheduling policies: one class per engine family, all under one contract test suite."""

from __future__ import annotations

from dataclasses import replace

from catalogs.errors import InputError, nearest_name
from simulator.rank_dispatch import DISPATCHES
from simulator.rules import EngineRules
from simulator.schedulers.base import Scheduler
from simulator.schedulers.batching import ContinuousBatching
from simulator.schedulers.encoder_decoder import EncoderDecoderV1
from simulator.schedulers.llama_cpp import LlamaCpp
from simulator.schedulers.lockstep import Lockstep
from simulator.schedulers.lora import LoraV1
from simulator.schedulers.offloading import OffloadingV1
from simulator.schedulers.orca import Orca
from simulator.schedulers.sarathi import Sarathi
from simulator.schedulers.sglang import Sglang
from simulator.schedulers.speculative import SPECULATIVE, Speculating
from simulator.schedulers.static import OneAtATime, StaticBatching
from simulator.schedulers.swapping import SwappingV0
from simulator.schedulers.transformers_cb import TransformersCb
from simulator.schedulers.trtllm import MaxUtilization, TrtLlm
from simulator.schedulers.vllm_v0 import VllmV0
from simulator.schedulers.vllm_v1 import VllmV1

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


def make_scheduler(rules: EngineRules, beside: Scheduler | None = None) -> Scheduler:
    """The scheduler that `rules.policy` names; with `beside`, for a further batch in flight over its queue and cache.

    Raises InputError for an unknown policy, or one that keeps a single batch in flight.
    """
    policy = POLICIES.get(rules.policy)
    if policy is None:
        raise InputError("unknown scheduling policy", rules.policy, nearest_name(rules.policy, POLICIES))
    if rules.encoder_tokens:
        return EncoderDecoderV1(rules)
    if rules.in_lockstep:
        own, of_rank = rules.of_rank(), _speculating if rules.speculation is not None else policy
        ranks = [of_rank(own) for _ in range(rules.attention_ranks)]
        return Lockstep(rules, ranks, DISPATCHES[rules.rank_dispatch]())
    if rules.speculation is not None:
        return _speculating(rules)
    if rules.lora is not None:
        if policy is not VllmV1 or rules.pipeline_stages > 1 or rules.offload is not None:
            raise InputError(
                "LoRA is simulated for vLLM V1, one batch in flight, no KV offload", rules.policy, "vllm-v1"
            )
        return LoraV1(rules)
    if rules.offload is not None:
        if policy is not VllmV1 or rules.pipeline_stages > 1:
            raise InputError("KV offload is simulated for vLLM V1, one batch in flight", rules.policy, "vllm-v1")
        return OffloadingV1(rules)
    if rules.offload is not None and rules.queueing.order != "fcfs":
        raise InputError("a queue with KV offloading is served fcfs", f"queue.order: {rules.queueing.order}", "fcfs")
    if rules.swap is not None:
        if policy is not VllmV0 or rules.pipeline_stages > 1:
            raise InputError("preemption by swap is simulated for vLLM V0", rules.policy, "vllm-v0")
        return SwappingV0(rules)
    if rules.pipeline_stages == 1:
        return policy(rules)
    if not policy.pipelines:
        raise InputError("this scheduler keeps one batch in flight", f"pipeline_parallel: {rules.pipeline_stages}", "1")
    made = policy(replace(rules, max_num_seqs=max(1, rules.max_num_seqs // rules.pipeline_stages)))
    if isinstance(beside, ContinuousBatching):
        made.share(beside)
    return made


def takes_over(rules: EngineRules) -> bool:
    """Whether what `make_scheduler` makes decodes requests that come with their blocks."""
    made: type[Scheduler] = POLICIES[rules.policy]
    if rules.speculation is not None:
        made = SPECULATIVE.get(rules.policy, made)
    elif rules.lora is not None:
        made = LoraV1
    elif rules.offload is not None:
        made = OffloadingV1
    elif rules.swap is not None:
        made = SwappingV0
    return made.takes_over


def _speculating(rules: EngineRules) -> Speculating:
    """InputError for what is not simulated together."""
    policy = SPECULATIVE.get(rules.policy)
    if policy is None:
        raise InputError(
            "this scheduler is simulated without speculative decoding", rules.policy, ", ".join(SPECULATIVE)
        )
    beside = ("lora", "offload", "swap")
    also = next((name for name in beside if getattr(rules, name) is not None), None)
    if also is not None or rules.pipeline_stages > 1:
        together = also or "a pipeline"
        raise InputError("speculative decoding is not simulated together with", together, "speculative: null")
    return policy(rules)
