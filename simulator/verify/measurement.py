"""The measurement of a comparison: start the engine, probe it, replay every trial, stop it."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from calibration.accuracy.measured_run import MeasuredRun
from calibration.machine_trace.folder import write_trace
from calibration.machine_trace.sampler import ApiProcesses, MachineSampler
from calibration.profile.machine.contention import ContentionSample, usage
from calibration.report.machine_page import write_trace_and_page
from calibration.serve.clients import TRIES, Client, IncompleteReplay, InProcessEngine, ResidentClient
from calibration.serve.probe import PART_S, Probe, ProbeLimits, joined, probe
from calibration.serve.server import EngineServer
from catalogs.io.output_files import atomic_file, make_folder
from catalogs.workloads.request_set import RequestSet
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


def pooled(parts: Sequence[Probed]) -> Probed:
    """Return several probes of one engine as one, so that a drift of the machine between them affects it by half."""
    import pandas as pd

    logs = [part.log for part in parts if part.log is not None]
    return Probed(
        joined([part.probe for part in parts]),
        pd.concat(logs, ignore_index=True) if logs else None,
        parts[0].engine_version,
        max(part.others_cores for part in parts),
    )


class EngineUnderTest:
    """An engine with a client, started on entry and stopped on exit.

    Args:
        subject: The engine.
        client: The client.
        out: Folder for logs, and for the trace of the machine.
        tell: Shows a line of progress.
        machine: Folder for the trace with its page; None writes the trace without the page into `out`.
    """

    def __init__(
        self, subject: EngineSubject, client: Client, out: Path, tell: Tell, machine: Path | None = None
    ) -> None:
        self.subject, self._client, self._out, self._tell, self._machine = subject, client, out, tell, machine
        api = ApiProcesses(lambda: self._server.launch.port if self._server is not None else None)
        self._sampler, self._requests = MachineSampler(self._pids, api_pids=api), list[dict[str, float]]()
        self._server = EngineServer(subject.launch, out / "server.log") if subject.launch is not None else None
        self._probes, self._trials, self._warm_ups = 0, 0, 0  # so far, which number the folders of their files

    def __enter__(self) -> EngineUnderTest:
        self._sampler.__enter__()
        try:
            if isinstance(self._client, ResidentClient):
                self._client.load(self.subject.target, self._out / "client.log")
            if self._server is not None:
                self._tell(f"starting {self._server.launch.name} on port {self._server.launch.port}")
                self._server.start()
        except BaseException:
            self._end()
            raise
        return self

    def _end(self) -> None:
        """Stop the client, the server and the sampling of the machine."""
        if isinstance(self._client, ResidentClient):
            self._client.close()
        if self._server is not None:
            self._server.stop()
        self._sampler.__exit__()

    def __exit__(self, *_: object) -> None:
        self._end()
        if self._machine is None:
            write_trace(self._out / "machine", self._sampler.trace, self._requests)
        else:
            write_trace_and_page(self._machine, self._sampler.trace, self._requests)

    def _pids(self) -> frozenset[int]:
        """Return the processes of the engine; () for a server that the user runs, which may be elsewhere."""
        if self._server is not None:
            return self._server.pids
        return frozenset({os.getpid()} if isinstance(self._client, InProcessEngine) else ())

    def probe(self, most_input_tokens: int, max_num_seqs: int, part_s: float = PART_S) -> Probed:
        """Measure single requests and bursts (see `calibration.serve.probe`).

        Each probe reads only its own steps. Before every probe but the first, a server that is restarted for each
        replay is restarted.
        """
        self._tell("probing: single requests, then bursts")
        self._probes += 1
        folder = self._out / ("probe" if self._probes == 1 else f"probe-{self._probes}")
        if self._probes > 1 and self._server is not None and self._server.launch.restart_per_replay:
            self._server.restart()
        before, first_byte, first_step = self._moment(), self._log_bytes(), self._n_steps()
        limits = ProbeLimits(most_input_tokens, max_num_seqs, part_s)
        found = probe(self._client, self.subject.target, limits, folder, self._tell)
        others = self._others(before)
        if isinstance(self._client, InProcessEngine):
            steps = self._client.steps()
            return Probed(found, None if steps is None else steps[first_step:], self._client.engine_version, others)
        log = None
        if self._server is not None:
            subject, own = self.subject, make_folder(folder) / "engine.log"
            with self._server.log.open("rb") as whole, atomic_file(own) as part, Path(part).open("wb") as out:
                whole.seek(first_byte)
                shutil.copyfileobj(whole, out)
            log = None if subject.read_steps is None else subject.read_steps(own)
            if subject.read_passes is not None:
                found = replace(found, burst_passes=subject.read_passes(own, found.burst_sizes))
        return Probed(found, log, engine_version(self.subject.target), others)

    def _log_bytes(self) -> int:
        """Return the size of the server's log so far; 0 for the first probe, which also reads what the start wrote."""
        return self._server.log.stat().st_size if self._server is not None and self._probes > 1 else 0

    def _n_steps(self) -> int:
        """Return the steps of an engine in this process before a later probe."""
        steps = self._client.steps() if self._probes > 1 and isinstance(self._client, InProcessEngine) else None
        return 0 if steps is None else len(steps)

    def warm_up(self, requests: RequestSet) -> None:
        """Send the prompts of `requests` once, for two tokens each, if the server keeps what it prepares.

        vLLM on CPUs prepares kernels when a step has some number of tokens for the first time, which adds milliseconds
        to that step; a server in use has them. Requests that fail are left out.
        """
        if self._server is not None and self._server.launch.restart_per_replay:
            return
        self._tell("warming up with the prompts of the next cells")
        short = replace(requests, output_tokens=np.minimum(requests.output_tokens, 2))
        self._warm_ups += 1
        with contextlib.suppress(IncompleteReplay):
            self._client.replay(short, self.subject.target, self._out / "runs" / f"warm-up-{self._warm_ups}")

    def replay(self, trials: list[Trial], repeats: int) -> tuple[dict[str, list[MeasuredRun]], float]:
        """Replay every trial `repeats` times, alternating between trials, so that drift affects all of them.

        Returns:
            (the runs of every trial by name, one for each repeat; the most cores that other processes used).
        """
        runs: dict[str, list[MeasuredRun]] = {trial.name: [] for trial in trials}
        others_cores, first = 0.0, self._trials + 1
        self._trials += len(trials)
        for k, (i, trial) in product(range(repeats), enumerate(trials)):
            self._tell(f"replaying {trial.name}, {k + 1} of {repeats}")
            before, start_s = self._moment(), self._sampler.now_s()
            runs[trial.name].append(self._replay(trial, self._out / "runs" / f"trial-{first + i}-{k + 1}"))
            others_cores = max(others_cores, self._others(before))
            self._note(f"{trial.name}, repeat {k + 1}", runs[trial.name][-1], start_s)
            if self._server is not None:
                self._server.check_alive()
        return runs, others_cores

    def _note(self, name: str, run: MeasuredRun, start_s: float) -> None:
        """Keep a replay as a phase of the trace, with its requests; a client ends when its last request has."""
        end_s = self._sampler.now_s()
        self._sampler.add_phase(name, start_s, end_s)
        first_s = max(end_s - run.duration_s, start_s)
        rows = zip(run.arrival_s.tolist(), run.e2e_s.tolist(), run.ttft_s.tolist(), strict=True)
        for arrival_s, e2e_s, ttft_s in rows:
            sent_s = first_s + arrival_s
            times = {"start_s": sent_s, "end_s": sent_s + e2e_s, "latency_s": e2e_s}
            self._requests.append(times if math.isnan(ttft_s) else {**times, "first_token_s": sent_s + ttft_s})

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
        """Return the use of the processors; the processes of the server and of the client belong to the measurement."""
        own = self._server.pids if self._server is not None else frozenset()
        return usage(own | self._client.pids if isinstance(self._client, ResidentClient) else own)
