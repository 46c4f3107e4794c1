"""Measurements of engines on the disk: read back exactly, and not repeated after `kill -9`.

The engine is the simulator itself (`tests/simulator/served_worlds.py`), with a client that measures its tokens; all
else is what `plan matrix --run` does.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from calibration.accuracy.measured_run import FailedRequest, MeasuredRun, OfferedLoad
from calibration.serve.clients import Endpoint
from calibration.serve.probe import Probe
from catalogs.deployments.schema import Deployment
from catalogs.engines.profile import HostTimes
from catalogs.workloads.request_set import RequestSet
from planner.matrix.cells import Cell, cells_of
from planner.matrix.live import REPLAYS, LiveSettings, live_engine, measure
from planner.matrix.live_rows import measured_row, noise
from planner.matrix.matrix_file import MatrixFile
from planner.matrix.measurement_records import PROBE, REPLAY, EngineMeasurements, MeasuredReplay, cell_key
from planner.matrix.records import RowRecords
from planner.matrix.row import CellVersions
from simulator.verify.engines import STARTERS, EngineChoice, EngineSubject
from simulator.verify.measurement import Probed
from tests.simulator.served_worlds import measured, synchronous_plant

PLANT = synchronous_plant(HostTimes(1e-3, 0.0, 0.0, 2e-3, 0.0, 0.0))
SERVED = Deployment(
    model="qwen2.5-0.5b", hardware="rtx4090", max_num_seqs=16, max_num_batched_tokens=512, max_model_len=2048
)


class SimulatedEngine:
    """A client of the simulator, which keeps the folders of its replays and dies by SIGKILL in one of them."""

    name = "client of the simulator"

    def __init__(self, dies_at: int | None = None) -> None:
        self.replayed: list[str] = []
        self.dies_at = dies_at

    def replay(self, requests: RequestSet, target: Endpoint, out: Path) -> MeasuredRun:  # noqa: ARG002
        cells = [name for name in self.replayed if name.startswith("trial")]
        if self.dies_at is not None and len(cells) == self.dies_at and out.name.startswith("trial"):
            os.kill(os.getpid(), signal.SIGKILL)
        self.replayed.append(out.name)
        return measured(PLANT, requests)

    def start(self, choice: EngineChoice) -> tuple[EngineSubject, SimulatedEngine]:  # noqa: ARG002
        return EngineSubject(SERVED, Endpoint("http://127.0.0.1:9", "m", ""), None), self


@pytest.fixture
def cells(tmp_path: Path) -> list[Cell]:
    """Four cells of a model in a folder; the simulated engine needs no weights."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    return cells_of(
        MatrixFile(
            models=[str(model)],
            engines=["vllm"],
            hardware=["local"],
            workloads=["alpaca", "lmsys-turns"],
            batches=[1, 2],
            requests=4,
            max_model_len=512,
        )
    )


def a_run(n: int = 3) -> MeasuredRun:
    each = np.array([0.1, 1.0 / 3.0, 2e-3])[:n]
    return MeasuredRun(
        "client",
        "source",
        each,
        each,
        each,
        each,
        np.full(n, np.nan),
        each,
        np.array([0.1, 0.2, 0.7]),
        5.0,
        1,
        notes=("a note",),
        n_gaps=(2, 0, 1)[:n],
        offered=OfferedLoad(concurrency=2),
        failures=(FailedRequest(3, "closed"),),
    )


def test_a_run_is_read_back_exactly() -> None:
    run = a_run()
    again = MeasuredRun.read(run.document())
    for name in MeasuredRun.__slots__:
        first, second = getattr(run, name), getattr(again, name)
        assert type(first) is type(second)
        assert np.array_equal(first, second, equal_nan=True) if isinstance(first, np.ndarray) else first == second


def test_measurements_are_read_back_in_their_sessions(tmp_path: Path) -> None:
    records = RowRecords(tmp_path / "rows.log")
    records.begin(keep=False)
    log = pd.DataFrame({"context_tokens": [1, 0], "seconds": [0.25, 1e-3], "kv_usage_fraction": [np.nan, 0.5]})
    first = Probed(Probe(a_run(), a_run(), (2, 1), (1, 1)), log, "0.32", 0.125)
    found = EngineMeasurements("engine", records)
    found.add_probe(1, first)
    found.add_replay("cell", MeasuredReplay(1, a_run(), 0.5))
    found.add_probe(2, replace(first, log=None))
    with open(records.path, "ab") as file:
        file.write(b'{"op_code":102,"engine":"engine","cell":"cut')  # what a killed process left of a record
    assert EngineMeasurements("another engine", records).last_session == 0
    records.begin(keep=True)
    again = EngineMeasurements("engine", records)
    assert again.last_session == 2
    assert again.ends_with_probe
    assert [probed.engine_version for probed in again.probes({1, 2})] == ["0.32"] * 2
    [probed] = again.probes({1})
    assert probed.log is not None
    pd.testing.assert_frame_equal(probed.log, log)
    assert (probed.probe.burst_sizes, probed.probe.burst_passes, probed.others_cores) == ((2, 1), (1, 1), 0.125)
    [replay] = again.replays("cell")
    assert (replay.session, replay.others_cores, replay.run.n) == (1, 0.5, 3)


