"""What speculative decoding came to in a run: drafts accepted, and the time that drafting took."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.plant import Plant
from simulator.pricing import N_CLASSES
from simulator.run_record import Run
from simulator.step_log import FloatArray, StepLog
from simulator.step_totals import priced, speculative_seconds


def speculative_metrics(run: Run) -> dict[str, Any]:
    """The block `speculative` of metrics; empty where no pool speculates.

    A round is one decode of one request in one step. Accepted drafts are those that came out: the engine also counts
    the last round's beyond the end of a request. Fractions are of the time of the pools' steps; the rest is the host's.
    """
    sums, methods = np.zeros(6), {}
    for number, plant in enumerate(run.plants):
        told = plant.resolved.speculation
        if told is not None:
            methods[f"{told.method} x {told.num_speculative_tokens}"] = number
            sums += _sums(plant, StepLog.merged(log for r in run.replicas if r.pool == number for log in r.logs))
    rounds, drafted, accepted, drafting_s, target_s, steps_s = sums.tolist()
    if not steps_s:
        return {}
    return {
        "speculative": {
            "method": ", ".join(methods),  # with the drafts of a round
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
    """The same for a terminal."""
    who = f"speculation ({block['method']})"
    if block["mean_acceptance_length"] is None:
        return f"{who}: nothing was drafted"
    return (
        f"{who}: {block['mean_acceptance_length']:.2f} tokens a round, {block['acceptance_rate']:.0%} of drafts "
        f"accepted; step time: drafting {block['drafting_fraction']:.0%}, the target {block['target_fraction']:.0%}"
    )


def _sums(plant: Plant, log: StepLog) -> FloatArray:
    """Rounds, drafted and accepted tokens, seconds of drafting, of the target on the device, and of all steps."""
    speculation, tables = plant.resolved.speculation, plant.cost.tables
    assert speculation is not None
    rounds = float(log.decodes @ log.steps)
    drafting_s = float(speculative_seconds(tables, log).sum())
    device_s = sum(float(part.device[:, :N_CLASSES].sum()) for part in priced(tables, log))
    on_device = drafting_s if tables.draft is not None else 0.0
    return np.array(
        [
            rounds,
            rounds * speculation.num_speculative_tokens,
            float(log.accepted.sum()),
            drafting_s,
            device_s - on_device,
            float(log.total_s.sum()),
        ]
    )
