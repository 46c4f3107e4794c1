"""The summary and the explanation of a run on the terminal: the contents of OUT.json in compact form."""

from __future__ import annotations

from typing import Any, Final

from rich.console import Console
from rich.table import Table

from calibration.accuracy.stated_error import in_words
from catalogs.deployments.layout import Layout
from catalogs.statistics import QUANTILES
from catalogs.ui.terminal import open_console, text_table
from catalogs.ui.words import counted, digits, evidence_words, percent, shares_words
from catalogs.workloads.length_statistics import LengthStatistics, TokenStatistics
from simulator.analysis.explain import PERCENTILES
from simulator.analysis.metrics import speculative_line
from simulator.analysis.request_phases import PHASE_WORDS
from simulator.cli.complexity_screen import print_comparison, print_complexity

#: Shares of the time of steps that the summary names; the others together are the last one.
_MOST_SHARES: Final = 5

_LATENCIES = {
    "ttft_s": "time to first token",
    "tpot_s": "time per output token",
    "itl_s": "inter-token latency",
    "e2e_s": "end to end",
    "queue_s": "queue",
}


def print_summary(document: dict[str, Any], complexity: bool = False) -> None:
    """Print the summary of a run to stdout; with `complexity`, also its latencies by the lengths of requests."""
    console = open_console()
    deployment, metrics, calibration = document["deployment"], document["metrics"], document["calibration"]
    for name, pool in _pools(deployment):
        console.print(f"{name}{': ' if name else ''}{_deployment_line(pool)}")
        console.print(f"{pool['kv_cache']}")
    console.print(_workload_line(document["workload"]))
    console.print(_latency_table(metrics))
    seconds = document["time_breakdown"]
    parts = {name.replace("_", " "): s for name, s in sorted(seconds.items(), key=lambda item: -item[1]) if s > 0}
    for line in (
        _throughput(metrics),
        *_features(metrics),
        *_fleet(metrics),
        _power(metrics),
        f"time: {shares_words(parts, _MOST_SHARES)}" if parts else "time: none",
        f"calibration {calibration['bundle']}: step time {evidence_words(calibration)}; "
        f"expected error of step times from operators {percent(calibration['operator_error'])}",
        in_words(calibration["stated_error"]),
    ):
        console.print(line)
    if "explain" in document:
        print_explanation(console, document["explain"])
    if complexity:
        print_complexity(console, document["complexity"])
    if "comparison" in document:
        print_comparison(console, document["comparison"], document["comparison"]["with"], "this run")


