"""Hostile files and arguments through the commands: the exit status is documented, and never that of a crash."""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.mutations import HOSTILE_TEXTS, hostile_file
from tests.fuzz.readers import CLIENTS, CORPUS, TRACES

BIN = Path(sys.executable).parent
#: Statuses that are documented for a command that was not interrupted and whose output could be written.
STATUSES = {0, 1, 2}
#: Seconds that a command may take, start of the interpreter and simulation of three requests included.
LONGEST_S = 60.0

SIMULATE = ("simulate", "{file}", "--workload", "chat", "--requests", "3", "--json", "{out}")
SERVE = ("simulate", str(CORPUS / "small.yaml"), "--workload", "{file}", "--requests", "3", "--requests-out", "{out}")
ANSWER = str(CORPUS / "answer.json")
REFUSED = ("--slo", "p99=1us", "--hw", "l40s", "--rate", "1")

#: Commands that read one file, and the valid files.
FILES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (SIMULATE, ("small.yaml", "deployment.yaml", "pools.yaml", "disaggregated.yaml", "speculative.yaml")),
    (SERVE, ("workload.yaml", "sessions.yaml", "rates.yaml", *TRACES)),
    (("catalog", "show", "models", "{file}"), ("dense.config.json", "moe.config.json", "hybrid.config.json")),
    (("plan", "{file}", "--hw", "h100x9"), ("scenario.yaml", "scenario.json")),  # refused once the file is read
    (("plan", "compare", "{file}", ANSWER), ("answer.json", "refusal.json")),
    (("plan", "explain", "{file}"), ("refusal.json",)),
    (("plan", "deploy", "{file}", "--target", "vllm", "--out", "{out}"), ("answer.json",)),
    (("plan", "verify", ANSWER, "--results", "{file}"), tuple(f"{client}.result.json" for client in CLIENTS)),
    (("calibrate", "import", "--steps", "{file}", "--out", "{out}"), ("forward.steps.json", "server.steps.log")),
)

#: Commands in which one argument is replaced by a hostile text.
ARGUMENTS: tuple[tuple[str, ...], ...] = (
    ("plan", "--model", "llama3.2-1b", *REFUSED, "--objective", "cost", "--engine", "vllm", "--price", "3"),
    ("plan", "--model", "llama3.2-1b", *REFUSED, "--set", "kv_dtype=fp8", "--precision", "native", "--seed", "1"),
    ("plan", "whatif", ANSWER, "--rate", "x2", "--set", "kv_dtype=fp8"),
    ("plan", "spares", ANSWER, "--mtbf", "30d", "--restart", "10min"),
    ("simulate", str(CORPUS / "small.yaml"), "--workload", "chat", "--rate", "2", "--requests", "3", "--seed", "1"),
    ("simulate", str(CORPUS / "small.yaml"), "--workload", "chat", "--requests", "3", "--router", "random"),
    ("catalog", "list", "models", "--match", "llama"),
    ("catalog", "show", "hardware", "h100x8"),
    ("calibrate", "show", "h100"),
    ("calibrate", "validate", "h100", "--max-error", "0.2"),
)

#: Commands with a path or a name for which they look in folders.
PATHS: tuple[tuple[str, ...], ...] = (
    ("catalog", "show", "models", "{path}"),
    ("catalog", "show", "networks", "{path}"),
    ("simulate", "{path}", "--workload", "chat"),
    ("plan", "--model", "llama3.2-1b", *REFUSED, "--study", "{path}"),
    ("plan", "--model", "llama3.2-1b", *REFUSED, "--json", "{path}"),
    ("plan", "--model", "{path}", *REFUSED),
    ("plan", "deploy", ANSWER, "--target", "vllm", "--out", "{path}"),
    ("plan", "serve", "--endpoints", "{path}", "--store", "sqlite:///jobs.sqlite", "--port", "0"),
    ("calibrate", "show", "{path}"),
    ("calibrate", "validate", "{path}"),
    ("calibrate", "export", "{path}", "--out", "out"),
    ("calibrate", "export", "h100", "--out", "{path}"),
    ("calibrate", "diff", "{path}", "{path}"),
    ("calibrate", "fit", "{path}", "--out", "out"),
    ("calibrate", "import", "--bundle", "{path}"),
    ("calibrate", "models", "--predict-only", "{path}"),
    ("calibrate", "report", "{path}", "--html", "page.html"),
)


