"""A serving engine as a child process in its own session.

The engine is polled until it is healthy, and it is stopped together with its children.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Final, Self
from urllib.request import urlopen

from catalogs.errors import InputError
from catalogs.io.output_files import make_folder

#: Lines at the end of the log that a failed start shows.
LAST_LINES: Final = 12

#: Time between two looks whether the server has started, seconds.
POLL_S: Final = 0.25

#: Time for a server to end after SIGINT, seconds. A judgement: engines take some seconds to free the device.
GRACE_S: Final = 15.0

ORPHANS_S: Final = 2.0  # grace for workers that outlive the main process of the engine


@dataclass(frozen=True, slots=True)
class Launch:
    """The command that starts an engine.

    `env` is added to this process's environment. `health` is the path that returns status 200 when the engine is ready.
    """

    name: str
    command: tuple[str, ...]
    port: int
    env: dict[str, str] = field(default_factory=dict)
    health: str = "/health"
    logs_steps: bool = True  # whether the log holds the time of each step, if the engine logs steps
    restart_per_replay: bool = False  # whether earlier requests affect the speed, so that every replay needs a restart

    @property
    def url(self) -> str:
        """Return the address of the server."""
        return f"http://127.0.0.1:{self.port}"


class EngineServer:
    """A running engine; as a context manager it ends every process of the engine on exit."""

    def __init__(self, launch: Launch, log: Path) -> None:
        self.launch = launch
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pids(self) -> frozenset[int]:
        """Return the ids of the live processes of the engine's session."""
        return frozenset() if self._process is None else _session(self._process.pid)

    def start(self, timeout_s: float = 300.0) -> None:
        """Start the engine and wait until it is healthy.

        Raises:
            InputError: If the engine cannot be started, ends, or is not healthy after `timeout_s` seconds. It shows the
                last lines of the log.
        """
        check_port(self.launch.port)
        make_folder(self.log.parent)
        self._starts += 1
        with self.log.open("wb") as log:
            try:
                self._process = subprocess.Popen(
                    self.launch.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=os.environ | self.launch.env,
                    start_new_session=True,
                )
            except OSError as error:
                raise InputError(f"{self.launch.name} cannot be started", f"{error}") from None
        ends = time.monotonic() + timeout_s
        while not self._healthy():
            if (code := self._process.poll()) is not None:
                raise InputError(f"{self.launch.name} ended with status {code} before it served", log_tail(self.log))
            if time.monotonic() > ends:
                self.stop()
                raise InputError(f"{self.launch.name} was not healthy after {timeout_s:.0f} s", log_tail(self.log))
            time.sleep(POLL_S)

    def restart(self) -> None:
        """Stop the engine and start it again with a new log (server.log, server-2.log, …)."""
        self.stop()
        stem = self.log.stem.removesuffix(f"-{self._starts}")
        self.log = self.log.with_name(f"{stem}-{self._starts + 1}.log")
        self.start()

    def check_alive(self) -> None:
        """Check that the engine still runs.

        Raises:
            InputError: If the engine has ended. It shows the last lines of the log.
        """
        if self._process is not None and self._process.poll() is not None:
            status = self._process.returncode
            raise InputError(f"{self.launch.name} ended with status {status} while it served", log_tail(self.log))

    def stop(self) -> None:
        """End the engine and every process of its session, first by SIGINT, then by SIGTERM and SIGKILL."""
        process, self._process = self._process, None
        if process is None:
            return
        for sign, grace_s in ((signal.SIGINT, GRACE_S), (signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
            if sign == signal.SIGINT and _ignores(process.pid, sign):
                continue
            _signal_all(process.pid, sign)
            if _gone(process, grace_s):
                return

    def _healthy(self) -> bool:
        try:
            with urlopen(self.launch.url + self.launch.health, timeout=2.0) as answer:
                return bool(answer.status == 200)
        except (OSError, HTTPException, ValueError):
            return False


def log_tail(log: Path) -> str:
    """Return the last lines of a log, for an error message."""
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines()]
    last = [line for line in lines if line and "leaked" not in line][-LAST_LINES:]
    return f"log {log} ends with:\n  " + "\n  ".join(last) if last else f"log {log} is empty"


def check_port(port: int) -> None:
    """Check that a port is free.

    Raises:
        InputError: If a process already listens on the port, or there is no such port.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else "there is no such port"
            raise InputError(f"the port cannot be used ({reason})", port, str(free_port())) from None


def free_port() -> int:
    """Return a port on which no process listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _session(leader: int) -> frozenset[int]:
    """Return the ids of the live processes of a session, by its leader."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] != "Z":
                found.add(int(stat.parent.name))
    return frozenset(found)


def _signal_all(leader: int, sign: signal.Signals) -> None:
    """Send SIGINT to the leader, which ends its workers, and other signals to every process of the session."""
    for pid in [leader] if sign == signal.SIGINT else _session(leader):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sign)


def _ignores(pid: int, sign: signal.Signals) -> bool:
    """Return whether a process ignores a signal: what a shell starts in the background ignores SIGINT, children too."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigIgn:"):
                return bool(int(line.split()[1], 16) >> (sign - 1) & 1)
    return False


def _gone(process: subprocess.Popen[bytes], grace_s: float) -> bool:
    """Wait until every process of the session has ended, for ORPHANS_S at most after the end of the leader."""
    ends = time.monotonic() + grace_s
    leader_lives = True
    while time.monotonic() < ends:
        if process.poll() is not None:
            if not _session(process.pid):
                return True
            if leader_lives:
                leader_lives, ends = False, min(ends, time.monotonic() + ORPHANS_S)
        time.sleep(0.05)
    return False
