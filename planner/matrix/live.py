"""Cells measured on this machine: real engines and a real load client serve the requests of the same cells.

One server is started for each model and engine, with as many sequences as the largest batch. A client serves the
requests of every cell: as many clients as its batch, each of which sends its next request after the answer to its last.
The server is probed as `calibrate verify` does, and its cells are simulated with the steps and host times of the
probes; no request of a cell is part of a probe.

The speed of a shared machine drifts within minutes. All cells are therefore replayed once, and then all of them again;
the engine is probed before, between and after, and all cells are simulated with these probes together. Every probe and
every replay is recorded as soon as it is measured (`planner/matrix/measurement_records.py`). What an interrupted run
left to measure is measured between probes of its own, because another start of a server may have another speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Final

import numpy as np

from calibration.machine_trace.folder import check_new_trace
from calibration.serve.clients import Client, IncompleteReplay
from calibration.serve.probe import OUTPUT_TOKENS
from calibration.serve.tiny_model import TINY_MODELS, write_tiny_model
from catalogs.errors import InputError
from catalogs.io.yaml_files import user_folder
from catalogs.ui.installation import own_version
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.workload import in_closed_loop, load_workload
from planner.matrix.cells import Cell
from planner.matrix.evaluation import refused
from planner.matrix.live_rows import HERE, calibrated, drift_notice, measured_row, simulated_row
from planner.matrix.measurement_records import EngineMeasurements, MeasuredReplay, cell_key, engine_key
from planner.matrix.records import RowRecords
from planner.matrix.row import CellVersions, MatrixRow, Verdict
from simulator.cluster.compiled import CompiledDeployment, compile_deployment
from simulator.verify.engines import SHORT_LIMITS, STARTERS, EngineChoice, EngineSubject
from simulator.verify.measurement import EngineUnderTest, pooled
from simulator.verify.trials import Simulate, Trial

#: Longest prompt of a probe, tokens.
_LONGEST_PROBE: Final = 512

#: Time that each part of one of the probes of an engine should take, seconds.
_PROBE_PART_S: Final = 8.0

#: Replays of each cell; the difference between them is the noise of its measured row.
REPLAYS: Final = 2

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """How cells are measured.

    Attributes:
        out: Folder for the logs of engines and clients.
        threads: Threads of an engine on a CPU.
        python: Interpreter of vLLM's environment; None searches for it.
        server: The llama-server program; None searches for it.
        machine: Folder for what the machine did, one below it for each start of an engine; None: with the logs.
    """

    out: Path
    threads: int
    python: Path | None = None
    server: Path | None = None
    machine: Path | None = None


@dataclass(frozen=True, slots=True)
class LiveEngine:
    """An engine that can be measured, with the requests of its cells.

    Attributes:
        name: Model and engine, as a name of a folder.
        subject: The deployment, and the server that runs it.
        client: The load client.
        compiled: The deployment as the simulator runs it.
        key: What identifies the engine in its records.
        requests: The requests of each cell.
    """

    name: str
    subject: EngineSubject
    client: Client
    compiled: CompiledDeployment
    key: str
    requests: Mapping[Cell, RequestSet]

    def cell_key(self, cell: Cell) -> str:
        """Return what identifies a cell in the records."""
        return cell_key(cell, self.requests[cell])

    def left(self, measured: EngineMeasurements) -> list[Cell]:
        """Return the cells to replay, in order: all that lack their first replay, then all that lack a further one."""
        n_done = {cell: len(measured.replays(self.cell_key(cell))) for cell in self.requests}
        return [cell for turn in range(REPLAYS) for cell in self.requests if n_done[cell] <= turn]


def is_live(cell: Cell) -> bool:
    """Return whether a cell can be measured on this machine if its engine is installed."""
    return cell.hardware == HERE and cell.open_share is None


def measure(
    cells: Sequence[Cell], settings: LiveSettings, tell: Tell, records: RowRecords | None = None
) -> Iterator[tuple[Cell, MatrixRow, MatrixRow]]:
    """Yield each cell with its simulated and its measured row, engine by engine.

    A cell whose engine is not installed, or cannot serve it, has two rows with the reason as their rule.

    Args:
        cells: The cells.
        settings: How they are measured.
        tell: Shows a line of progress.
        records: Where each measurement is kept; what is there already is not measured again. None keeps nothing.

    Raises:
        InputError: The records cannot be read or written.
    """
    ordered = sorted(cells, key=lambda cell: (cell.model, cell.engine))
    for (model, engine), group in groupby(ordered, key=lambda cell: (cell.model, cell.engine)):
        members = list(group)
        try:
            live = live_engine(members, settings)
        except InputError as error:
            yield from ((cell, *_refused(cell, error)) for cell in members)
            continue
        measured = EngineMeasurements(live.key, records)
        failures: dict[Cell, InputError] = {}
        left = live.left(measured)
        if left or not measured.ends_with_probe:
            tell(f"measuring {model} on {engine}: {len(left)} of {REPLAYS * len(members)} replays are left")
            try:
                _measure_left(live, measured, left, failures, settings, tell)
            except InputError as error:
                tell(str(error))
                failures = dict.fromkeys(left, error) | failures
        yield from _rows(live, measured, failures)


def live_engine(cells: Sequence[Cell], settings: LiveSettings) -> LiveEngine:
    """Return the engine of cells of one model and engine.

    Raises:
        InputError: The engine is not installed, or cannot serve the model.
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
    return LiveEngine(
        f"{Path(first.model).name}-{first.engine}",
        subject,
        client,
        compile_deployment(subject.deployment, measured_host=False),
        engine_key(subject, choice, client.name),
        {cell: requests_of(cell, longest) for cell in cells},
    )


