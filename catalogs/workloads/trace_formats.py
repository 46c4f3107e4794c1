"""The public trace formats, recognised by their columns (CSV, JSON lines, parquet), and text datasets.

A file of no public format is read by the names that tools give to the same columns (`OTHER_NAMES`). ShareGPT and Alpaca
datasets hold texts whose lengths are counted in tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from catalogs.arrays import IntArray
from catalogs.errors import InputError, nearest_name

#: For English text and current tokenizers; OpenAI's help page "What are tokens" gives the same rule of thumb.
CHARACTERS_PER_TOKEN: Final = 4.0


def is_text_dataset(columns: Mapping[str, Sequence[Any]]) -> bool:
    """Return whether the columns are those of ShareGPT (`conversations`) or Alpaca (`instruction`, `output`)."""
    return "conversations" in columns or {"instruction", "output"} <= set(columns)


def count_tokens(
    columns: Mapping[str, Sequence[Any]], tokenizer: str | None, where: str
) -> tuple[IntArray, IntArray, tuple[str, ...]]:
    """Return input lengths, output lengths and notices about how they were counted. Shape (n,) each.

    For ShareGPT these are the first two turns of each conversation, as in vLLM's benchmark; shorter ones are left out.

    Raises:
        InputError: A row is malformed, no row has an answer, or the tokenizer cannot be loaded.
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
    """Return a function that counts the tokens of a text, and a notice where it only estimates them."""
    guess = f"{where}: token counts are estimated as characters / {CHARACTERS_PER_TOKEN:g}"
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


