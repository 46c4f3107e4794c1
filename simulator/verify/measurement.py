"""The measurement of a comparison: start the engine, probe it, replay every trial, stop it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from calibration.accuracy.measured_run import MeasuredRun
from calibration.importers.iteration_log import read_iteration_log
from calibration.profile.machine.contention import ContentionSample, usage
from calibration.serve.clients import TRIES, Client, IncompleteReplay, InProcessEngine
from calibration.serve.probe import Probe, probe
from calibration.serve.server import EngineServer
from simulator.verify.engines import EngineSubject, engine_version
from simulator.verify.trials import Trial

if TYPE_CHECKING:
    import pandas as pd


#: Shows a line of progress.
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Probed:
    """The result of a probe. `log` holds the engine's steps during the probe; None if the engine has no such log."""

    probe: Probe
    log: pd.DataFrame | None
    engine_version: str
    others_cores: float


class EngineUnderTest:
    """An engine with a client, started on entry and stopped on exit."""

    def __init__(self, subject: EngineSubject, client: Client, out: Path, tell: Tell) -> None:
        self.subject, self._client, self._out, self._tell = subject, client, out, tell
        self._server = EngineServer(subject.launch, out / "server.log") if subject.launch is not None else None

    def __enter__(self) -> EngineUnderTest:
        if self._server is not None:
            self._tell(f"starting {self._server.launch.name} on port {self._server.launch.port}")
            try:
                self._server.start()
            except BaseException:
                self._server.stop()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.stop()

    def probe(self, most_input_tokens: int, max_num_seqs: int) -> Probed:
        """Measure lone requests and bursts (see `calibration.serve.probe`)."""
        self._tell("probing: lone requests, then bursts")
        before = self._moment()
        folder = self._out / "probe"
        found = probe(self._client, self.subject.target, most_input_tokens, max_num_seqs, folder, self._tell)
        others = self._others(before)
        if isinstance(self._client, InProcessEngine):
            return Probed(found, self._client.steps(), self._client.engine_version, others)
        server = self._server if self.subject.keeps_log else None
        log = None if server is None else read_iteration_log(server.log).rows
        return Probed(found, log, engine_version(self.subject.target), others)

    def replay(self, trials: list[Trial], repeats: int) -> tuple[dict[str, list[MeasuredRun]], float]:
        """Replay every trial `repeats` times, alternating between trials, so that drift affects all of them.

        Returns:
            (the runs of every trial by name, one for each repeat; the most cores that other processes used).
        """
        runs: dict[str, list[MeasuredRun]] = {trial.name: [] for trial in trials}
        others_cores = 0.0
        for k, (i, trial) in product(range(repeats), enumerate(trials)):
            self._tell(f"replaying {trial.name}, {k + 1} of {repeats}")
            before = self._moment()
            runs[trial.name].append(self._replay(trial, self._out / "runs" / f"trial-{i + 1}-{k + 1}"))
            others_cores = max(others_cores, self._others(before))
            if self._server is not None:
                self._server.check_alive()
        return runs, others_cores

    def _replay(self, trial: Trial, folder: Path) -> MeasuredRun:
        """Replay a trial once; if single requests fail, report which and why, and try again."""
        for left in range(TRIES - 1, -1, -1):
            if self._server is not None and self._server.launch.restart_per_replay:
                self._server.restart()
            try:
                return self._client.replay(trial.requests, self.subject.target, folder)
            except IncompleteReplay as error:
                if not left:
                    raise
                self._tell(f"{error.rule}; the trial is replayed again")
        raise AssertionError("unreachable")

    def _others(self, before: ContentionSample) -> float:
        """Return the cores that other processes used; 0 if the user runs the server, which may be on this machine."""
        elsewhere = self._server is None and not isinstance(self._client, InProcessEngine)
        return 0.0 if elsewhere else before.others_cores(self._moment())

    def _moment(self) -> ContentionSample:
        return usage(self._server.pids if self._server is not None else ())