def _pools(deployment: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return (name, block) of each pool; the name is empty for a single pool."""
    if deployment.get("pools"):
        return [(f"pool {i} ({pool['role']})", pool) for i, pool in enumerate(deployment["pools"])]
    encoders, split = deployment.get("encoder_pool"), deployment["disaggregation"]
    first = [("encode", encoders["encode"])] if encoders else []
    if split:
        return [*first, *((name, split[name]) for name in ("prefill", "decode"))]
    return [*first, ("language model" if first else "", deployment)]


def _encoders_line(encoders: dict[str, Any]) -> str:
    """Return the times of requests at the encoder pool in one line."""
    wait, encode, transfer = (1e3 * (encoders[name]["mean"] or 0.0) for name in ("wait_s", "encode_s", "transfer_s"))
    return (
        f"encoder pool: {counted(encoders['n_requests'], 'request')} encoded; on average {wait:,.1f} ms of waiting, "
        f"{encode:,.1f} ms of encoding, and {transfer:,.2f} ms until the embeddings arrived"
    )


def _fleet(metrics: dict[str, Any]) -> list[str]:
    """Return lines on replica counts, lost requests, and each of several pools."""
    lines, replicas = [], metrics["replicas"]
    if replicas["min"] < replicas["max"]:
        lines.append(
            f"{replicas['mean']:.2f} replicas on average, {replicas['min']} to {replicas['max']}; "
            f"{metrics['accelerator_hours']:,.2f} accelerator hours"
        )
    if metrics["n_retries"] or metrics["n_failed"]:
        retries = f"{metrics['n_retries']} {'retry' if metrics['n_retries'] == 1 else 'retries'} of lost requests"
        lines.append(f"{retries}, {metrics['n_failed']} failed permanently")
    for i, pool in enumerate(metrics.get("pools", ())):
        first = "-" if pool["ttft_s"]["p99"] is None else f"{1e3 * pool['ttft_s']['p99']:,.0f} ms"
        lines.append(f"pool {i}: {counted(pool['n_completed'], 'request')} completed, p99 time to first token {first}")
    return lines


def _deployment_line(deployment: dict[str, Any]) -> str:
    replicas = f"{counted(deployment['replicas'], 'replica')} x {Layout.of(deployment).words}"
    return (
        f"{deployment['model']} ({deployment['weight_dtype']}, KV {deployment['kv_dtype']}) "
        f"on {deployment['hardware']}, "
        f"{deployment['engine']} {deployment['engine_version']}, {replicas}, "
        f"{deployment['max_num_seqs']} seqs, "
        f"{deployment['max_num_batched_tokens']} batched tokens, max_model_len {deployment['max_model_len']}"
    )


def _workload_line(workload: dict[str, Any]) -> str:
    sides = (TokenStatistics(**workload[side]) for side in ("input_tokens", "output_tokens"))
    load = f"{counted(workload['requests'], 'request')} of workload {workload['name']}"
    return f"{load} ({LengthStatistics(*sides).words})"


def _latency_table(metrics: dict[str, Any]) -> Table:
    names = ("mean", *QUANTILES)
    rows = [
        [words, *("-" if (s := metrics[key][name]) is None else f"{1e3 * s:,.1f}" for name in names)]
        for key, words in _LATENCIES.items()
    ]
    return text_table(["milliseconds", *names], rows, 1, "")


def _throughput(metrics: dict[str, Any]) -> str:
    others = ("n_rejected", "n_timed_out", "n_failed", "n_unfinished", "n_truncated")
    rest = "".join(f", {metrics[key]} {key[2:].replace('_', ' ')}" for key in others if metrics.get(key))
    return (
        f"{counted(metrics['n_completed'], 'request')} in {metrics['duration_s']:,.1f} s{rest}: "
        f"{digits(metrics['requests_per_s'])} requests/s, {metrics['output_tokens_per_s']:,.0f} output and "
        f"{metrics['input_tokens_per_s']:,.0f} input tokens/s; "
        f"prefix hits {percent(metrics['prefix_hit_fraction'])}, {counted(metrics['n_preemptions'], 'preemption')}, "
        f"KV peak {percent(metrics['kv_peak_fraction'])}"
    )


def _sessions_line(sessions: dict[str, Any]) -> str:
    """Return the line of a run whose requests wait for each other."""
    rate, whole = sessions["interactivity_tokens_per_s"], sessions["session_s"]["p50"]
    half = "-" if whole is None else f"{whole:,.0f} s"
    parts = [f"sessions: {sessions['n_completed']} of {sessions['n_sessions']} completed, half of them in {half}"]
    if sessions["task_s"]["p50"] is not None:
        parts.append(f"half of the tasks in {sessions['task_s']['p50']:,.0f} s")
    if rate["p90"] is not None:
        parts.append(f"{rate['p90']:.0f} output tokens/s or more for 90 % of requests")
    if sessions["hit_rate"] is not None:
        most = percent(sessions["theoretical_hit_rate"])
        parts.append(f"prefix hits {percent(sessions['hit_rate'])} of {most} with a cache without limits")
    return "; ".join(parts)


def _features(metrics: dict[str, Any]) -> list[str]:
    """Return a line for each of ranks, KV offload, LoRA and speculative decoding, if the run has it."""
    lines = []
    if ranks := metrics.get("ranks"):
        dispatch = f"data-parallel ranks ({ranks['dispatch'].replace('_', ' ')})"
        lines.append(
            f"{dispatch}: a rank waits {percent(ranks['wait_fraction'])} of the step time for the slowest rank"
        )
    if offload := metrics.get("kv_offload"):
        lines.append(
            f"KV offload: {offload['fetched_tokens']:,} tokens fetched by {counted(offload['fetches'], 'request')} in "
            f"{1e3 * (offload['fetch_s']['mean'] or 0.0):.1f} ms on average, "
            f"{percent(offload['hit_fraction'])} of input; "
            f"{offload['stored_tokens']:,} stored"
        )
    if sessions := metrics.get("sessions"):
        lines.append(_sessions_line(sessions))
    if media := metrics.get("media"):
        lines.append(
            f"images, videos and audio: {media['n_encoded']:,} encoded in {media['encoder_s']:.2f} s of the "
            f"accelerators' time, {media['n_cache_hits']:,} found in the encoder cache"
        )
    if encoders := metrics.get("encoder_pool"):
        lines.append(_encoders_line(encoders))
    if lora := metrics.get("lora"):
        lines.append(
            f"LoRA: {counted(lora['brought_to_device'], 'adapter')} loaded, {lora['read_from_disk']} of them from disk"
        )
    if "speculative" in metrics:
        lines.append(speculative_line(metrics["speculative"]))
    return lines


def _power(metrics: dict[str, Any]) -> str:
    power, energy = metrics["power"], metrics["energy"]
    if power["gpu_w_mean"] is None or energy["gpu_j_per_output_token"] is None:
        return "no power: no step ran"
    return (
        f"{power['gpu_w_mean']:.0f} W per accelerator, {power['node_w_mean']:,.0f} W in total; "
        f"{energy['gpu_j_per_output_token']:.3g} J per output token, "
        f"{energy['total_j_per_output_token']:.3g} with hosts"
    )


_BOUNDS: Final = {
    "kv_capacity": "KV capacity",
    "queue": "seats",
    "compute": "compute",
    "memory_bandwidth": "memory bandwidth",
    "network": "network",
    "fixed_cost": "fixed cost per kernel",
    "host": "host",
    "idle": "idle",
    "api_server": "API server",
}

#: Shares below this value are not shown.
SMALL: Final = 0.0005


def print_explanation(console: Console, block: dict[str, Any]) -> None:
    """Print the block `explain` of OUT.json."""
    if block["latency"]:
        console.print(_phase_table(block["latency"]))
    name = _BOUNDS[block["bound_by"]]
    console.print(f"limited by {name}: {_shares(block['bounds'])} of replica time")
    console.print(f"API server busy {percent(block['api_server_busy_fraction'])} of the time")
    if block["bounds"]["kv_capacity"] + block["bounds"]["queue"] >= SMALL:
        console.print(f"replica time regardless of waits: {_shares(block['steps'])}")
    if "speculative" in block:
        console.print(speculative_line(block["speculative"]))


def _phase_table(latency: dict[str, Any]) -> Table:
    """Return a table of milliseconds by phase; the shares are those of the last statistic."""
    statistics = ("mean", *PERCENTILES)
    last = statistics[-1]
    head, rows, total = ["milliseconds of\nrequests near"], [], ["all"]
    for metric, found in latency.items():
        head += [*(f"{metric}\n{name}" for name in statistics), f"{metric}\n{last} %"]
        total += [*(_ms(found[name]["seconds"]) for name in statistics), "100"]
    for phase, words in PHASE_WORDS.items():
        if any(part["shares"][phase] >= SMALL for found in latency.values() for part in found.values()):
            rows.append([words])
            for found in latency.values():
                share = f"{100 * found[last]['shares'][phase]:.0f}"
                rows[-1] += [*(_ms(found[name]["phases_s"][phase]) for name in statistics), share]
    table = text_table(head, rows, 1, "")
    table.add_section()
    table.add_row(*total)
    return table


def _ms(seconds: float) -> str:
    milliseconds = 1e3 * max(0.0, seconds)
    return f"{milliseconds:,.0f}" if milliseconds >= 999.5 else f"{milliseconds:.1f}"


def _shares(shares: dict[str, float]) -> str:
    """Return the shares as text, the largest first."""
    found = sorted(((share, _BOUNDS[name]) for name, share in shares.items() if share >= 0.005), reverse=True)
    return ", ".join(f"{name} {percent(share)}" for share, name in found) or "nothing"
