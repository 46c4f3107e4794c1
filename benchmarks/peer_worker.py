"""Predicts points with another simulator's package; `peers.py` starts this file with the Python of that package.

It imports nothing of this project, so that it runs in an environment that has only the other package. Two packages are
known, each by the interface it documents:

- replay: `run_mocker_trace_replay` of ai-dynamo, the discrete-event simulator that AISimulate continues. It replays the
  requests that this project simulated, in a closed loop of the same clients.
- estimate: `cli_estimate` of AIConfigurator (also within AISimulate), closed forms for one mean input and output.

    ENV/bin/python peer_worker.py              # prints what the environment has, as one line of JSON
    ENV/bin/python peer_worker.py < POINTS     # one line of JSON for each line of POINTS
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

PACKAGES = ("aisimulate", "ai-dynamo", "aiconfigurator")
TRACE_BLOCK_TOKENS = 512  # tokens of one hash of a trace; every hash is used once, so nothing is shared


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the packages print to stdout, too
    logging.disable(logging.WARNING)
    name, predict = adapter()
    if sys.stdin.isatty() or not (lines := [line for line in sys.stdin if line.strip()]):
        json.dump({"adapter": name, "packages": installed()}, answers)
        return
    assert predict is not None
    for line in lines:
        point = json.loads(line)
        started = time.process_time()
        try:
            ttft_ms, tpot_ms = predict(point)
            answer: dict[str, Any] = {"ttft_s": ttft_ms / 1e3, "tpot_s": tpot_ms / 1e3}
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever that package raises, panics too: this point has no prediction
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        answers.write(json.dumps(answer | {"cpu_s": time.process_time() - started}) + "\n")
        answers.flush()


def installed() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def adapter() -> tuple[str, Callable[[dict[str, Any]], tuple[float, float]] | None]:
    """Return the first interface that the environment has, and a function of a point: mean TTFT and TPOT in ms."""
    for name, module, attribute, predict in (
        ("replay", "dynamo._core", "run_mocker_trace_replay", replay),
        ("estimate", "aiconfigurator.cli.api", "cli_estimate", estimate),
    ):
        try:
            if hasattr(importlib.import_module(module), attribute):
                return name, predict
        except ImportError:
            continue
    return "", None


def replay(point: dict[str, Any]) -> tuple[float, float]:
    core = importlib.import_module("dynamo._core")
    ranks = point["data_parallel"]
    engine = {
        "engine_type": point["engine"],
        "block_size": point["block_size"],
        "num_gpu_blocks": point["kv_blocks"],
        "max_num_seqs": point["max_num_seqs"],
        "max_num_batched_tokens": point["max_num_batched_tokens"],
        "enable_prefix_caching": False,
        "dp_size": ranks,
        "aic_backend": point["engine"],
        "aic_backend_version": table_version(point["system"], point["engine"], point["engine_version"]),
        "aic_system": point["system"],
        "aic_model_path": point["checkpoint"],
        "aic_tp_size": point["tensor_parallel"],
        "aic_attention_dp_size": ranks,
    }
    if point["experts"]:
        engine |= {"aic_moe_tp_size": point["moe_tensor_parallel"], "aic_moe_ep_size": point["moe_expert_parallel"]}
    if point["quantisation"]:
        raise ValueError("the replay takes the number formats of the checkpoint, and there is none with these")
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as trace:
        used = 0
        for tokens_in, tokens_out in zip(point["input_tokens"], point["output_tokens"], strict=True):
            hashes = -(-tokens_in // TRACE_BLOCK_TOKENS)
            ids = list(range(used, used + hashes))
            used += hashes
            request = {"timestamp": 0, "input_length": tokens_in, "output_length": tokens_out, "hash_ids": ids}
            trace.write(json.dumps(request) + "\n")
        trace.flush()
        report = core.run_mocker_trace_replay(
            trace.name,
            extra_engine_args=core.MockEngineArgs.from_json(json.dumps(engine)),
            replay_concurrency=point["clients"],
            trace_block_size=TRACE_BLOCK_TOKENS,
        )
    if (done := report.get("completed_requests")) != len(point["input_tokens"]):
        raise ValueError(f"{done} of {len(point['input_tokens'])} requests finished")
    return report["mean_ttft_ms"], report["mean_tpot_ms"]


def table_version(system: str, engine: str, version: str) -> str:
    """Return the newest of the package's tables that is no newer than the engine, or else the oldest."""
    database = importlib.import_module("aiconfigurator.sdk.perf_database")
    tables = database.get_supported_databases().get(system, {}).get(engine, [])
    if not tables:
        raise ValueError(f"no tables of {engine} on {system}")
    known = sorted(tables, key=numbers)
    older = [table for table in known if not version or numbers(table) <= numbers(version)]
    return older[-1] if older else known[0]


def numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]


def estimate(point: dict[str, Any]) -> tuple[float, float]:
    api = importlib.import_module("aiconfigurator.cli.api")
    more: dict[str, Any] = {"gemm_quant_mode": point["quantisation"]} if point["quantisation"] else {}
    if point["kv_dtype"]:
        more["kvcache_quant_mode"] = {"bf16": "bfloat16"}.get(point["kv_dtype"], point["kv_dtype"])
    if point["experts"]:
        more |= {"moe_tp_size": point["moe_tensor_parallel"], "moe_ep_size": point["moe_expert_parallel"]}
    got = api.cli_estimate(
        point["checkpoint"],
        point["system"],
        backend_name=point["engine"],
        isl=round(statistics.fmean(point["input_tokens"])),
        osl=round(statistics.fmean(point["output_tokens"])),
        batch_size=max(1, point["clients"] // point["data_parallel"]),
        tp_size=point["tensor_parallel"],
        attention_dp_size=point["data_parallel"],
        **more,
    )
    return float(got.ttft), float(got.tpot)


if __name__ == "__main__":
    main()
