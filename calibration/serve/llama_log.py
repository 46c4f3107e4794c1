"""Reader of the log of `llama-server -lv 5`: one row per call of `update_slots` with its batch and duration.

The lines (tools/server/server-context.cpp and server-queue.cpp, build of 2026-11) are stamped minute.second.ms.us:
    0.02.527.117 D srv  update_slots: posting NEXT_RESPONSE                                     a step begins
    0.02.527.148 D slot handle_last_: id  0 | task 9 | slot decode token, ..., n_tokens = 4, ...   one decode
    0.02.408.941 I slot   operator(): id  0 | task 9 | new prompt, ..., task.n_tokens = 4
    0.02.408.955 I slot   operator(): id  0 | task 9 | cached n_tokens = 0, ...                  a chunk from there
    0.02.408.988 I slot init_sampler: id  0 | task 9 | init sampler, ...                        which ends the prompt
    0.02.409.193 D srv        decode: n_batch (effective) = 512, off = 0                        llama_decode begins
    0.02.526.723 D que  yield_to_que: done yielding to queue                                    and ends
A step lasts until the next begins or all slots are idle. Logging takes about 15 us per line, which is part of `seconds`
but hardly of `decode_s`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from calibration.importers import iteration_log
from catalogs.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


#: The columns of vLLM's iteration log and those that only this log has.
COLUMNS: Final = (
    *iteration_log.COLUMNS,
    "decode_s",  # seconds of llama_decode
    "generation_context_tokens",  # cached tokens that the decodes read, in total
    "context_pairs",  # sum over prompt chunks of tokens x (tokens before + half of them)
    "rows",  # ((slot, tokens), ...) in the order of the batch.
)

_ENTRY: Final = re.compile(
    r"(?<!\d)(\d+)\.(\d\d)\.(\d{3})\.(\d{3}) [A-Z] (.*?)(?=(?<!\d)\d+\.\d\d\.\d{3}\.\d{3} [A-Z] |$)"
)

_DECODE: Final = re.compile(r"id +(\d+) .*slot decode token.* n_tokens = (\d+)")

_PROMPT: Final = re.compile(r"id +(\d+) .*new prompt.* task\.n_tokens = (\d+)")

_CHUNK: Final = re.compile(r"id +(\d+) .*cached n_tokens = (\d+)")

_WHOLE: Final = re.compile(r"id +(\d+) .*init sampler")

_BATCH: Final = re.compile(r"decode: n_batch \(effective\) = (\d+), off = 0")


@dataclass(slots=True)
class _Step:
    """A step while its lines are read, with seconds on the log's clock."""

    start_s: float
    decodes: list[tuple[int, int]] = field(default_factory=list)  # (slot, cached tokens)
    chunks: list[tuple[int, int]] = field(default_factory=list)  # (slot, tokens before)
    whole: set[int] = field(default_factory=set)  # slots with a prompt that ends in this step
    most_tokens: int = 0  # n_batch
    began_s: float = 0.0  # start of llama_decode
    decode_s: float = 0.0

    def rows(self, prompts: dict[int, int]) -> list[tuple[int, int, int]]:
        """Return (slot, tokens, tokens before) of every entry of the batch; only the last prompt can be cut."""
        rows = [(slot, 1, cached) for slot, cached in self.decodes]
        for slot, before in self.chunks:
            rest = prompts.get(slot, before) - before
            free = self.most_tokens - sum(tokens for _, tokens, _ in rows)
            rows.append((slot, rest if slot in self.whole else min(rest, free), before))
        return rows


def read_llama_log(path: Path) -> pd.DataFrame:
    """Return the logged steps in order, with the columns COLUMNS.

    `kv_usage_fraction` is NaN. Steps that did not end are left out.

    Raises:
        InputError: If the log cannot be read or holds no step.
    """
    import pandas as pd

    found: list[dict[str, object]] = []
    step: _Step | None = None
    prompts: dict[int, int] = {}
    for at_s, entry in entries(path):
        begins = "update_slots: posting NEXT_RESPONSE" in entry
        if begins or "all slots are idle" in entry:
            if step is not None and step.decode_s > 0:
                found.append(_row(step, prompts, at_s, len(found)))
            step = _Step(at_s) if begins else None
        elif step is not None:
            _take(step, entry, at_s, prompts)
    if not found:
        raise InputError("the log holds no engine steps", str(path), hint="run llama-server -lv 5")
    steps = pd.DataFrame(found, columns=list(COLUMNS))
    steps["at_s"] -= steps["at_s"].iloc[0]
    return steps


def entries(path: Path) -> Iterator[tuple[float, str]]:
    """Yield the seconds on the log's clock and the text of every entry; two entries may share a line.

    Raises:
        InputError: The log cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"the server log cannot be read ({type(error).__name__})", str(path)) from None
    for line in text.splitlines():
        for entry in _ENTRY.finditer(line):
            minute, second, ms, us = (int(part) for part in entry.groups()[:4])
            yield minute * 60 + second + ms * 1e-3 + us * 1e-6, entry[5]


def _take(step: _Step, entry: str, at_s: float, prompts: dict[int, int]) -> None:
    if match := _DECODE.search(entry):
        step.decodes.append((int(match[1]), int(match[2])))
    elif match := _PROMPT.search(entry):
        prompts[int(match[1])] = int(match[2])
    elif match := _CHUNK.search(entry):
        step.chunks.append((int(match[1]), int(match[2])))
    elif match := _WHOLE.search(entry):
        step.whole.add(int(match[1]))
    elif match := _BATCH.search(entry):
        step.most_tokens, step.began_s = int(match[1]), at_s
    elif "done yielding to queue" in entry and step.began_s:
        step.decode_s = at_s - step.began_s


def _row(step: _Step, prompts: dict[int, int], end_s: float, index: int) -> dict[str, object]:
    rows = step.rows(prompts)
    decodes, chunks = rows[: len(step.decodes)], rows[len(step.decodes) :]
    return {
        "at_s": step.start_s,
        "engine": 0,
        "index": index,
        "context_requests": len(chunks),
        "context_tokens": sum(tokens for _, tokens, _ in chunks),
        "generation_requests": len(decodes),
        "generation_tokens": len(decodes),
        "seconds": end_s - step.start_s,
        "kv_usage_fraction": float("nan"),
        "decode_s": step.decode_s,
        "generation_context_tokens": sum(cached for _, _, cached in decodes),
        "context_pairs": sum(tokens * (before + 0.5 * tokens) for _, tokens, before in chunks),
        "rows": tuple((slot, tokens) for slot, tokens, _ in rows),
    }
