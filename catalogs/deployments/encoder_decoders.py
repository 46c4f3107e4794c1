"""Encoder-decoder models in a deployment: the engines that serve them, and what these engines then do differently.

vLLM V1 serves models whose encoder reads inputs of one length, such as Whisper's 30 seconds of audio. Prompts are not
split and prefixes are not cached (config/vllm.py). CUDA graphs are only used for steps without encoders
(gpu_model_runner.py), and no KV connector supports them (v1/core/sched/scheduler.py).

Models whose encoder reads the prompt (T5, BART, NLLB) have engines of their own. `encoder_decoders` in an engine file
lists their architectures. vLLM serves BART by a plugin only (github.com/vllm-project/bart-plugin), which is not
simulated. TensorRT-LLM's PyTorch backend serves T5, BART and mBART with in-flight batching and tensor parallelism. It
captures decodes in CUDA graphs, does not split prompts, and rejects pipeline, context and attention data parallelism
(docs/source/models/encoder-decoder.md of NVIDIA/TensorRT-LLM). Others pad whole batches, as `generate` of transformers
does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from catalogs.deployments.layout import Limits
from catalogs.engines.files import load_engine
from catalogs.engines.profile import EngineProfile
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Accelerator
from catalogs.models.catalog import load_model
from catalogs.models.spec import ModelSpec

#: The engine of any other model.
USUAL: Final = "vllm"

#: The engines of a text encoder-decoder where none is named: the first that serves it on the device.
_PREFERRED: Final = ("trtllm", "transformers-static")


#: What `python benchmarks/text_generation.py --published` finds.
_TOO_FAST: Final = (
    "the stated error is that of decoder-only models: published batches of FLAN-T5 XL and BART-large on an H100 took "
    "1.4 to 1.9 times as long as simulated (docs/encoder-decoders.md)"
)


def default_engine(model: str, hardware: str) -> str:
    """Return the engine to use for a model on hardware (texts, as users write them) where none is named.

    Unknown names are not refused here. Of several kinds of hardware (`h100x8,l40sx8`, `any`), all must be served.
    """
    try:
        found = load_model(model)
        if not found.encodes_prompt:
            return USUAL
        units = [parse_hardware(part).accelerator for part in hardware.split(",") if part != "any"]
    except InputError:
        return USUAL
    return next(name for name in _PREFERRED if all(_serves(load_engine(name), found, unit) for unit in units))


def _serves(engine: EngineProfile, model: ModelSpec, unit: Accelerator) -> bool:
    return engine.runs_on_device(unit.kind, unit.maker) and engine.serves_text_encoder(model.architecture)


def check_engine(model: ModelSpec, engine: EngineProfile, unit: Accelerator) -> None:
    """Check that an engine serves a model whose encoder reads the prompt.

    Raises:
        InputError: It does not; the message names an engine that does.
    """
    if model.encodes_prompt and not _serves(engine, model, unit):
        nearest = next(name for name in _PREFERRED if _serves(load_engine(name), model, unit))
        where = f" on {unit.name}" if engine.serves_text_encoder(model.architecture) else ""
        rule = f"{engine.name} does not serve {model.architecture}{where}, whose encoder reads the prompt"
        raise InputError(rule, model.name, f"engine: {nearest}")


def check_tensor_parallel(model: ModelSpec, engine: EngineProfile, ranks: int) -> None:
    """Check that an engine can divide a model whose encoder reads the prompt over `ranks` tensor ranks.

    Raises:
        InputError: It serves such a model on one accelerator only.
    """
    if model.encodes_prompt and ranks > 1 and not engine.splits_text_encoders:
        raise InputError(f"{engine.name} serves {model.name} on one accelerator", f"tensor_parallel: {ranks}", "1")


def notices(model: ModelSpec, engine: EngineProfile) -> tuple[str, ...]:
    """Return what a user must know about a model whose encoder reads the prompt, one sentence each."""
    if not model.encodes_prompt:
        return ()
    in_flight = engine.policy.startswith("trtllm")
    since = " since releases of July 2026" if in_flight else ""
    found = (
        f"{model.name} encodes the prompt: {engine.name} serves it{since}, {USUAL} does not",
        f"max_model_len counts prompt and output, of which each has at most {model.max_position_tokens} tokens",
    )
    return (_TOO_FAST, *found) if in_flight else found  # screens show the first notices only


def engine_for_model(model: ModelSpec, engine: EngineProfile) -> EngineProfile:
    """Return the engine with the settings that it uses for this model.

    An 8-bit KV cache is left out where the encoder reads the prompt: no engine states that it supports one.
    """
    if not model.is_encoder_decoder:
        return engine
    whole = replace(
        engine, chunked_prefill=False, prefix_caching=False, graphs_with_prefill=False, holds_longest_prompt=True
    )
    if not model.encodes_prompt:
        return whole
    return replace(whole, shares_prefixes=False, kv_dtypes=tuple(d for d in engine.kv_dtypes if d != "fp8"))


def check_prefix_caching(model: ModelSpec, requested: bool | None) -> None:
    """Check that no prefix cache is requested for an encoder-decoder model; None requests the engine's default.

    Raises:
        InputError: A prefix cache is requested.
    """
    if model.is_encoder_decoder and requested:
        rule = "no engine caches prefixes of encoder-decoder models"
        raise InputError(rule, "prefix_caching: true", "false")


def check_disaggregation(model: ModelSpec) -> None:
    """Check that a model can be served with prompts and outputs on different replicas.

    Raises:
        InputError: The model is an encoder-decoder model.
    """
    if model.is_encoder_decoder:
        rule = "no KV connector transfers the cache of encoder-decoder models: their replicas must have the role both"
        raise InputError(rule, model.name, hint="leave out disaggregation")


def limits_for_encoder(limits: Limits, model: ModelSpec, requested_tokens: int | None) -> Limits:
    """Return limits whose token budget holds the output of one encoder, which is never split.

    Args:
        limits: The limits of the engine.
        model: The model.
        requested_tokens: The token budget that the deployment sets, or None.

    Raises:
        InputError: The deployment sets a token budget that is too small.
    """
    if limits.max_num_batched_tokens >= model.encoder_tokens:
        return limits
    if requested_tokens is not None:
        rule = f"max_num_batched_tokens must be at least the {model.encoder_tokens} positions of an encoder's output"
        raise InputError(rule, requested_tokens, str(model.encoder_tokens))
    return replace(limits, max_num_batched_tokens=model.encoder_tokens)