def kinds(path: Path) -> list[int]:
    return [int(record["op_code"]) for record in RowRecords(path).of_kinds({PROBE, REPLAY})]


def test_after_a_kill_only_what_is_missing_is_measured(
    cells: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = RowRecords(tmp_path / "rows.log")
    settings = LiveSettings(tmp_path / "runs", 1)

    def rows_of(engine: SimulatedEngine) -> list[object]:
        monkeypatch.setitem(STARTERS, "vllm", engine.start)
        return list(measure(cells, settings, lambda _: None, records))

    records.begin(keep=False)
    killed = multiprocessing.get_context("fork").Process(target=rows_of, args=(SimulatedEngine(dies_at=5),))
    killed.start()
    killed.join(60.0)
    assert killed.exitcode == -signal.SIGKILL
    records.begin(keep=True)
    kept = records.path.read_bytes()
    assert kinds(records.path) == [PROBE, *[REPLAY] * 4, PROBE, REPLAY]
    engine = SimulatedEngine()
    rows = rows_of(engine)
    assert records.path.read_bytes().startswith(kept)
    assert kinds(records.path)[7:] == [PROBE, REPLAY, REPLAY, PROBE, REPLAY, PROBE]
    assert sum(name.startswith("trial") for name in engine.replayed) == REPLAYS * len(cells) - 5
    again = SimulatedEngine()
    assert rows_of(again) == rows
    assert again.replayed == []


def test_the_rows_of_an_engine_that_is_the_simulator_agree(
    cells: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probes predict the cells within 5 %; the engine schedules step by step, its deployment a step ahead."""
    monkeypatch.setitem(STARTERS, "vllm", SimulatedEngine().start)
    found = list(measure(cells, LiveSettings(tmp_path / "runs", 1), lambda _: None))
    assert [cell for cell, *_ in found] == cells
    for _, simulated, real in found:
        assert (simulated.verdict, real.verdict) == ("ok", "ok")
        assert real.noise == {"ttft_s": 0.0, "tpot_s": 0.0, "itl_s": 0.0, "e2e_s": 0.0}
        for name in ("tpot_s", "e2e_s"):
            assert simulated.statistic(name, "mean") == pytest.approx(real.statistic(name, "mean"), rel=0.05)


def test_another_configuration_or_workload_is_measured_anew(
    cells: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STARTERS, "vllm", SimulatedEngine().start)
    key = live_engine(cells, LiveSettings(tmp_path, 1)).key
    assert live_engine(cells[:1], LiveSettings(tmp_path, 1)).key == key
    assert live_engine(cells, LiveSettings(tmp_path, 2)).key != key
    one = RequestSet(np.zeros(2), np.array([5, 6]), np.array([4, 4]), concurrency=1)
    assert cell_key(cells[0], one) != cell_key(cells[0], replace(one, output_tokens=np.array([4, 5])))
    assert cell_key(cells[0], one) != cell_key(cells[1], one)


def test_the_noise_is_half_the_spread_of_the_replays(cells: list[Cell]) -> None:
    """Means of 1 and 1.5 s: half of the spread of 0.5 s, over 1.25 s."""
    run = a_run()
    slow, fast = (replace(run, e2e_s=np.full(3, seconds)) for seconds in (1.5, 1.0))
    assert noise([slow, fast])["e2e_s"] == pytest.approx(0.2)
    assert noise([slow, fast])["ttft_s"] == 0.0
    assert noise([slow]) == {}
    replays = [MeasuredReplay(1, each, 0.1) for each in (slow, fast)]
    row = measured_row(cells[0], replays, CellVersions(product="x", engine="vllm"))
    assert row.statistic("e2e_s", "mean") == pytest.approx(1.25)
    assert row.noise is not None
    assert row.noise["e2e_s"] == pytest.approx(0.2)
