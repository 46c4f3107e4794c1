"""An engine that is the simulator itself, measured as a client would: what a fit of a probe must recover exactly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from calibration.accuracy.measured_run import MeasuredRun
from calibration.serve import probe as probes
from calibration.serve.probe import Probe
from catalogs.deployments.schema import Deployment
from catalogs.engines.profile import HostTimes
from catalogs.workloads.request_set import RequestSet
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import CompiledDeployment, compile_deployment, with_host
from simulator.cluster.simulate import simulate
from simulator.core.step_log import StepLog


def synchronous_plant(host: HostTimes) -> CompiledDeployment:
    """A small model on a GPU, scheduled step by step, with the host times given."""
    written = Deployment(
        model="qwen2.5-0.5b", hardware="rtx4090", max_num_seqs=16, max_num_batched_tokens=512, max_model_len=2048
    )
    plant = compile_deployment(written)
    engine = replace(plant.resolved.engine, async_scheduling=False)
    return with_host(replace(plant, resolved=replace(plant.resolved, engine=engine)), host)


def measured(plant: CompiledDeployment, requests: RequestSet) -> MeasuredRun:
    """What a client of the simulated engine sees, token by token."""
    done = simulate(plant, requests, RunOptions(fast_forward=False))
    log = StepLog.merged(done.logs)
    ends = log.start_s + log.total_s + plant.resolved.engine.host.output_s
    gaps = []
    for first, last in zip(done.first_token_s, done.last_token_s, strict=True):
        at = ends[(ends >= first - 1e-12) & (ends <= last + 1e-12)]
        gaps.append(np.diff(at))
    return MeasuredRun(
        client="simulated",
        source="",
        arrival_s=done.arrival_s - done.arrival_s[0],
        input_tokens=requests.input_tokens.astype(float),
        output_tokens=requests.output_tokens.astype(float),
        ttft_s=done.ttft_s,
        tpot_s=done.tpot_s,
        e2e_s=done.e2e_s,
        itl_s=np.concatenate(gaps),
        duration_s=float(done.last_token_s.max()),
        n_failed=0,
        n_gaps=tuple(len(g) for g in gaps),
    )


def probed(plant: CompiledDeployment) -> Probe:
    """The probe of `calibrate verify` against that engine."""
    single = measured(plant, probes.single_requests(400, 0))
    sizes = tuple(n for n in probes.BURSTS if n <= plant.resolved.limits.max_num_seqs) * probes.REPEATS[0]
    spaces_s = probes.cautious_spaces_s(sizes, single.stat("ttft", "p50"), single.stat("tpot", "p50"))
    bursts = probes.burst_requests(sizes, spaces_s)
    return Probe(single, measured(plant, bursts), sizes)
