"""Records answers of `plan` and `simulate` for every feature, and compares those of two versions to the last digit.

    python benchmarks/golden_answers.py write DIR            # one JSON file per case
    python benchmarks/golden_answers.py compare DIR          # run again, print every difference; exit status 1 if any
    python benchmarks/golden_answers.py compare DIR --only lora --jobs 2 --tolerance 1e-9
    python benchmarks/golden_answers.py compare DIR --ignore-text   # sentences may differ, numbers and names may not

The console scripts of the environment that runs this file are used (those in the folder of `sys.executable`), each case
in an empty folder, without the user's own catalogs and calibrations. Sixteen cases ask `plan`, sixteen run `simulate`;
a case has one or more commands. A case's file holds, for every command, its exit status, its JSON, the rows of
`--requests-out` and `--time-series`, the files of `plan deploy`, and the line that says why an input was refused.

Left out of the comparison, and nothing else: `search.seconds` of a plan and of a front (wall-clock time), and
`reproduce.versions` of a plan (of the package and of Python), in the files of `plan deploy` too. The temporary folder
of a case is written as /FOLDER.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

#: The text that replaces the name of the temporary folder in which a case runs.
FOLDER: Final = "/FOLDER"
#: Paths in a JSON document whose values differ between two runs of one version.
NOT_DETERMINISTIC: Final = (("search", "seconds"), ("reproduce", "versions"))


@dataclass(frozen=True, slots=True)
class Command:
    """A command line; `{json}` is replaced by `--json FILE`, and the text of the files in `outputs` is recorded too."""

    line: str
    status: int = 0
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """Commands that run one after the other in a folder with the given `files`."""

    name: str
    commands: tuple[Command, ...]
    files: dict[str, str] = field(default_factory=dict)


SHORT: Final = """
arrivals: {poisson: {}}
requests: 200
input_tokens: {uniform: {low: 50, high: 400}}
output_tokens: {uniform: {low: 5, high: 60}}
"""
STEADY: Final = """
arrivals: {poisson: {requests_per_s: 12}}
requests: 120
seed: 3
input_tokens: {lognormal: {mean: 400, cv: 1.0}}
output_tokens: {uniform: {low: 1, high: 80}}
"""
SESSIONS: Final = """
arrivals: {gamma: {requests_per_s: 10, cv: 2}}
requests: 120
input_tokens: {lognormal: {mean: 200, cv: 0.8}}
output_tokens: {uniform: {low: 20, high: 80}}
shared_prefix: {tokens: 128, groups: 4}
turns: {per_session: {uniform: {low: 2, high: 6}}, think_time_s: 3}
"""
DAY: Final = """
arrivals: {piecewise: {rates: {0: 4, 60: 20, 120: 8}, period_s: 180}}
input_tokens: {constant: 200}
output_tokens: {uniform: {low: 5, high: 40}}
"""
OWN_MODEL: Final = json.dumps(
    {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
)
CARBON: Final = "hour,gco2e_per_kwh\n" + "".join(f"{hour},{300 + 10 * abs(hour - 13)}\n" for hour in range(24))
ASK: Final = "plan --model llama3.1-8b --workload w.yaml --precision native {json}"
WORKLOAD: Final = {"w.yaml": SHORT}


def plan_case(name: str, words: str, status: int = 0, files: dict[str, str] | None = None) -> Case:
    """Return a case with one question about llama3.1-8b, which is ASK with further options."""
    return Case(name, (Command(f"{ASK} {words}", status),), WORKLOAD | (files or {}))


PLAN_CASES: Final = (
    plan_case("plan-plain", "--slo p99=1s --hw h100x2 --trials 3"),
    plan_case("plan-rate", "--slo ttft.p99=500ms,tpot.p95=40ms --hw l40sx4 --rate 12 --survive 1 --trials 3"),
    plan_case("plan-users", "--slo ttft.p95=1s,e2e.mean=4s --hw h100 --users 60 --think-time 5 --trials 2"),
    Case(
        "plan-over-time",
        (
            Command(
                "plan --model llama3.1-8b --trace day.yaml --slo ttft.p95=2s --hw l40sx4 --precision native {json} "
                "--set tensor_parallel=1 --set max_num_seqs=64 --trials 2"
            ),
        ),
        {"day.yaml": DAY},
    ),
    plan_case(
        "plan-several-hardware", "--slo ttft.p99=1s --hw h100,l40sx2,a100-80gb --rate 6 --objective goodput --trials 4"
    ),
    plan_case("plan-any-hardware", "--slo itl.p99=60ms --hw any --rate 4 --max-usd-per-hour 3 --trials 3"),
    plan_case(
        "plan-wider", "--slo ttft.p99=1s,tpot.p99=30ms --hw h100x4 --also disaggregated,pipelines,context --trials 8"
    ),
    plan_case(
        "plan-speculative",
        "--slo tpot.p99=25ms --hw h100 --rate 5 --speculative method=ngram,k=3,acceptance=0.6 --trials 2",
    ),
    plan_case("plan-energy", "--slo e2e.p95=3s --hw h100x2 --objective energy --grid fr --precision fp8 --trials 3"),
    plan_case("plan-infeasible", "--slo ttft.p99=2ms --hw h100 --trials 2", 1),
    plan_case(
        "plan-accounts",
        "--slo ttft.p99=2s --hw l40sx4 --rate 8 --trials 2 --commitment spot --spot-interruptions 0.05"
        " --owned capex=60000,years=4,power-price=0.1,utilisation=0.5 --requests-per-user-day 40"
        " --power-cap-w 250,200 --nodes-per-rack 4 --carbon-hours carbon.csv",
        files={"carbon.csv": CARBON},
    ),
    Case(
        "plan-experts",
        (
            Command(
                "plan --model gpt-oss-20b --workload w.yaml --slo p99=1s --hw h100x2 --also wide-experts"
                " --objective throughput --trials 3 {json}"
            ),
        ),
        WORKLOAD,
    ),
    Case(
        "plan-own-model",
        (
            Command(
                "plan --model config.json --workload w.yaml --slo p95=1s --hw 2*a100-80gbx2 --price 9 --rate 10"
                " --set prefix_caching=false --set max_num_seqs=64 --objective latency --trials 3 --seed 5 {json}"
            ),
        ),
        WORKLOAD | {"config.json": OWN_MODEL},
    ),
    Case(
        "plan-front",
        (
            Command(
                "plan front --model llama3.1-8b --workload w.yaml --hw h100x2 --axes cost,ttft.p99,energy"
                " --slo e2e.p99=10s --precision native --trials 5 {json}"
            ),
        ),
        WORKLOAD,
    ),
    Case(
        "plan-spares",
        (
            Command(f"{ASK} --slo ttft.p99=500ms --hw l40sx4 --rate 60 --set tensor_parallel=1 --trials 1"),
            Command("plan spares 0.json --mtbf 2d --restart 10min --window 6h {json}"),
        ),
        WORKLOAD,
    ),
    Case(
        "plan-follow-ups",
        (
            Command(f"{ASK} --slo ttft.p99=500ms,tpot.p90=20ms --hw h100x2 --rate 8 --trials 2"),
            Command("plan whatif 0.json --rate x3 --hw l40sx2 --set kv_dtype=fp8 {json}", 1),
            Command("plan explain 0.json {json}"),
            Command(f"{ASK} --slo ttft.p99=500ms,tpot.p90=20ms --hw h100x2 --rate 8 --trials 2 --objective energy"),
            Command("plan compare 0.json 3.json {json}"),
            Command("plan deploy 0.json --target kubernetes --out started {json}", outputs=("started",)),
            Command("plan analyze --model gpt-oss-20b --hw h100x2 --batch 32 --context 4096 {json}"),
            Command("plan --model llama3.1-8b --slo p99=2 --hw h100", 2),
        ),
        WORKLOAD,
    ),
)


def simulate_case(name: str, workload: str, *deployments: str, words: str = "", outputs: tuple[str, ...] = ()) -> Case:
    """Return a case that simulates every deployment under one workload."""
    files = {f"d{i}.yaml": text for i, text in enumerate(deployments)} | {"w.yaml": workload}
    commands = tuple(
        Command(
            f"simulate d{i}.yaml --workload w.yaml {{json}} --requests-out rows{i}.csv {words}",
            outputs=(f"rows{i}.csv", *outputs),
        )
        for i in range(len(deployments))
    )
    return Case(name, commands, files)


SMALL: Final = "model: llama3.1-8b\nhardware: h100\nmax_model_len: 4096\n"
SIMULATE_CASES: Final = (
    simulate_case(
        "simulate-vllm",
        STEADY,
        SMALL,
        "model: gemma-3-12b\nhardware: h100x2\nengine: vllm-0.11\ntensor_parallel: 2\nweight_dtype: fp8\n",
        words="--time-series series.csv",
        outputs=("series.csv",),
    ),
    simulate_case(
        "simulate-sglang",
        STEADY,
        SMALL + "engine: sglang\nkv_blocks: 5000\n",
        SMALL + "engine: sglang-bare\nspeculative: {method: draft_model, model: llama3.2-1b,"
        " num_speculative_tokens: 3, acceptance: 0.5}\n",
    ),
    simulate_case(
        "simulate-trtllm",
        STEADY,
        SMALL + "engine: trtllm\nkv_blocks: 300\n",
        SMALL + "engine: trtllm-max-utilization\nkv_blocks: 200\n",
    ),
    simulate_case(
        "simulate-other-engines",
        STEADY,
        "model: qwen2.5-0.5b\nhardware: epyc-9654\nengine: llama.cpp\nmax_model_len: 8192\nmax_num_seqs: 4\n"
        "queue: {timeout_s: 20, too_long: truncate}\n",
        SMALL + "engine: transformers\nkv_blocks: 40\n",
        SMALL + "engine: triton\nqueue: {max_delay_s: 0.05, preferred_batch_sizes: [4, 8]}\n",
        SMALL + "engine: sarathi\n",
        SMALL + "engine: orca\n",
    ),
    simulate_case("simulate-swap", STEADY, SMALL + "engine: vllm-v0\npreemption: swap\nkv_blocks: 300\n"),
    simulate_case(
        "simulate-sessions",
        SESSIONS,
        "model: llama3.1-8b\nhardware: h100x4\nreplicas: 4\nrouter: {prefix_aware: {balance_abs_threshold: 8}}\n",
        "model: llama3.1-8b\nhardware: h100x4\nreplicas: 4\nrouter: scored\nrouter_staleness_s: 0.2\n",
        "model: llama3.1-8b\nhardware: h100x4\nreplicas: 4\nrouter: session_affinity\nkv_blocks: 400\n",
    ),
    simulate_case(
        "simulate-closed-loop",
        "arrivals: {closed_loop: {concurrency: 24, think_time_s: 0.5}}\nrequests: 150\n"
        "input_tokens: {lognormal: {mean: 500, cv: 1}}\noutput_tokens: {lognormal: {mean: 60, cv: 0.7}}\n",
        SMALL + "kv_blocks: 700\nmax_num_batched_tokens: 512\nmax_num_seqs: 32\n",
    ),
    simulate_case(
        "simulate-queue",
        STEADY.replace("12}", "80}") + "classes: [{share: 1, priority: 0}, {share: 2, priority: 5, timeout_s: 1.5}]\n",
        SMALL + "max_num_seqs: 8\nqueue: {order: priority, max_waiting: 40, timeout_s: 4}\n",
    ),
    simulate_case(
        "simulate-faults",
        "arrivals: {diurnal: {requests_per_s: 15, swing: 0.8, period_s: 30}}\nduration_s: 20\n"
        "input_tokens: {constant: 300}\noutput_tokens: {uniform: {low: 10, high: 60}}\n",
        "model: llama3.1-8b\nhardware: h100x8\nreplicas: 2\ntensor_parallel: 2\nrouter: least_outstanding\n"
        "autoscaling: {metric: outstanding, target: 4, max_replicas: 4, interval_s: 2, cold_start: {image_gb: 0,"
        " engine_s: 1, graph_capture_s: 1, weights_gb_per_s: 100}}\n"
        "faults: [{kind: crash, at_s: 3.0, replica: 0, lasts_s: 3}, {kind: slow, at_s: 8, replica: 1, factor: 3,"
        " lasts_s: 4}, {kind: link, at_s: 2, replica: 1, factor: 2, lasts_s: 2}]\n"
        "retries: {limit: 2, backoff_s: 0.1}\n",
        "model: llama3.1-8b\nhardware: 2*h100x2\nreplicas: 4\nrouter: power_of_two\n"
        "faults: [{kind: node, mtbf_s: 15, mttr_s: 3, seed: 2}]\n",
    ),
    simulate_case(
        "simulate-lora",
        STEADY + "adapters: {count: 12, skew: 1.0, base_fraction: 0.2}\n",
        SMALL + "lora: {adapters: 12, max_loras: 3, max_rank: 16, max_cpu_loras: 6}\n",
    ),
    simulate_case(
        "simulate-offload",
        SESSIONS,
        "model: llama3.1-8b\nhardware: h100\nkv_blocks: 400\nmax_model_len: 6000\nkv_offload: {host_gib: 20}\n",
        "model: llama3.1-8b\nhardware: h100\nkv_blocks: 400\nmax_model_len: 6000\n"
        "kv_offload: {host_gib: 0.5, disk_gib: 10, disk_gib_per_s: 4}\n",
    ),
    simulate_case(
        "simulate-disaggregated",
        STEADY,
        "model: llama3.1-8b\nhardware: h100x4\nmax_model_len: 4096\ndisaggregation: {prefill_replicas: 1,"
        " decode_replicas: 2, transfer_gb_per_s: 5, max_local_prefill_tokens: 40, decode: {hardware: h200x2}}\n",
        "model: llama3.1-8b\nmax_model_len: 4096\nrouter: least_tokens\npools:\n- {hardware: h100x2, replicas: 2}\n"
        "- {hardware: l40s, max_num_seqs: 16}\n",
    ),
    simulate_case(
        "simulate-parallel",
        STEADY,
        "model: llama3.1-8b\nhardware: h100x4\ntensor_parallel: 2\npipeline_parallel: 2\nkv_blocks: 400\n"
        "max_model_len: 4096\n",
        "model: llama3.1-70b\nhardware: 2*h100x4\ntensor_parallel: 8\nweight_dtype: fp8\n",
        "model: llama3.1-8b\nhardware: h100x4\ntensor_parallel: 2\ncontext_parallel: 2\n",
    ),
    simulate_case(
        "simulate-experts",
        STEADY,
        "model: gpt-oss-20b\nhardware: h100x4\ndata_parallel: 4\nexpert_parallel: true\n",
        "model: deepseek-v3\nhardware: h200x8\ntensor_parallel: 8\nengine: sglang\n",
        "model: qwen3-30b-a3b\nhardware: h100x4\ndata_parallel: 2\ntensor_parallel: 2\nexpert_parallel: true\n"
        "rank_dispatch: balanced\nall2all_backend: deepep_low_latency\n",
    ),
    simulate_case(
        "simulate-encoder",
        "arrivals: {poisson: {requests_per_s: 30}}\nrequests: 100\ninput_tokens: {constant: 4}\n"
        "output_tokens: {uniform: {low: 20, high: 90}}\n",
        "model: whisper-large-v3\nhardware: h100\n",
    ),
    simulate_case(
        "simulate-speculation",
        STEADY.replace("requests: 120", "requests: 60"),
        SMALL + "speculative: {method: eagle3, model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 3,"
        " acceptance: [0.72, 0.48, 0.31]}\n",
        SMALL + "engine: trtllm\nspeculative: {method: draft_model, model: llama3.2-1b, num_speculative_tokens: 4,"
        " acceptance_length: 2.5}\n",
    ),
)
CASES: Final = PLAN_CASES + SIMULATE_CASES


def run_case(case: Case) -> dict[str, Any]:
    """Return the record of a case: {"0": that of the first command, "1": that of the second, ...}."""
    with tempfile.TemporaryDirectory(prefix="golden-") as name:
        folder, home = Path(name) / "work", Path(name) / "home"
        folder.mkdir()
        home.mkdir()
        for file, text in case.files.items():
            (folder / file).write_text(text)
        return {str(i): _run(command, i, folder, home) for i, command in enumerate(case.commands)}


def _run(command: Command, number: int, folder: Path, home: Path) -> dict[str, Any]:
    out = folder / f"{number}.json"
    program, *words = command.line.replace("{json}", f"--json {out.name}").split()
    script = Path(sys.executable).parent / program
    env = os.environ | {"HOME": str(home), "XDG_DATA_HOME": str(home / "data"), "COLUMNS": "100"}
    done = subprocess.run([str(script), *words], cwd=folder, env=env, capture_output=True, text=True)
    record: dict[str, Any] = {"command": command.line, "exit_status": done.returncode}
    if out.exists():
        record["json"] = _content(out, folder)
    if done.returncode > 1:
        record["refused"] = done.stderr.strip()[-2000:].replace(str(folder), FOLDER)
    files = {p for output in command.outputs for p in _files(folder / output)}
    record["files"] = {str(p.relative_to(folder)): _content(p, folder) for p in sorted(files)}
    return record


def _content(path: Path, folder: Path) -> Any:
    """Return the document of a JSON file without values that differ between runs, or the lines of any other file."""
    text = path.read_text().replace(str(folder), FOLDER)
    return comparable(json.loads(text)) if path.suffix == ".json" else text.splitlines()


def _files(path: Path) -> list[Path]:
    return [p for p in (path, *path.rglob("*")) if p.is_file()]


def unexpected(case: Case, record: dict[str, Any]) -> Iterator[str]:
    """Yield one line for every command whose exit status is not that of the case."""
    for command, done in zip(case.commands, record.values(), strict=True):
        if done["exit_status"] != command.status:
            said = done.get("refused", "")
            yield f"exit status {done['exit_status']}, expected {command.status}: {command.line}\n    {said}"


def comparable(document: Any) -> Any:
    """Return a document without the values that differ between two runs of one version."""
    for *parents, last in NOT_DETERMINISTIC:
        inner = document
        for key in parents:
            inner = inner.get(key) if isinstance(inner, dict) else None
        if isinstance(inner, dict):
            inner.pop(last, None)
    return document


def differences(old: Any, new: Any, tolerance: float, ignore_text: bool, path: str = "$") -> Iterator[str]:
    """Return one line for every value that differs: JSON path, old value, new value."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(k for k in new if k not in old)]:
            inner = f"{path}.{key}"
            if key not in new:
                yield f"{inner}: {_shown(old[key])} -> absent"
            elif key not in old:
                yield f"{inner}: absent -> {_shown(new[key])}"
            else:
                yield from differences(old[key], new[key], tolerance, ignore_text, inner)
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{path}: {len(old)} items -> {len(new)} items"
        for i, (a, b) in enumerate(zip(old, new, strict=False)):
            yield from differences(a, b, tolerance, ignore_text, f"{path}[{i}]")
    elif not _same(old, new, tolerance, ignore_text):
        yield f"{path}: {_shown(old)} -> {_shown(new)}"


