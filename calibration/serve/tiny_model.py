"""A small model with random weights and a generated tokenizer, which a real engine can serve without a model hub.

The weights are arranged so that lengths are exact: every row of the output head that is not a whole-word token is zero,
so greedy decoding never produces an end-of-sequence token or a fragment of a character. One streamed chunk is therefore
one token, and text that a client tokenises again has the same number of tokens as were served.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

from catalogs.errors import InputError
from catalogs.io.output_files import make_folder

if TYPE_CHECKING:
    from tokenizers import Tokenizer


TINY_NAME: Final = "tiny-llama-30m"

#: Random words of the text on which the tokeniser is trained.
N_WORDS: Final = 6000

TEMPLATE: Final = "{% for message in messages %}{{ message['content'] }} {% endfor %}"

END: Final = "<end>"


#: Architectures of the model: its type in a Hugging Face configuration, and the keys that only this type has.
ARCHITECTURES: Final[dict[str, dict[str, Any]]] = {
    "llama": {},  # grouped-query attention, a gated MLP
    "qwen3": {"attention_bias": False},  # with norms of queries and keys
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},  # a mixture of experts
}


@dataclass(frozen=True, slots=True)
class TinyShape:
    """Sizes of the model, under the names of a Hugging Face configuration, and one of ARCHITECTURES.

    The defaults give about 30 million parameters.

    Raises:
        InputError: The architecture is unknown.
    """

    hidden_size: int = 512
    num_hidden_layers: int = 8
    intermediate_size: int = 1408
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    vocab_size: int = 8192
    max_position_embeddings: int = 4096
    model_type: str = "llama"

    def __post_init__(self) -> None:
        if self.model_type not in ARCHITECTURES:
            raise InputError("unknown architecture of a test model", self.model_type, ", ".join(ARCHITECTURES))

    def config(self) -> dict[str, Any]:
        """Return the keys of a Hugging Face configuration."""
        head_dim = self.hidden_size // self.num_attention_heads
        return asdict(self) | {"head_dim": head_dim, "tie_word_embeddings": False} | ARCHITECTURES[self.model_type]


#: Test models by name, with their shapes.
TINY_MODELS: Final[dict[str, TinyShape]] = {
    TINY_NAME: TinyShape(),
    "tiny-llama-10m": TinyShape(hidden_size=256, num_hidden_layers=6, intermediate_size=704, num_attention_heads=4),
}


def write_tiny_model(folder: Path, shape: TinyShape | None = None, seed: int = 0) -> Path:
    """Write config.json, model.safetensors (fp32) and tokenizer files, and return the folder.

    A complete folder is left unchanged.

    Raises:
        InputError: If torch and transformers are not installed, or the folder cannot be made or written.
    """
    shape = shape or TinyShape()
    done = folder / "complete.json"
    wanted = {"shape": shape.config(), "seed": seed}
    if done.is_file() and json.loads(done.read_text()) == wanted:
        return folder
    try:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
    except ImportError as error:
        rule = "a test model requires torch and transformers"
        raise InputError(rule, error.name, hint="pip install '.[calibration]'") from None
    make_folder(folder)
    tokenizer = _tokenizer(shape.vocab_size, seed)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, bos_token=END, pad_token=END)
    fast.chat_template = TEMPLATE
    torch.manual_seed(seed)
    end = tokenizer.token_to_id(END)
    ends = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**shape.config(), **ends, dtype="float32"))
    silent = [i for i in range(shape.vocab_size) if not _whole_word(tokenizer, i)]
    if len(silent) > 0.9 * shape.vocab_size:
        raise RuntimeError("too few whole words in the vocabulary")
    with torch.no_grad():
        model.lm_head.weight[silent] = 0.0
    try:
        fast.save_pretrained(folder)
        model.save_pretrained(folder)
        done.write_text(json.dumps(wanted))
    except Exception as error:  # the writers share no error class; on a full disk one raises a bare Exception
        raise InputError(f"cannot write the test model ({error})", str(folder)) from None
    return folder


def _tokenizer(vocab_size: int, seed: int) -> Tokenizer:
    """Return a byte-level BPE tokenizer with exactly `vocab_size` tokens, trained on invented words."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    options = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet(), "show_progress": False}
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=[END], **options)
    tokenizer.train_from_iterator(_sentences(Random(seed)), trainer)
    missing = vocab_size - tokenizer.get_vocab_size()
    tokenizer.add_tokens([AddedToken(f"<unused{i}>", normalized=False) for i in range(missing)])
    return tokenizer


def _sentences(random: Random) -> list[str]:
    starts, vowels, ends = "bcdfghjklmnprstvwz", "aeiou", ["", "n", "r", "s", "l", "t"]
    syllables = [a + b + c for a in starts for b in vowels for c in ends]
    words = ["".join(random.choices(syllables, k=random.randint(1, 3))) for _ in range(N_WORDS)]
    return [" ".join(random.choices(words, k=12)) for _ in range(8000)]


def _whole_word(tokenizer: Tokenizer, token: int) -> bool:
    """Return whether a token is a space and letters only, so that it stays one token in any text."""
    text = tokenizer.id_to_token(token)
    return text is not None and text.startswith("Ġ") and text[1:].isalpha() and text[1:].isascii() and len(text) > 3
