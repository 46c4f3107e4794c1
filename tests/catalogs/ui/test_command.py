"""How commands end: one line for what a user can mend, a traceback for what only we can."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest
import typer

from catalogs.cli.main import app
from catalogs.ui.crash_report import KEPT_REPORTS, write_crash_report
from catalogs.ui.entry_point import INTERNAL_ERROR, OUTPUT_ERROR, Interrupted, run_command
from catalogs.ui.interrupts import interrupts_held


def _importing(name: str) -> object:
    def command(*_: object, **__: object) -> None:
        importlib.import_module(name)

    return command


def test_a_package_that_is_not_installed_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("calibrate", _importing("no_such_package.part")) == 2  # type: ignore[arg-type]
    (line,) = capsys.readouterr().err.splitlines()
    assert "not installed: no_such_package; pip install" in line


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "a command is needed; nearest valid choice: catalog COMMAND"),
        (["lst"], "there is no such command: got 'lst'; nearest valid choice: list"),
        (["zzz"], "there is no such command: got 'zzz'; hint: `catalog --help` lists all"),
    ],
)
def test_a_missing_or_misspelled_command_is_one_line(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command("catalog", app, words) == 2
    assert capsys.readouterr().err == f"catalog: {says}\n"


def _raising(error: BaseException) -> object:
    def command(*_: object, **__: object) -> None:
        raise error

    return command


SCRIPTS = tomllib.loads((Path(__file__).resolve().parents[3] / "pyproject.toml").read_text())["project"]["scripts"]


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize(("name", "target"), SCRIPTS.items())
def test_every_console_script_ends_a_crash_with_its_status(
    name: str, target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module_name, _, function = target.partition(":")
    start = getattr(importlib.import_module(module_name), function)
    monkeypatch.setitem(start.__globals__, "app", _raising(ValueError("planted")))
    monkeypatch.setattr(sys, "argv", [name, "show", "x"])
    with pytest.raises(SystemExit) as ended:
        start()
    assert ended.value.code == INTERNAL_ERROR
    assert capsys.readouterr().err.startswith(f"{name}: internal error (ValueError: planted)")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of state files; the crash reports are below it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    "error",
    [
        *(ValueError("two\nlines"), RecursionError(), KeyError("k"), OverflowError(), AssertionError("a" * 9999)),
        *(OSError(13, "Permission denied"), ZeroDivisionError("\ud800"), StopIteration(), NotImplementedError()),
    ],
    ids=lambda e: type(e).__name__,
)
def test_a_crash_is_one_line_that_names_the_file_of_its_traceback(
    error: BaseException, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command("plan", _raising(error), ["--rate", "1"]) == INTERNAL_ERROR == 70  # type: ignore[arg-type]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"plan: internal error ({type(error).__name__}")
    assert len(line) < 600
    (report,) = state.glob("**/*.txt")
    assert line.endswith(str(report))
    text = report.read_text(encoding="utf-8")
    assert text.startswith("plan --rate 1\n")
    assert "Traceback (most recent call last)" in text
    assert "in command" in text


def test_a_module_of_ours_that_is_not_there_is_an_internal_error(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command("calibrate", _importing("catalogs.no_such_module"), []) == 70  # type: ignore[arg-type]
    assert "ModuleNotFoundError" in capsys.readouterr().err
    assert len(list(state.glob("**/*.txt"))) == 1


def test_reports_go_elsewhere_where_the_state_folder_cannot_be_written(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (state / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(state / "file"))
    assert run_command("plan", _raising(ValueError("x")), []) == 70  # type: ignore[arg-type]
    (report,) = state.glob("plan-*.txt")
    assert capsys.readouterr().err.strip().endswith(str(report))


def test_old_reports_are_removed(state: Path) -> None:
    folder = state / "state" / "llm-capacity-planner" / "crashes"
    folder.mkdir(parents=True)
    for i in range(50):
        (folder / f"plan-old-{i}.txt").touch()
        os.utime(folder / f"plan-old-{i}.txt", (i, i))
    path = write_crash_report("plan", [], ValueError("x"))
    kept = sorted(file.name for file in folder.iterdir())
    assert path is not None
    assert len(kept) == KEPT_REPORTS
    assert path.name in kept
    assert "plan-old-0.txt" not in kept


CODE = """
import sys
from catalogs.ui.entry_point import run_command
def command(*_, **__):
    {body}
