"""Worker processes, one per model, which are kept while memory allows.

If a worker ends, only its point fails and the session continues.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import IO, Any, Final

from calibration.profile.machine.device import ProfiledDevice
from calibration.whole_models.physics import sizes
from calibration.whole_models.subjects import RandomWeightModel
from calibration.whole_models.workloads import Point

#: Longest time to build a model in a worker, seconds. A judgement: large models are drawn at random for minutes.
BUILD_LIMIT_S: Final = 900.0

RESIDENT_SHARE: Final = 0.35  # share of the device's memory that all loaded models may hold together

WorkerReply = dict[str, Any]


class WorkerFailed(Exception):
    """A worker process ended, or was ended because it took too long; the message gives the reason."""


@dataclass(slots=True)
class Worker:
    """A running process that holds a model."""

    process: subprocess.Popen[bytes]
    log: IO[bytes]
    facts: WorkerReply = field(default_factory=dict)
    used_at: float = 0.0

    @classmethod
    def start(cls, subject: RandomWeightModel, device: ProfiledDevice, dtype: str) -> Worker:
        """Start a process that builds the model.

        Raises:
            WorkerFailed: If the model cannot be built.
        """
        log = tempfile.TemporaryFile()  # noqa: SIM115 - the file is open while the process runs
        command = [sys.executable, "-m", "calibration.whole_models.worker", "--device", device.kind, "--dtype", dtype]
        command += ["--threads", str(device.threads), "--cores", ",".join(map(str, device.cores))]
        offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=os.environ | offline
        )
        worker = cls(process, log)
        try:
            worker.facts = worker.request(subject.config, BUILD_LIMIT_S)
        except BaseException:  # also Ctrl-C: no other object holds this process yet
            worker.stop()
            raise
        return worker

    def request(self, order: Mapping[str, Any], limit_s: float) -> WorkerReply:
        """Send one order and return the worker's reply.

        Raises:
            WorkerFailed: If the worker ended or took longer than `limit_s` seconds. The process has then been ended,
                and the message is its last line of output.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.used_at = time.monotonic()
        try:
            self.process.stdin.write((json.dumps(order) + "\n").encode())
            self.process.stdin.flush()
            with selectors.DefaultSelector() as ready:
                ready.register(self.process.stdout, selectors.EVENT_READ)
                if not ready.select(limit_s):
                    self.stop()
                    raise WorkerFailed(f"it did not finish within {limit_s:.0f} s")
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            reason = self._end_reason()
            self.stop()
            raise WorkerFailed(reason)
        return dict(json.loads(line))

    def stop(self) -> None:
        """End the process, which also ends a fork of it that is measuring."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.log):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _end_reason(self) -> str:
        """Return why the process ended: the last line of its output, or its exit status."""
        self.process.wait(timeout=30)
        self.log.seek(0)
        lines = [t for t in self.log.read().decode(errors="replace").splitlines() if t.strip()]
        killed = "the system killed the model's process: out of memory" if self.process.returncode == -9 else ""
        return killed or (lines[-1].strip()[:300] if lines else f"exit status {self.process.returncode}")


@dataclass(slots=True)
class Workers:
    """Workers by model name; as a context manager it ends all of them on exit."""

    subjects: Mapping[str, RandomWeightModel]
    device: ProfiledDevice
    dtype: str
    running: dict[str, Worker] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_error: object) -> None:
        for worker in self.running.values():
            worker.stop()
        self.running.clear()

    def measure(self, point: Point, repeats_s: float, memory_bytes: float, limit_s: float) -> WorkerReply:
        """Return the measured columns of a point, with status "oom" or "error" where the point or its model fails.

        Args:
            point: The point to measure.
            repeats_s: Seconds that the repeats may take.
            memory_bytes: Memory that the run may take in addition to the weights.
            limit_s: Seconds after which the point counts as hung.
        """
        if point.model in self.broken:
            return {"status": "error", "reason": self.broken[point.model]}
        order = {"point": asdict(point), "limit_s": repeats_s, "memory_bytes": memory_bytes}
        try:
            worker = self._started(point.model)
        except WorkerFailed as error:
            self.broken[point.model] = f"the model cannot be built: {error}"
            return {"status": _kind(str(error)), "reason": self.broken[point.model]}
        try:
            return worker.request(order, limit_s)
        except WorkerFailed as error:
            self.running.pop(point.model, None)
            return {"status": _kind(str(error)), "reason": str(error)}

    def free_bytes(self, model: str) -> float:
        """Return the free memory for a run of a model; the weights of a model that is not built yet are subtracted."""
        return self.device.free_bytes() - (0.0 if model in self.running else self._weight_bytes(model))

    def _started(self, model: str) -> Worker:
        """Return the running worker of a model, and start one where there is none.

        A new one ends the least recently used workers until all models together are within RESIDENT_SHARE.
        """
        if model in self.running:
            return self.running[model]
        most = RESIDENT_SHARE * self.device.memory_bytes - self._weight_bytes(model)
        while self.running and sum(w.facts.get("model_bytes", 0.0) for w in self.running.values()) > most:
            oldest = min(self.running, key=lambda name: self.running[name].used_at)
            self.running.pop(oldest).stop()
        self.running[model] = Worker.start(self.subjects[model], self.device, self.dtype)
        return self.running[model]

    def _weight_bytes(self, model: str) -> float:
        return sizes(self.subjects[model].spec, self.dtype)["weight_bytes"]


def _kind(text: str) -> str:
    return "oom" if "memory" in text else "error"
