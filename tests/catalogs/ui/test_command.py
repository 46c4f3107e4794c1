"""How commands end: one line for what a user can mend, a traceback for what only we can."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys

import pytest
import typer

from catalogs.ui.entry_point import Interrupted, run_command
from catalogs.ui.interrupts import interrupts_held


def _importing(name: str) -> object:
    def command(*_: object, **__: object) -> None:
        importlib.import_module(name)

    return command


def test_a_package_that_is_not_installed_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("calibrate", _importing("no_such_package.part")) == 2  # type: ignore[arg-type]
    (line,) = capsys.readouterr().err.splitlines()
    assert "not installed: no_such_package; pip install" in line


def test_a_module_of_ours_that_is_not_there_is_our_fault() -> None:
    with pytest.raises(ModuleNotFoundError):
        run_command("calibrate", _importing("catalogs.no_such_module"))  # type: ignore[arg-type]


def test_told_to_end_is_interrupted_and_handlers_are_given_back(capsys: pytest.CaptureFixture[str]) -> None:
    def terminate(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    assert run_command("plan", terminate) == 130
    assert capsys.readouterr().err == "plan: interrupted\n"
    assert signal.getsignal(signal.SIGTERM) is before


PRINTS = """
import sys
from catalogs.ui.entry_point import run_command
sys.exit(run_command("plan", lambda *_, **__: print("x" * int(sys.argv[1]))))
"""


@pytest.mark.parametrize("n_bytes", [10, 100_000])  # found when the buffer is written at the end, and before
def test_a_full_disk_behind_the_output_is_one_line(n_bytes: int) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", PRINTS, str(n_bytes)], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (2, "plan: cannot write the output: No space left on device\n")


def test_an_interrupted_typer_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    app = typer.Typer()

    @app.command()
    def stop() -> None:
        raise KeyboardInterrupt

    assert run_command("simulate", app, []) == 130
    assert capsys.readouterr().err == "simulate: interrupted\n"

    def keep(*_: object, **__: object) -> None:
        raise Interrupted("; the rest is kept")

    assert run_command("plan", keep) == 130
    assert capsys.readouterr().err == "plan: interrupted; the rest is kept\n"


def test_an_interrupt_is_held_back_until_the_end_of_the_block() -> None:
    done = []

    def command(*_: object, **__: object) -> None:
        with interrupts_held():
            with interrupts_held():
                os.kill(os.getpid(), signal.SIGTERM)
                done.append("inner")
            done.append("outer")
        done.append("never")

    assert run_command("plan", command) == 130
    assert done == ["inner", "outer"]


def test_what_is_ignored_stays_ignored() -> None:
    """nohup: the terminal may close."""

    def hung_up(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGHUP)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run_command("plan", hung_up) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