def _same(old: Any, new: Any, tolerance: float, ignore_text: bool) -> bool:
    if isinstance(old, bool) or isinstance(new, bool):
        return old is new
    if isinstance(old, int | float) and isinstance(new, int | float):
        return old == new or abs(old - new) <= tolerance * max(abs(old), abs(new))
    if ignore_text and isinstance(old, str) and isinstance(new, str) and " " in old and " " in new:
        return True
    return bool(old == new)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def main() -> int:
    """Record or compare the answers; return 1 if they differ or a command failed, and 0 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("write", "compare"))
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--only", default="", metavar="NAME", help="cases whose name contains this")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="cases at a time")
    parser.add_argument("--tolerance", type=float, default=0.0, metavar="REL", help="relative; 0: to the last digit")
    parser.add_argument("--ignore-text", action="store_true", help="do not compare strings of several words")
    args = parser.parse_args()
    cases = [case for case in CASES if args.only in case.name]
    if not cases:
        parser.error(f"no case is named like {args.only!r}: {', '.join(case.name for case in CASES)}")
    n_wrong = 0
    with ThreadPoolExecutor(args.jobs) as pool:
        for case, record in zip(cases, pool.map(run_case, cases), strict=True):
            path = args.folder / f"{case.name}.json"
            if args.verb == "write":
                found = list(unexpected(case, record))
                args.folder.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(record, indent=1) + "\n")
            else:
                before, after = json.loads(path.read_text()), json.loads(json.dumps(record))
                found = list(differences(before, after, args.tolerance, args.ignore_text))
            n_wrong += bool(found)
            good, bad = ("written", "wrong") if args.verb == "write" else ("equal", "different")
            print(f"{bad if found else good:9}  {case.name}", flush=True)
            for line in found:
                print(f"    {line}")
    print(f"{len(cases) - n_wrong} of {len(cases)} cases are {good}")
    return int(n_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
