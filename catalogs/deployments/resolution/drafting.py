"""Resolution of speculative decoding: the drafter (a model, a head, or n-gram lookup) and its acceptance rates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from catalogs.deployments.speculation import HEADS, Speculation, Speculative
from catalogs.engines.profile import EngineProfile, Method
from catalogs.errors import InputError, nearest_name
from catalogs.io.input_files import is_file, is_folder, user_path
from catalogs.models.hf_reader import read_reader
from catalogs.models.layers import LayerGroup
from catalogs.models.spec import ModelSpec

if TYPE_CHECKING:
    from catalogs.deployments.schema import Deployment


def resolve_speculation(deployment: Deployment, engine: EngineProfile, target: ModelSpec) -> Speculation | None:
    """Return the resolved speculative decoding of a deployment, or None where it uses none.

    Raises:
        InputError: The method is unknown or unsupported by the engine, the drafter does not fit, or a number is
            invalid.
    """
    options = deployment.speculative
    if options is None:
        return None
    method = _method(options, engine)
    k, queries = options.num_speculative_tokens, _queries(options, engine)
    draft = _model(options, method, target)
    notices: tuple[str, ...] = ()
    if method in ("eagle", "eagle3") and not _config_of(str(options.model)):
        layer = f"one dense layer of {target.name} with its vocabulary"
        notices = (f"{options.model} is assumed to be {layer}; give the path of its config.json if it differs",)
    if method != "ngram" and options.draft_rate is not None:
        raise InputError("draft_rate is for n-gram lookup: every other drafter drafts in each step", method, "ngram")
    if method == "ngram" and options.draft_rate is None:
        notices = (
            "n-gram lookup is assumed to find drafts in every step; state speculative.draft_rate if it does not",
        )
    if draft is not None and method == "draft_model":
        _check_draft(draft, target, deployment, str(options.model))
    return Speculation(
        method=method,
        num_speculative_tokens=k,
        rates=acceptance_rates(options),
        draft_rate=1.0 if options.draft_rate is None else options.draft_rate,
        draft=draft,
        draft_name=options.model,
        draft_weight_dtype=_dtype(method, draft, target, deployment.weight_dtype),
        topk=options.topk,
        queries=queries,
        lookahead_tokens=_lookahead(engine, method, k),
        budget_tokens=int(engine.policy == "vllm-v1" and method == "draft_model"),
        recomputes_block=engine.policy == "vllm-v1" and method in HEADS,
        notices=notices,
    )


def _method(options: Speculative, engine: EngineProfile) -> Method:
    known: tuple[Method, ...] = get_args(Method)
    method = next((m for m in known if m == options.method), None)
    if method is None:
        raise InputError("unknown speculative.method", options.method, nearest_name(options.method, known, 0.0))
    if not engine.speculates:
        raise InputError(f"speculative decoding is not simulated for {engine.name}", "speculative", "engine: vllm")
    if method not in engine.speculates:
        can = ", ".join(engine.speculates)
        raise InputError(f"this speculative.method is not simulated for {engine.name} {engine.version}", method, can)
    return method


def _queries(options: Speculative, engine: EngineProfile) -> int:
    """Return the tokens that each decode brings into a step: the last token and its drafts, or the nodes of a tree."""
    k, chain = options.num_speculative_tokens, options.num_speculative_tokens + 1
    drafted, tree = options.num_draft_tokens or chain, options.topk > 1
    if tree and not engine.draft_trees:
        raise InputError(f"draft trees are not simulated for {engine.name}", f"topk: {options.topk}", "topk: 1")
    if tree and options.method not in ("eagle", "eagle3"):
        raise InputError("draft trees need method eagle or eagle3", f"topk: {options.topk}", "topk: 1")
    if not tree and drafted != chain:
        raise InputError("without a tree num_draft_tokens must be num_speculative_tokens + 1", drafted, str(chain))
    most = 1 + options.topk + (k - 1) * options.topk**2  # SGLang scores topk * topk candidates per level
    if not chain <= drafted <= most:
        nearest = str(min(max(drafted, chain), most))
        raise InputError(f"a tree of depth {k} has {chain} to {most} tokens to verify", drafted, nearest)
    return drafted


def _lookahead(engine: EngineProfile, method: Method, k: int) -> int:
    """Return the KV slots reserved for drafts beyond those of the step.

    These are num_lookahead_tokens of vLLM and get_num_extra_kv_tokens of TensorRT-LLM; SGLang reserves what the step
    needs.
    """
    if method == "ngram" or engine.policy == "sglang":
        return 0
    return k if engine.policy == "vllm-v1" else k - 1


def acceptance_rates(options: Speculative) -> tuple[float, ...]:
    """Return, for each draft position, the fraction of all rounds in which that draft is accepted.

    Raises:
        InputError: Neither or both of `acceptance` and `acceptance_length` are given, or a value is out of range.
    """
    k, given = options.num_speculative_tokens, options.acceptance
    if (given is None) == (options.acceptance_length is None):
        rule = "speculative decoding needs a measured acceptance: one of acceptance and acceptance_length"
        both = None if given is None else "both"
        raise InputError(rule, both, hint="see docs/speculative.md for published values")
    if given is None:
        return _of_length(float(options.acceptance_length or 0.0), k)
    if isinstance(given, list):
        return _of_positions(given, k)
    if not 0.0 <= given <= 1.0:
        raise InputError("speculative.acceptance must be a probability", given, str(min(max(given, 0.0), 1.0)))
    return tuple(given ** (i + 1) for i in range(k))


def _of_positions(given: list[float], k: int) -> tuple[float, ...]:
    if len(given) != k:
        raise InputError(f"speculative.acceptance needs one rate for each of {k} drafts", len(given), f"{k} rates")
    for i, rate in enumerate(given):
        if not 0.0 <= rate <= 1.0:
            raise InputError("speculative.acceptance must hold rates between 0 and 1", rate)
        if i and rate > given[i - 1]:
            rule = "a draft is accepted only if all earlier ones are: speculative.acceptance must not rise"
            raise InputError(rule, rate, f"at most {given[i - 1]}")
    return tuple(given)


def _of_length(length: float, k: int) -> tuple[float, ...]:
    """Return the rates of the i.i.d. model whose mean is `length`, (1 - p^(k+1)) / (1 - p), by bisection on p."""
    if not 1.0 <= length <= k + 1:
        nearest = str(min(max(length, 1.0), k + 1.0))
        raise InputError(f"speculative.acceptance_length must be between 1 and {k + 1} tokens", length, nearest)
    low, high = 0.0, 1.0
    for _ in range(60):
        p = 0.5 * (low + high)
        low, high = (p, high) if sum(p**i for i in range(k + 1)) < length else (low, p)
    return tuple(high ** (i + 1) for i in range(k))


def _model(options: Speculative, method: Method, target: ModelSpec) -> ModelSpec | None:
    if method == "ngram":
        if options.model is not None:
            raise InputError("ngram drafts from the prompt, without a model", options.model, "model: null")
        return None
    if method == "mtp":
        return _mtp_layer(options, target)
    if options.model is None:
        raise InputError(
            f"speculative.method {method} needs a model", hint="give model: NAME or model: PATH/config.json"
        )
    from catalogs.models.catalog import load_model

    if method == "draft_model":
        return load_model(options.model)
    return _head(options.model, target)


def _mtp_layer(options: Speculative, target: ModelSpec) -> ModelSpec:
    """Return the model's own module of multi-token prediction, assumed to be one more of its last attention layers."""
    layers = target.mtp_layers
    if options.model is not None:
        raise InputError("mtp drafts with the model's own layers", options.model, "model: null")
    if not layers:
        rule = f"the catalog lists no multi-token prediction layers for {target.name}"
        raise InputError(rule, "method: mtp", "method: eagle3")
    k = options.num_speculative_tokens
    if k > layers and k % layers:
        rule = f"num_speculative_tokens must be a multiple of the {layers} MTP layers"
        raise InputError(rule, k, str(k // layers * layers))
    return _one_layer(target, _last_attention(target))


def _head(name: str, target: ModelSpec) -> ModelSpec:
    """Return an EAGLE head: from its own config.json where `name` is a path, else one dense layer of the target."""
    from catalogs.models.catalog import load_model

    config = _config_of(name)
    if config is not None:
        read = load_model(str(config))
        if read.hidden_size != target.hidden_size:
            rule = f"an EAGLE head must have the hidden size of its target, {target.hidden_size}"
            raise InputError(rule, f"{name}: {read.hidden_size}")
        vocabulary = read_reader(config).count("draft_vocab_size", default=target.vocab_size)
        head = replace(target, name=name, hf_id=name, groups=read.groups, other_params=0.0, formats=())
        return replace(head, vocab_size=vocabulary)
    layer = _last_attention(target)
    if layer.plain_attention is None or layer.dense_block is None:
        rule = f"{target.name} has no dense layer to take as the EAGLE head: give the head's config.json"
        raise InputError(rule, name, "model: PATH/config.json")
    return replace(_one_layer(target, layer), formats=(), name=name)


def _config_of(name: str) -> Path | None:
    """Return the path of the config.json that `name` refers to, as a file or as its folder, or None."""
    path = user_path(name)
    path = path / "config.json" if is_folder(path) else path
    return path if is_file(path) else None


def _last_attention(target: ModelSpec) -> LayerGroup:
    """Return the last layer group with attention and a feed-forward block; hybrid models predict with such layers.

    Where each layer is either of both (Nemotron-H), it is the last attention followed by the last feed-forward block,
    as in `mtp_layers_block_type` of Nemotron-3.
    """
    attending = [g for g in target.groups if g.mixer is not None and g.mixer.attends]
    blocks = [g.ffn for g in target.groups if g.ffn is not None]
    if not attending or not blocks:
        raise InputError("a drafting head needs a target layer with attention", target.name, "method: draft_model")
    whole = [g for g in attending if g.ffn is not None]
    return whole[-1] if whole else replace(attending[-1], ffn=blocks[-1])


def _one_layer(target: ModelSpec, layer: LayerGroup) -> ModelSpec:
    name = f"one layer of {target.name}"
    return replace(target, name=name, groups=(replace(layer, count=1),), other_params=0.0, mtp_layers=0)


def _check_draft(draft: ModelSpec, target: ModelSpec, deployment: Deployment, name: str) -> None:
    """Check a draft model by the rules of vLLM's SpeculativeConfig and the limits of the cost model."""
    if draft.vocab_size != target.vocab_size:
        rule = f"a draft model must have the vocabulary of its target, {target.vocab_size} tokens"
        raise InputError(rule, f"{name}: {draft.vocab_size}", hint="use a smaller model of the same family")
    if draft.encoder_groups:
        raise InputError("a draft model must be decoder-only", name)
    longest = deployment.max_model_len or target.max_position_tokens
    if longest > draft.max_position_tokens:
        rule = f"max_model_len exceeds the {draft.max_position_tokens} positions of the draft model"
        raise InputError(rule, f"max_model_len: {longest}", f"max_model_len: {draft.max_position_tokens}")


def _dtype(method: Method, draft: ModelSpec | None, target: ModelSpec, options: str | None) -> str:
    """Return the dtype of the drafter's weights.

    A draft model has its own dtype and a prediction layer that of the target; EAGLE heads are published in 16 bit.
    """
    if draft is None or method in ("eagle", "eagle3"):
        return "bf16"
    return draft.weight_dtype if method == "draft_model" else options or target.weight_dtype
