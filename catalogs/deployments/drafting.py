"""What drafts for a model: another model, a layer that reads the model's hidden states, or nobody (a look-up)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from catalogs.deployments.speculation import HEADS, Drafter, Method, Speculation, Speculative
from catalogs.errors import InputError, nearest_name
from catalogs.models.layers import LayerGroup
from catalogs.models.spec import ModelSpec

if TYPE_CHECKING:
    from catalogs.deployments.schema import Deployment
    from catalogs.engines.profile import EngineProfile


def resolve_speculation(deployment: Deployment, engine: EngineProfile, target: ModelSpec) -> Speculation | None:
    """What a deployment asks for. InputError for a method, a drafter or a number that cannot be."""
    asked = deployment.speculative
    if asked is None:
        return None
    method = _method(asked, engine)
    k, queries = asked.num_speculative_tokens, _queries(asked, engine)
    drafter = resolve_drafter(asked, method, target, deployment)
    return Speculation(
        method=method,
        num_speculative_tokens=k,
        rates=acceptance_rates(asked),
        draft=drafter.model,
        draft_name=asked.model,
        draft_weight_dtype=drafter.weight_dtype,
        topk=asked.topk,
        queries=queries,
        lookahead_tokens=_lookahead(engine, method, k),
        budget_tokens=int(engine.policy == "vllm-v1" and method == "draft_model"),
        recomputes_block=engine.policy == "vllm-v1" and method in HEADS,
        notices=drafter.notices,
    )


def _method(asked: Speculative, engine: EngineProfile) -> Method:
    known: tuple[Method, ...] = ("draft_model", "eagle", "eagle3", "mtp", "ngram")
    method = next((m for m in known if m == asked.method), None)
    if method is None:
        near = nearest_name(asked.method, known, 0.0)
        raise InputError("unknown speculative.method", asked.method, near)
    if not engine.speculates:
        raise InputError(f"{engine.name} is simulated without speculative decoding", "speculative", "engine: vllm")
    if method not in engine.speculates:
        can = ", ".join(engine.speculates)
        raise InputError(f"{engine.name} {engine.version} is not simulated with this speculative.method", method, can)
    return method


def _queries(asked: Speculative, engine: EngineProfile) -> int:
    """Tokens of each decode in a step: the last one and a chain of drafts, or as many nodes of a tree."""
    k, chain = asked.num_speculative_tokens, asked.num_speculative_tokens + 1
    drafted, tree = asked.num_draft_tokens or chain, asked.topk > 1
    if tree and engine.policy != "sglang":
        raise InputError(f"{engine.name} is simulated with a chain of drafts", f"topk: {asked.topk}", "topk: 1")
    if tree and asked.method not in ("eagle", "eagle3"):
        raise InputError("trees of drafts are EAGLE's", f"topk: {asked.topk}", "topk: 1")
    if not tree and drafted != chain:
        raise InputError("without a tree num_draft_tokens is num_speculative_tokens + 1", drafted, str(chain))
    most = 1 + asked.topk + (k - 1) * asked.topk**2  # SGLang scores topk * topk candidates a level
    if not chain <= drafted <= most:
        nearest = str(min(max(drafted, chain), most))
        raise InputError(f"a tree of depth {k} has {chain} to {most} tokens to verify", drafted, nearest)
    return drafted


def _lookahead(engine: EngineProfile, method: Method, k: int) -> int:
    """vLLM: num_lookahead_tokens; TensorRT-LLM: get_num_extra_kv_tokens; SGLang reserves what the step needs."""
    if method == "ngram" or engine.policy == "sglang":
        return 0
    return k if engine.policy == "vllm-v1" else k - 1


def acceptance_rates(asked: Speculative) -> tuple[float, ...]:
    """By position, of all rounds. InputError where nothing or too much is said, or what cannot be."""
    k, given = asked.num_speculative_tokens, asked.acceptance
    if (given is None) == (asked.acceptance_length is None):
        rule = "speculative decoding needs a measured acceptance: one of acceptance and acceptance_length"
        both = None if given is None else "both"
        raise InputError(rule, both, "docs/speculative.md says where published ones are")
    if given is None:
        return _of_length(float(asked.acceptance_length or 0.0), k)
    if isinstance(given, list):
        return _of_positions(given, k)
    if not 0.0 <= given <= 1.0:
        raise InputError("speculative.acceptance is a probability", given, str(min(max(given, 0.0), 1.0)))
    return tuple(given ** (i + 1) for i in range(k))


def _of_positions(given: list[float], k: int) -> tuple[float, ...]:
    if len(given) != k:
        raise InputError(f"speculative.acceptance needs one rate for each of {k} drafts", len(given), f"{k} rates")
    for i, rate in enumerate(given):
        if not 0.0 <= rate <= 1.0:
            raise InputError("speculative.acceptance holds rates between 0 and 1", rate)
        if i and rate > given[i - 1]:
            rule = "a later draft is accepted only with all before it: speculative.acceptance never rises"
            raise InputError(rule, rate, f"at most {given[i - 1]}")
    return tuple(given)


def _of_length(length: float, k: int) -> tuple[float, ...]:
    """The i.i.d. model of that mean, (1 - p^(k+1)) / (1 - p), by bisection."""
    if not 1.0 <= length <= k + 1:
        nearest = str(min(max(length, 1.0), k + 1.0))
        raise InputError(f"speculative.acceptance_length is between 1 and {k + 1} tokens", length, nearest)
    low, high = 0.0, 1.0
    for _ in range(60):
        p = 0.5 * (low + high)
        low, high = (p, high) if sum(p**i for i in range(k + 1)) < length else (low, p)
    return tuple(high ** (i + 1) for i in range(k))


def resolve_drafter(asked: Speculative, method: Method, target: ModelSpec, deployment: Deployment) -> Drafter:
    """Who drafts for `target`. InputError for a drafter that is missing, unknown or does not fit."""
    draft = _model(asked, method, target)
    told: tuple[str, ...] = ()
    if method in ("eagle", "eagle3") and not _config_of(str(asked.model)):
        layer = f"one dense layer of {target.name} with its vocabulary"
        told = (f"{asked.model} is taken as {layer}: give the path of its config.json if it is another",)
    if draft is not None and method == "draft_model":
        _check_draft(draft, target, deployment, str(asked.model))
    return Drafter(draft, _dtype(method, draft, target, deployment.weight_dtype), told)


def _model(asked: Speculative, method: Method, target: ModelSpec) -> ModelSpec | None:
    if method == "ngram":
        if asked.model is not None:
            raise InputError("ngram drafts from the prompt, without a model", asked.model, "model: null")
        return None
    if method == "mtp":
        return _mtp_layer(asked, target)
    if asked.model is None:
        raise InputError(f"speculative.method {method} needs a model", None, "model: the drafter's name or config.json")
    from catalogs.models.catalog import load_model

    if method == "draft_model":
        return load_model(asked.model)
    return _head(asked.model, target)


def _mtp_layer(asked: Speculative, target: ModelSpec) -> ModelSpec:
    """The model's own module of multi-token prediction: a further layer of its last kind."""
    layers = target.mtp_layers
    if asked.model is not None:
        raise InputError("mtp drafts with the model's own layers", asked.model, "model: null")
    if not layers:
        rule = f"the catalog knows no multi-token prediction layers of {target.name}"
        raise InputError(rule, "method: mtp", "method: eagle3")
    k = asked.num_speculative_tokens
    if k > layers and k % layers:
        raise InputError(
            f"num_speculative_tokens is a multiple of the {layers} MTP layers", k, str(k // layers * layers)
        )
    return _one_layer(target, _last_attention(target))


def _head(name: str, target: ModelSpec) -> ModelSpec:
    """An EAGLE head: from its own config.json where that is a file, else a dense layer of the target."""
    from catalogs.models.catalog import load_model

    config = _config_of(name)
    if config is not None:
        read = load_model(str(config))
        if read.hidden_size != target.hidden_size:
            raise InputError(f"a head is as wide as its target, {target.hidden_size}", f"{name}: {read.hidden_size}")
        vocabulary = json.loads(config.read_text(encoding="utf-8")).get("draft_vocab_size") or target.vocab_size
        head = replace(target, name=name, hf_id=name, groups=read.groups, other_params=0.0, formats=())
        return replace(head, vocab_size=int(vocabulary))
    layer = _last_attention(target)
    if layer.plain_attention is None or layer.dense_block is None:
        rule = f"a head is taken as a dense layer of its target, and {target.name} has none: give its config.json"
        raise InputError(rule, name, "model: PATH/config.json")
    return replace(_one_layer(target, layer), formats=(), name=name)


def _config_of(name: str) -> Path | None:
    """The config.json that `name` is the path of, or of its folder."""
    path = Path(name).expanduser()
    path = path / "config.json" if path.is_dir() else path
    return path if path.is_file() else None


def _last_attention(target: ModelSpec) -> LayerGroup:
    """The last kind of layer that attends (hybrid models predict with one of those)."""
    attending = [g for g in target.groups if g.mixer is not None and g.mixer.attends and g.ffn is not None]
    if not attending:
        raise InputError("a head is a layer with attention, as its target's", target.name, "method: draft_model")
    return attending[-1]


def _one_layer(target: ModelSpec, layer: LayerGroup) -> ModelSpec:
    name = f"one layer of {target.name}"
    return replace(target, name=name, groups=(replace(layer, count=1),), other_params=0.0, mtp_layers=0)


def _check_draft(draft: ModelSpec, target: ModelSpec, deployment: Deployment, name: str) -> None:
    """As vLLM's SpeculativeConfig, and what the cost model covers."""
    if draft.vocab_size != target.vocab_size:
        rule = f"a draft model has the vocabulary of its target, {target.vocab_size} tokens"
        raise InputError(rule, f"{name}: {draft.vocab_size}", "a smaller model of the same family")
    if draft.encoder_groups:
        raise InputError("a draft model is decoder-only", name)
    longest = deployment.max_model_len or target.max_position_tokens
    if longest > draft.max_position_tokens:
        rule = f"the draft model has {draft.max_position_tokens} positions, beyond which nothing would be drafted"
        raise InputError(rule, f"max_model_len: {longest}", f"max_model_len: {draft.max_position_tokens}")


def _dtype(method: Method, draft: ModelSpec | None, target: ModelSpec, asked: str | None) -> str:
    """A draft model's own, a prediction layer's as the target's; EAGLE heads are published in 16 bit."""
    if draft is None or method in ("eagle", "eagle3"):
        return "bf16"
    return draft.weight_dtype if method == "draft_model" else asked or target.weight_dtype
