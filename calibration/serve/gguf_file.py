"""Conversion of a Hugging Face folder with a Llama model to a GGUF file.

llama.cpp serves the file with the same greedy tokens. The conversion follows llama.cpp's convert_hf_to_gguf.py for
Llama: the tensor names are the same, and the rows of Q and K are reordered within each head, because ggml rotates
neighbouring elements where Hugging Face rotates the two halves of a head. Weights stay fp32. The tokenizer is a
byte-level BPE ("gpt2").
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from catalogs.errors import InputError
from catalogs.io.output_files import atomic_file

if TYPE_CHECKING:
    from gguf import GGUFWriter


FloatArray = npt.NDArray[np.float32]

#: Hugging Face's names in a layer, and GGUF's.
LAYER_NAMES: Final = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}

OUTER_NAMES: Final = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}

NORMAL, CONTROL = 1, 3  # llama_token_type


def write_gguf(model_folder: Path, out: Path) -> Path:
    """Convert `model_folder` (config.json, model.safetensors, tokenizer.json) to the file `out` and return `out`.

    Raises:
        InputError: If a package is missing, the model is not a plain Llama, its weights are in several files or in
            bf16, the tokenizer is not a byte-level BPE, or `out` cannot be written.
    """
    try:
        from gguf import GGUFWriter
        from safetensors import SafetensorError
        from safetensors.numpy import load_file
    except ImportError as error:
        raise InputError("writing GGUF files requires a package", error.name, hint="pip install '.[verify]'") from None
    config = _read_json(model_folder / "config.json")
    if config.get("model_type") != "llama" or config.get("rope_scaling"):
        raise InputError("only plain Llama models can be converted to GGUF", config.get("model_type"), "llama")
    try:
        weights = load_file(model_folder / "model.safetensors")
    except (OSError, TypeError, SafetensorError) as error:  # numpy does not support bf16.
        rule = f"a GGUF file requires one model.safetensors in fp32 or fp16 ({error})"
        raise InputError(rule, str(model_folder)) from None
    with atomic_file(out) as part:
        writer = GGUFWriter(part, "llama")
        _add_shape(writer, config)
        _add_tokenizer(writer, _read_json(model_folder / "tokenizer.json"), config)
        for name, tensor in _tensors(weights, config):
            writer.add_tensor(name, tensor)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return out


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError("not a Hugging Face model folder", str(path))
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def _add_shape(writer: GGUFWriter, config: dict[str, Any]) -> None:
    head = int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
    rope = config.get("rope_parameters") or {}
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(0)  # all weights are fp32


def _add_tokenizer(writer: GGUFWriter, tokenizer: dict[str, Any], config: dict[str, Any]) -> None:
    model = tokenizer["model"]
    if model.get("type") != "BPE" or "ByteLevel" not in json.dumps(tokenizer.get("pre_tokenizer")):
        raise InputError("only byte-level BPE tokenizers can be converted to GGUF", model.get("type"), "BPE")
    tokens = {index: text for text, index in model["vocab"].items()}
    kinds = dict.fromkeys(tokens, NORMAL)
    for added in tokenizer.get("added_tokens", ()):
        tokens[added["id"]] = added["content"]
        kinds[added["id"]] = CONTROL
    order = range(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")  # this is the split of ByteLevel(use_regex=True)
    writer.add_token_list([tokens.get(i, f"[PAD{i}]") for i in order])
    writer.add_token_types([kinds.get(i, CONTROL) for i in order])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in model["merges"]])
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if isinstance(config.get(name), int):
            getattr(writer, f"add_{name}")(config[name])
    writer.add_add_bos_token(False)


def _tensors(weights: dict[str, npt.NDArray[Any]], config: dict[str, Any]) -> Iterator[tuple[str, FloatArray]]:
    """Yield the GGUF name and the fp32 weights of each tensor.

    Raises:
        InputError: If a tensor belongs to another architecture.
    """
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, tensor in weights.items():
        stem, _, kind = name.rpartition(".")
        layer = stem.removeprefix("model.layers.").split(".", 1) if stem.startswith("model.layers.") else None
        short = LAYER_NAMES.get(layer[1]) if layer else OUTER_NAMES.get(stem)
        if short is None or kind != "weight":
            raise InputError("the model has a tensor that a plain Llama does not have", name)
        values = np.ascontiguousarray(tensor, dtype=np.float32)
        if short in heads:
            values = _neighbouring(values, heads[short])
        yield (f"blk.{layer[0]}.{short}.weight" if layer else f"{short}.weight"), values


def _neighbouring(rows: FloatArray, heads: int) -> FloatArray:
    """Reorder the rows of a projection so that elements that are rotated together are neighbours.

    Shape (heads x 2 x half, columns) becomes Shape (heads x half x 2, columns).
    """
    half = rows.shape[0] // heads // 2
    return np.ascontiguousarray(rows.reshape(heads, 2, half, -1).swapaxes(1, 2).reshape(rows.shape))
