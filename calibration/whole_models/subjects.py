"""The models to measure: a ModelSpec for the arithmetic and the Hugging Face configuration that builds the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import yaml

from catalogs.errors import InputError
from catalogs.io.input_files import exists, user_path
from catalogs.io.yaml_files import DATA
from catalogs.models.catalog import load_model
from catalogs.models.hf_reader import read_reader
from catalogs.models.layers import Moe
from catalogs.models.spec import ModelSpec

DEFAULTS: Final = ("opt-350m", "bloom-560m", "t5-small", "bart-base")

#: Catalog architectures with a configuration that follows from their sizes alone, and their names in transformers.
MODEL_TYPES: Final = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "MixtralForCausalLM": "mixtral",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}


@dataclass(frozen=True, slots=True)
class RandomWeightModel:
    """A model to build with random weights; `config` holds the keys of a config.json."""

    name: str
    spec: ModelSpec
    config: dict[str, Any]
    source: str


def load_subject(text: str) -> RandomWeightModel:
    """Return the model named by `text`: a catalog name, a Hugging Face id, a config.json or its folder.

    Raises:
        InputError: If the name is unknown, the file is damaged, or the configuration of a catalog model does not follow
            from its sizes.
    """
    path, spec = user_path(text), load_model(text)
    known = DATA / "hf_configs" / f"{spec.name}.yaml"
    if known.is_file():
        facts = yaml.safe_load(known.read_text(encoding="utf-8"))
        return RandomWeightModel(spec.name, spec, facts["config"], facts["source"])
    if is_path(text, spec):
        return RandomWeightModel(model_name(text, spec), spec, dict(read_reader(path).values), spec.source)
    return RandomWeightModel(spec.name, spec, config_of(spec), spec.source)


def is_path(text: str, spec: ModelSpec) -> bool:
    """Return whether a model was loaded from a config.json or its folder."""
    return spec.name == text.strip() and exists(user_path(text))


def model_name(text: str, spec: ModelSpec) -> str:
    """Return the name of a model in rows: its catalog name, or the name of its folder."""
    path = user_path(text)
    if not is_path(text, spec):
        return spec.name
    return (path.resolve().parent if path.is_file() else path.resolve()).name


def config_of(spec: ModelSpec) -> dict[str, Any]:
    """Return the configuration of a model from its sizes alone.

    Raises:
        InputError: If layers differ, or the sizes do not determine the architecture.
    """
    group = spec.groups[0] if len(spec.groups) == 1 else None
    kind = MODEL_TYPES.get(spec.architecture)
    mixer = group.plain_attention if group is not None else None
    if kind is None or group is None or mixer is None or spec.encoder_groups:
        rule = f"{spec.architecture} cannot be built from the catalog's sizes; give the folder of its config.json"
        raise InputError(rule, spec.name, "opt-350m")
    ffn, dense = group.ffn, group.dense_block
    config = {
        "model_type": kind,
        "architectures": [spec.architecture],
        "hidden_size": spec.hidden_size,
        "num_hidden_layers": spec.n_layers,
        "num_attention_heads": mixer.n_heads,
        "num_key_value_heads": mixer.n_kv_heads,
        "head_dim": mixer.head_dim,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_position_tokens,
        "tie_word_embeddings": spec.tied_embeddings,
    }
    if isinstance(ffn, Moe):
        names = ("moe_intermediate_size", "num_experts", "num_experts_per_tok")
        if kind == "mixtral":
            names = ("intermediate_size", "num_local_experts", "num_experts_per_tok")
        sizes = (ffn.expert_intermediate_size, ffn.n_experts, ffn.experts_per_token)
        return config | dict(zip(names, sizes, strict=True))
    return config | ({"intermediate_size": dense.intermediate_size} if dense is not None else {})
