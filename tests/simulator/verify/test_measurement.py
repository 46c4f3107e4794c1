"""The measurement of an engine: what a later probe reads, and where the files of trials are."""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pandas as pd
import pytest

from calibration.accuracy.measured_run import MeasuredRun
from calibration.serve.clients import Endpoint
from calibration.serve.probe import N_LENGTHS
from calibration.serve.server import Launch, free_port
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.workloads.request_set import RequestSet
from simulator.verify.engines import EngineSubject
from simulator.verify.measurement import EngineUnderTest, pooled
from simulator.verify.trials import Trial


class MarkingClient:
    """Asks the server for a path that names the folder of the replay, which the server writes to its log."""

    name = "marking client"

    def replay(self, requests: RequestSet, target: Endpoint, out: Path) -> MeasuredRun:
        with urlopen(f"{target.url}/?{out.name}", timeout=10.0):
            pass
        n = requests.n
        gaps = tuple(int(tokens) - 1 for tokens in requests.output_tokens)
        return MeasuredRun(
            client=self.name,
            source="r",
            arrival_s=requests.arrival_s,
            input_tokens=requests.input_tokens.astype(float),
            output_tokens=requests.output_tokens.astype(float),
            ttft_s=np.full(n, 1.0),
            tpot_s=np.full(n, 0.1),
            e2e_s=np.full(n, 4.0),
            itl_s=np.full(sum(gaps), 0.1),
            duration_s=5.0,
            n_failed=0,
            n_gaps=gaps,
        )


class LoadedClient(MarkingClient):
    """A client whose program is a process that stays loaded; it keeps what was done with it."""

    def __init__(self, fails: bool = False) -> None:
        self.done: list[str] = []
        self.fails = fails

    @property
    def pids(self) -> frozenset[int]:
        return frozenset()

    def load(self, target: Endpoint, log: Path) -> None:  # noqa: ARG002
        self.done.append("load")
        if self.fails:
            raise InputError("the client cannot be started", "python")

    def close(self) -> None:
        self.done.append("close")


def test_a_loaded_client_is_closed_however_the_measurement_ends(tmp_path: Path) -> None:
    deployment = Deployment(model="llama3.1-8b", engine="vllm", hardware="h100x1")
    subject = EngineSubject(deployment, Endpoint("http://127.0.0.1:9", "m", ""), None)
    whole, broken = LoadedClient(), LoadedClient(fails=True)
    with EngineUnderTest(subject, whole, tmp_path / "out", [].append):
        assert whole.done == ["load"]
    assert whole.done == ["load", "close"]
    with pytest.raises(InputError), EngineUnderTest(subject, broken, tmp_path / "out", [].append):
        pass
    assert broken.done == ["load", "close"]


def marks(log: Path) -> pd.DataFrame:
    """The replays that a log names, one row each."""
    found = [line.split("/?")[1].split(" ")[0] for line in log.read_text().splitlines() if "/?" in line]
    return pd.DataFrame({"mark": found})


def test_a_later_probe_reads_none_of_the_steps_before_it(tmp_path: Path) -> None:
    """Steps of the trials between two probes, whose requests the probes are compared with, are no part of either."""
    port = free_port()
    command = (
        sys.executable,
        "-u",
        "-m",
        "http.server",
        str(port),
        "--bind",
        "127.0.0.1",
        "--directory",
        str(tmp_path),
    )
    launch = Launch("server", command, port, health="/")
    deployment = Deployment(model="llama3.1-8b", engine="vllm", hardware="h100x1")
    subject = EngineSubject(deployment, Endpoint(launch.url, "m", ""), launch, marks)
    trial = Trial("cell", RequestSet(np.zeros(2), np.array([5, 6]), np.array([4, 4]), concurrency=1))
    with EngineUnderTest(subject, MarkingClient(), tmp_path / "out", [].append) as engine:
        first = engine.probe(64, 2)
        engine.warm_up(trial.requests)
        engine.replay([trial, trial], 1)
        engine.replay([trial], 1)
        second = engine.probe(64, 2)
    names = ["warm-up", "single", "bursts", "further-bursts"]
    assert first.log is not None
    assert second.log is not None
    assert first.log.mark.tolist() == second.log.mark.tolist() == names
    log = (tmp_path / "out" / "server.log").read_text()
    assert [name in log for name in ("trial-1-1", "trial-2-1", "trial-3-1", "trial-4-1")] == [True, True, True, False]
    assert log.index("warm-up-1") < log.index("trial-1-1")
    both = pooled([first, second])
    assert both.log is not None
    assert both.log.mark.tolist() == names * 2
    assert both.probe.single.n == first.probe.single.n + second.probe.single.n
    assert first.probe.single.n % N_LENGTHS == 0