Clock = Literal["s", "ms", "datetime", "recognised"]


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """The column names of a trace format; `arrival` is None for traces with lengths only.

    Attributes:
        clock: The unit of arrivals; "recognised" means that the values tell it, see `recognise_clock`.
        absolute: The clock does not start with the trace, so the first arrival becomes time zero.
        hash_block_tokens: Tokens per entry of `hash_ids`, where the format defines it.
        drops_failed: The publisher logs failed requests as zero tokens; they are left out and counted in a notice.
        mark: A further column that distinguishes this format from another one with the same columns.
        names_models: The column `model` names the served model; in logs of other services it names theirs.
    """

    name: str
    arrival: str | None
    input_tokens: str
    output_tokens: str
    clock: Clock = "s"
    absolute: bool = False
    hash_block_tokens: int | None = None
    drops_failed: bool = False
    mark: str | None = None
    names_models: bool = True

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns that the format requires."""
        wanted = (self.arrival, self.input_tokens, self.output_tokens, self.mark)
        return tuple(column for column in wanted if column)


#: The formats in the order in which they are tried.
#: Sources: Azure/AzurePublicDataset (AzureLLMInferenceDataset2023.md);
#: alibaba-edu/qwen-bailian-usagetraces-anon README (seconds, one id per 16 tokens); kvcache-ai/Mooncake FAST25-release
#: (milliseconds, one id per 512 tokens); HPMLL/BurstGPT README (seconds from the first day; failures have 0 tokens);
#: microsoft/vidur and casys-kaist/LLMServingSim trace files.
FORMATS: Final[tuple[TraceFormat, ...]] = (
    TraceFormat("Azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens", "datetime", absolute=True),
    TraceFormat("Bailian", "timestamp", "input_length", "output_length", hash_block_tokens=16, mark="chat_id"),
    TraceFormat("Mooncake", "timestamp", "input_length", "output_length", "ms"),
    TraceFormat("BurstGPT", "Timestamp", "Request tokens", "Response tokens", absolute=True, drops_failed=True),
    TraceFormat("plain", "arrival_s", "input_tokens", "output_tokens"),
    TraceFormat("LLMServingSim", "arrival_s", "input_toks", "output_toks"),
    TraceFormat("Vidur", "arrived_at", "num_prefill_tokens", "num_decode_tokens"),
    TraceFormat("Vidur lengths", None, "num_prefill_tokens", "num_decode_tokens"),
    TraceFormat("plain lengths", None, "input_tokens", "output_tokens"),
)


#: Names that tools give to the columns of a trace, the preferred ones first. They are compared without case, white
#: space and punctuation, and by the last part of a dotted name: `usage.prompt_tokens` is `prompt_tokens`. To read the
#: files of a further tool, add its names here.
#: Sources: OpenAI and LiteLLM usage logs (prompt_tokens), Anthropic and OpenTelemetry gen_ai.usage (input_tokens),
#: Gemini (promptTokenCount), Amazon Bedrock (inputTokenCount), AIPerf and GenAI-Perf (input_sequence_length), NVIDIA
#: Dynamo and InferenceX (isl, osl), vLLM and SGLang benchmarks (prompt_len, input_len).
OTHER_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "input tokens": (
        *("input_tokens", "prompt_tokens", "context_tokens", "isl", "input_length", "input_len", "input_toks"),
        *("prompt_len", "prompt_length", "prompt_toks", "num_input_tokens", "num_prompt_tokens", "n_prompt_tokens"),
        *("num_prefill_tokens", "prefill_tokens", "prefill_len", "request_tokens", "input_sequence_length"),
        *("input_token_count", "prompt_token_count", "tokens_in", "in_tokens", "query_tokens", "n_input_tokens"),
    ),
    "output tokens": (
        *("output_tokens", "completion_tokens", "generated_tokens", "generation_tokens", "osl", "output_length"),
        *("output_len", "output_toks", "completion_len", "completion_length", "num_output_tokens", "n_output_tokens"),
        *("num_completion_tokens", "num_generated_tokens", "num_decode_tokens", "decode_tokens", "decode_len"),
        *("response_tokens", "response_length", "response_len", "answer_tokens", "output_sequence_length"),
        *("output_token_count", "completion_token_count", "candidates_token_count", "generated_len"),
        *("generated_length", "tokens_out", "out_tokens"),
    ),
    "arrival": (
        *("arrival_s", "arrival_time_s", "arrived_at", "arrival_time", "arrival", "arrival_ts", "request_time"),
        *("start_time", "start_ts", "sent_at", "submit_time", "submitted_at", "created_at", "created", "timestamp"),
        *("timestamp_s", "time_s", "timestamp_ms", "arrival_ms", "arrival_time_ms", "time_ms", "datetime", "date"),
        *("time", "ts"),
    ),
}

#: Times since 1970 from these values on, in seconds and with the factor to seconds; smaller values are relative times.
_EPOCHS: Final = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3), (1e8, 1.0))


def recognise_clock(name: str, values: Sequence[Any], where: str) -> tuple[Literal["datetime"] | float, bool, str]:
    """Return the unit of arrival times, whether they are absolute, and a notice where the unit is a guess.

    The unit is "datetime" for dates, or the factor to seconds. It follows from the name of the column (`..._ms`) or
    from the size of the values: recent times since 1970 have 10, 13, 16 or 19 digits in seconds, ms, us or ns.
    """
    try:
        first = float(values[0])
    except (TypeError, ValueError):
        return "datetime", True, ""
    if _folded(name).endswith("ms"):
        return 1e-3, first >= _EPOCHS[2][0], ""
    factor = next((factor for least, factor in _EPOCHS if first >= least), None)
    if factor is not None:
        return factor, True, ""
    stated = _folded(name) in ("arrivals", "arrivaltimes", "timestamps", "times", "arrivedat")
    return 1.0, False, "" if stated else f"{where}: {name} is read as seconds"


def _folded(name: str) -> str:
    """Return the last part of a dotted name in lower case without white space and punctuation."""
    return "".join(c for c in name.rpartition(".")[2].lower() if c.isalnum())


#: Names of formats that only this product uses; those of the others are their publishers'.
OWN_NAMES: Final = frozenset({"plain", "plain lengths", "table"})


def _by_other_names(columns: Iterable[str]) -> TraceFormat | None:
    """Return a format for columns under names of `OTHER_NAMES`; None where input or output tokens are missing."""
    present: dict[str, str] = {}
    for column in columns:
        present.setdefault(_folded(column), column)
    found = {
        role: next((present[_folded(name)] for name in names if _folded(name) in present), None)
        for role, names in OTHER_NAMES.items()
    }
    inputs, outputs = found["input tokens"], found["output tokens"]
    if inputs is None or outputs is None:
        return None
    return TraceFormat("table", found["arrival"], inputs, outputs, "recognised", drops_failed=True, names_models=False)


def recognise_format(columns: Iterable[str], where: str) -> TraceFormat:
    """Return the format with these columns, or one by other names of the same columns; further columns are ignored.

    Raises:
        InputError: No format matches; the message names the column that the nearest format lacks.
    """
    present = set(columns)
    fitting = next((f for f in FORMATS if present.issuperset(f.columns)), None)
    fitting = fitting or _by_other_names(columns)
    if fitting is not None:
        return fitting
    closest = max(FORMATS, key=lambda f: _likeness(f, present))
    missing = next(c for c in closest.columns if c not in present)
    spare = nearest_name(missing, present - set(closest.columns))
    rule = f"{where}: no column {missing!r} ({closest.name} traces have {', '.join(closest.columns)})"
    also = "; ".join(f"{role}: {', '.join(names[:4])}, ..." for role, names in OTHER_NAMES.items())
    raise InputError(rule, spare or sorted(present), missing, hint=f"columns may have other names ({also})")


def _likeness(candidate: TraceFormat, present: set[str]) -> float:
    exact = sum(c in present for c in candidate.columns)
    close = sum(nearest_name(c, present, cutoff=0.7) is not None for c in candidate.columns)
    return (exact + 0.9 * (close - exact)) / len(candidate.columns)
