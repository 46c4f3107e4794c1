"""The public trace formats, known by their columns whatever file holds them (CSV, JSON lines, parquet)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from catalogs.errors import InputError, nearest_name

Clock = Literal["s", "ms", "datetime"]


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """Names of a format's columns. `arrival` None: lengths only.

    absolute: the clock does not start with the trace, so the first arrival becomes time zero.
    hash_block_tokens: tokens per entry of `hash_ids` where the format fixes it.
    drops_failed: the publisher logs failed requests as zero tokens; they are left out and counted in a notice.
    mark: a further column that tells this format from another with the same columns.
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

    @property
    def columns(self) -> tuple[str, ...]:
        wanted = (self.arrival, self.input_tokens, self.output_tokens, self.mark)
        return tuple(column for column in wanted if column)


#: Tried in this order. Sources: Azure/AzurePublicDataset (AzureLLMInferenceDataset2023.md);
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


def recognise(columns: Iterable[str], where: str) -> TraceFormat:
    """The format with these columns (others are ignored); InputError names the column that the nearest one lacks."""
    present = set(columns)
    fitting = next((f for f in FORMATS if present.issuperset(f.columns)), None)
    if fitting is not None:
        return fitting
    closest = max(FORMATS, key=lambda f: _likeness(f, present))
    missing = next(c for c in closest.columns if c not in present)
    spare = nearest_name(missing, present - set(closest.columns))
    rule = f"{where}: no column {missing!r} ({closest.name} traces have {', '.join(closest.columns)})"
    raise InputError(rule, spare or sorted(present), missing)


def _likeness(candidate: TraceFormat, present: set[str]) -> float:
    exact = sum(c in present for c in candidate.columns)
    close = sum(nearest_name(c, present, cutoff=0.7) is not None for c in candidate.columns)
    return (exact + 0.9 * (close - exact)) / len(candidate.columns)
