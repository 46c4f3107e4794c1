"""A Python program of another environment that is loaded once and called many times.

A load client such as `vllm bench serve` imports libraries for about ten seconds before its first request. A measurement
calls it dozens of times, so the program stays loaded between the calls. It ends with this process, however that ends,
because it reads its calls from a pipe.
"""

from __future__ import annotations

import json
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from calibration.serve.server import log_tail
from catalogs.errors import InputError
from catalogs.io.output_files import make_folder

#: Keeps the pipe of the answers apart from what the program prints.
_BEFORE: Final = """
import json, os, sys, traceback
_answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
"""

#: Runs one call per line of the standard input: its words, and the file for what it prints.
_CALLS: Final = """
for _line in sys.stdin:
    _call = json.loads(_line)
    _log = os.open(_call["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(_log, 1)
    os.dup2(_log, 2)
    os.close(_log)
    try:
        run(_call["words"])
        _status = 0
    except SystemExit as _end:
        _status = _end.code if isinstance(_end.code, int) else int(_end.code is not None)
        if isinstance(_end.code, str):
            print(_end.code)
    except BaseException:
        traceback.print_exc()
        _status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    print(_status, file=_answers, flush=True)
"""


class ResidentProgram:
    """A program that is called again and again in one process.

    Args:
        name: Its name in errors.
        python: The interpreter that runs it.
        source: Python code that defines `run(words)`, which is called with the arguments of each call.
    """

    def __init__(self, name: str, python: Path, source: str) -> None:
        self._name, self._python, self._source = name, python, source
        self._process: subprocess.Popen[bytes] | None = None
        self._environment: Mapping[str, str] = {}

    @property
    def pids(self) -> frozenset[int]:
        """Return the id of the process of the program, if it runs."""
        return frozenset() if self._process is None else frozenset({self._process.pid})

    def start(self, environment: Mapping[str, str], log: Path) -> None:
        """Start to load the program, unless it runs with this environment; do not wait until it is loaded.

        Args:
            environment: The environment variables of the process.
            log: File for what the program prints while it is loaded.

        Raises:
            InputError: The interpreter cannot be started.
        """
        if self._process is not None and self._process.poll() is None and self._environment == environment:
            return
        self.close()
        make_folder(log.parent)
        command = [str(self._python), "-c", _BEFORE + self._source + _CALLS]
        pipe = subprocess.PIPE
        with log.open("wb") as file:
            try:
                self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=file, env=dict(environment))
            except OSError as error:
                raise InputError(f"{self._name} cannot be started", str(error)) from None
        self._environment = dict(environment)

    def call(self, words: Sequence[str], environment: Mapping[str, str], timeout_s: float, log: Path) -> None:
        """Call the program, and return when it has returned.

        Args:
            words: The arguments of the call.
            environment: The environment variables; a program that runs with others is restarted.
            timeout_s: Seconds after which a call counts as hung.
            log: File for what the program prints during the call.

        Raises:
            InputError: The program cannot be started, fails, or takes longer than `timeout_s` seconds. It shows the
                last lines of the log.
        """
        self.start(environment, log)
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise AssertionError("a started program has pipes")
        try:
            process.stdin.write(json.dumps({"words": list(words), "log": str(log.resolve())}).encode() + b"\n")
            process.stdin.flush()
            answer = _line_of(process, time.monotonic() + timeout_s)
        except BrokenPipeError:  # it ended while it was loaded
            answer = b""
        except BaseException:
            self.close()
            raise
        if answer is None:
            self.close()
            raise InputError(f"{self._name} was stopped after {timeout_s:.0f} s", log_tail(log))
        status = int(answer) if answer.strip() else process.wait()
        if status:
            self.close()
            raise InputError(f"{self._name} failed with status {status}: {_last_line(log)}", log_tail(log))

    def close(self) -> None:
        """End the process of the program, if it runs."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:  # a call that was never read
                    continue


def _line_of(process: subprocess.Popen[bytes], until: float) -> bytes | None:
    """Return the next line of a process, b"" if it has ended, or None if there is none until a monotonic time."""
    if process.stdout is None:
        raise AssertionError("a started program has pipes")
    readable, _, _ = select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))
    return process.stdout.readline() if readable else None


def _last_line(log: Path) -> str:
    """Return the last line of a log that is not empty, which names the error if the program raised one."""
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"
