"""Commands as processes of their own that tests send signals to: none is left behind, and no test waits for ever."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any


def _receptive() -> None:
    """Receive signals as in a terminal, also where the tests run in the background or under nohup."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def started(command: Sequence[str], ignored: signal.Signals | None = None, **options: Any) -> Iterator[Any]:
    """Yield the process of a command, in a process group of its own that is killed at the end.

    The process ignores the signal `ignored` from its start, as under nohup.
    """

    def prepare() -> None:
        _receptive()
        if ignored is not None:
            signal.signal(ignored, signal.SIG_IGN)

    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    process = subprocess.Popen(command, start_new_session=True, preexec_fn=prepare, **pipes)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
