"""Encoder-decoder models: which are served, and what their engine turns off for them.

vLLM V1 serves those whose encoder reads an input of one length, Whisper's 30 seconds of sound. It computes prompts
whole and shares no prefixes (config/scheduler.py), captures graphs of steps without encoders only (gpu_model_runner.py)
and takes no KV connector (v1/core/sched/scheduler.py). BART needs a plugin, T5 is not served.
"""

from __future__ import annotations

from dataclasses import replace

from catalogs.deployment import Deployment
from catalogs.engines import EngineProfile
from catalogs.errors import InputError
from catalogs.limits import Limits
from catalogs.model_spec import ModelSpec


def check_encoder(model: ModelSpec) -> None:
    """Raises InputError for a model whose encoder reads text of any length."""
    crosses = any(group.cross_attention for group in model.groups)
    if (model.is_encoder_decoder or crosses) and not model.encoder_tokens:
        rule = "serving covers decoder-only models and encoders of one input length (Whisper), not encoders of text"
        raise InputError(rule, model.name, "whisper-large-v3")


def engine_for(model: ModelSpec, engine: EngineProfile, asked: Deployment) -> EngineProfile:
    """The engine as it runs this model. Raises InputError for what it does not do with an encoder."""
    if not model.is_encoder_decoder:
        return engine
    if asked.prefix_caching:
        raise InputError("vLLM shares no prefixes of encoder-decoder models", "prefix_caching: true", "false")
    return replace(
        engine, chunked_prefill=False, prefix_caching=False, graphs_with_prefill=False, holds_longest_prompt=True
    )


def check_not_apart(model: ModelSpec) -> None:
    """Raises InputError where prompts and outputs would be computed by different replicas."""
    if model.is_encoder_decoder:
        rule = "no KV connector moves the cache of encoder-decoder models: their replicas have the role both"
        raise InputError(rule, model.name, "no disaggregation")


def with_encoder_room(limits: Limits, model: ModelSpec, asked: Deployment) -> Limits:
    """The token budget holds one encoder's output, which is never cut. Raises InputError where a given one does not."""
    if limits.max_num_batched_tokens >= model.encoder_tokens:
        return limits
    if asked.max_num_batched_tokens is not None:
        rule = f"max_num_batched_tokens is at least the {model.encoder_tokens} positions of an encoder's output"
        raise InputError(rule, asked.max_num_batched_tokens, str(model.encoder_tokens))
    return replace(limits, max_num_batched_tokens=model.encoder_tokens)
