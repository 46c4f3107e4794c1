"""The latencies of a run's requests against their complexity, with the parts of their end-to-end times.

The parts lie between instants that every run records for each request, so they need no event log:

    sent | client and network, tokenise | routed | queue | first step | prefill | first token computed |
    decode | last token computed | detokenise, client and network | received

The fixed times of the way to the engine and back are "client and network" (`HostTimes.request_s` and `output_s`). The
time of a KV transfer is taken out of the part that it falls in: the decode, or the prefill if the client sees the first
token of the decode replica only. A preemption and its recomputation count to the part that they interrupt.
`simulator.analysis.request_phases` divides the same times further, from an event log.
"""

from __future__ import annotations

import numpy as np

from calibration.complexity.records import LatencyRecords
from catalogs.arrays import BoolArray, FloatArray
from simulator.cluster.run import Run


def latency_records(run: Run, chosen: BoolArray | None = None) -> LatencyRecords:
    """Return the latencies of the completed requests of a run, with the parts of each.

    Args:
        run: The finished run.
        chosen: Which requests are taken, if they are completed; None: all. Shape (requests,).
    """
    done = np.flatnonzero(run.completed if chosen is None else run.completed & chosen)
    parts = {name: seconds[done] for name, seconds in latency_parts(run).items()}
    tokens = (run.requests.input_tokens, run.requests.output_tokens)
    inputs, outputs = (np.asarray(each[done], dtype=np.float64) for each in tokens)
    return LatencyRecords(inputs, outputs, run.e2e_s[done], run.ttft_s[done], parts)


def latency_parts(run: Run) -> dict[str, FloatArray]:
    """Return the parts of the end-to-end time of each request by the names of `PARTS`, seconds.

    Each has shape (requests,), and is NaN for requests that are not completed. The part "transfer" is present if
    prefill and decode run on separate replicas, the part "encode" if there is an encoder pool: from the step that
    begins to encode its items until their embeddings have arrived.
    """
    in_s, out_s = _fixed_times(run)
    transfer_s = _transfer_times(run)
    instants = run.encoding_times()
    encoding_s = np.nan_to_num(instants[:, 3] - instants[:, 1])
    before_first = run.options.hand_over.first_token == "decode"
    parts = {
        "client_network": in_s + out_s,
        "tokenise": run.routed_s - run.arrival_s - in_s,
        "encode": encoding_s,
        "queue": run.started_s - run.routed_s - encoding_s,
        "prefill": run.prefilled_s - run.started_s - (transfer_s if before_first else 0.0),
        "transfer": transfer_s,
        "decode": run.decoded_s - run.prefilled_s - (0.0 if before_first else transfer_s),
        "detokenise": run.last_token_s - run.decoded_s - out_s,
    }
    if not len(run.handovers):
        del parts["transfer"]
    if not len(run.encodings):
        del parts["encode"]
    return {name: np.where(run.completed, seconds, np.nan) for name, seconds in parts.items()}


def _fixed_times(run: Run) -> tuple[FloatArray, FloatArray]:
    """Return the fixed seconds of each request on the way to the router, and from an engine back to its client.

    The way in is that of the API servers of the request's model (see `simulator.cluster.clients.Frontend`), the way
    back that of the replica that computed the last token. Each has shape (requests,).
    """
    models = run.requests.requested_models
    of_model = np.zeros(run.requests.n, dtype=np.int64) if models is None else np.asarray(models, dtype=np.int64)
    ways_in = []
    for model in range(1 + max(pool.model for pool in run.pools)):
        mine = [pool for pool in run.pools if pool.model == model]
        ways_in.append(next((pool for pool in mine if pool.role in ("both", "prefill")), mine[0]).rules.host.request_s)
    ways_out = np.array([run.pools[replica.pool].rules.host.output_s for replica in run.replicas] + [0.0])
    return np.array(ways_in)[of_model], ways_out[run.replica]  # replica -1, which is none, reads the last entry


def _transfer_times(run: Run) -> FloatArray:
    """Return the seconds of the last KV transfer of each request, zero without one. Shape (requests,)."""
    found = np.zeros(run.requests.n)
    rows = run.handovers[np.isfinite(run.handovers[:, 4])]
    found[rows[:, 0].astype(np.int64)] = rows[:, 4] - rows[:, 3]  # the last row of a request counts
    return found
