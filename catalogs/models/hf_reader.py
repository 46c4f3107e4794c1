"""Typed access to a Hugging Face config.json, whose keys differ by publisher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from catalogs.errors import InputError
from catalogs.io.input_files import is_file, is_folder
from catalogs.io.json_files import read_json

#: Keys under which a multimodal checkpoint holds the config of its language model.
TEXT_KEYS: Final = ("text_config", "llm_config", "language_config", "thinker_config")

#: The file in which ModelOpt states the quantisation of a checkpoint whose config.json does not.
QUANTISER_FILE: Final = "hf_quant_config.json"

#: Values that `transformers` uses for keys missing in a config.json (the defaults of the configuration class).
CLASS_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "gemma": {"tie_word_embeddings": True},
    "gemma2": {"tie_word_embeddings": True, "sliding_window_pattern": 2},
    "gemma3": {"tie_word_embeddings": True},
    "gemma3_text": {
        "tie_word_embeddings": True,
        "head_dim": 256,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
    },
    "gpt_oss": {"layer_types_alternate": True},
    "gpt2": {"tie_word_embeddings": True, "n_positions": 1024},
    "opt": {"tie_word_embeddings": True, "max_position_embeddings": 2048},
    "bloom": {"tie_word_embeddings": True},
    "falcon": {"tie_word_embeddings": True},
    "cohere": {"tie_word_embeddings": True},
    "starcoder2": {"tie_word_embeddings": True},
    "t5": {"tie_word_embeddings": True, "d_kv": 64, "feed_forward_proj": "relu"},
    "mt5": {"tie_word_embeddings": False, "d_kv": 64, "feed_forward_proj": "gated-gelu"},
    "bart": {"tie_word_embeddings": True, "max_position_embeddings": 1024},
    "m2m_100": {"tie_word_embeddings": True, "max_position_embeddings": 1024},
    "mbart": {"tie_word_embeddings": True, "max_position_embeddings": 1024},
    "whisper": {"is_encoder_decoder": True, "tie_word_embeddings": True, "max_source_positions": 1500},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "mixtral": {"num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2},
    "llama4_text": {"attention_chunk_size": 8192, "no_rope_layer_interval": 4, "interleave_moe_layer_step": 1},
    "qwen2": {"use_sliding_window": False, "max_window_layers": 28},
    "qwen2_moe": {"use_sliding_window": False, "decoder_sparse_step": 1},
    "qwen3": {"use_sliding_window": False, "head_dim": 128},
    "qwen3_moe": {"use_sliding_window": False, "decoder_sparse_step": 1},
    "nemotron_h": {"expand": 2},
    "zamba2": {},
}

#: The largest accepted size; larger values are typing errors or come from a file that is not a config.
LARGEST: Final = 10**9


@dataclass(frozen=True, slots=True)
class ConfigReader:
    """One config.json: the keys of the language model, then those of the outer file, then class defaults."""

    values: Mapping[str, Any]
    where: str

    def get(self, *keys: str) -> Any:
        """Return the value of the first key that is present and not null, else None."""
        for key in keys:
            if self.values.get(key) is not None:
                return self.values[key]
        return None

    def maybe_count(self, *keys: str) -> int | None:
        """Return a whole number of at least 0, or None where every key is absent.

        Raises:
            InputError: The value is of another type, negative, or larger than any model's.
        """
        value = self.get(*keys)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InputError(f"{self.where}: {self._present(keys)} must be a whole number >= 0", value)
        if value > LARGEST:
            raise InputError(f"{self.where}: {self._present(keys)} is larger than any model's", value)
        return value

    def count(self, *keys: str, default: int | None = None) -> int:
        """Return a positive whole number.

        Raises:
            InputError: The value is absent (without a default), zero, or of another type.
        """
        value = self.maybe_count(*keys)
        if value is None:
            value = default
        if value is None:
            raise InputError(f"{self.where}: config.json lacks {keys[0]}")
        if value == 0:
            raise InputError(f"{self.where}: {keys[0]} must be positive", value)
        return value

    def flag(self, *keys: str, default: bool = False) -> bool:
        """Return the truth value of the first key that is present.

        Raises:
            InputError: The value is neither true nor false.
        """
        value = self.get(*keys)
        if value is None:
            return default
        if value not in (True, False):
            raise InputError(f"{self.where}: {self._present(keys)} must be true or false", value)
        return bool(value)

    def text(self, *keys: str, default: str = "") -> str:
        """Return the string under the first key that is present, else `default`.

        Raises:
            InputError: The value is not a string.
        """
        value = self.get(*keys)
        if value is not None and not isinstance(value, str):
            raise InputError(f"{self.where}: {self._present(keys)} must be a text", value)
        return default if value is None else value

    def items(self, key: str) -> list[Any] | None:
        """Return the list under `key`, or None.

        Raises:
            InputError: The value is not a list.
        """
        value = self.get(key)
        if value is not None and not isinstance(value, list):
            raise InputError(f"{self.where}: {key} must be a list", value)
        return value

    def numbers(self, key: str) -> list[int] | None:
        """Return the list of whole numbers under `key`, or None; true and false count as 1 and 0.

        Raises:
            InputError: The value is not a list, or an item is not a whole number.
        """
        found = self.items(key)
        wrong = next((item for item in found or () if not isinstance(item, int)), None)
        if wrong is not None:
            raise InputError(f"{self.where}: {key} must be a list of whole numbers", wrong)
        return found

    def section(self, key: str) -> ConfigReader | None:
        """Return a reader of the object under `key`, or None.

        Raises:
            InputError: The value is not an object.
        """
        value = self.get(key)
        if value is not None and not isinstance(value, dict):
            raise InputError(f"{self.where}: {key} must be an object", value)
        return None if value is None else ConfigReader(value, f"{self.where}: {key}")

    def _present(self, keys: tuple[str, ...]) -> str:
        return next((key for key in keys if self.values.get(key) is not None), keys[0])


def read_reader(path: Path) -> ConfigReader:
    """Read a config.json, given as the file or as the folder that contains it, and merge its sections.

    If it has no quantization_config, the hf_quant_config.json in the same folder is read as one.

    Raises:
        InputError: The file is missing, unreadable, truncated or not a JSON object.
    """
    found = path / "config.json" if is_folder(path) else path
    if not is_file(found):
        raise InputError("there is no config.json at this path", str(path))
    raw = _read_object(found)
    beside = found.parent / QUANTISER_FILE
    if not any(isinstance(part, dict) and part.get("quantization_config") for part in (raw, *map(raw.get, TEXT_KEYS))):
        # engines read the quantiser's own file where config.json says nothing (vLLM, get_quant_config)
        raw |= {"quantization_config": _read_object(beside)} if is_file(beside) else {}
    return merged_reader(raw, str(found))


def _read_object(path: Path) -> dict[str, Any]:
    raw = read_json(path, finite=False)  # time_step_limit of Nemotron-H is infinite
    if not isinstance(raw, dict):
        raise InputError(f"{path} must hold a JSON object", type(raw).__name__)
    return raw


def merged_reader(raw: Mapping[str, Any], where: str) -> ConfigReader:
    """Return a reader in which keys of the language model override the outer file's, and these the class defaults."""
    text: Mapping[str, Any] = next((raw[k] for k in TEXT_KEYS if isinstance(raw.get(k), dict)), {})
    outer = {k: v for k, v in raw.items() if k not in TEXT_KEYS}
    inner = {k: v for k, v in text.items() if not (k == "architectures" and outer.get(k))}
    model_type = inner.get("model_type") or outer.get("model_type") or ""
    defaults = CLASS_DEFAULTS.get(model_type, {}) if isinstance(model_type, str) else {}
    # a null in the file means "none", not the default (sliding_window: null)
    return ConfigReader({**defaults, **outer, **inner}, where)