sys.exit(run_command("plan", command, []))
"""


def _process(body: str, redirect: str) -> tuple[int, str]:
    """Return the exit status and stderr of a command whose output a shell redirects."""
    code = CODE.format(body=body)
    shell = ["bash", "-o", "pipefail", "-c", f'"$0" -c "$1" {redirect}', sys.executable, code]
    done = subprocess.run(shell, capture_output=True, text=True)
    return done.returncode, done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full on this system")
@pytest.mark.parametrize("body", ["print('x')", "print('x' * 100_000)", "sys.stdout.write('x'); sys.stdout.flush()"])
def test_a_full_output_is_one_line_and_its_own_status(body: str) -> None:
    status, err = _process(body, ">/dev/full")
    assert status == OUTPUT_ERROR == 74
    assert err == "plan: cannot write the output: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full on this system")
def test_a_full_output_file_has_the_same_status(capsys: pytest.CaptureFixture[str]) -> None:
    status = run_command("catalog", typer.main.get_command(app), ["list", "models", "--json", "/dev/full"])
    assert status == OUTPUT_ERROR
    assert capsys.readouterr().err == "catalog: cannot write /dev/full: No space left on device\n"


@pytest.mark.parametrize("body", ["print('x' * 1_000_000)", "print('x')"])
def test_a_closed_pipe_is_silent(body: str) -> None:
    assert _process(body, "| true") == (0, "")


def test_closed_streams_are_no_crash() -> None:
    assert _process("print('x'); print('y', file=sys.stderr)", ">&- 2>&-") == (0, "")


def test_text_that_the_locale_cannot_show_is_printed_as_escapes() -> None:
    code = CODE.format(body="print(chr(0xdc80) + chr(0xe9))")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (0, "\\udc80\\xe9\n")


def test_told_to_end_is_interrupted_and_handlers_are_given_back(capsys: pytest.CaptureFixture[str]) -> None:
    def terminate(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGTERM)  # to this thread: another one may receive it later

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
    assert (done.returncode, done.stderr) == (OUTPUT_ERROR, "plan: cannot write the output: No space left on device\n")


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


INTERRUPTED_TWICE = """
import atexit, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores Ctrl-C
from catalogs.ui import entry_point
atexit.register(lambda: os.kill(os.getpid(), signal.{when_ending}))
show = entry_point.show_on_stderr
entry_point.show_on_stderr = lambda line: (os.kill(os.getpid(), signal.SIGINT), show(line))
sys.exit(entry_point.run_command("plan", lambda *_, **__: os.kill(os.getpid(), signal.SIGINT), last=True))
"""


@pytest.mark.parametrize("when_ending", ["SIGINT", "SIGTERM"])
def test_further_signals_at_the_end_change_neither_the_line_nor_the_status(when_ending: str) -> None:
    """One arrives before the line is written, one in the hooks that Python runs as it ends."""
    code = INTERRUPTED_TWICE.format(when_ending=when_ending)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "plan: interrupted\n")


INTERRUPTED_AT_THE_END = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from catalogs.ui import entry_point
class Late:
    def __del__(self, kill=os.kill, own=os.getpid(), write=os.write):
        kill(own, signal.{when_ending})
        write(1, b"after")
late = Late()
sys.exit(entry_point.run_command("plan", lambda *_, **__: os.kill(os.getpid(), signal.SIGINT), last=True))
"""


@pytest.mark.parametrize("when_ending", ["SIGINT", "SIGTERM"])
def test_a_signal_while_python_frees_its_modules_changes_nothing(when_ending: str) -> None:
    """By then Python has given every signal with a handler back to the system."""
    code = INTERRUPTED_AT_THE_END.format(when_ending=when_ending)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "after", "plan: interrupted\n")


INTERRUPTED_IN_EXEC = """
import sys
from catalogs.ui.entry_point import run_command
sys.exit(run_command("plan", lambda *_, **__: exec("raise KeyboardInterrupt"), last=True))
"""


def test_an_interrupt_while_a_text_is_executed_ends_with_the_same_status(tmp_path: Path) -> None:
    """As in the making of a dataclass: CPython then ends a process by SIGINT, although it has handled the interrupt."""
    (tmp_path / "interrupted.py").write_text(INTERRUPTED_IN_EXEC)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])])}
    command = [sys.executable, "-m", "interrupted"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (130, "plan: interrupted\n")


def test_an_interrupt_is_held_back_until_the_end_of_the_block() -> None:
    done = []

    def command(*_: object, **__: object) -> None:
        with interrupts_held():
            with interrupts_held():
                signal.raise_signal(signal.SIGTERM)  # to this thread: another one may receive it later
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


def test_a_missing_argument_is_one_line_with_the_form_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("catalog", app, ["show", "hardware"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "Missing argument" in line
    assert line.endswith("; nearest valid choice: catalog show KIND NAME")
