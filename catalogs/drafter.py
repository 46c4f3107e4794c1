"""What drafts for a model: another model, a layer that reads the model's hidden states, or nobody (a look-up)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from catalogs.errors import InputError
from catalogs.model_parts import Attention, LayerGroup, MlaAttention, Mlp
from catalogs.model_spec import ModelSpec

if TYPE_CHECKING:
    from catalogs.deployment import Deployment
    from catalogs.speculation import Method, Speculative


class Drafter(NamedTuple):
    """model: None for look-ups; of a head, its layers alone."""

    model: ModelSpec | None
    weight_dtype: str
    notices: tuple[str, ...] = ()


def drafter_of(asked: Speculative, method: Method, target: ModelSpec, deployment: Deployment) -> Drafter:
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
    from catalogs.models import load_model

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
    from catalogs.models import load_model

    config = _config_of(name)
    if config is not None:
        read = load_model(str(config))
        if read.hidden_size != target.hidden_size:
            raise InputError(f"a head is as wide as its target, {target.hidden_size}", f"{name}: {read.hidden_size}")
        vocabulary = json.loads(config.read_text(encoding="utf-8")).get("draft_vocab_size") or target.vocab_size
        head = replace(target, name=name, hf_id=name, groups=read.groups, other_params=0.0, formats=())
        return replace(head, vocab_size=int(vocabulary))
    layer = _last_attention(target)
    if not isinstance(layer.mixer, Attention) or not isinstance(layer.ffn, Mlp):
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
    attending = [g for g in target.groups if isinstance(g.mixer, Attention | MlaAttention) and g.ffn is not None]
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
