"""Reader of the log that `llama-server` writes by default: the time of each request inside the engine.

Three lines of a request are used (tools/server/server-context.cpp, build of 2026-11), stamped minute.second.ms.us:
    0.00.453.284 I slot launch_slot_: id  3 | task 0 | processing task, is_child = 0
    0.00.494.362 I slot print_timing: id  3 | task 0 | prompt eval time =  24.17 ms /  21 tokens (...)
    0.00.494.404 I slot print_timing: id  3 | task 0 |        eval time =  16.84 ms /   8 tokens (...)
The time of the prompt ends when the first token is sampled; the other tokens share the second time. The times of a
request that ran alone are those of its steps. What the client measures beyond them is the time of connection,
tokenizer and client, which does not delay other requests.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from calibration.importers import iteration_log
from calibration.serve.llama_log import entries

if TYPE_CHECKING:
    import pandas as pd


_LAUNCH: Final = re.compile(r"id +(\d+) \| task +(\d+) \| processing task")

_PROMPT: Final = re.compile(r"task +(\d+) \| +prompt eval time = +([\d.]+) ms / +(\d+) tokens")

_OUTPUT: Final = re.compile(r"task +(\d+) \| +eval time = +([\d.]+) ms / +(\d+) tokens")


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One request inside the engine; `start_s` and `end_s` are on the log's clock."""

    slot: int
    start_s: float
    end_s: float
    input_tokens: int
    prompt_s: float
    output_tokens: int
    output_s: float  # from the first token to the last


def read_llama_requests(path: Path) -> list[EngineRequest]:
    """Return the finished requests of a log in the order of their starts.

    Raises:
        InputError: The log cannot be read.
    """
    starts: dict[str, tuple[int, float]] = {}
    prompts: dict[str, tuple[int, float]] = {}
    found: list[EngineRequest] = []
    for at_s, entry in entries(path):
        if match := _LAUNCH.search(entry):
            starts[match[2]] = int(match[1]), at_s
        elif match := _PROMPT.search(entry):
            prompts[match[1]] = int(match[3]), float(match[2]) * 1e-3
        elif (match := _OUTPUT.search(entry)) and match[1] in prompts and match[1] in starts:
            output = int(match[3]), float(match[2]) * 1e-3
            found.append(EngineRequest(*starts.pop(match[1]), at_s, *prompts.pop(match[1]), *output))
    return sorted(found, key=lambda request: request.start_s)


def read_single_request_steps(path: Path) -> pd.DataFrame | None:
    """Return the steps of requests that ran alone, with the columns of an iteration log; None if there are none.

    Each request gives two rows: the step of its prompt, and the mean of its steps with one decode. Requests that shared
    the engine with others are left out.

    Raises:
        InputError: The log cannot be read.
    """
    import pandas as pd

    requests = read_llama_requests(path)
    starts_s = [*(request.start_s for request in requests), float("inf")]
    free_s, rows = 0.0, list[dict[str, object]]()
    for request, next_s in zip(requests, starts_s[1:], strict=False):
        alone = free_s <= request.start_s and request.end_s <= next_s
        free_s = max(free_s, request.end_s)
        if not alone:
            continue
        first_s, further = request.end_s - request.output_s, request.output_tokens - 1
        rows.append(_row(request.start_s, len(rows), request.prompt_s, prompt_tokens=request.input_tokens))
        if further > 0:
            rows.append(_row(first_s, len(rows), request.output_s / further))
    return pd.DataFrame(rows, columns=list(iteration_log.COLUMNS)) if rows else None


def read_burst_slots(path: Path, sizes: Sequence[int], input_tokens: int) -> list[list[int]] | None:
    """Return the slots of each burst, if the log ends with bursts of these sizes; None if it does not.

    Args:
        path: The log.
        sizes: The number of requests of each burst, in order.
        input_tokens: Tokens of every prompt of a burst.

    Raises:
        InputError: The log cannot be read.
    """
    requests = read_llama_requests(path)[-sum(sizes) :]
    found: list[list[int]] = []
    for n in sizes:
        members, requests = requests[:n], requests[n:]
        overlap = len(members) == n and max(r.start_s for r in members) < min(r.end_s for r in members)
        if not overlap or {r.input_tokens for r in members} != {input_tokens}:
            return None
        found.append(sorted(r.slot for r in members))
    return found


def _row(at_s: float, index: int, seconds: float, prompt_tokens: int = 0) -> dict[str, object]:
    """Return a step that holds a prompt, or one decode if it has no prompt tokens."""
    decodes = int(not prompt_tokens)
    return {
        "at_s": at_s,
        "engine": 0,
        "index": index,
        "context_requests": 1 - decodes,
        "context_tokens": prompt_tokens,
        "generation_requests": decodes,
        "generation_tokens": decodes,
        "seconds": seconds,
        "kv_usage_fraction": float("nan"),
    }
