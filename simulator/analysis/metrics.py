"""Statistics of a run in the units of the output contract, computed from its arrays after the run.

These are latencies and throughput, speculative decoding (drafts accepted and time of drafting), and the fleet: replica
counts, requests of failed replicas, and the work of each pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from calibration.accuracy.regime import Regime
from calibration.accuracy.stated_error import StatedError, waiting_share
from calibration.operators.cost import EVIDENCE_SHARES
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.statistics import statistics
from catalogs.ui.words import percent
from catalogs.units import HOUR_S
from simulator.analysis.energy import PoolEnergy, pool_totals, pool_uses, power_and_energy
from simulator.analysis.inter_token_latency import itl_statistics, prefill_waits
from simulator.cluster.parallel import run_both
from simulator.cluster.run import Run
from simulator.core.step_log import StepLog
from simulator.costs.pricing import N_CLASSES
from simulator.costs.totals import StepTotals, priced, speculative_seconds
from simulator.schedulers.registry import POLICIES

#: Busy fraction of the API server from which tokens wait noticeably, so that a notice is shown.
BUSY_API_FRACTION = 0.8


def summarise(run: Run) -> dict[str, Any]:
    """Return the blocks metrics, time_breakdown and calibration of OUT.json. Statistics without values are None.

    Raises:
        ValueError: The run has no compiled deployment (use `latency_metrics`).
    """
    by_pool, latencies = run_both(run.options.processes, lambda: pool_totals(run), lambda: latency_metrics(run))
    uses = pool_uses(run, None, by_pool)
    totals = _together([use.totals for use in uses])
    done = run.completed
    share = waiting_share(run.ttft_s[done], run.queue_s[done], np.mean)
    first = uses[0].compiled.resolved
    regime = Regime.of(first.model, first.hardware.accelerator)
    stated = StatedError.of(first.engine.name, totals.expected_error, regime, share)
    lenders = [use.compiled.bundle.borrowed_from for use in uses]
    energy, ranks = power_and_energy(uses, output_tokens(run)), _rank_metrics(uses)
    return {
        "metrics": {**latencies, **energy, **ranks, **speculative_metrics(run)},
        "time_breakdown": replica_seconds(uses),
        "calibration": {
            "bundle": " + ".join(dict.fromkeys(use.compiled.bundle.name for use in uses)),
            "borrowed_from": " + ".join(dict.fromkeys(filter(None, lenders))) or None,
            **{name: getattr(totals, name) for name in EVIDENCE_SHARES},
            "operator_error": totals.expected_error,
            "expected_error": stated.expected_error,
            "stated_error": stated.block(),
        },
    }


def replica_seconds(uses: Sequence[PoolEnergy]) -> dict[str, float]:
    """Return the seconds of all replicas together by class of operator, and those in which they were idle."""
    kinds = uses[0].totals.seconds
    found = {kind: sum(use.totals.seconds[kind] for use in uses) for kind in kinds}
    return {**found, "idle": sum(use.idle_s for use in uses)}


def _rank_metrics(uses: Sequence[PoolEnergy]) -> dict[str, Any]:
    """Return the block `ranks` if data-parallel ranks schedule for themselves; otherwise nothing.

    It holds the dispatch of requests, and the share of step time that a rank waits for the slowest, mean over ranks.
    """
    uses = [use for use in uses if use.compiled.resolved.rank_dispatch not in (None, "balanced")]
    if not uses:
        return {}
    busy_s, waits_s = sum(use.totals.busy_s for use in uses), sum(use.totals.rank_wait_s for use in uses)
    names = dict.fromkeys(str(use.compiled.resolved.rank_dispatch) for use in uses)
    return {"ranks": {"dispatch": ", ".join(names), "wait_fraction": waits_s / busy_s if busy_s else 0.0}}


def _together(parts: Sequence[StepTotals]) -> StepTotals:
    """Return the totals of all pools; fractions and errors are means weighted by device time."""
    if len(parts) == 1:
        return parts[0]
    device = np.array([part.busy_s - part.seconds["host"] for part in parts])
    weights = device / max(float(device.sum()), 1e-300)

    names = (*EVIDENCE_SHARES, "expected_error")
    means: dict[str, Any] = {name: float(weights @ [getattr(part, name) for part in parts]) for name in names}
    return replace(
        parts[0],
        seconds={kind: sum(part.seconds[kind] for part in parts) for kind in parts[0].seconds},
        rank_wait_s=sum(part.rank_wait_s for part in parts),
        **means,
    )


def output_tokens(run: Run) -> float:
    """Return the generated tokens of a run, including those of requests cut off by the horizon.

    Only completed requests count if replicas failed or if steps hold sequences that have ended.
    """
    if run.restarts or any(POLICIES[pool.rules.policy].pads for pool in run.pools):
        return float(run.requests.output_tokens[run.completed].sum())
    computed_twice = len(run.handovers) if run.options.hand_over.first_token == "decode" else 0
    return float(sum(log.emitted.sum() for log in run.logs)) - computed_twice


def _offload_metrics(run: Run, inputs: int) -> dict[str, Any]:
    fetches = np.concatenate([use.fetches for use in run.offloads])
    size, fetched = run.pools[0].rules.block_size, fetches[:, 3].sum()
    return {
        "fetches": len(fetches),
        "fetched_tokens": int(fetched) * size,
        "hit_fraction": float(fetched) * size / inputs if inputs else 0.0,
        "fetch_s": statistics(fetches[:, 2] - fetches[:, 1]),
        "stored_tokens": sum(use.stored_blocks for use in run.offloads) * size,
        "host_used_fraction": max(use.host_used_fraction for use in run.offloads),
        "disk_used_fraction": max(use.disk_used_fraction for use in run.offloads),
    }


def duration_s(run: Run) -> float:
    """Return the seconds from the first arrival to the last token, or to the horizon if requests are still open."""
    first_s, last_s = run.span_s
    return last_s - first_s


def latency_metrics(run: Run) -> dict[str, Any]:
    """Return the metrics except power and energy. Latencies are those of completed requests."""
    done, duration = run.completed, duration_s(run)
    per_s = 1.0 / duration if duration > 0.0 else 0.0
    policies = [POLICIES[pool.rules.policy] for pool in run.pools]
    streams = [policies[i].streams and pool.role != "encode" for i, pool in enumerate(run.pools)]
    streaming = (replica for replica in run.replicas if streams[replica.pool])
    streamed = [part for replica in streaming for log in replica.logs for part in log.parts]
    waits = np.concatenate([prefill_waits(streamed), np.insert(run.waits_s, 2, 1.0, axis=1)])
    started = ~np.isnan(run.started_s)
    inputs = int(run.requests.input_tokens[started].sum())
    found = {
        "n_arrived": int(run.arrived.sum()),
        "n_completed": int(done.sum()),
        "n_rejected": int(run.rejected.sum()),
        "n_unfinished": int(run.unfinished.sum()),
        "duration_s": duration,
        "ttft_s": statistics(run.ttft_s[done]),
        "tpot_s": statistics(run.tpot_s[done]),
        "itl_s": itl_statistics(StepLog.merged(streamed), run.gaps_s, waits, run.openings_s),
        "e2e_s": statistics(run.e2e_s[done]),
        "queue_s": statistics(run.queue_s[done]),
        "requests_per_s": int(done.sum()) * per_s,
        "output_tokens_per_s": output_tokens(run) * per_s,
        "input_tokens_per_s": inputs * per_s,
        "prefix_hit_fraction": float(run.cached_tokens[started].sum()) / inputs if inputs else 0.0,
        "n_preemptions": int(run.preemptions.sum()),
        "kv_peak_fraction": run.kv_peak_fraction,
    }
    brought = [r.adapters for r in run.replicas if r.adapters]
    if brought:
        found["lora"] = {"brought_to_device": sum(b for b, _ in brought), "read_from_disk": sum(d for _, d in brought)}
    if run.requests.media is not None:
        found["media"] = _media_metrics(run)
    if run.offloads:
        found["kv_offload"] = _offload_metrics(run, inputs)
    counts = {"n_timed_out": int(run.timed_out.sum()), "n_truncated": run.n_truncated}
    found |= {name: n for name, n in counts.items() if n}
    if len(run.handovers):
        found["kv_transfer_s"] = statistics(run.handovers[:, 4] - run.handovers[:, 3])
    if any(pool.role == "encode" for pool in run.pools):
        found["encoder_pool"] = _encoder_metrics(run)
    return found


def _encoder_metrics(run: Run) -> dict[str, Any]:
    """Return how long requests waited at the encoder pool, were encoded, and how long their embeddings travelled."""
    _, _, _, reached_s, began_s, encoded_s, arrived_s, embeddings = run.encodings.T
    return {
        "n_requests": len(run.encodings),
        "n_embeddings": int(embeddings.sum()),
        "wait_s": statistics(began_s - reached_s),
        "encode_s": statistics(encoded_s - began_s),
        "transfer_s": statistics(arrived_s - encoded_s),
    }


def _media_metrics(run: Run) -> dict[str, float]:
    """Return how many items were encoded or found in encoder caches, and the seconds of encoding, of all replicas."""
    used = [replica.media for replica in run.replicas if replica.media]
    encoded, hits = (sum(each[i] for each in used) for i in (0, 1))
    seconds = 0.0
    for replica in run.replicas:
        compiled = run.pools[replica.pool].compiled
        if compiled is not None:
            seconds += sum(compiled.cost.encoding_total_s(log) for log in replica.logs)
    whole = encoded + hits
    return {
        "n_encoded": encoded,
        "n_cache_hits": hits,
        "cache_hit_fraction": hits / whole if whole else 0.0,
        "encoder_s": seconds,
    }


def streaming_notice(resolved: ResolvedDeployment, output_tokens_per_s: float) -> str | None:
    """Return a notice if token streaming keeps the API servers of each replica busy most of the time."""
    token_s = resolved.engine.host.api_token_s
    each = output_tokens_per_s / resolved.replicas
    if each * token_s <= BUSY_API_FRACTION * resolved.api_server_count:
        return None
    most = resolved.api_server_count / token_s
    return (
        f"{each:,.0f} output tokens/s per replica are close to or above the streaming limit of its API server "
        f"({most:,.0f}): run more API server processes, or expect tokens to queue there"
    )


def speculative_metrics(run: Run) -> dict[str, Any]:
    """Return the block `speculative` of metrics; empty if no pool uses speculative decoding.

    A round is one decode of one request in one step. Accepted drafts are those whose tokens came out, while the engine
    also counts drafts of the last round beyond the end of a request. Fractions refer to the time of the pools' steps;
    the rest is host time.
    """
    sums, methods = np.zeros(6), list[str]()
    for number, compiled in enumerate(run.compiled_pools):
        speculation, tables = compiled.resolved.speculation, compiled.cost.tables
        if speculation is None:
            continue
        methods.append(f"{speculation.method} x {speculation.num_speculative_tokens}")
        log = StepLog.merged(log for r in run.replicas if r.pool == number for log in r.logs)
        rounds, drafting_s = float(log.decodes @ log.steps), float(speculative_seconds(tables, log).sum())
        device_s = sum(float(part.device[:, :N_CLASSES].sum()) for part in priced(tables, log))
        without = float(log.undrafted.sum())  # rows with decodes without drafts have one step
        drafts, accepted = (rounds - without) * speculation.num_speculative_tokens, float(log.accepted.sum())
        target_s = device_s - (drafting_s if tables.draft is not None else 0.0)  # other drafters run on the host
        sums += (rounds, drafts, accepted, drafting_s, target_s, float(log.total_s.sum()))
    rounds, drafted, accepted, drafting_s, target_s, steps_s = sums.tolist()
    if not steps_s:
        return {}
    return {
        "speculative": {
            "method": ", ".join(dict.fromkeys(methods)),  # method x drafts per round
            "rounds": int(rounds),
            "drafted_tokens": int(drafted),
            "accepted_tokens": int(accepted),
            "acceptance_rate": accepted / drafted if drafted else None,
            "mean_acceptance_length": 1.0 + accepted / rounds if rounds else None,
            "drafting_fraction": drafting_s / steps_s,
            "target_fraction": target_s / steps_s,
        }
    }


def speculative_line(block: dict[str, Any]) -> str:
    """Return the block `speculative` as a line for a terminal."""
    label = f"speculation ({block['method']})"
    if block["mean_acceptance_length"] is None:
        return f"{label}: no drafts were made"
    return (
        f"{label}: {block['mean_acceptance_length']:.2f} tokens a round, {percent(block['acceptance_rate'])} of drafts "
        f"accepted; step time: drafting {percent(block['drafting_fraction'])}, "
        f"the target {percent(block['target_fraction'])}"
    )


def fleet_metrics(run: Run) -> dict[str, Any]:
    """Return the keys n_failed, n_retries, replicas and accelerator_hours of `metrics`, and the key `pools`.

    The latter is present if there are several pools.
    """
    first_s, last_s = run.span_s
    paid_s = 0.0  # accelerator seconds from the order of a replica to its end
    for number, pool in enumerate(run.pools):
        each = pool.compiled.resolved.accelerators_per_replica if pool.compiled else 1
        alive_s = sum(r.alive_fraction(first_s, last_s) for r in run.replicas if r.pool == number) * (last_s - first_s)
        paid_s += each * (alive_s + run.starting_s(number))
    found: dict[str, Any] = {
        "n_failed": int(run.failed.sum()),
        "n_retries": run.restarts - int(run.failed.sum()),
        "replicas": _counts(run, first_s, last_s),
        "accelerator_hours": paid_s / HOUR_S,
    }
    if len(run.pools) > 1:
        found["pools"] = [_pool_metrics(run, number, last_s - first_s) for number in range(len(run.pools))]
    return found


def _counts(run: Run, first_s: float, last_s: float) -> dict[str, float]:
    """Return the number of live replicas: mean over the run, minimum, maximum, and at its end."""
    if last_s <= first_s:
        n = len(run.replicas)
        return {"mean": float(n), "min": n, "max": n, "end": n}
    born = np.sort([max(r.created_s, first_s) for r in run.replicas])
    died = np.sort([r.removed_s for r in run.replicas])
    times = np.unique(np.concatenate([[first_s], born, died]))
    times = times[(times >= first_s) & (times < last_s)]
    counts = np.searchsorted(born, times, side="right") - np.searchsorted(died, times, side="right")
    mean = float(counts @ np.diff(np.append(times, last_s))) / (last_s - first_s)
    return {"mean": mean, "min": int(counts.min()), "max": int(counts.max()), "end": int(counts[-1])}


def _pool_metrics(run: Run, number: int, duration_s: float) -> dict[str, Any]:
    """Return the metrics of the requests that ended in a pool, or that an encoder pool has encoded."""
    members = np.array([r.pool == number for r in run.replicas] + [False])  # the last entry is for replica -1 (none)
    done = run.completed & members[run.replica]
    n_completed = int(done.sum())
    if run.pools[number].role == "encode":
        n_completed = int(members[run.encodings[:, 1].astype(np.int64)].sum())
    latencies = {name: statistics(getattr(run, name)[done]) for name in ("ttft_s", "tpot_s", "e2e_s")}
    per_s = n_completed / duration_s if duration_s > 0.0 else 0.0
    return {"n_completed": n_completed, "requests_per_s": per_s, **latencies}