def run(words: list[str], folder: Path) -> tuple[int, str]:
    """Run a command as users do."""
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "XDG_DATA_HOME": str(folder / "data")}
    done = subprocess.run(
        [str(BIN / words[0]), *words[1:]],
        capture_output=True,
        timeout=LONGEST_S,
        env=environment,
        cwd=folder,
        check=False,
    )
    return done.returncode, done.stderr.decode(errors="replace")


def run_here(words: list[str], folder: Path) -> tuple[int, str]:
    """Run a command in this process, through the same entry point."""
    from catalogs.cli.main import app as catalog
    from catalogs.ui.entry_point import run_command
    from planner.main import app as plan
    from simulator.cli.main import app as simulate
    from simulator.verify.command import app as calibrate

    del folder
    apps = {"plan": plan, "simulate": simulate, "catalog": catalog, "calibrate": calibrate}
    out, err = io.StringIO(), io.StringIO()
    signal.alarm(int(LONGEST_S))
    try:
        with redirect_stdout(out), redirect_stderr(err):
            return run_command(words[0], apps[words[0]], words[1:]), err.getvalue()
    finally:
        signal.alarm(0)


def check(words: list[str], folder: Path, runner: Callable[[list[str], Path], tuple[int, str]]) -> None:
    status, err = runner(words, folder)
    assert status in STATUSES, f"{words}: {status}, {err[-2000:]}"
    assert "Traceback" not in err, err[-2000:]
    if status == 2:
        last = err.splitlines()[-1]
        assert last.startswith(f"{words[0]}: "), err[-2000:]


def file_case(choice: random.Random, folder: Path, runner: Callable[[list[str], Path], tuple[int, str]]) -> None:
    """Run a command with a hostile variant of one of its files."""
    command, examples = choice.choice(FILES)
    name = choice.choice(examples)
    contents: list[bytes] = []

    @seed(choice.randrange(2**32))
    @settings(
        max_examples=3, deadline=None, database=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck)
    )
    @given(hostile_file((CORPUS / name).read_bytes()), st.integers())
    def draw(content: bytes, _number: int) -> None:
        contents.append(content)

    draw()
    path = folder / f"hostile-{name}"
    path.write_bytes(contents[-1])
    out = folder / f"out-{choice.randrange(10**9)}"
    check([word.format(file=path, out=out) for word in command], folder, runner)


def argument_case(choice: random.Random, folder: Path, runner: Callable[[list[str], Path], tuple[int, str]]) -> None:
    """Run a command with one hostile argument."""
    words = list(choice.choice(ARGUMENTS))
    words[choice.randrange(1, len(words))] = choice.choice(HOSTILE_TEXTS).replace("\0", "")
    check(words, folder, runner)


@pytest.fixture
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_STATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", [command for command, _ in FILES], ids=lambda command: "-".join(command[:2]))
def test_every_command_refuses_a_file_that_is_not_text(command: tuple[str, ...], own_folders: Path) -> None:
    path = own_folders / "file"
    path.write_bytes(b"\xff\xfe\x00\x01")
    words = [word.format(file=path, out=own_folders / "out") for word in command]
    status, err = run_here(words, own_folders)
    assert status == 2, err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("command", PATHS, ids=lambda command: "-".join(word for word in command[:4] if word[0] != "{"))
@pytest.mark.parametrize("path", ["9" * 5000, "file/of/a/file"], ids=["long", "below a file"])
def test_every_command_refuses_a_path_that_cannot_exist(command: tuple[str, ...], path: str, own_folders: Path) -> None:
    (own_folders / "file").touch()
    status, err = run_here([word.format(path=path) for word in command], own_folders)
    assert status == 2, err
    assert len(err.splitlines()[-1]) < 1000


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_hostile_files_and_arguments_through_the_commands(
    part: int, own_folders: Path, request: pytest.FixtureRequest
) -> None:
    """Three cases of five change a file, two an argument."""
    cases, start = request.config.getoption("--fuzz-cases") // 100, request.config.getoption("--fuzz-seed")
    choice = random.Random(f"{start} {part}")
    for i in range(part, cases, 20):
        (file_case if i // 20 % 5 < 3 else argument_case)(choice, own_folders, run)
