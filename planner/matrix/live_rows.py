"""The two rows of a cell that was measured on this machine: as the engine served it, and as its probes predict it."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from calibration.accuracy.measured_run import MeasuredRun, combined
from calibration.complexity.records import LatencyRecords
from calibration.complexity.summary import complexity_of
from calibration.profile.machine.contention import CONTENDED_CORES
from calibration.serve.probe import Probe
from catalogs.statistics import statistics
from planner.matrix.cells import Cell
from planner.matrix.evaluation import identity
from planner.matrix.measurement_records import MeasuredReplay
from planner.matrix.row import CellVersions, MatrixRow
from simulator.analysis.complexity import latency_records
from simulator.analysis.metrics import latency_metrics
from simulator.cluster.compiled import CompiledDeployment, with_host
from simulator.cluster.run import Run
from simulator.cluster.simulate import engine_rules, run_rules, simulate
from simulator.costs.measured_steps import MeasuredStepTimer
from simulator.verify.measurement import Probed
from simulator.verify.probe_fit import Cycles, fit_host, fit_requests, fit_steps
from simulator.verify.trials import Simulate

#: Hardware of cells that can be measured.
HERE: Final = "local"

#: Relative difference of the steps of several probes that a row mentions.
DRIFT: Final = 0.1

#: Latencies of a request that a client measures.
LATENCIES: Final = ("ttft_s", "tpot_s", "itl_s", "e2e_s")


def calibrated(probed: Probed, compiled: CompiledDeployment) -> tuple[Simulate, str]:
    """Return the simulation of an engine with the times of its probes, and in words what these are."""
    host = fit_host(probed.probe, compiled)
    fitted = with_host(compiled, replace(compiled.resolved.engine.host, **host.model_dump(), measured=True))
    steps = fit_steps(probed.probe, probed.log, compiled.resolved.limits.max_num_batched_tokens)
    if steps is None:
        return partial(simulate, fitted), "operators, and host times of a probe"
    timer = MeasuredStepTimer(steps)
    path = fit_requests(probed.probe, fitted, timer)
    own = with_host(fitted, replace(fitted.resolved.engine.host, **path.model_dump(), measured=True))
    return partial(run_rules, engine_rules(own), timer), "whole steps of a probe"


def drift_notice(probes: Sequence[Probe]) -> list[str]:
    """Return a notice if the speed of the engine differed between its probes by more than DRIFT; otherwise nothing.

    A measured row may differ from its prediction by as much, whatever the prediction is worth.
    """
    cycles = [Cycles.of(probe) for probe in probes]
    steps_s = [each.mean(each.seconds, 1) for each in cycles if 1 in each.sizes()]
    if len(steps_s) < 2 or max(steps_s) <= (1.0 + DRIFT) * min(steps_s):
        return []
    least_ms, most_ms = min(steps_s) * 1e3, max(steps_s) * 1e3
    return [f"a step of one decode took {least_ms:.3g} to {most_ms:.3g} ms in the probes: the machine's speed changed"]


def simulated_row(cell: Cell, run: Run, versions: CellVersions, notices: Sequence[str]) -> MatrixRow:
    """Return the row of a cell as its engine's probes predict it."""
    return _row(
        cell,
        origin="simulated",
        metrics=latency_metrics(run),
        complexity=complexity_of(latency_records(run)).block(),
        versions=versions,
        notices=list(notices),
    )


def measured_row(cell: Cell, replays: Sequence[MeasuredReplay], versions: CellVersions) -> MatrixRow:
    """Return the row of a cell as it was measured: the requests of all its replays together.

    It has the same keys as a simulated row where the client measures them.
    """
    runs = [replay.run for replay in replays]
    ends = np.cumsum([run.n for run in runs]).tolist()
    both = combined([(np.arange(end - run.n, end), run) for end, run in zip(ends, runs, strict=True)])
    busy_s = sum(float(np.nanmax(run.arrival_s + run.e2e_s) - run.arrival_s.min()) for run in runs)
    metrics: dict[str, Any] = {
        "n_completed": both.n,
        "duration_s": busy_s / len(runs),
        **{name: statistics(getattr(both, name)) for name in LATENCIES},
        "requests_per_s": both.n / busy_s,
        "output_tokens_per_s": float(both.output_tokens.sum()) / busy_s,
        "input_tokens_per_s": float(both.input_tokens.sum()) / busy_s,
    }
    machine = f"{platform.node()}, {platform.machine()}, {platform.system()} {platform.release()}"
    notices = [f"measured by {both.client}, {len(runs)} replays of the same requests"]
    others_cores = max(replay.others_cores for replay in replays)
    if others_cores > CONTENDED_CORES:
        notices.append(f"other processes used {others_cores:.2g} cores while cells were measured: not a quiet machine")
    return _row(
        cell,
        origin="measured",
        metrics=metrics,
        noise=dict(noise(runs)) or None,
        complexity=complexity_of(LatencyRecords.measured(both)).block(),
        versions=versions.model_copy(update={"measured_on": machine}),
        notices=notices,
    )


def noise(runs: Sequence[MeasuredRun]) -> Mapping[str, float]:
    """Return half the spread of the means of several runs of the same requests, over their mean, by latency.

    `calibrate verify` has the same measure of noise. One run has no spread, and a latency without values is left out.
    """
    if len(runs) < 2:
        return {}
    found: dict[str, float] = {}
    for name in LATENCIES:
        samples = [values[np.isfinite(values)] for values in (getattr(run, name) for run in runs)]
        if all(len(values) for values in samples):
            means = [float(values.mean()) for values in samples]
            found[name] = 0.5 * (max(means) - min(means)) / float(np.mean(means))
    return found


def _row(cell: Cell, **more: Any) -> MatrixRow:
    return MatrixRow(**identity(cell), verdict="ok", used=HERE, n_accelerators=1, **more)