def _measure_left(
    live: LiveEngine,
    measured: EngineMeasurements,
    left: Sequence[Cell],
    failures: dict[Cell, InputError],
    settings: LiveSettings,
    tell: Tell,
) -> None:
    """Start the engine once and replay the cells in `left` between probes; add cells that fail to `failures`.

    Raises:
        InputError: The engine cannot be started or ends, or the records cannot be written.
    """
    session, name = measured.last_session + 1, live.name
    while (settings.out / name).exists():  # of an earlier start
        session, name = session + 1, f"{live.name}-{session + 1}"
    machine = None if settings.machine is None else settings.machine / name
    check_new_trace(machine)
    limits = live.compiled.resolved.limits
    probe_tokens = min(_LONGEST_PROBE, limits.max_model_len - OUTPUT_TOKENS)
    middle, warmed = -(-len(left) // 2), set[str]()
    with EngineUnderTest(live.subject, live.client, settings.out / name, tell, machine) as engine:
        measured.add_probe(session, engine.probe(probe_tokens, limits.max_num_seqs, _PROBE_PART_S))
        for part in filter(None, (left[:middle], left[middle:])):
            for cell in part:
                if cell in failures:
                    continue
                if cell.workload not in warmed:
                    engine.warm_up(live.requests[cell])
                    warmed.add(cell.workload)
                try:
                    runs, others_cores = engine.replay([Trial(cell.name, live.requests[cell])], 1)
                except IncompleteReplay as error:  # the engine may serve the other cells
                    failures[cell] = error
                    continue
                [run] = runs[cell.name]
                measured.add_replay(live.cell_key(cell), MeasuredReplay(session, run, others_cores))
            measured.add_probe(session, engine.probe(probe_tokens, limits.max_num_seqs, _PROBE_PART_S))


def _rows(
    live: LiveEngine, measured: EngineMeasurements, failures: Mapping[Cell, InputError]
) -> Iterator[tuple[Cell, MatrixRow, MatrixRow]]:
    """Yield the rows of the cells of an engine from what was measured.

    A cell is simulated with the probes of the starts of the server that served it, and has figures once all of its
    replays are measured.
    """
    simulations: dict[frozenset[int], tuple[Simulate, CellVersions, list[str]]] = {}
    for cell, requests in live.requests.items():
        replays = measured.replays(live.cell_key(cell))[:REPLAYS]
        sessions = frozenset(replay.session for replay in replays) or frozenset({measured.last_session})
        refusals = _refused(cell, failures.get(cell) or InputError("the engine was not probed", live.name))
        if not measured.probes(sessions):
            yield cell, *refusals
            continue
        if sessions not in simulations:
            simulations[sessions] = _simulation(live, measured, sessions)
        run, versions, notices = simulations[sessions]
        is_whole = len(replays) == REPLAYS
        second = measured_row(cell, replays, versions) if is_whole else refusals[1]
        yield cell, simulated_row(cell, run(requests), versions, notices), second


def _simulation(
    live: LiveEngine, measured: EngineMeasurements, sessions: frozenset[int]
) -> tuple[Simulate, CellVersions, list[str]]:
    """Return the simulation of an engine by the probes of some starts, the versions, and the notices of its rows."""
    probes = measured.probes(sessions)
    probed = pooled(probes)
    run, way = calibrated(probed, live.compiled)
    notices = [f"simulated on this machine with {way}", *drift_notice([part.probe for part in probes])]
    engine = f"{live.subject.deployment.engine} {probed.engine_version}".strip()
    return run, CellVersions(product=own_version(), engine=engine), notices


def _refused(cell: Cell, error: InputError) -> tuple[MatrixRow, MatrixRow]:
    """Return both rows of a cell without figures."""
    verdict: Verdict = "failed" if isinstance(error, IncompleteReplay) else "unsupported"
    row = refused(cell, verdict, error)
    return row, row.model_copy(update={"origin": "measured"})


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


@contextmanager
def results_folder(csv: Path | None) -> Iterator[Path]:
    """Yield the folder for the logs of engines: `runs` below that of --csv, or a temporary one."""
    if csv is not None:
        yield csv / "runs"
        return
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="plan-matrix-") as folder:
        yield Path(folder)
