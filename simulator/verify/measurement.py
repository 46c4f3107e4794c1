"""The measurement of a comparison: start the engine, probe it, replay every trial, stop it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from calibration.accuracy.measured_run import MeasuredRun
from calibration.importers.iteration_log import read_iteration_log
from calibration.profile.machine.contention import ContentionSample, usage
from calibration.serve.clients import Client, IncompleteReplay, InProcessEngine
from calibration.serve.probe import Probe, probe
from calibration.serve.server import EngineServer
from simulator.verify.engines import EngineSubject, engine_version
from simulator.verify.trials import Trial

if TYPE_CHECKING:
    import pandas as pd


Told = Callable[[str], None]

TRIES: Final = 3  # attempts at a replay in which single requests fail


@dataclass(frozen=True, slots=True)
class Probed:
    """The result of a probe. `log` holds the engine's steps during the probe; None if the engine has no such log."""

    probe: Probe
    log: pd.DataFrame | None
    engine_version: str
    others_cores: float


@dataclass(slots=True)
class Replayed:
    """The runs of every trial by name, one for each repeat, and the cores that other processes used."""

    runs: dict[str, list[MeasuredRun]] = field(default_factory=dict)
    others_cores: dict[str, float] = field(default_factory=dict)


class EngineUnderTest:
    """An engine with a client, started on entry and stopped on exit."""

    def __init__(self, subject: EngineSubject, client: Client, out: Path, told: Told) -> None:
        self.subject = subject
        self._client = client
        self._out = out
        self._told = told
        self._server: EngineServer | None = None
        self._stack = ExitStack()

    def __enter__(self) -> EngineUnderTest:
        launch = self.subject.launch
        if launch is not None:
            self._server = self._stack.enter_context(EngineServer(launch, self._out / "server.log"))
            self._told(f"starting {launch.name} on port {launch.port}")
            try:
                self._server.start()
            except BaseException:
                self._stack.close()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def probe(self, most_input_tokens: int, max_num_seqs: int) -> Probed:
        """Measure lone requests and bursts (see `calibration.serve.probe`)."""
        self._told("probing: lone requests, then bursts")
        before = self._moment()
        found = probe(self._client, self.subject.target, most_input_tokens, max_num_seqs, self._out / "probe")
        others = self._others(before)
        if isinstance(self._client, InProcessEngine):
            return Probed(found, self._client.steps(), self._client.engine_version, others)
        log = None
        if self._server is not None and self.subject.keeps_log:
            log = read_iteration_log(self._server.log).rows
        return Probed(found, log, engine_version(self.subject.target), others)

    def replay(self, trials: list[Trial], repeats: int) -> Replayed:
        """Replay every trial `repeats` times, alternating between trials, so that drift affects all of them."""
        done = Replayed()
        for k in range(repeats):
            for i, trial in enumerate(trials):
                self._told(f"replaying {trial.name}, {k + 1} of {repeats}")
                before = self._moment()
                folder = self._out / "runs" / f"trial-{i + 1}-{k + 1}"
                done.runs.setdefault(trial.name, []).append(self._replay(trial, folder))
                others = self._others(before)
                done.others_cores[trial.name] = max(others, done.others_cores.get(trial.name, 0.0))
                if self._server is not None:
                    self._server.check_alive()
        return done

    def _replay(self, trial: Trial, folder: Path) -> MeasuredRun:
        """Replay a trial once; if single requests fail, report that and try again."""
        for left in range(TRIES - 1, -1, -1):
            if self._server is not None and self._server.launch.restart_per_replay:
                self._server.restart()
            try:
                return self._client.replay(trial.requests, self.subject.target, folder)
            except IncompleteReplay as error:
                if not left:
                    raise
                self._told(f"{error}: trying again")
        raise AssertionError("unreachable")

    def _others(self, before: ContentionSample) -> float:
        """Return the cores that other processes used; 0 if the user runs the server, which may be on this machine."""
        elsewhere = self._server is None and not isinstance(self._client, InProcessEngine)
        return 0.0 if elsewhere else before.others_cores(self._moment())

    def _moment(self) -> ContentionSample:
        return usage(self._server.pids if self._server is not None else ())
