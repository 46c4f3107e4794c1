"""Scheduling policies: one class per engine family, all under one contract test suite."""

from __future__ import annotations

from catalogs.errors import InputError, nearest_name
from simulator.rules import EngineRules
from simulator.schedulers.base import Scheduler
from simulator.schedulers.batching import ContinuousBatching
from simulator.schedulers.llama_cpp import LlamaCpp
from simulator.schedulers.sglang import Sglang
from simulator.schedulers.transformers_cb import TransformersCb
from simulator.schedulers.trtllm import TrtLlm
from simulator.schedulers.vllm_v1 import VllmV1

POLICIES: dict[str, type[ContinuousBatching]] = {
    "vllm-v1": VllmV1,
    "sglang": Sglang,
    "trtllm": TrtLlm,
    "llama.cpp": LlamaCpp,
    "transformers-cb": TransformersCb,
}


def make_scheduler(rules: EngineRules) -> Scheduler:
    """The scheduler that `rules.policy` names. Raises InputError for an unknown policy."""
    policy = POLICIES.get(rules.policy)
    if policy is None:
        raise InputError("unknown scheduling policy", rules.policy, nearest_name(rules.policy, POLICIES))
    return policy(rules)
