"""A program that stays loaded between calls: its state, its logs, its failures, and its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from calibration.serve.resident_program import ResidentProgram
from catalogs.errors import InputError

COUNTING = """
calls = []
def run(words):
    calls.append(words)
    print("call", len(calls), *words, os.environ.get("MARK", "none"))
    if words[0] == "exit":
        raise SystemExit(3)
    if words[0] == "fail":
        raise ValueError("connection refused")
    if words[0] == "hang":
        import time
        time.sleep(600)
"""


@pytest.fixture
def program() -> Iterator[ResidentProgram]:
    made = ResidentProgram("client", Path(sys.executable), COUNTING)
    yield made
    made.close()


def test_calls_share_one_process_and_have_logs_of_their_own(program: ResidentProgram, tmp_path: Path) -> None:
    program.start(os.environ, tmp_path / "start.log")
    first = program.pids
    program.call(["a"], os.environ, 20.0, tmp_path / "1.log")
    program.call(["b"], os.environ, 20.0, tmp_path / "2.log")
    assert program.pids == first
    assert (tmp_path / "1.log").read_text() == "call 1 a none\n"
    assert (tmp_path / "2.log").read_text() == "call 2 b none\n"


def test_another_environment_needs_another_process(program: ResidentProgram, tmp_path: Path) -> None:
    program.call(["a"], os.environ, 20.0, tmp_path / "1.log")
    program.call(["b"], os.environ | {"MARK": "key"}, 20.0, tmp_path / "2.log")
    assert (tmp_path / "2.log").read_text() == "call 1 b key\n"


def test_a_call_that_fails_shows_its_last_words(program: ResidentProgram, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"client failed with status 1(.|\n)*connection refused"):
        program.call(["fail"], os.environ, 20.0, tmp_path / "log")
    with pytest.raises(InputError, match=r"status 3(.|\n)*call 1 exit"):
        program.call(["exit"], os.environ, 20.0, tmp_path / "log")


def test_a_call_that_hangs_is_stopped(program: ResidentProgram, tmp_path: Path) -> None:
    program.call(["a"], os.environ, 20.0, tmp_path / "log")
    with pytest.raises(InputError, match="stopped after 1 s"):
        program.call(["hang"], os.environ, 1.0, tmp_path / "log")
    assert program.pids == frozenset()


def test_a_program_that_cannot_be_loaded_shows_why(tmp_path: Path) -> None:
    broken = ResidentProgram("client", Path(sys.executable), "import no_such_module\n")
    with pytest.raises(InputError, match=r"status 1(.|\n)*no_such_module"):
        broken.call(["a"], os.environ, 20.0, tmp_path / "log")
    with pytest.raises(InputError, match="cannot be started"):
        ResidentProgram("client", tmp_path / "python", COUNTING).call(["a"], os.environ, 20.0, tmp_path / "log")


def test_the_program_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """Nothing is left behind even by `kill -9`."""
    code = (
        "import os, sys, time\nfrom pathlib import Path\n"
        "from calibration.serve.resident_program import ResidentProgram\n"
        "made = ResidentProgram('c', Path(sys.executable), 'def run(words): print(os.getpid())')\n"
        f"made.call([], os.environ, 20.0, Path({str(tmp_path / 'log')!r}))\n"
        "print('called', flush=True)\ntime.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "called\n"
        parent.send_signal(signal.SIGKILL)
    child = Path("/proc") / (tmp_path / "log").read_text().strip()
    ends = time.monotonic() + 20.0
    while child.exists() and time.monotonic() < ends:
        time.sleep(0.05)
    assert not child.exists()
