"""ShareGPT and Alpaca JSON: texts whose lengths must be counted in tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from catalogs.errors import InputError

IntArray = npt.NDArray[np.int64]

#: English text in the tokenizers of current models; OpenAI's help page "What are tokens" gives the same rule of thumb.
CHARACTERS_PER_TOKEN: Final = 4.0


def is_text_dataset(columns: Mapping[str, Sequence[Any]]) -> bool:
    """Columns of ShareGPT (`conversations`) or Alpaca (`instruction`, `output`)."""
    return "conversations" in columns or {"instruction", "output"} <= set(columns)


def count_tokens(
    columns: Mapping[str, Sequence[Any]], tokenizer: str | None, where: str
) -> tuple[IntArray, IntArray, tuple[str, ...]]:
    """(n,) input lengths, (n,) output lengths and notices about how they were counted.

    ShareGPT: the first two turns of each conversation (as vLLM's benchmark takes them); shorter ones are left out.
    """
    pairs, notices = _shared_chats(columns, where) if "conversations" in columns else _alpaca(columns, where)
    if not pairs:
        raise InputError(f"{where} holds no prompt with an answer")
    count, how = _counter(tokenizer, where)
    lengths = np.maximum(np.array([[count(p), count(a)] for p, a in pairs], dtype=np.int64), 1)
    return lengths[:, 0], lengths[:, 1], (*notices, *how)


def _shared_chats(columns: Mapping[str, Sequence[Any]], where: str) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    pairs = []
    for i, turns in enumerate(columns["conversations"], 1):
        try:
            texts = [turn["value"] for turn in turns[:2]]
        except (TypeError, KeyError):
            raise InputError(f"{where}: conversations of row {i} must be a list of {{from, value}}") from None
        if len(texts) == 2 and all(isinstance(text, str) for text in texts):
            pairs.append((texts[0], texts[1]))
    left_out = len(columns["conversations"]) - len(pairs)
    return pairs, (f"{where}: left out {left_out} conversations without an answer",) if left_out else ()


def _alpaca(columns: Mapping[str, Sequence[Any]], where: str) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    contexts = columns.get("input") or [""] * len(columns["instruction"])
    rows = zip(columns["instruction"], contexts, columns["output"], strict=True)
    pairs = []
    for i, (instruction, context, answer) in enumerate(rows, 1):
        if not isinstance(instruction, str) or not isinstance(answer, str):
            raise InputError(f"{where}: row {i} needs the texts instruction and output")
        pairs.append((f"{instruction}\n{context}" if context else instruction, answer))
    return pairs, ()


def _counter(tokenizer: str | None, where: str) -> tuple[Callable[[str], int], tuple[str, ...]]:
    """Counts tokens of a text, and a notice where it can only guess."""
    guess = f"{where}: token counts are a guess, characters / {CHARACTERS_PER_TOKEN:g}"
    if tokenizer is None:
        return _guess, (f"{guess} (no tokenizer given)",)
    try:
        if Path(tokenizer).suffix == ".json":
            fast = import_module("tokenizers").Tokenizer.from_file(tokenizer)
            return lambda text: len(fast.encode(text).ids), ()
        slow = import_module("transformers").AutoTokenizer.from_pretrained(tokenizer)
        return lambda text: len(slow(text).input_ids), ()
    except ImportError as e:
        return _guess, (f"{guess} ({e.name} is not installed)",)
    except Exception as e:  # the libraries raise bare Exception and OSError for a bad file or an unknown name
        raise InputError(f"tokenizer cannot be loaded ({str(e).splitlines()[0]})", tokenizer) from None


def _guess(text: str) -> int:
    return round(len(text) / CHARACTERS_PER_TOKEN)
