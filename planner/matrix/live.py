"""Cells measured on this machine: real engines and a real load client serve the requests of the same cells.

One server is started for each model and engine. It is probed as `calibrate verify` does, and its cells are simulated
with the steps and host times of the probes; no request of a cell is part of a probe. The client serves the requests of
every cell: as many clients as its batch, each of which sends its next request after the answer to its last. The server
takes as many sequences as the largest batch.

The speed of a shared machine drifts within minutes, so the engine is probed before the first cell, after half of them
and after the last, and all cells are simulated with the three probes together.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import numpy as np

from calibration.accuracy.measured_run import MeasuredRun
from calibration.complexity.records import LatencyRecords
from calibration.complexity.summary import complexity_of
from calibration.machine_trace.folder import check_new_trace
from calibration.profile.machine.contention import CONTENDED_CORES
from calibration.serve.clients import IncompleteReplay
from calibration.serve.probe import OUTPUT_TOKENS, Probe
from calibration.serve.tiny_model import TINY_MODELS, write_tiny_model
from catalogs.errors import InputError
from catalogs.io.yaml_files import user_folder
from catalogs.statistics import statistics
from catalogs.ui.shared_options import own_version
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.workload import in_closed_loop, load_workload
from planner.matrix.cells import Cell
from planner.matrix.evaluation import identity, refused
from planner.matrix.row import CellVersions, MatrixRow
from simulator.analysis.complexity import latency_records
from simulator.analysis.metrics import latency_metrics
from simulator.cluster.compiled import CompiledDeployment, compile_deployment, with_host
from simulator.cluster.run import Run
from simulator.cluster.simulate import engine_rules, run_rules, simulate
from simulator.costs.measured_steps import MeasuredStepTimer
from simulator.verify.engines import SHORT_LIMITS, STARTERS, EngineChoice
from simulator.verify.measurement import EngineUnderTest, Probed, pooled
from simulator.verify.probe_fit import Cycles, fit_host, fit_requests, fit_steps
from simulator.verify.trials import Simulate, Trial

#: Hardware of cells that can be measured.
HERE: Final = "local"

#: Longest prompt of a probe, tokens.
_LONGEST_PROBE: Final = 512

#: Time that each part of one of the probes of an engine should take, seconds.
_PROBE_PART_S: Final = 5.0

#: Relative difference of the steps of several probes that a row mentions.
DRIFT: Final = 0.1

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """How cells are measured.

    Attributes:
        out: Folder for the logs of engines and clients.
        threads: Threads of an engine on a CPU.
        python: Interpreter of vLLM's environment; None searches for it.
        server: The llama-server program; None searches for it.
        machine: Folder for what the machine did, one below it for each model and engine; None: with the logs.
    """

    out: Path
    threads: int
    python: Path | None = None
    server: Path | None = None
    machine: Path | None = None


def is_live(cell: Cell) -> bool:
    """Return whether a cell can be measured on this machine if its engine is installed."""
    return cell.hardware == HERE and cell.open_share is None


def measure(cells: Sequence[Cell], settings: LiveSettings, tell: Tell) -> Iterator[tuple[Cell, MatrixRow, MatrixRow]]:
    """Yield each cell with its simulated and its measured row, engine by engine.

    A cell whose engine is not installed, or cannot serve it, has two rows with the reason as their rule.
    """
    ordered = sorted(cells, key=lambda cell: (cell.model, cell.engine))
    for (model, engine), group in groupby(ordered, key=lambda cell: (cell.model, cell.engine)):
        members = list(group)
        tell(f"measuring {model} on {engine}: {len(members)} cells")
        try:
            yield from _measure_engine(members, settings, tell)
        except InputError as error:
            for cell in members:
                row = refused(cell, "unsupported", error)
                yield cell, row, row.model_copy(update={"origin": "measured"})


def _measure_engine(
    cells: Sequence[Cell], settings: LiveSettings, tell: Tell
) -> Iterator[tuple[Cell, MatrixRow, MatrixRow]]:
    """Yield the rows of the cells of one model and engine.

    Raises:
        InputError: The engine is not installed, or it cannot be started or served.
    """
    first = cells[0]
    if first.engine not in STARTERS:
        raise InputError("this engine cannot be started here", first.engine, ", ".join(STARTERS))
    seats, longest = max(2, *(cell.batch for cell in cells)), first.max_model_len or SHORT_LIMITS.max_model_len
    blocks = -(-seats * longest // SHORT_LIMITS.block_size)
    limits = replace(
        SHORT_LIMITS, max_num_seqs=seats, max_model_len=longest, kv_blocks=blocks, threads=settings.threads
    )
    choice = EngineChoice(_folder_of(first.model), limits, settings.python, settings.server)
    subject, client = STARTERS[first.engine](choice)
    compiled = compile_deployment(subject.deployment, measured_host=False)
    name = f"{Path(first.model).name}-{first.engine}"
    machine = None if settings.machine is None else settings.machine / name
    check_new_trace(machine)
    probe_tokens, probes = min(_LONGEST_PROBE, longest - OUTPUT_TOKENS), list[Probed]()
    replays: list[tuple[Cell, RequestSet, tuple[MeasuredRun, float] | IncompleteReplay]] = []
    middle, warmed = -(-len(cells) // 2), set[str]()
    with EngineUnderTest(subject, client, settings.out / name, tell, machine) as engine:
        probes.append(engine.probe(probe_tokens, seats, _PROBE_PART_S))
        for half in filter(None, (cells[:middle], cells[middle:])):
            for cell in half:
                requests = requests_of(cell, longest)
                if cell.workload not in warmed:
                    engine.warm_up(requests)
                    warmed.add(cell.workload)
                replays.append((cell, requests, _replayed(engine, Trial(cell.name, requests))))
            probes.append(engine.probe(probe_tokens, seats, _PROBE_PART_S))
    probed = pooled(probes)
    run, way = _calibrated(probed, compiled)
    notices = [f"simulated on this machine with {way}", *drift_notice([part.probe for part in probes])]
    versions = CellVersions(product=own_version(), engine=f"{first.engine} {probed.engine_version}".strip())
    for cell, requests, replay in replays:
        predicted = _simulated(cell, run(requests), versions, notices)
        if isinstance(replay, IncompleteReplay):  # the engine may serve the other cells
            yield cell, predicted, refused(cell, "failed", replay).model_copy(update={"origin": "measured"})
        else:
            yield cell, predicted, _measured(cell, replay[0], versions, replay[1])


def _replayed(engine: EngineUnderTest, trial: Trial) -> tuple[MeasuredRun, float] | IncompleteReplay:
    """Return the measured run of a cell with the cores that other processes used, or why it failed."""
    try:
        replayed, others_cores = engine.replay([trial], 1)
    except IncompleteReplay as error:
        return error
    return replayed[trial.name][0], others_cores


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


def _calibrated(probed: Probed, compiled: CompiledDeployment) -> tuple[Simulate, str]:
    """Return the simulation of an engine with the times of its probes, and what they are."""
    host = fit_host(probed.probe, compiled)
    fitted = with_host(compiled, replace(compiled.resolved.engine.host, **host.model_dump(), measured=True))
    steps = fit_steps(probed.probe, probed.log, compiled.resolved.limits.max_num_batched_tokens)
    if steps is None:
        return partial(simulate, fitted), "operators, and host times of a probe"
    timer = MeasuredStepTimer(steps)
    path = fit_requests(probed.probe, fitted, timer)
    own = with_host(fitted, replace(fitted.resolved.engine.host, **path.model_dump(), measured=True))
    return partial(run_rules, engine_rules(own), timer), "whole steps of a probe"


def requests_of(cell: Cell, longest: int) -> RequestSet:
    """Return the requests of a cell's closed loop, cut to the longest sequence of the engine."""
    drawn = in_closed_loop(load_workload(cell.workload), cell.batch).materialise(cell.seed, cell.requests)
    inputs = np.minimum(drawn.input_tokens, longest // 2)
    return replace(drawn, input_tokens=inputs, output_tokens=np.minimum(drawn.output_tokens, longest - inputs - 1))


def _folder_of(model: str) -> Path:
    """Return the folder of a model's weights; the small test models are written when they are first needed.

    Raises:
        InputError: There is no such folder.
    """
    shape = TINY_MODELS.get(model)
    if shape is not None:
        return write_tiny_model(user_folder("models") / model, shape)
    folder = Path(model)
    if not (folder / "config.json").is_file():
        rule = "a model is measured from the folder of its weights"
        raise InputError(rule, model, hint=f"give a Hugging Face folder, or {', '.join(TINY_MODELS)}")
    return folder


def _simulated(cell: Cell, run: Run, versions: CellVersions, notices: list[str]) -> MatrixRow:
    metrics = latency_metrics(run)
    return MatrixRow(
        **identity(cell),
        origin="simulated",
        verdict="ok",
        used=HERE,
        n_accelerators=1,
        metrics=metrics,
        complexity=complexity_of(latency_records(run)).block(),
        versions=versions,
        notices=notices,
    )


def _measured(cell: Cell, run: MeasuredRun, versions: CellVersions, others_cores: float) -> MatrixRow:
    """Return the measured row of a cell, with the same keys as a simulated one where the client measures them."""
    last_s = float(np.nanmax(run.arrival_s + run.e2e_s) - run.arrival_s.min())
    metrics: dict[str, Any] = {
        "n_completed": run.n,
        "duration_s": last_s,
        **{name: statistics(getattr(run, name)) for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s")},
        "requests_per_s": run.n / last_s,
        "output_tokens_per_s": float(run.output_tokens.sum()) / last_s,
        "input_tokens_per_s": float(run.input_tokens.sum()) / last_s,
    }
    machine = f"{platform.node()}, {platform.machine()}, {platform.system()} {platform.release()}"
    notices = [f"measured by {run.client}"]
    if others_cores > CONTENDED_CORES:
        notices.append(f"other processes used {others_cores:.2g} cores while cells were measured: not a quiet machine")
    return MatrixRow(
        **identity(cell),
        origin="measured",
        verdict="ok",
        used=HERE,
        n_accelerators=1,
        metrics=metrics,
        complexity=complexity_of(LatencyRecords.measured(run)).block(),
        versions=versions.model_copy(update={"measured_on": machine}),
        notices=notices,
    )


@contextmanager
def results_folder(csv: Path | None) -> Iterator[Path]:
    """Yield the folder for the logs of engines: `runs` below that of --csv, or a temporary one."""
    if csv is not None:
        yield csv / "runs"
        return
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="plan-matrix-") as folder:
        yield Path(folder)
