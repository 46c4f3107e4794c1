"""Does the simulated scheduler of llama.cpp form the batches that the server formed?

Give it the log of `llama-server -np SLOTS -b N_BATCH -ub N_UBATCH --no-cache-prompt -lv 5` under any load whose
requests do not name slots: arrivals and lengths are read from it, and every batch is compared row by row.

    python benchmarks/llama_decisions.py server.log SLOTS N_BATCH N_UBATCH
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from calibration.serve.llama_log import entries, read_llama_log
from catalogs.engines.profile import HostTimes
from simulator.core.request import Request
from simulator.schedulers.llama_cpp import LlamaCpp
from simulator.schedulers.rules import EngineRules

_POSTED = re.compile(r"post: new task, id = (\d+)/1, front = 0")
_PROMPT = re.compile(r"task (\d+) \| new prompt.*task\.n_tokens = (\d+)")
_MADE = re.compile(r"task (\d+) \| n_gen = (\d+)")

#: Context of the served model, in tokens.
CONTEXT_TOKENS = 4096


def arrivals(log: Path) -> tuple[list[tuple[float, int]], dict[int, int], dict[int, int]]:
    """Return the arrivals, (seconds after the first step, task), and the prompt and output tokens by task."""
    posted: list[tuple[float, int]] = []
    inputs: dict[int, int] = {}
    outputs: dict[int, int] = {}
    first_s = None
    for at_s, said in entries(log):
        if first_s is None and "update_slots: posting" in said:
            first_s = at_s
        if found := _POSTED.search(said):
            posted.append((at_s, int(found[1])))
        for pattern, kept in ((_PROMPT, inputs), (_MADE, outputs)):
            if found := pattern.search(said):
                kept[int(found[1])] = int(found[2])
    return [(at_s - (first_s or 0.0), task) for at_s, task in posted], inputs, outputs


def batch_rows(scheduler: LlamaCpp, left: dict[Request, int]) -> tuple[tuple[tuple[int, int], ...], int]:
    """Return one step of the scheduler, ((slot, tokens), ...), and its passes; requests that are done leave."""
    scheduler._launch()
    slots, decoding = dict(scheduler._slot_of), list(scheduler._decoding)
    before = {r: r.computed_tokens for r in slots if slots[r] not in decoding}
    batch = scheduler.schedule()
    assert batch is not None
    chunks = []
    for r in sorted(before, key=slots.__getitem__):
        tokens = (r.input_tokens if r.computed_tokens < 0 else r.computed_tokens) - before[r]
        chunks += [(slots[r], tokens)] if tokens else []
    for r, slot in slots.items():
        left[r] -= slot in decoding or r in batch.prompted
    for r in [r for r in slots if not left[r]]:
        scheduler.retire(r)
        scheduler.release(r)
    return (*((slot, 1) for slot in decoding), *chunks), batch.passes


def main() -> None:
    log, slots, n_batch, n_ubatch = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    posted, inputs, outputs = arrivals(log)
    host = HostTimes(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    blocks = slots * CONTEXT_TOKENS // 16
    scheduler = LlamaCpp(
        EngineRules(slots, n_batch, CONTEXT_TOKENS, kv_blocks=blocks, host=host, physical_batch_tokens=n_ubatch)
    )
    left: dict[Request, int] = {}
    steps = read_llama_log(log)
    same, mixed = 0, 0
    for start_s, real in zip(steps["at_s"], steps["rows"], strict=True):
        while posted and posted[0][0] < start_s:
            _, task = posted.pop(0)
            request = Request(task, inputs[task])
            left[request] = outputs[task]
            scheduler.add(request)
        rows, passes = batch_rows(scheduler, left)
        same += rows == real
        mixed += passes > 1
    print(f"{same} of {len(steps)} batches are the server's, row by row; {mixed} take more than one pass")


if __name__ == "__main__":
    main()
