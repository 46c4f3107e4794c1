"""The benchmark that verifies a plan: requests of its workload at its rate, and a script that compares."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from catalogs.workloads.request_set import RequestSet
from planner.deploy.files import DeploymentFiles, bash_script
from planner.deploy.serving import Serving
from planner.evaluation.workload_statistics import workload_of
from planner.verify.prediction import Prediction

#: Duration of a run in seconds, unless it gives too few or too many requests.
_LENGTH_S: Final = 120

#: Minimum number of requests. A judgement: five of them lie beyond a 99th percentile, the least that plan verify
#: judges.
_MIN_REQUESTS: Final = 500

#: Maximum number of requests. A judgement: more take time without narrowing what a verification states.
_MAX_REQUESTS: Final = 5000

#: Tokens in a piece of text that no other prompt shares.
_PIECE_TOKENS: Final = 512

#: Added to the seed, so that the search has not used the requests of the benchmark.
_OTHER_SEED: Final = 1000

RESULT: Final = "result.json"


def benchmark_files(prediction: Prediction, s: Serving, written: DeploymentFiles) -> dict[str, str]:
    """Return verify.sh, and requests.jsonl with its requests if the server takes prompts as token ids."""
    n = min(max(round(_LENGTH_S * prediction.requests_per_s), _MIN_REQUESTS), _MAX_REQUESTS)
    if not written.token_prompts:  # text prompts do not allow a length per request: all have the mean lengths
        options = [
            ("--dataset-name", "random"),
            ("--random-input-len", f"{prediction.input_mean_tokens:.0f}"),
            ("--random-output-len", f"{max(prediction.output_mean_tokens, 1):.0f}"),
            ("--request-rate", f"{prediction.requests_per_s:.6g}"),
        ]
        return {"verify.sh": _script(written.base_url, s.model, n, options)}
    workload = workload_of(prediction.answer.request)  # that of the predictions, also for a load over time
    seed = prediction.answer.request.seed + _OTHER_SEED
    requests = workload.materialise(seed, n, prediction.requests_per_s)
    lines = "".join(json.dumps(row) + "\n" for row in trace_rows(requests))
    options = [
        ("--dataset-name", "timed_trace"),
        ("--dataset-path", "requests.jsonl"),
        ("--timed-trace-chunk-hash-size", str(_piece_tokens(requests))),
    ]
    return {"verify.sh": _script(written.base_url, s.model, requests.n, options), "requests.jsonl": lines}


def _piece_tokens(requests: RequestSet) -> int:
    return _PIECE_TOKENS if requests.block_hashes is None else requests.hash_block_tokens


def trace_rows(requests: RequestSet) -> Iterator[dict[str, object]]:
    """Yield requests in the format of `vllm bench serve --dataset-name timed_trace`.

    A row has the arrival time in seconds, the lengths in tokens, and ids of the pieces of the prompt, which are equal
    for equal text. Pieces without an id in the workload, and the last piece of a prompt, are new text.
    """
    shared = requests.block_hashes
    size = _piece_tokens(requests)
    fresh = 1 + max((h for hashes in shared or () for h in hashes), default=0)
    for i in range(requests.n):
        tokens = int(requests.input_tokens[i])
        known = list(shared[i][: tokens // size]) if shared is not None else []
        missing = -(-tokens // size) - len(known)
        ids = known + list(range(fresh, fresh + missing))
        fresh += missing
        yield {
            "timestamp": round(float(requests.arrival_s[i]), 6),
            "input_length": tokens,
            "output_length": int(requests.output_tokens[i]),
            "hash_ids": ids,
        }


def _script(base_url: str, model: str, n: int, options: Sequence[tuple[str, str]]) -> str:
    """Return a script that sends `n` requests and compares the results with the predictions.

    `options` are the flags of `vllm bench serve` for the requests.
    """
    flags = [
        ("--backend", "openai"),
        ("--model", model),
        ("--num-prompts", str(n)),
        ("--percentile-metrics", "ttft,tpot,itl,e2el"),
        ("--metric-percentiles", "50,90,95,99"),
        ("--save-result",),
        ("--save-detailed",),
        ("--result-filename", RESULT),
        *options,
    ]
    lines = [
        f'BASE_URL="${{BASE_URL:-{base_url}}}"',
        " \\\n  ".join(['vllm bench serve --base-url "$BASE_URL"', *map(shlex.join, flags)]),
        f"plan verify plan.json --results {RESULT}",
    ]
    statuses = "Exit status 0: as predicted; 1: not as predicted; 2: the result belongs to another plan."
    return bash_script(lines, statuses)
