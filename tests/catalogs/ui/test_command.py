"""How commands end: one line for what a user can mend, a traceback for what only we can."""

from __future__ import annotations

import importlib
import os
import signal

import pytest

from catalogs.ui.entry_point import run_command


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


def test_what_is_ignored_stays_ignored() -> None:
    """nohup: the terminal may close."""

    def hung_up(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGHUP)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run_command("plan", hung_up) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
